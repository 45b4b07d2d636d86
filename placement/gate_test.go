package placement

import (
	"math"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// The limits of a gate follow from the number of workers and the profile of the source.
func TestGateLimits(t *testing.T) {
	for _, c := range []struct {
		workers  int
		source   drivers.Profile
		yielding int
		bytes    int64
		buffers  int
	}{
		{1, drivers.Profile{}, 1, math.MaxInt64, 16},
		{8, drivers.Profile{}, 2, math.MaxInt64, 16},
		{8, drivers.Profile{Latency: drivers.LatencyMemory}, 2, math.MaxInt64, 16},
		{12, drivers.Profile{Latency: drivers.LatencyRequest}, 12, 128 << 20, 24},
		{64, drivers.Profile{Latency: drivers.LatencyRequest, Stride: 8 << 20}, 64, 128 << 20, 64},
		{64, drivers.Profile{Latency: drivers.LatencyRequest, Stride: 8 << 20, Concurrency: 10}, 64, 80 << 20, 64},
	} {
		g := newGate(c.workers, c.source)
		if g.maxYielding != c.yielding || g.maxBytes != c.bytes || cap(g.buffers.unmade) != c.buffers {
			t.Errorf("%d workers, %+v: got %d, %d, %d; want %d, %d, %d", c.workers, c.source,
				g.maxYielding, g.maxBytes, cap(g.buffers.unmade), c.yielding, c.bytes, c.buffers)
		}
	}
}

// While a reader waits, few background requests are admitted. The end of the last wait opens
// the gate.
func TestGateWhileReaderWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := newGate(8, drivers.Profile{})
		opened := 0
		g.opened = func() { opened++ }
		first, second := g.demand(sequentialAccess), g.demand(randomAccess)
		for i, want := range []bool{true, true, false} {
			if got := g.admit(1 << 20); got != want {
				t.Errorf("request %d: got %v, want %v", i, got, want)
			}
		}
		g.leave(1 << 20)
		if !g.admit(1 << 20) {
			t.Error("no request is admitted after the end of another")
		}
		time.Sleep(waitStall / 4)
		first.done()
		if opened != 0 || g.admit(1<<20) {
			t.Error("the gate is open while a reader waits")
		}
		time.Sleep(waitStall / 4)
		second.done()
		if opened != 1 || !g.admit(1<<20) {
			t.Error("the gate is closed although no reader waits")
		}
		if got := g.waits.Load(); got.Count != 2 || got.Sum != 3*waitStall/4 {
			t.Errorf("waits: got %d of %v in all, want 2 of %v", got.Count, got.Sum, 3*waitStall/4)
		}
	})
}
