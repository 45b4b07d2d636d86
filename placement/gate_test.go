package placement

import (
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// The bounds of a gate follow from the number of workers and the profile of the source.
func TestGateLimits(t *testing.T) {
	for _, c := range []struct {
		workers int
		source  drivers.Profile
		first   int
		most    int
		demands int
	}{
		{1, drivers.Profile{}, 1, 1, 16},
		{8, drivers.Profile{}, 4, 8, 16},
		{12, drivers.Profile{Latency: drivers.LatencyRequest}, 4, 12, 24},
		{64, drivers.Profile{Latency: drivers.LatencyRequest, Stride: 8 << 20}, 64, 128, 64},
		{64, drivers.Profile{Latency: drivers.LatencyRequest, Stride: 8 << 20, Concurrency: 10}, 40, 80, 64},
	} {
		g := newGate(c.workers, c.source)
		if g.control.Limit() != c.first || g.control.max != float64(c.most) || len(g.demands.unmade) != c.demands || len(g.blocks.unmade) != c.workers {
			t.Errorf("%d workers, %+v: got %d, %v, %d, %d; want %d, %d, %d, %d", c.workers, c.source,
				g.control.Limit(), g.control.max, len(g.demands.unmade), len(g.blocks.unmade), c.first, c.most, c.demands, c.workers)
		}
	}
}

// Requests are admitted while fewer blocks are in flight than the limit.
func TestGateAdmits(t *testing.T) {
	g := newGate(8, drivers.Profile{Stride: 8 << 20}) // 64 blocks
	for i, want := range []bool{true, true, true, false} {
		if got := g.admit(load{blocks: 22}); got != want {
			t.Errorf("request %d: got %v, want %v", i, got, want)
		}
	}
	g.leave(load{blocks: 3})
	if !g.admit(load{blocks: 8}) || g.background() != 71 {
		t.Errorf("after the end of a request: got %d blocks in flight, want 71", g.background())
	}
}

// Requests are admitted while fewer bytes are in flight than the limit.
func TestGateAdmitsBytes(t *testing.T) {
	g := newGate(8, drivers.Profile{}) // 4 blocks
	for _, l := range []load{{1, 4<<20 - 1}, {1, 1 << 20}} {
		if !g.admit(l) {
			t.Errorf("%+v is not admitted", l)
		}
	}
	if g.admit(load{1, 1}) {
		t.Error("a request is admitted while 5 MiB are in flight")
	}
	if g.leave(load{1, 1 << 20}); !g.admit(load{1, 1}) {
		t.Error("no request is admitted after the end of another one")
	}
}

// The gate measures how long readers wait.
func TestGateMeasuresWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := newGate(8, drivers.Profile{})
		first, second := g.demand(), g.demand()
		time.Sleep(waitStall / 4)
		first.done()
		time.Sleep(waitStall / 4)
		second.done()
		if got := g.waits.Load(); got.Count != 2 || got.Sum != 3*waitStall/4 {
			t.Errorf("waits: got %d of %v in all, want 2 of %v", got.Count, got.Sum, 3*waitStall/4)
		}
	})
}
