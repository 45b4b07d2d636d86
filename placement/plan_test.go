package placement

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// newPlanned makes a rig with n files of a number of bytes each, none of which is listed.
func newPlanned(t testing.TB, opts rigOptions, n, size int) (r *rig, names []string) {
	r = newRig(t, opts)
	for i := range n {
		name := fmt.Sprintf("d%02d/%05d", i%7, i)
		r.mem.Put(name, random(uint64(i), size))
		names = append(names, name)
	}
	return r, names
}

// plan adds entries to the plan of r.
func (r *rig) plan(part PlanPart, paths ...string) PlanResult {
	r.t.Helper()
	res, err := r.handler.Plan(part, paths)
	r.check(err)
	return res
}

// touched returns the names of the files that were read at the source, in the order of their first
// read.
func (r *rig) touched() (names []string) {
	seen := make(map[string]bool)
	for _, s := range r.source.spans() {
		if !seen[s.name] {
			seen[s.name] = true
			names = append(names, s.name)
		}
	}
	return names
}

// Planned files are copied in the order of the plan, each once, before they are opened, and names
// that were never looked up are looked up once.
func TestPlannedFilesAreCopiedInOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n = 500
		r, names := newPlanned(t, rigOptions{quotas: []int64{1 << 40}, workers: 1}, n, 1000)
		rand.New(rand.NewPCG(1, 2)).Shuffle(n, func(i, j int) { names[i], names[j] = names[j], names[i] })
		if got := r.plan(PlanPart{}, names...); got.Accepted != n || got.Rejected != 0 {
			t.Errorf("got %+v", got)
		}
		r.placed(n)
		if got := r.touched(); fmt.Sprint(got) != fmt.Sprint(names) {
			t.Errorf("read at the source: got %v, want %v", got, names)
		}
		if got := len(r.source.spans()); got != n {
			t.Errorf("reads at the source: got %d, want %d", got, n)
		}
		stats := r.from.Count(drivertest.OpStat)
		for _, name := range names {
			r.entry(name)
		}
		if got := r.from.Count(drivertest.OpStat); got != stats {
			t.Errorf("lookups of the job cause %d requests", got-stats)
		}
	})
}

// placed waits until n copies were made.
func (r *rig) placed(n int64) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%d copies are made", n), func() bool { return r.handler.Stats().Placed >= n })
	r.settled()
}
