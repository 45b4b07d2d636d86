package metadata

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A fill of the old version of a file publishes its copy after tier 1 was examined, and before
// the new version takes its place in the directory. The new entry must be Unverified: otherwise
// the outdated copy is never removed, and while the tier is full the file is read from the
// source. In the variant "removed" the old entry loses its name before the new one takes it.
func TestPlacedAndChangedWhileLoaded(t *testing.T) {
	for _, c := range []struct {
		how  string
		op   drivertest.Op // the operation by which it examines the tiers
		load func(t *testing.T, w *world)
	}{
		{"lookup", drivertest.OpStat, func(t *testing.T, w *world) { w.get(t, "d/f") }},
		{"list", drivertest.OpReadDir, func(t *testing.T, w *world) { w.list(t, "d") }},
	} {
		for _, how := range []string{"replaced", "removed"} {
			t.Run(c.how+", "+how, func(t *testing.T) {
				inBubble(t, time.Minute, func(t *testing.T, w *world) {
					w.source.Put("d/f", []byte("content"))
					old := w.get(t, "d/f")
					time.Sleep(time.Minute)
					w.get(t, "d")
					w.source.Put("d/f", []byte("new"))
					for _, name := range []string{"d", "d/f"} {
						w.down[2].Add(drivertest.Rule{Op: c.op, Name: name, Delay: 100 * time.Millisecond})
					}
					var wg sync.WaitGroup
					wg.Go(func() { c.load(t, w) })
					time.Sleep(50 * time.Millisecond) // tier 1 has replied, tier 2 has not
					publish(t, w, old)
					if how == "removed" {
						w.Changed(old)
					}
					wg.Wait()
					wantVerification(t, w, old)
				})
			})
		}
	}
}

// TestPlacedAndChangedWhileListed is the same test for a directory that is listed in pages.
func TestPlacedAndChangedWhileListed(t *testing.T) {
	for _, how := range []string{"replaced", "removed"} {
		t.Run(how, func(t *testing.T) {
			inBucket(t, time.Minute, 30, 1, func(t *testing.T, w *bucketWorld) {
				all, err := w.List(bg, w.get(t, "d"))
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Minute)
				for _, e := range all {
					w.source.Put(e.Path(), []byte("new"))
				}
				var wg sync.WaitGroup
				wg.Go(func() { w.list(t, "d") })
				time.Sleep(time.Second) // the tiers have replied, and 20 pages have not arrived
				old := all[slices.IndexFunc(all, func(e *Entry) bool { return !e.Stale() })]
				publish(t, w.world, old)
				if how == "removed" {
					w.Changed(old)
				}
				wg.Wait()
				wantVerification(t, w.world, old)
			})
		})
	}
}

// publish makes a copy of e on tier 1, as a fill does.
func publish(t *testing.T, w *world, e *Entry) {
	t.Helper()
	if !e.Claim() {
		t.Fatalf("%s: Claim failed", e.Path())
	}
	w.tier[1].PutAt(e.CopyName(), []byte("content"), e.Info().Mtime)
	e.Publish(1)
}

// wantVerification checks that the name of old has a new version, which the next fill
// verifies.
func wantVerification(t *testing.T, w *world, old *Entry) {
	t.Helper()
	e := w.get(t, old.Path())
	if e == old || !old.Stale() || e.Size() != 3 {
		t.Fatal("the new version was not found")
	}
	if !e.Unverified() || !e.Claim() {
		t.Errorf("got unverified %v, claimed %v; tier 1 holds a copy of the old version", e.Unverified(), e.Claimed())
	}
	if e.Verified(); e.Unverified() {
		t.Error("still Unverified after Verified")
	}
}
