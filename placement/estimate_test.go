package placement

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
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
		if n := p.Needed; n < own || n > own+100*4096 {
			t.Errorf("%d bytes are needed for %d", n, own)
		}
		sum.Found.Bytes = p.Found.Bytes
		sum.Elsewhere.Bytes += p.Elsewhere.Bytes
	}
	if sum.Elsewhere.Bytes != sum.Found.Bytes {
		t.Errorf("of %d bytes, the nodes leave %d to each other", sum.Found.Bytes, sum.Elsewhere.Bytes)
	}
}

// The copies of changed files are replaced: what they take is room for the new ones.
func TestEstimateOfChangedFiles(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{100 << 10}, ttl: time.Second})
		r.put("d/a", 60_000)
		r.put("d/b", 10_000)
		r.warmed(r.handler.Warmup)
		r.put("d/a", 61_000)
		time.Sleep(2 * time.Second)
		got, _ := r.warmed(r.handler.Estimate)
		want := Progress{
			Found: Amount{2, 71_000}, Placed: Amount{1, 10_000},
			Needed: 60 << 10, Room: 88 << 10,
		}
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if did, _ := r.warmed(r.handler.Warmup); did.Placed.Files != 2 {
			t.Errorf("the warm-up: %+v", did)
		}
	})
}

// A file that can have no copy, because its path is that of the copies of pieces, fails, and does not keep
// a warm-up from ending.
func TestReservedPaths(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 20}})
		r.put(".milkweed-pieces/y", 10_000)
		r.put("d/z", 10_000)
		for _, do := range []warm{r.handler.Estimate, r.handler.Warmup} {
			if p, failed := r.warmed(do); p.Failed != (Amount{1, 10_000}) || failed != 1 || p.Found.Files != 2 {
				t.Errorf("got %+v, %d failed", p, failed)
			}
		}
		if r.entry("d/z").Level() == tiers.AtSource {
			t.Error("the other file has no copy")
		}
	})
}

// A copy takes an inode, as does each directory that is not there yet, and tiers on one device share
// theirs.
func TestEstimateOfInodes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		shared, more := int64(5), int64(2)
		r := newRig(t, rigOptions{quotas: []int64{1 << 20, 1 << 20, 1 << 20}})
		for i := range 6 {
			r.put(fmt.Sprintf("d/e/%d", i), 1000)
		}
		r.put("f", 1000)
		e := newEstimate(r.handler, []tiers.Room{{Bytes: 8 << 10, Inodes: &shared}, {Bytes: 1 << 20, Inodes: &shared}, {Bytes: 1 << 20, Inodes: &more}})
		for i := range 6 {
			r.check(e.add(r.ctx, r.entry(fmt.Sprintf("d/e/%d", i))))
		}
		// The first tier has d and e, and 2 files. In the others, these directories have no inodes.
		if p := e.progress; p.Skipped.Files != 4 || p.NoInodes != 4 || e.left[0].Bytes != 0 || shared != 1 || more != 2 {
			t.Errorf("got %+v, %+v; %d and %d inodes are left", p, e.left, shared, more)
		}
		r.check(e.add(r.ctx, r.entry("f")))
		if shared != 0 || more != 2 || e.progress.Skipped.Files != 4 {
			t.Errorf("got %+v; %d and %d inodes are left", e.progress, shared, more)
		}
	})
}

// A tier whose quota was lowered below what it holds has no room for the new version of a file.
func TestEstimateOfFullTier(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{100 << 10}, ttl: time.Second})
		r.put("a", 40_000)
		r.put("b", 40_000)
		r.warmed(r.handler.Warmup)
		r.check(r.levels.Tiers()[0].Resize(r.ctx, tiers.Quota{Bytes: 30 << 10}))
		r.put("a", 41_000)
		time.Sleep(2 * time.Second)
		got, _ := r.warmed(r.handler.Estimate)
		if did, _ := r.warmed(r.handler.Warmup); got.Skipped.Files != 1 || did.Skipped != got.Skipped || got.Room != 0 {
			t.Errorf("got %+v, the warm-up %+v", got, did)
		}
	})
}
