package metadata

import (
	"errors"
	"io/fs"
	"slices"
	"syscall"
	"testing"
	"time"
)

// newGenerations returns a world with the generations v1, v2 and v3, of which v1 is the current one.
func newGenerations(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, time.Hour)
	for _, name := range []string{"v1/d/f", "v1/g", "v2/d/f", "v3/d/f", "beside"} {
		w.source.Put(name, []byte(name))
	}
	if err := w.useGeneration(bg, "v1"); err != nil {
		t.Fatal(err)
	}
	return w
}

// Inside and Outside are the inverse of each other.
func TestInside(t *testing.T) {
	w := newGenerations(t)
	for _, test := range []struct{ outside, inside string }{
		{".", "v1"}, {"d/f", "v1/d/f"}, {"v1", "v1/v1"}, {".generations", "."}, {".generations/v2", "v2"},
		{".generations/v2/d/f", "v2/d/f"}, {"d/.generations", "v1/d/.generations"}, {".generationsX", "v1/.generationsX"},
	} {
		if got := w.Inside(test.outside); got != test.inside {
			t.Errorf("Inside(%q) = %q, want %q", test.outside, got, test.inside)
		}
		if got := w.Outside(test.inside); got != test.outside {
			t.Errorf("Outside(%q) = %q, want %q", test.inside, got, test.outside)
		}
	}
	if got := w.Inside(".generations/v1/g"); got != "v1/g" {
		t.Errorf("got %q, want the path in the current generation", got)
	}
	plain := newWorld(t, time.Hour)
	if got := plain.Inside("d/f") + plain.Outside("d/f") + plain.Inside("."); got != "d/fd/f." {
		t.Errorf("without generations, the names are %q", got)
	}
}

// Only the current generation is shown as the dataset.
func TestIsShown(t *testing.T) {
	w := newGenerations(t)
	for name, want := range map[string]bool{".": false, "beside": false, "v1": true, "v1/d": true, "v1/d/f": true, "v2/d/f": false} {
		if got := w.IsShown(w.get(t, name)); got != want {
			t.Errorf("%s is shown: %v, want %v", name, got, want)
		}
	}
	if _, err := w.Switch(bg, "v2"); err != nil || w.IsShown(w.get(t, "v1/d/f")) || !w.IsShown(w.get(t, "v2/d/f")) {
		t.Errorf("after a switch, the old one is shown, or the new one is not: %v", err)
	}
	if plain := newGenerations(t); plain.useGeneration(bg, "") != nil || !plain.IsShown(plain.Root()) || !plain.IsShown(plain.get(t, "v2/d/f")) {
		t.Error("without generations, something is not shown")
	}
}

// Switch replaces Top, and only by a directory of the root.
func TestSwitch(t *testing.T) {
	w := newGenerations(t)
	all, err := w.Generations(bg)
	if err != nil || len(all) != 3 || all[2].Name() != "v3" {
		t.Errorf("generations: %v, %v", all, err)
	}
	for name, want := range map[string]error{"v4": fs.ErrNotExist, "beside": syscall.ENOTDIR, "v1/d": syscall.EINVAL, ".": syscall.EINVAL, "": syscall.EINVAL} {
		if _, err := w.Switch(bg, name); !errors.Is(err, want) {
			t.Errorf("switch to %q: %v, want %v", name, err, want)
		}
	}
	if w.Generation() != "v1" || w.Top().Path() != "v1" {
		t.Errorf("the current generation is %q", w.Generation())
	}
	before, err := w.Switch(bg, "v2")
	if err != nil || before.Name() != "v1" || w.Generation() != "v2" || w.Top().Path() != "v2" {
		t.Errorf("after a switch from %v: %q, %v", before.Name(), w.Generation(), err)
	}
	if _, err := newWorld(t, time.Hour).Switch(bg, "v1"); !errors.Is(err, ErrNoGenerations) {
		t.Errorf("without generations: %v", err)
	}
}

// If the directory of the current generation is removed and made again, Top finds it when it has been
// looked up.
func TestTopAfterRemoval(t *testing.T) {
	w := newGenerations(t)
	old := w.Top()
	w.Changed(old)
	if w.Top() != old || !old.Stale() {
		t.Error("Top has changed without a lookup")
	}
	now, err := w.Resolve(bg, "v1")
	if err != nil || now == old || w.Top() != now {
		t.Errorf("Top is not the new directory: %v", err)
	}
}

// Held yields the files that the kernel has a node of.
func TestHeld(t *testing.T) {
	w := newGenerations(t)
	for _, name := range []string{"v1/d/f", "v1/g", "v2/d/f"} {
		e, err := w.Resolve(bg, name)
		if err != nil {
			t.Fatal(err)
		}
		w.Hold(e)
		w.Hold(e.Parent())
	}
	held := func() (names []string) {
		for e := range w.Held(w.Top()) {
			names = append(names, e.Path())
		}
		return names
	}
	if got := held(); !slices.Equal(got, []string{"v1/d/f", "v1/g"}) {
		t.Errorf("held are %q", got)
	}
	e, _ := w.Resolve(bg, "v1/g")
	w.Forget(e.ID(), 1)
	if got := held(); !slices.Equal(got, []string{"v1/d/f"}) {
		t.Errorf("held are %q", got)
	}
}

// A stale entry that gets a lookup count late, from a listing that was opened before, is not held for ever.
func TestStaleEntryIsNotHeld(t *testing.T) {
	w := newGenerations(t)
	e := w.get(t, "v1/d/f")
	w.Changed(w.Top())
	w.Hold(e)
	for e := range w.Held(w.Top()) {
		t.Errorf("%s is held, and Forget does not find it", e.Path())
	}
}
