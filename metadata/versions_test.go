package metadata

import (
	"sync"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A fill of the old version of a file may publish its copy after the tiers were examined
// and before the new version takes its place in the directory. The new entry must be
// Unverified: otherwise the outdated copy is never removed, and while the tier is full the
// file is read from the source.
func TestPlacedAndChangedWhileLoaded(t *testing.T) {
	for _, c := range []struct {
		how string        // how the new version is found
		op  drivertest.Op // the operation by which that examines the tiers
		run func(w *world, t *testing.T)
	}{
		{"lookup", drivertest.OpStat, func(w *world, t *testing.T) { w.get(t, "d/f") }},
		{"list", drivertest.OpReadDir, func(w *world, t *testing.T) { w.list(t, "d") }},
	} {
		for _, invalidated := range []bool{false, true} {
			name := c.how
			if invalidated {
				name += ", invalidated"
			}
			t.Run(name, func(t *testing.T) {
				inBubble(t, time.Minute, func(t *testing.T, w *world) {
					w.source.Put("d/f", []byte("content"))
					old := w.get(t, "d/f")
					mtime := old.Info().Mtime
					time.Sleep(time.Minute)
					w.get(t, "d")
					w.source.Put("d/f", []byte("new"))
					w.down[2].Add(drivertest.Rule{Op: c.op, Name: "d*", Delay: 100 * time.Millisecond})
					w.down[2].Add(drivertest.Rule{Op: c.op, Name: "d/*", Delay: 100 * time.Millisecond})
					var wg sync.WaitGroup
					wg.Go(func() { c.run(w, t) })
					time.Sleep(50 * time.Millisecond) // tier 1 has answered, tier 2 has not
					w.tier[1].PutAt("d/f", []byte("content"), mtime)
					if !old.Claim() {
						t.Fatal("the old version is not claimed")
					}
					old.Publish(1)
					if invalidated {
						w.Changed(old)
					}
					wg.Wait()
					e := w.get(t, "d/f")
					if e == old || !old.Stale() || e.Size() != 3 {
						t.Fatal("the new version was not found")
					}
					if !e.Unverified() {
						t.Error("the new version is not Unverified, though tier 1 holds a copy of the old one")
					}
				})
			})
		}
	}
}
