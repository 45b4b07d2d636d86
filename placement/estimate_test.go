package placement

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/metadata"
)

// A warm is what Warmup or Estimate does.
type warm func(context.Context, []*metadata.Entry, func(Progress), func(*metadata.Entry, error)) error

// warmed returns the last Progress, and the number of names that failed.
func (r *rig) warmed(do warm) (last Progress, failed int) {
	r.t.Helper()
	r.check(do(context.Background(), []*metadata.Entry{r.names.Root()}, func(p Progress) { last = p }, func(*metadata.Entry, error) { failed++ }))
	return last, failed
}

// An estimate says what a warm-up then does, and copies nothing.
func TestEstimate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{100 << 10, 64 << 10}})
		for i := range 10 {
			r.put(fmt.Sprintf("d/%d", i), 18_000) // 20 KiB in a tier
		}
		r.mem.Put("empty", nil)
		r.put("large", 101<<10)
		r.mem.Symlink("empty", "link")
		r.put("denied/f", 1)
		r.from.Add(drivertest.Rule{Op: drivertest.OpReadDir, Name: "denied", Err: syscall.EACCES})
		got, failed := r.warmed(r.handler.Estimate)
		want := Progress{
			Found: Amount{13, 180_000 + 101<<10}, Placed: Amount{Files: 1}, Failed: Amount{Files: 1},
			Skipped: Amount{3, 36_000 + 101<<10}, Needed: 304 << 10, Room: 164 << 10,
		}
		if got != want || failed != 1 {
			t.Errorf("got %+v, %d failed, want %+v", got, failed, want)
		}
		if bytes := r.levels.Source().Stats().Bytes; bytes != 0 || r.handler.Stats().Placed != 0 {
			t.Errorf("%d bytes were read", bytes)
		}
		did, _ := r.warmed(r.handler.Warmup)
		if did.Found != want.Found || did.Skipped != want.Skipped || did.Placed.Files != 9 || did.Failed != want.Failed {
			t.Errorf("the warm-up: %+v, want it as in %+v", did, want)
		}
		after, _ := r.warmed(r.handler.Estimate)
		if after.Placed != did.Placed || after.Skipped != did.Skipped || after.Needed != 144<<10 || after.Room != 4<<10 {
			t.Errorf("after the warm-up: %+v", after)
		}
	})
}

// With peers, a node is to copy what it owns, also of files in pieces.
func TestEstimateWithPeers(t *testing.T) {
	c := newCluster(t, divided(2, 1<<30)...)
	c.put(20, func(i int) int { return 1 + i*testPiece/4 })
	var sum Progress
	for _, n := range c.nodes {
		p, failed := n.warmed(n.handler.Estimate)
		if p.Found.Files != 20 || p.Skipped.Files != 0 || failed != 0 {
			t.Errorf("got %+v, %d failed", p, failed)
		}
		own := p.Found.Bytes - p.Elsewhere.Bytes
		if p.Needed < own || p.Needed > own+100*4096 {
			t.Errorf("%d bytes are needed for %d", p.Needed, own)
		}
		sum.Found.Bytes = p.Found.Bytes
		sum.Elsewhere.Bytes += p.Elsewhere.Bytes
	}
	if sum.Elsewhere.Bytes != sum.Found.Bytes {
		t.Errorf("of %d bytes, the nodes leave %d to each other", sum.Found.Bytes, sum.Elsewhere.Bytes)
	}
}
