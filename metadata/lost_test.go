package metadata

import (
	"errors"
	"io/fs"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// lostGeneration deletes v1, the current generation, of which e, v1/d/f, is cached, and all of which has a TTL
// of a minute.
func lostGeneration(t *testing.T, w *world, e *Entry) {
	collect(t, w)
	w.list(t, ".")
	w.source.Delete("v1")
	again := func() { time.Sleep(time.Minute) }
	stays := func(after string) {
		t.Helper()
		again()
		if now, err := w.Resolve(bg, "v1/d/f"); now != e || e.Stale() {
			t.Errorf("after %s: the file is another one: %v", after, err)
		}
		again()
		if got := w.list(t, "v1/d"); got != "f" {
			t.Errorf("after %s: v1/d lists %q", after, got)
		}
	}
	stays("the removal")
	if !w.GenerationLost() {
		t.Error("the container does not know that the generation is lost")
	}
	again()
	for _, name := range []string{"v1/d/none", "v1/none"} {
		if _, err := w.Resolve(bg, name); !errors.Is(err, syscall.ESTALE) {
			t.Errorf("%s, which is not cached: %v, want ESTALE", name, err)
		}
	}
	for _, err := range []error{fs.ErrNotExist, drivers.ErrChanged} {
		if got := w.Failed(bg, e, err); !errors.Is(got, syscall.ESTALE) || errors.Is(got, err) {
			t.Errorf("an open that has failed with %v: %v, want ESTALE", err, got)
		}
	}
	stays("an open")
	if err := w.Revalidate(bg, []string{"v1/d"}, func(Finding) {}); !errors.Is(err, ErrSource) {
		t.Errorf("Revalidate: %v, want %v", err, ErrSource)
	}
	if err := w.Revalidate(bg, []string{"."}, func(f Finding) {
		if f.Change == Removed {
			t.Errorf("Revalidate has found %+v", f)
		}
	}); err != nil {
		t.Error(err)
	}
	stays("Revalidate")
	if all, err := w.Generations(bg); err != nil || names(all) != "v2 v3" {
		t.Errorf("the source has the generations %s, %v", names(all), err)
	}
	stays("a listing of the root")
	if before, err := w.Switch(bg, "v2"); err != nil || before.Path() != "v1" || w.GenerationLost() {
		t.Errorf("after the switch: %v, %v", before.Path(), err)
	}
	again()
	wantMissing(t, w, "v1/d/f")
	if !e.Stale() {
		t.Error("the file is not stale after the switch")
	}
}

// The names of the current generation stay when the source has lost its directory, and go after a switch.
func TestLostGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newGenerations(t)
		w.ttl = time.Minute
		e := w.get(t, "v1/d/f")
		w.list(t, "v1/d")
		lostGeneration(t, w, e)
	})
}

// A bucket has lost a generation when it has no key below it.
func TestLostGenerationInBucket(t *testing.T) {
	inBucket(t, time.Minute, 0, 10, func(t *testing.T, w *bucketWorld) {
		for _, name := range []string{"v1/d/f", "v2/d/f", "v3/d/f"} {
			w.source.Put(name, []byte(name))
		}
		if err := w.useGeneration(bg, "v1"); err != nil {
			t.Fatal(err)
		}
		e := w.get(t, "v1/d/f")
		lostGeneration(t, w.world, e)
	})
}

// A generation that comes back to the source is as before.
func TestGenerationIsBack(t *testing.T) {
	w := newGenerations(t)
	w.ttl = 0
	w.get(t, "v1/d/f")
	w.source.Delete("v1")
	e := w.get(t, "v1/d/f")
	if !w.GenerationLost() {
		t.Error("the generation is not lost")
	}
	w.source.Put("v1/d/f", []byte("another version"))
	if now := w.get(t, "v1/d/f"); w.GenerationLost() || now == e || !e.Stale() {
		t.Error("the generation is still lost, or its file is the old one")
	}
	wantMissing(t, w, "v1/d/none")
}

// Revalidate does not forget the names in the metadata snapshot of a generation that is lost.
func TestRevalidateKeepsSnapshotOfLostGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newGenerations(t)
		collect(t, w)
		w.list(t, ".")
		w.Top().dir.snapshot.Store(new(extent))
		w.source.Delete("v1")
		if got, _ := w.revalidate(t, "."); got != "failed v1" {
			t.Errorf("found: %s", got)
		}
		if w.Top().dir.snapshot.Load() == nil {
			t.Error("the names are forgotten")
		}
	})
}
