package metadata

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestWalk(t *testing.T) {
	w := newWorld(t, time.Hour)
	for _, name := range []string{"b/c/d", "a", "b/a", "z"} {
		w.source.Put(name, []byte("x"))
	}
	w.source.Symlink("a", "l")
	var got []string
	walk := func(e *Entry, err error) error {
		if err != nil {
			got = append(got, "("+err.Error()+")")
			return nil
		}
		got = append(got, e.Path())
		return nil
	}
	if err := w.Walk(bg, []*Entry{w.Root()}, walk); err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if got, want := strings.Join(got, " "), ". a b b/a b/c b/c/d l z"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if err := w.Walk(bg, []*Entry{w.Root()}, func(*Entry, error) error { return syscall.EINTR }); err != syscall.EINTR {
		t.Errorf("got %v, want the error of the function", err)
	}
	// A directory that is removed during the walk is skipped.
	dir := w.get(t, "b")
	if err := w.Walk(bg, []*Entry{dir}, func(*Entry, error) error { w.Changed(dir); return nil }); err != nil {
		t.Errorf("a directory that was removed: got %v", err)
	}
}

// Index and Siblings follow the order of the names, and Index excludes stale entries.
func TestSiblings(t *testing.T) {
	inBubble(t, time.Second, func(t *testing.T, w *world) {
		for _, name := range []string{"d/c", "d/a", "d/e", "d/b"} {
			w.source.Put(name, []byte("x"))
		}
		b := w.get(t, "d/b")
		if i, listed := w.Index(b); listed {
			t.Errorf("before a list: got position %d, want none", i)
		}
		w.list(t, "d")
		time.Sleep(time.Second)
		for want, name := range []string{"d/a", "d/b", "d/c", "d/e"} {
			if got, listed := w.Index(w.get(t, name)); got != want || !listed {
				t.Errorf("%s: got %d, %v, want %d", name, got, listed, want)
			}
		}
		for _, c := range []struct {
			from, n int
			want    string
		}{
			{0, 2, "a b"}, {1, 2, "b c"}, {2, 10, "c e"}, {4, 1, ""}, {9, 1, ""}, {0, 0, ""}, {-1, 1, "a"}, {0, -1, ""},
		} {
			if got := names(w.Siblings(b, c.from, c.n, 1)); got != c.want {
				t.Errorf("%d from %d: got %q, want %q", c.n, c.from, got, c.want)
			}
		}
		w.Changed(b)
		if _, listed := w.Index(b); listed {
			t.Error("a stale entry has a position")
		}
		if i, listed := w.Index(w.get(t, "d/c")); i != 1 || !listed {
			t.Errorf("after b is removed: got %d, %v, want 1", i, listed)
		}
		if _, listed := w.Index(w.Root()); listed || w.Siblings(w.Root(), 0, 1, 1) != nil {
			t.Error("the root has siblings")
		}
	})
}
