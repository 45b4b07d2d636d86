package drivers_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A call that waits is admitted in turn, and a place that is given up goes to the next one.
func TestCallLimitInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := drivers.NewCallLimit(10)
		c.Lower(1, nil)
		if err := c.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		interrupted, interrupt := context.WithCancel(t.Context())
		var order []int
		for i := range 4 {
			go func() {
				if i == 1 {
					if err := c.Acquire(interrupted); !errors.Is(err, context.Canceled) {
						t.Errorf("interrupted: got %v", err)
					}
					return
				}
				if err := c.Acquire(t.Context()); err != nil {
					t.Error(err)
				}
				order = append(order, i)
				c.Release(1)
			}()
			synctest.Wait()
		}
		interrupt()
		synctest.Wait()
		if got := c.Waiting(); got != 3 {
			t.Errorf("%d calls wait, want 3", got)
		}
		c.Release(1)
		synctest.Wait()
		if !slices.Equal(order, []int{0, 2, 3}) || c.Waiting() != 0 {
			t.Errorf("admitted %v; %d wait", order, c.Waiting())
		}
	})
}

// A limit is raised while calls wait and there can be more threads, up to its original size, and no further
// than calls need it. After there could be none, it is raised within a second when there can be, although
// no further call comes.
func TestCallLimitIsRaised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked, left atomic.Int64
		more := func(n int) int {
			asked.Add(1)
			made := min(int64(n), left.Load())
			left.Add(-made)
			return int(made)
		}
		c := drivers.NewCallLimit(1000)
		c.Lower(10, more)
		var admitted atomic.Int64
		var calls sync.WaitGroup
		call := func(n int) {
			for range n {
				calls.Go(func() {
					if err := c.Acquire(t.Context()); err != nil {
						t.Error(err)
					}
					admitted.Add(1)
				})
			}
		}
		want := func(when string, calls, waiting int) {
			t.Helper()
			synctest.Wait()
			if admitted.Load() != int64(calls) || c.Waiting() != waiting {
				t.Errorf("%s: %d calls are admitted and %d wait, want %d and %d", when, admitted.Load(), c.Waiting(), calls, waiting)
			}
		}
		call(10)
		want("as many as the limit", 10, 0)
		if asked.Load() != 0 {
			t.Error("threads were made although no call was refused")
		}
		call(290)
		want("without more threads", 10, 290)
		time.Sleep(10 * time.Second)
		want("without more threads", 10, 290)
		if got := asked.Load(); got < 10 || got > 11 {
			t.Errorf("more was called %d times in 10 s, want once in a second", got)
		}
		left.Store(100)
		time.Sleep(2 * time.Second)
		want("when there can be 100", 110, 190)
		left.Store(10_000)
		time.Sleep(2 * time.Second)
		want("when there can be many", 300, 0)
		if got := 10_000 - left.Load(); got < 190 || got > 190+2*64 {
			t.Errorf("threads for %d more calls were made, want for 190, and at most 128 more", got)
		}
		call(800)
		time.Sleep(time.Second)
		want("up to the limit", 1000, 100)
		if got := 100 + 10_000 - left.Load(); got != 990 {
			t.Errorf("threads for %d more calls were made in all, want 990", got)
		}
		c.Release(100)
		want("at the end", 1100, 0)
		calls.Wait()
		c.Release(1000)
	})
}

// TryAcquire admits all calls or none, and raises the limit in the background, at most once a second while
// there can be no more threads.
func TestCallLimitWithoutWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		var refuse atomic.Bool
		more := func(n int) int {
			asked.Add(1)
			if refuse.Load() {
				return 0
			}
			return n
		}
		c := drivers.NewCallLimit(100)
		c.Lower(0, more)
		refuse.Store(true)
		for range 1000 {
			if c.TryAcquire(7) {
				t.Fatal("admitted without threads")
			}
			time.Sleep(time.Millisecond)
		}
		if got := asked.Load(); got > 2 {
			t.Errorf("more was called %d times in a second", got)
		}
		time.Sleep(2 * time.Second)
		refuse.Store(false)
		before := asked.Load()
		time.Sleep(5 * time.Second)
		if asked.Load() != before {
			t.Error("more was called although there was no call")
		}
		if c.TryAcquire(7) {
			t.Fatal("admitted without threads")
		}
		time.Sleep(time.Second)
		for range 9 { // 63 of 64
			if !c.TryAcquire(7) {
				t.Fatal("not admitted with threads")
			}
		}
		if c.TryAcquire(2) || !c.TryAcquire(1) {
			t.Error("the limit is not 64 calls")
		}
		time.Sleep(time.Second)
		if !c.TryAcquire(36) || c.TryAcquire(1) {
			t.Error("the limit is not 100 calls")
		}
	})
}

// A panic of more does not keep the limit from being raised later.
func TestCallLimitAfterPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := drivers.NewCallLimit(10)
		panicked := false
		c.Lower(0, func(n int) int {
			if !panicked {
				panicked = true
				panic("a panic of the test")
			}
			return n
		})
		if err := c.Acquire(t.Context()); err != nil {
			t.Error(err)
		}
		c.Release(1)
		time.Sleep(time.Minute)
	})
}

// BenchmarkCallLimit is the cost of a call that does not wait, on one and on several goroutines.
func BenchmarkCallLimit(b *testing.B) {
	c := drivers.NewCallLimit(4096)
	call := func() {
		if c.Acquire(context.Background()) == nil {
			c.Release(1)
		}
	}
	b.Run("one", func(b *testing.B) {
		for b.Loop() {
			call()
		}
	})
	b.Run("several", func(b *testing.B) {
		b.RunParallel(func(p *testing.PB) {
			for p.Next() {
				call()
			}
		})
	})
}
