package exchange

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
)

// imageNames yields names like those of ImageNet, in order.
func imageNames(classes, files int) iter.Seq[string] {
	return func(yield func(string) bool) {
		for c := range classes {
			for f := range files {
				if !yield(fmt.Sprintf("train/n%08d/n%08d_%06d.JPEG", 1440764+3*c, 1440764+3*c, 7*f)) {
					return
				}
			}
		}
	}
}

func TestList(t *testing.T) {
	long := strings.Repeat("long/", 200)
	for _, names := range [][]string{
		nil, {"a"}, {"a", "aa", "ab", "b"}, {"\x01", "\xff\xfe", "\xff\xff"}, {long + "1", long + "2", long + "20"},
		slices.Collect(imageNames(3, 16)), slices.Collect(imageNames(7, 11)),
	} {
		l, err := NewList(slices.Values(names))
		if err != nil {
			t.Fatal(err)
		}
		if l.Len() != len(names) {
			t.Fatalf("%d names; want %d", l.Len(), len(names))
		}
		for i, name := range names {
			if got := l.Name(i); got != name {
				t.Errorf("name %d is %q; want %q", i, got, name)
			}
			if got, ok := l.Find(name); got != i || !ok {
				t.Errorf("%q has number %d, %v; want %d", name, got, ok, i)
			}
			for _, other := range []string{name + "x", name[:len(name)-1], "\x00" + name} {
				if _, ok := l.Find(other); ok != slices.Contains(names, other) {
					t.Errorf("%q is in the list: %v", other, ok)
				}
			}
		}
	}
}

func TestListIsInOrder(t *testing.T) {
	for _, names := range [][]string{{""}, {"b", "a"}, {"a", "a"}, {"a", "b", ""}} {
		if _, err := NewList(slices.Values(names)); err == nil {
			t.Errorf("%q is accepted", names)
		}
	}
}

func FuzzList(f *testing.F) {
	f.Add("a\x00ab\x00b", "ab")
	f.Add(strings.Repeat("abc\x00abd\x00", 20), "abe")
	f.Fuzz(func(t *testing.T, text, other string) {
		names := strings.Split(text, "\x00")
		slices.Sort(names)
		names = slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
		l, err := NewList(slices.Values(names))
		if err != nil {
			t.Fatal(err)
		}
		for i, name := range names {
			if got, ok := l.Find(name); got != i || !ok || l.Name(i) != name {
				t.Fatalf("%q: %d, %v; %q", name, got, ok, l.Name(i))
			}
		}
		if _, ok := l.Find(other); ok != slices.Contains(names, other) {
			t.Fatalf("%q is in %q: %v", other, names, ok)
		}
	})
}

// BenchmarkList measures the memory of a list, and the time to find a name.
func BenchmarkList(b *testing.B) {
	l, err := NewList(imageNames(1000, 1300))
	if err != nil {
		b.Fatal(err)
	}
	i := 0
	for b.Loop() {
		i = (i + 7919) % l.Len()
		if n, ok := l.Find(l.Name(i)); n != i || !ok {
			b.Fatal(n, ok)
		}
	}
	b.ReportMetric(float64(len(l.text)+4*len(l.blocks))/float64(l.Len()), "B/name")
	b.ReportAllocs()
}
