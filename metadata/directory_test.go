package metadata

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// A directory behaves like a map, and the slices that all returns do not change.
func TestDirectoryIsAMap(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3))
		d, model := new(directory), make(map[string]*Entry)
		var returned, wanted [][]*Entry
		fresh := func() *Entry { return named(fmt.Sprint(rng.IntN(20)), nil) }
		for range 100 {
			switch rng.IntN(8) {
			case 0:
				var all []*Entry
				now := make(map[string]*Entry)
				for range rng.IntN(20) {
					e := fresh()
					if old := model[e.Name()]; old != nil && rng.IntN(2) == 0 {
						e = old
					}
					if now[e.Name()] == nil {
						now[e.Name()] = e
						all = append(all, e)
					}
				}
				after := uint32(rng.IntN(3))
				var others, none []*Entry
				for name, e := range model {
					switch {
					case now[name] == nil && e.validated.Load() > after:
						now[name] = e
					case now[name] == nil:
						none = append(none, e)
					case now[name] != e:
						others = append(others, e)
					}
				}
				replaced, lacking := d.replace(all, after)
				sortByName(others)
				sortByName(none)
				if !slices.Equal(replaced, others) || !slices.Equal(lacking, none) {
					t.Fatalf("seed %d: replace returned %d and %d entries, want %d and %d", seed, len(replaced), len(lacking), len(others), len(none))
				}
				model = now
			case 1, 2:
				e := fresh()
				d.delete(e.Name())
				delete(model, e.Name())
			case 3:
				got := d.all()
				want := slices.SortedFunc(maps.Values(model), func(a, b *Entry) int { return strings.Compare(a.Name(), b.Name()) })
				if !slices.Equal(got, want) {
					t.Fatalf("seed %d: got %d entries, want %d", seed, len(got), len(want))
				}
				returned, wanted = append(returned, got), append(wanted, want)
			default:
				e := fresh()
				e.validated.Store(uint32(rng.IntN(4)))
				d.put(e)
				model[e.Name()] = e
			}
			for i := range 20 {
				if name := fmt.Sprint(i); d.get(name) != model[name] {
					t.Fatalf("seed %d: wrong entry of %s", seed, name)
				}
			}
		}
		for i := range returned {
			if !slices.Equal(returned[i], wanted[i]) {
				t.Fatalf("seed %d: a slice that all returned has changed", seed)
			}
		}
	}
}

// Names that are put in random order are returned in order.
func TestDirectoryGrows(t *testing.T) {
	const n = 20_000
	d := new(directory)
	for _, i := range rand.Perm(n) {
		d.put(named(fmt.Sprintf("%08d", i), nil))
	}
	if got := len(d.extra); got*got > 2*n {
		t.Errorf("%d names are not merged", got)
	}
	for i, e := range d.all() {
		if want := fmt.Sprintf("%08d", i); e.Name() != want {
			t.Fatalf("got %s, want %s", e.Name(), want)
		}
	}
}
