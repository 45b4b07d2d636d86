package metadata

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/tiers"
)

// placeable returns an entry that can have copies and has none.
func placeable() *Entry {
	return makeEntry(nil, drivers.Info{Name: "f", Mode: syscall.S_IFREG, Size: 1}, 0)
}

// Each operation has its result and its next state in each state of an entry.
func TestState(t *testing.T) {
	const level = 1
	for _, c := range []struct {
		op   string
		call func(e *Entry) bool
		from uint32
		ok   bool
		to   uint32
	}{
		{"Claim", (*Entry).Claim, 0, true, claimed},
		{"Claim", (*Entry).Claim, unverified | skipped, true, claimed | unverified | skipped},
		{"Claim", (*Entry).Claim, claimed, false, claimed},
		{"Claim", (*Entry).Claim, stale, false, stale},
		{"Claim", (*Entry).Claim, level, false, level},

		{"Retract", func(e *Entry) bool { return e.Retract(1) }, level, true, claimed | unverified},
		{"Retract", func(e *Entry) bool { return e.Retract(1) }, level | skipped, true, claimed | unverified | skipped},
		{"Retract", func(e *Entry) bool { return e.Retract(1) }, level | stale, false, level | stale},
		{"Retract", func(e *Entry) bool { return e.Retract(1) }, level | claimed, false, level | claimed},
		{"Retract", func(e *Entry) bool { return e.Retract(1) }, 0, false, 0},
		{"Retract", func(e *Entry) bool { return e.Retract(1) }, claimed, false, claimed},
		{"Retract of another level", func(e *Entry) bool { return e.Retract(2) }, level, false, level},
		{"Retract of the source", func(e *Entry) bool { return e.Retract(tiers.AtSource) }, 0, false, 0},

		{"Demote", func(e *Entry) bool { return e.Demote(1) }, level, true, unverified},
		{"Demote", func(e *Entry) bool { return e.Demote(1) }, level | stale, false, stale | unverified},
		{"Demote", func(e *Entry) bool { return e.Demote(1) }, claimed | unverified, false, claimed | unverified},
		{"Demote of another level", func(e *Entry) bool { return e.Demote(2) }, level, false, level},

		{"Publish", func(e *Entry) bool { e.Publish(1); return true }, claimed | unverified | skipped, true, level},
		{"Publish", func(e *Entry) bool { e.Publish(1); return true }, claimed | stale, true, level | stale},
		{"Release", func(e *Entry) bool { e.Release(); return true }, claimed | unverified, true, unverified},
		{"Verified", func(e *Entry) bool { e.Verified(); return true }, claimed | unverified, true, claimed},
		{"Skip", (*Entry).Skip, 0, true, skipped},
		{"Skip", (*Entry).Skip, skipped, false, skipped},
	} {
		e := placeable()
		e.state.Store(c.from)
		if ok := c.call(e); ok != c.ok || e.state.Load() != c.to {
			t.Errorf("%s in state %#x: got %v, state %#x; want %v, %#x", c.op, c.from, ok, e.state.Load(), c.ok, c.to)
		}
	}
}

// Of thousands of concurrent calls of Retract, one succeeds. Until the claim ends, no other
// goroutine can claim, retract or demote the entry.
func TestRetract(t *testing.T) {
	e := placeable()
	if !e.Claim() {
		t.Fatal("Claim failed")
	}
	e.Publish(1)
	var winners atomic.Int64
	var wg sync.WaitGroup
	for range 2000 {
		wg.Go(func() {
			if e.Retract(1) {
				winners.Add(1)
			}
		})
		wg.Go(func() {
			if e.Claim() {
				t.Error("Claim succeeded")
			}
		})
	}
	wg.Wait()
	if got := winners.Load(); got != 1 || !e.Claimed() || e.Level() != tiers.AtSource || !e.Unverified() {
		t.Errorf("%d calls succeeded, want 1; claimed %v, level %d, unverified %v", got, e.Claimed(), e.Level(), e.Unverified())
	}
	if e.Retract(1) || e.Demote(1) {
		t.Error("the level was taken away twice")
	}
	e.Verified()
	e.Release()
	if !e.Claim() || e.Unverified() {
		t.Errorf("after Release: claimed %v, unverified %v; want true, false", e.Claimed(), e.Unverified())
	}
}

// Claim, Publish, Retract and Demote run concurrently on one entry. The entry has one owner
// at a time, the level is AtSource as long as it has one, and there is a copy on each
// level that an entry has.
func TestRetractRaces(t *testing.T) {
	p := &placed{e: placeable()}
	var wg sync.WaitGroup
	var stop atomic.Bool
	for i, step := range []func(*rand.Rand) error{p.fill, p.fill, p.fill, p.drop, p.drop, p.demote, p.read, p.read} {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(3, uint64(i)))
			for !stop.Load() {
				if err := step(rng); err != nil {
					t.Error(err)
					return
				}
				runtime.Gosched()
			}
		})
	}
	defer wg.Wait()
	defer stop.Store(true)
	time.Sleep(500 * time.Millisecond) // the race, at least
	drivertest.Eventually(t, "many copies have been made and dropped", func() bool { return min(p.made.Load(), p.dropped.Load()) >= 10 })
}

// A placed is an entry with a simulated tier, level 1.
type placed struct {
	e       *Entry
	owners  atomic.Int32 // at most 1
	copy    atomic.Bool  // the tier holds a copy
	made    atomic.Int64 // copies
	dropped atomic.Int64 // copies; incremented before the copy is removed
}

// own checks that the caller is the only owner.
func (p *placed) own(rng *rand.Rand) error {
	if n := p.owners.Add(1); n != 1 {
		return fmt.Errorf("%d owners", n)
	}
	for range rng.IntN(4) {
		if l := p.e.Level(); l != tiers.AtSource || !p.e.Claimed() {
			return fmt.Errorf("level %d, claimed %v, though there is an owner", l, p.e.Claimed())
		}
		runtime.Gosched()
	}
	return nil
}

// fill makes a copy, or finds the one that Demote has left.
func (p *placed) fill(rng *rand.Rand) error {
	if !p.e.Claim() {
		return nil
	}
	if err := p.own(rng); err != nil {
		return err
	}
	publish := rng.IntN(4) > 0
	if publish && p.copy.Swap(true) {
		if !p.e.Unverified() {
			return fmt.Errorf("there is a copy, but the entry is not Unverified")
		}
	} else if publish {
		p.made.Add(1)
	}
	p.owners.Add(-1)
	if publish {
		p.e.Publish(1)
	} else {
		p.e.Release()
	}
	return nil
}

// drop retracts the copy.
func (p *placed) drop(rng *rand.Rand) error {
	if !p.e.Retract(1) {
		return nil
	}
	if err := p.own(rng); err != nil {
		return err
	}
	p.dropped.Add(1)
	if !p.copy.Swap(false) {
		return fmt.Errorf("a copy was dropped twice")
	}
	p.e.Verified()
	p.owners.Add(-1)
	p.e.Release()
	return nil
}

// demote reports the copy as damaged, though the tier still has it.
func (p *placed) demote(*rand.Rand) error {
	p.e.Demote(1)
	time.Sleep(10 * time.Microsecond)
	return nil
}

// read checks that an entry at level 1 has a copy. A copy dropped during the check is no error.
func (p *placed) read(*rand.Rand) error {
	before := p.dropped.Load()
	if p.e.Level() == 1 && !p.copy.Load() && p.dropped.Load() == before {
		return fmt.Errorf("level 1 without a copy")
	}
	return nil
}

// A file with a copy gets another entry of the same version, and the kernel drops the name. The
// source is not asked.
func TestRenew(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.source.Put("d/f", []byte("content"))
		old := w.get(t, "d/f")
		w.Hold(old)
		if w.Renew(old) {
			t.Error("a file without a copy was renewed")
		}
		if !old.Claim() {
			t.Fatal("not claimed")
		}
		if w.Renew(old) {
			t.Error("a file was renewed while it was copied")
		}
		old.Publish(1)
		before := w.faults.Count(drivertest.OpStat)
		if !w.Renew(old) {
			t.Fatal("not renewed")
		}
		if w.Renew(old) {
			t.Error("renewed twice")
		}
		e := w.get(t, "d/f")
		if !old.Stale() || e == old || e.ID() == old.ID() || e.Level() != 1 || e.Info() != old.Info() {
			t.Errorf("got entry %d on level %d in place of %d", e.ID(), e.Level(), old.ID())
		}
		if got := w.faults.Count(drivertest.OpStat) - before; got != 0 {
			t.Errorf("%d requests to the source, want 0", got)
		}
		for o := range w.Outdated(t.Context()) {
			if o.Name != "f" || o.Entry != e.Parent() {
				t.Errorf("outdated: %+v, want the name f", o)
			}
			break
		}
	})
}
