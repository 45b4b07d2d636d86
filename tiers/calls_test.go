package tiers

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// Where the threads are limited, no more calls of a source that hangs are in flight than there are threads
// for. Further ones wait, and can be interrupted. A tier that answers is read meanwhile, and so is another
// tier when one hangs. When there can be more threads, more calls are in flight. All goes on when the
// storages answer.
func TestCallsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := drivertest.NewMem(1 << 20)
		mem.Put("f", []byte("content"))
		source := drivertest.NewFaults(mem)
		var stores []*drivertest.Faults
		var configs []Config
		for _, name := range []string{"one", "two"} {
			store := drivertest.NewFaults(drivertest.NewMem(1 << 20))
			stores = append(stores, store)
			configs = append(configs, Config{Name: name, Store: store, Quota: Quota{Bytes: 1 << 20}})
		}
		var left atomic.Int64 // threads
		more := func(n int) int {
			made := min(int64(n), left.Load())
			left.Add(-made)
			return int(made)
		}
		h, err := New(deaf{source}, configs, Options{Threads: &Threads{Calls: 30, More: more}}, quiet)
		if err != nil {
			t.Fatal(err)
		}
		want := func(when string, faults *drivertest.Faults, hung, waiting int) {
			t.Helper()
			synctest.Wait()
			if got := faults.Hung(); got != hung || h.WaitingCalls() != waiting {
				t.Errorf("%s: %d calls hang and %d wait, want %d and %d", when, got, h.WaitingCalls(), hung, waiting)
			}
		}
		source.Add(drivertest.Rule{Hang: true})
		interrupted, interrupt := context.WithCancel(bg)
		defer interrupt()
		var callers, impatient sync.WaitGroup
		for range 200 {
			callers.Go(func() { h.Source().Stat(bg, "f") })
		}
		want("the source hangs", source, 20, 180)
		for range 100 {
			impatient.Go(func() {
				if _, err := h.Source().Stat(interrupted, "f"); !errors.Is(err, context.Canceled) {
					t.Errorf("interrupted: %v", err)
				}
			})
		}
		want("the source hangs", source, 20, 280)
		if _, err := h.Tier(1).Stat(bg, "f"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a tier that answers: %v", err)
		}
		interrupt()
		impatient.Wait()
		stores[0].Add(drivertest.Rule{Hang: true})
		for range 50 {
			callers.Go(func() { h.Tier(1).Stat(bg, "f") })
		}
		want("a tier hangs, too", stores[0], 5, 180+45)
		if _, err := h.Tier(2).Stat(bg, "f"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the other tier: %v", err)
		}
		stores[0].Clear()
		time.Sleep(3 * time.Second) // the limit of the tier is not raised any more
		want("the tier answers", source, 20, 180)
		left.Store(64)
		time.Sleep(2 * time.Second)
		want("when there are threads for 64 more", source, 84, 116)
		source.Clear()
		callers.Wait()
		if _, err := h.Source().Stat(bg, "f"); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second) // the limits are not raised any more
		want("at the end", source, 0, 0)
		if calls := h.source.calls; !calls.TryAcquire(84) || calls.TryAcquire(1) {
			t.Error("the limit at the end is not 84 calls")
		}
		time.Sleep(2 * time.Second)
	})
}

// occupy begins as many commits of 12 s in a tier as may be in flight.
func occupy(t *testing.T, tier *Tier, store *drivertest.Faults) *sync.WaitGroup {
	tier.calls.Lower(2, nil)
	store.Add(drivertest.Rule{Op: drivertest.OpCommit, Delay: 12 * time.Second})
	var commits sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		commits.Go(func() { mustPlace(t, tier, name, 100) })
	}
	synctest.Wait()
	return &commits
}

// An operation that waits for others too long fails, is not made later, and leaves the tier healthy: others
// that take long have longer time-outs. What the operation holds is released.
func TestQueuedOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := drivertest.NewMem(0)
		store := drivertest.NewFaults(mem)
		tier, stop := startTier(t, store, Quota{Bytes: 1 << 20})
		defer stop()
		mustPlace(t, tier, "f", 100)
		open, err := tier.Open(bg, "f", info(100))
		if err != nil {
			t.Fatal(err)
		}
		commits := occupy(t, tier, store)
		start := time.Now()
		if n, err := open.ReadAt(bg, make([]byte, 10), 0); n != 0 || !errors.Is(err, errQueued) {
			t.Errorf("read while commits take long: %d, %v", n, err)
		}
		if got := time.Since(start); got != tier.opts.Timeout {
			t.Errorf("the read has waited for %v, want %v", got, tier.opts.Timeout)
		}
		removals := store.Count(drivertest.OpRemove)
		if err := tier.Remove(bg, "f"); !errors.Is(err, errQueued) {
			t.Errorf("removal while commits take long: %v", err)
		}
		if got := tier.Stats().Health; got != Healthy {
			t.Errorf("the tier is %v", got)
		}
		commits.Wait()
		if _, err := open.ReadAt(bg, make([]byte, 10), 0); err != nil {
			t.Errorf("read after the commits: %v", err)
		}
		if got := store.Count(drivertest.OpRemove); got != removals {
			t.Error("a removal that has failed was made later")
		}
		if err := errors.Join(open.Close(), tier.Remove(bg, "f")); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if got := mem.Used(); got != 200 {
			t.Errorf("%d bytes are in use, want 200: an operation that was not waited for still holds the copy", got)
		}
		checkAccount(t, tier, mem)
	})
}

// A tier stays down while all operations that may be in flight hang, even if others would succeed: none could
// begin.
func TestAllOperationsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := drivertest.NewFaults(drivertest.NewMem(0))
		tier, stop := startTier(t, store, Quota{Bytes: 1 << 20})
		defer stop()
		mustPlace(t, tier, "f", 100)
		tier.calls.Lower(2, nil)
		store.Add(drivertest.Rule{Op: drivertest.OpStat, Name: "sick", Hang: true})
		for range 2 {
			go tier.Stat(bg, "sick")
		}
		time.Sleep(10 * time.Minute)
		start := time.Now()
		if _, err := tier.Open(bg, "f", info(100)); !errors.Is(err, errDown) || time.Since(start) > 0 {
			t.Errorf("open: %v after %v, want %v at once", err, time.Since(start), errDown)
		}
		store.Clear()
		time.Sleep(10 * time.Minute)
		if o, err := tier.Open(bg, "f", info(100)); err != nil {
			t.Errorf("when the operations have returned: %v", err)
		} else if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
}

// The time that a read waits for others is no time of the disk: the tier is not slower than the source.
func TestQueuedReadsAreNotSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSlowRig(t)
		r.tier.calls.Lower(2, nil)
		for _, storage := range []*drivertest.Faults{r.from, r.to} {
			storage.Add(drivertest.Rule{Op: drivertest.OpRead, Delay: 10 * time.Millisecond})
		}
		r.readSource(t, 5)
		end := time.Now().Add(20 * time.Second)
		var readers sync.WaitGroup
		for range 64 {
			readers.Go(func() {
				for time.Now().Before(end) {
					if _, err := r.file.ReadAt(bg, make([]byte, 1000), 0); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for time.Now().Before(end) {
			r.readSource(t, 1)
			time.Sleep(time.Second)
		}
		readers.Wait()
		if s := r.tier.Stats(); s.Health != Healthy {
			t.Errorf("the tier is %v: %v", s.Health, s.Cause)
		}
	})
}

// A probe that has to wait for other operations says nothing about a tier that is degraded.
func TestQueuedProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := drivertest.NewFaults(drivertest.NewMem(0))
		tier, stop := startTier(t, store, Quota{Bytes: 1 << 20})
		defer stop()
		commits := occupy(t, tier, store)
		tier.health.note(reading, syscall.EIO)
		for range 11 {
			time.Sleep(time.Second)
			if s := tier.Stats(); s.Health != Degraded {
				t.Errorf("the tier is %v: %v", s.Health, s.Cause)
			}
		}
		commits.Wait()
	})
}

// A source that is requested over a network occupies no threads.
func TestCallsOfNetworkAreNotLimited(t *testing.T) {
	for _, test := range []struct {
		latency drivers.Latency
		limited bool
	}{{drivers.LatencyRequest, false}, {drivers.LatencyFile, true}} {
		h, err := New(ofLatency{drivertest.NewMem(1 << 20), test.latency}, nil, Options{Threads: &Threads{Calls: 30}}, quiet)
		if err != nil {
			t.Fatal(err)
		}
		calls, closing := !h.source.calls.TryAcquire(maxSourceCalls), !h.source.closing.TryAcquire(maxSourceCalls)
		if calls != test.limited || closing != test.limited {
			t.Errorf("latency %d: calls are limited: %v, closes: %v, want %v", test.latency, calls, closing, test.limited)
		}
	}
}

type ofLatency struct {
	drivers.Driver
	latency drivers.Latency
}

func (o ofLatency) Profile() drivers.Profile { return drivers.Profile{Latency: o.latency} }

// No more files of a source are closed at once than there are threads for.
func TestClosesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := drivertest.NewMem(1 << 20)
		mem.Put("f", []byte("content"))
		source := drivertest.NewFaults(mem)
		h, err := New(deaf{source}, nil, Options{Threads: &Threads{Calls: 30}}, quiet)
		if err != nil {
			t.Fatal(err)
		}
		var open []drivers.Object
		for range 100 {
			o, err := h.Source().Open(bg, "f")
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, o)
		}
		source.Add(drivertest.Rule{Op: drivertest.OpClose, Hang: true})
		var closers sync.WaitGroup
		for _, o := range open {
			closers.Go(func() { o.Close() })
		}
		synctest.Wait()
		if got := source.Hung(); got != maxHung {
			t.Errorf("%d files are being closed, want %d", got, maxHung)
		}
		source.Clear()
		closers.Wait()
		synctest.Wait()
		if got := source.Count(drivertest.OpClose); got != int64(len(open)) {
			t.Errorf("%d files were closed, want %d", got, len(open))
		}
	})
}
