package placement

import (
	"sync"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/limit"
)

// limitedRig makes a rig whose source has files a and b of size bytes and is limited.
func limitedRig(t *testing.T, size int, limits limit.Config, quotas ...int64) *rig {
	t.Helper()
	source := drivertest.NewMem(0)
	source.Put("a", random(1, size))
	source.Put("b", random(2, size))
	return newRig(t, rigOptions{over: limit.New(source, limits), quotas: quotas})
}

// wantWaited compares what readers have waited for. Of the durations, want may be exceeded by up to
// a tenth.
func (r *rig) wantWaited(want Waits) {
	r.t.Helper()
	got := r.handler.Stats().Waited
	for _, c := range []struct {
		cause     string
		got, want Wait
	}{
		{"latency", got.Latency, want.Latency},
		{"bandwidth", got.Bandwidth, want.Bandwidth},
		{"fill", got.Fill, want.Fill},
		{"tier", Wait{Time: got.Tiers[0].Time}, want.Tiers[0]},
	} {
		if c.got.Count != c.want.Count || c.got.Time < c.want.Time || c.got.Time > c.want.Time*11/10 {
			r.t.Errorf("%s: got %+v, want %+v", c.cause, c.got, c.want)
		}
	}
}

// A source that takes 5 ms for each operation causes waits for its latency, whether or not the file
// is copied.
func TestWaitsForLatency(t *testing.T) {
	for name, quotas := range map[string][]int64{"copied": {1 << 30}, "not copied": nil} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := limitedRig(t, 100_000, limit.Config{Latency: 5 * time.Millisecond}, quotas...)
				r.read("a")
				r.read("b")
				r.wantWaited(Waits{Latency: Wait{4, 20 * time.Millisecond}}) // two opens and two reads
			})
		})
	}
}

// A source of 1 MB/s causes waits for its bandwidth, also if each read has a latency.
func TestWaitsForBandwidth(t *testing.T) {
	const size, latency = 500_000, 5 * time.Millisecond
	bubble(t, func(t *testing.T) {
		r := limitedRig(t, size, limit.Config{BytesPerSecond: 1e6, Latency: latency}, 1<<30)
		r.read("a")
		r.read("b")
		const slack = 20 * time.Millisecond // of the limiter
		r.wantWaited(Waits{
			Latency:   Wait{4, 4 * latency},
			Bandwidth: Wait{2, 2*size*time.Microsecond - slack},
		})
	})
}

// Of two readers of a block, one waits for the source and the other for the fill. A reader of a
// block that a worker fetches waits for the fill.
func TestWaitsForFill(t *testing.T) {
	const latency = 100 * time.Millisecond
	bubble(t, func(t *testing.T) {
		r := limitedRig(t, 100_000, limit.Config{Latency: latency}, 1<<30)
		var readers sync.WaitGroup
		for range 2 {
			readers.Go(func() { r.read("a") })
		}
		readers.Wait()
		source := Waits{Latency: Wait{2, 2 * latency}, Fill: Wait{2, 2 * latency}}
		r.wantWaited(source)

		b := r.entry("b")
		readers.Go(func() { r.handler.Place(r.ctx, b) })
		time.Sleep(3 * latency / 2) // the worker has opened the file
		r.read("b")
		readers.Wait()
		source.Fill = Wait{3, 2*latency + latency/2}
		r.wantWaited(source)
	})
}

// The waits for a stream of an object store end with its first byte; those for its other blocks
// belong to the reader that waits.
func TestWaitsForStream(t *testing.T) {
	const latency = 100 * time.Millisecond
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}, bucket: &drivertest.Bucket{Latency: latency, Length: 4 << 20}})
		r.put("a", 3<<20)
		e := r.entry("a")
		obj, err := r.handler.Open(r.ctx, e)
		r.check(err)
		defer obj.Close()
		r.wantAt(obj, 2<<20, 1<<20, random(uint64(len("a"))<<32+3<<20, 3<<20))
		got := r.handler.Stats().Waited
		if got.Latency.Time != latency || got.Bandwidth.Time != 0 || got.Fill.Time != 0 {
			t.Errorf("got %+v, want %v of latency", got, latency)
		}
	})
}

// The time of reads and opens of copies belongs to their tier.
func TestWaitsForTier(t *testing.T) {
	const delay = 50 * time.Millisecond
	bubble(t, func(t *testing.T) {
		r := limitedRig(t, 100_000, limit.Config{}, 1<<30)
		a := r.entry("a")
		if got, err := r.handler.Place(r.ctx, a); got != Placed {
			t.Fatalf("got %v: %v", got, err)
		}
		r.to[0].Add(drivertest.Rule{Op: drivertest.OpRead, Delay: delay})
		r.to[0].Add(drivertest.Rule{Op: drivertest.OpOpen, Delay: delay})
		r.read("a")
		var want Waits
		want.Tiers[0].Time = 2 * delay
		r.wantWaited(want)
	})
}

// An epoch has the waits and the opens of its time.
func TestEpochHasItsWaits(t *testing.T) {
	const n, latency = minOpens, 5 * time.Millisecond // none is prefetched
	bubble(t, func(t *testing.T) {
		source := drivertest.NewMem(0)
		var names []string
		for i := range n {
			names = append(names, string(rune('a'+i)))
			source.Put(names[i], random(uint64(i), 10_000))
		}
		r := newRig(t, rigOptions{over: limit.New(source, limit.Config{Latency: latency}), quotas: []int64{1 << 30}})
		for range 3 {
			for _, name := range names {
				r.read(name)
				time.Sleep(time.Millisecond)
			}
			r.settled()
		}
		s := r.handler.Stats()
		if len(s.Epochs) != 3 || s.EpochsEnded != 2 {
			t.Fatalf("got %d epochs, %d ended; want 3 and 2", len(s.Epochs), s.EpochsEnded)
		}
		first, second := s.Epochs[0], s.Epochs[1]
		if first.Waited.Latency.Time != 2*n*latency || first.Fills != (Opens{n, n * 10_000, n * 10_000}) {
			t.Errorf("first: got %+v; want %d files copied, and %v of latency", first, n, 2*n*latency)
		}
		if second.Waited.Latency.Time != 0 || second.Opens[1] != (Opens{n, n * 10_000, n * 10_000}) {
			t.Errorf("second: got %+v; want %d files from the tier, and no latency", second, n)
		}
	})
}
