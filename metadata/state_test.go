package metadata

import (
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/tiers"
)

// Of thousands of concurrent calls of Claim, one succeeds.
func TestClaim(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.source.Put("f", []byte("x"))
	e := w.get(t, "f")
	for round := range 3 {
		var winners atomic.Int64
		var wg sync.WaitGroup
		for range 2000 {
			wg.Go(func() {
				if e.Claim() {
					winners.Add(1)
				}
			})
		}
		wg.Wait()
		if got := winners.Load(); got != 1 || !e.Claimed() {
			t.Errorf("round %d: %d claims succeeded, want 1", round, got)
		}
		e.Release()
	}
	if !e.Claim() {
		t.Error("Claim failed after Release")
	}
	e.Publish(2)
	if e.Claim() || e.Claimed() || e.Level() != 2 {
		t.Errorf("after Publish: level %d, claimed %v", e.Level(), e.Claimed())
	}
}

func TestNothingToClaim(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.source.Put("empty", nil)
	w.source.Mkdir("dir")
	w.source.Symlink("empty", "link")
	w.source.Special("pipe", syscall.S_IFIFO)
	w.source.Put("gone", []byte("x"))
	w.Changed(w.get(t, "gone"))
	for _, name := range []string{".", "empty", "dir", "link", "pipe"} {
		if w.get(t, name).Claim() {
			t.Errorf("%s: claimed", name)
		}
	}
}

// Of thousands of concurrent calls of Demote, one reports true.
func TestDemote(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.source.Put("f", []byte("x"))
	e := w.get(t, "f")
	e.Publish(1)
	if e.Demote(2) || e.Level() != 1 {
		t.Error("Demote succeeded for a level without a copy")
	}
	var reported atomic.Int64
	var wg sync.WaitGroup
	for range 2000 {
		wg.Go(func() {
			if e.Demote(1) {
				reported.Add(1)
			}
		})
	}
	wg.Wait()
	if got := reported.Load(); got != 1 || e.Level() != tiers.AtSource || !e.Unverified() {
		t.Errorf("%d calls reported true, level %d; want 1, the source", got, e.Level())
	}
	e.Publish(1)
	w.Changed(e)
	if e.Demote(1) || e.Level() != tiers.AtSource {
		t.Error("Demote of a stale entry reported true")
	}
}

func TestSkip(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.source.Put("f", []byte("x"))
	e := w.get(t, "f")
	if !e.Skip() || e.Skip() {
		t.Error("the first Skip must report true, the second false")
	}
	e.Publish(1)
	if !e.Skip() {
		t.Error("Skip did not report true after Publish")
	}
}

// The methods that a read of an open file uses take no lock.
func TestLevelTakesNoLock(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.source.Put("d/f", []byte("x"))
	e := w.get(t, "d/f")
	for d := e.Parent(); ; d = d.Parent() {
		d.dir.mu.Lock()
		defer d.dir.mu.Unlock()
		if d == w.Root() {
			break
		}
	}
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		got := w.Get(e.ID())
		got.Claim()
		got.Publish(1)
		if got.Level() != 1 || got.Path() != "d/f" || got.Size() != 1 || got.Stale() {
			t.Errorf("got level %d of %s", got.Level(), got.Path())
		}
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("a method waits for a lock")
	}
}
