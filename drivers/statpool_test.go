package drivers

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// statNames returns n names.
func statNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	return names
}

// Requests that take long are made in parallel, and the Infos are in the order of the names.
func TestStatPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var inFlight, most, ended atomic.Int32
		stat := func(name string) (Info, error) {
			most.Store(max(most.Load(), inFlight.Add(1)))
			defer inFlight.Add(-1)
			time.Sleep(2 * time.Millisecond)
			if name == "7" {
				return Info{}, context.Canceled
			}
			return Info{Name: name}, nil
		}
		names := statNames(160)
		start := time.Now()
		infos := NewStatPool().Stats(t.Context(), names, stat, func() { ended.Add(1) })
		if took := time.Since(start); took > 30*time.Millisecond {
			t.Errorf("took %v", took)
		}
		for i, info := range infos {
			if info.Name != names[i] || (info.Err != nil) != (i == 7) {
				t.Errorf("%d: got %+v", i, info)
			}
		}
		synctest.Wait()
		if most.Load() != maxStats || ended.Load() != 1 {
			t.Errorf("%d requests in flight, want %d; end was called %d times", most.Load(), maxStats, ended.Load())
		}
	})
}

// Fast requests are made by one goroutine.
func TestStatPoolAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var inFlight, most atomic.Int32
		NewStatPool().Stats(t.Context(), statNames(160), func(name string) (Info, error) {
			most.Store(max(most.Load(), inFlight.Add(1)))
			defer inFlight.Add(-1)
			time.Sleep(time.Microsecond)
			return Info{Name: name}, nil
		}, func() {})
		if got := most.Load(); got != 1 {
			t.Errorf("%d requests in flight", got)
		}
	})
}

// A request that hangs delays the others by statTimeout. When all that the pool may make hang, a
// call fails at once; when they have returned, the pool works again.
func TestStatPoolHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, freed := NewStatPool(), make(chan struct{})
		var ended atomic.Int32
		call := func(hangs func(i int) bool) (failed int) {
			names := statNames(100)
			infos := p.Stats(t.Context(), names, func(name string) (Info, error) {
				var i int
				fmt.Sscan(name, &i)
				if hangs(i) {
					<-freed
				}
				return Info{Name: name}, nil
			}, func() { ended.Add(1) })
			for _, info := range infos {
				if errors.Is(info.Err, errNoReply) {
					failed++
				}
			}
			return failed
		}
		if got := call(func(i int) bool { return i%50 == 3 }); got != 2 {
			t.Errorf("%d names failed, want 2", got)
		}
		if got := call(func(int) bool { return true }); got != 100 {
			t.Errorf("%d names failed, want all", got)
		}
		start := time.Now()
		if got := call(func(int) bool { return false }); got != 100 || time.Since(start) != 0 {
			t.Errorf("the pool is full: %d names failed after %v, want all at once", got, time.Since(start))
		}
		if got := ended.Load(); got != 1 {
			t.Errorf("end was called %d times although requests are in flight", got)
		}
		close(freed)
		synctest.Wait()
		if got := call(func(int) bool { return false }); got != 0 {
			t.Errorf("after that: %d names failed", got)
		}
	})
}
