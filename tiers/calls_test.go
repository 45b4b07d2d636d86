package tiers

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// Where the threads are limited, no more calls of a source that hangs are in flight than there are threads
// for. Further ones wait in turn, and can be interrupted. A tier that answers is read meanwhile, and so is
// another tier when one hangs. All goes on when the storages answer.
func TestBoundOfCalls(t *testing.T) {
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
		left, asked := 0, 0
		more := func(n int) bool {
			asked++
			ok := n <= left
			if ok {
				left -= n
			}
			return ok
		}
		h, err := New(deaf{source}, configs, Options{Threads: &Threads{Calls: 30, More: more}}, quiet)
		if err != nil {
			t.Fatal(err)
		}
		if s := h.Calls(); s != (CallStats{Bound: 30}) {
			t.Errorf("at the start: %+v", s)
		}
		source.Add(drivertest.Rule{Hang: true})
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		interrupted, interrupt := context.WithCancel(bg)
		defer interrupt()
		var callers, impatient sync.WaitGroup
		for i := range 300 {
			if i < 200 {
				callers.Go(func() { h.Source().Stat(ctx, "f") })
				continue
			}
			impatient.Go(func() {
				if _, err := h.Source().Stat(interrupted, "f"); !errors.Is(err, context.Canceled) {
					t.Errorf("interrupted: %v", err)
				}
			})
		}
		synctest.Wait()
		if got := source.Hung(); got != 20 {
			t.Errorf("%d calls hang, want 20", got)
		}
		if s := h.Calls(); s != (CallStats{30, 280}) || asked != 1 {
			t.Errorf("while the source hangs: %+v; more was called %d times", s, asked)
		}
		if _, err := h.Tier(1).Stat(bg, "f"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a tier that answers: %v", err)
		}
		stores[0].Add(drivertest.Rule{Hang: true})
		for range 50 {
			callers.Go(func() { h.Tier(1).Stat(bg, "f") })
		}
		synctest.Wait()
		if got := stores[0].Hung(); got != 5 {
			t.Errorf("%d calls of a tier hang, want 5", got)
		}
		if _, err := h.Tier(2).Stat(bg, "f"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the other tier: %v", err)
		}
		time.Sleep(morePause)
		left = 64
		late := make(chan error, 1)
		go func() { _, err := h.Source().Stat(bg, "f"); late <- err }()
		synctest.Wait()
		if got := source.Hung(); got != 84 {
			t.Errorf("%d calls hang when there are threads for 64 more, want 84", got)
		}
		interrupt()
		impatient.Wait()
		stores[0].Clear()
		source.Clear()
		callers.Wait()
		if err := <-late; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if s := h.Calls(); s != (CallStats{94, 0}) || h.Source().calls.used != 0 {
			t.Errorf("at the end: %+v", s)
		}
	})
}

// A caller that waits is admitted in turn, and a place that is given up goes to the next one.
func TestBoundInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bound{limit: 1}
		if err := b.acquire(bg); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(bg)
		var order []int
		for i := range 4 {
			go func() {
				if i == 1 {
					if err := b.acquire(ctx); err == nil {
						t.Error("admitted although its context is done")
					}
					return
				}
				if err := b.acquire(bg); err != nil {
					t.Error(err)
				}
				order = append(order, i)
				b.release()
			}()
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		b.release()
		synctest.Wait()
		if len(order) != 3 || order[0] != 0 || order[1] != 2 || order[2] != 3 || b.used != 0 {
			t.Errorf("admitted %v; %d are in flight", order, b.used)
		}
	})
}

// BenchmarkBound is the cost of a call that does not wait.
func BenchmarkBound(b *testing.B) {
	for name, bound := range map[string]*bound{"none": nil, "bound": {limit: maxCalls}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := bound.acquire(bg); err != nil {
					b.Fatal(err)
				}
				bound.release()
			}
		})
	}
	b.Run("channel", func(b *testing.B) {
		calls := make(chan struct{}, maxCalls)
		for b.Loop() {
			select {
			case calls <- struct{}{}:
			case <-bg.Done():
			}
			<-calls
		}
	})
}
