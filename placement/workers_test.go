package placement

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/limit"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// running returns the number of background workers.
func running() int {
	stacks := make([]byte, 8<<20)
	return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte("placement.(*Handler).work("))
}

// The number of workers changes in both directions while they copy. No copy is lost, and in the end there are
// as many workers and buffers as the last call says.
func TestSetWorkers(t *testing.T) {
	const files = 200
	r := newRig(t, rigOptions{quotas: []int64{1 << 30}, workers: 4, remote: true, limits: limit.Config{Latency: time.Millisecond}})
	want := make(map[string][]byte)
	for i := range files {
		name := fmt.Sprintf("d%d/f%d", i%10, i)
		want[name] = r.put(name, 1+i*5000)
	}
	var readers sync.WaitGroup
	for i := range 4 {
		readers.Go(func() {
			for name, content := range want {
				if got, err := r.read(name); err != nil || !bytes.Equal(got, content) {
					t.Errorf("reader %d: %s has wrong bytes, or %v", i, name, err)
				}
			}
		})
	}
	var resizing sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		resizing.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
					r.handler.SetWorkers(1 + rand.IntN(80))
				}
			}
		})
	}
	var last Progress
	root := r.entry(".")
	err := r.handler.Warmup(t.Context(), []*metadata.Entry{root}, func(p Progress) { last = p }, func(e *metadata.Entry, err error) { t.Error(e.Name(), err) })
	if err != nil || last.Placed.Files != files {
		t.Errorf("%d files of %d were placed: %v", last.Placed.Files, files, err)
	}
	readers.Wait()
	close(stop)
	resizing.Wait()
	for _, n := range []int{256, 3, 1, 64, 0, 7} { // 0 is 1
		r.handler.SetWorkers(n)
		n = max(n, 1)
		r.eventually("the workers are as many as wanted", func() bool { return running() == n })
		g := r.handler.gate
		if got := len(g.blocks.free) + len(g.blocks.unmade); got != n || g.control.max != float64(n) {
			t.Errorf("%d workers: %d buffers, at most %v requests", n, got, g.control.max)
		}
		if got, want := len(g.demands.free)+len(g.demands.unmade), max(16, min(2*n, 64)); got != want {
			t.Errorf("%d workers: %d buffers of demand reads, want %d", n, got, want)
		}
	}
}

// Workers that were set before Run, and after it, have no effect on one that does not run.
func TestSetWorkersWithoutRun(t *testing.T) {
	r := newRig(t, rigOptions{quotas: []int64{1 << 30}, idle: true})
	r.handler.SetWorkers(5)
	if n := running(); n != 0 {
		t.Errorf("%d workers of a handler that does not run", n)
	}
	r.running.Go(func() { r.handler.Run(r.ctx) })
	r.eventually("5 workers", func() bool { return running() == 5 })
	r.stop()
	r.running.Wait()
	r.handler.SetWorkers(9)
	if n := running(); n != 0 {
		t.Errorf("%d workers of a handler that has ended", n)
	}
}

// The bound of requests in flight follows the workers, except for a source that is read in streams.
func TestResizeGate(t *testing.T) {
	g := newGate(8, drivers.Profile{})
	g.control.limit = 8
	if g.resize(2); g.control.Limit() != 2 {
		t.Errorf("the limit is %d, want 2", g.control.Limit())
	}
	g = newGate(64, drivers.Profile{Latency: drivers.LatencyRequest, Stride: 8 << 20})
	if g.resize(2); g.control.max != streamBlocks {
		t.Errorf("the limit of streams is %v, want %d", g.control.max, streamBlocks)
	}
}

// When the quota of a tier has grown, files that had no room are copied when they are opened again.
func TestMoreRoom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const files = 200
		r := newRig(t, rigOptions{quotas: []int64{20 * 4096}})
		s := newShuffled(r, 1, files, 1000)
		s.epoch(4, files)
		tier := r.levels.Tiers()[0]
		r.eventually("the tier has as many copies as it has room for", func() bool { return tier.Stats().Files == 20 })
		r.check(tier.Resize(t.Context(), tiers.Quota{Bytes: 1 << 30}))
		s.epoch(4, files)
		r.eventually("all files have copies", func() bool { return tier.Stats().Files == files })
	})
}
