package limit

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

var inBackground = drivers.Background(ctx)

// A log records the order and the times in which callers are served, in a synctest bubble.
type log struct {
	limiter *limiter
	start   time.Time
	wg      sync.WaitGroup

	mu     sync.Mutex // guards the following
	served []string
	after  map[string]time.Duration
}

func newLog(perSecond int64) *log {
	l := &log{limiter: new(limiter), start: time.Now(), after: make(map[string]time.Duration)}
	l.limiter.set(perSecond)
	l.limiter.paid = l.start // no slack
	return l
}

// add starts a caller, and returns when it waits.
func (l *log) add(ctx context.Context, name string, n int64) {
	l.wg.Go(func() {
		if l.limiter.wait(ctx, n) != nil {
			name += " cancelled"
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.served = append(l.served, name)
		l.after[name] = time.Since(l.start)
	})
	synctest.Wait()
}

func (l *log) want(t *testing.T, want ...string) {
	t.Helper()
	l.wg.Wait()
	if !slices.Equal(l.served, want) {
		t.Errorf("served %q, want %q", l.served, want)
	}
}

func TestDemandFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(100)
		l.add(inBackground, "b1", 10) // is being served when the others arrive
		l.add(inBackground, "b2", 10)
		l.add(inBackground, "b3", 10)
		l.add(ctx, "f1", 10)
		l.add(ctx, "f2", 10)
		l.want(t, "b1", "f1", "f2", "b2", "b3")
		if got, want := l.after["f1"], 200*time.Millisecond; got != want {
			t.Errorf("the first demand read was served after %v, want %v", got, want)
		}
	})
}

// While demand reads always wait, a background request is served after maxYield, before
// the demand reads that arrive later.
func TestBackgroundIsNotStarved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(100)
		stop, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		for range 2 { // one of them always waits
			l.wg.Go(func() {
				for stop.Err() == nil {
					l.limiter.wait(ctx, 10)
				}
			})
		}
		synctest.Wait()
		l.add(inBackground, "b", 10)
		l.wg.Wait()
		if got, most := l.after["b"], maxYield+300*time.Millisecond; got < maxYield || got > most {
			t.Errorf("served after %v, want %v to %v", got, maxYield, most)
		}
	})
}

func TestRateIsExactForManyCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(1000)
		for i := range 200 {
			each := ctx
			if i%3 == 0 {
				each = inBackground
			}
			l.wg.Go(func() {
				for n := range int64(10) {
					l.limiter.wait(each, n)
				}
			})
		}
		l.wg.Wait()
		want := 200 * 45 * time.Second / 1000
		if got := time.Since(l.start); got < want || got > want+time.Millisecond {
			t.Errorf("took %v, want %v", got, want)
		}
	})
}

// The rate holds on a real clock, on which timers fire late.
func TestRateIsNotExceeded(t *testing.T) {
	const rate, each = 100_000, 50
	l := new(limiter)
	l.set(rate)
	start := time.Now()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range each {
				l.wait(ctx, 20)
			}
		})
	}
	wg.Wait()
	if got, least := time.Since(start), 20*each*20*time.Second/rate-slack; got < least {
		t.Errorf("took %v, want at least %v", got, least)
	}
}

func TestCancelledCallersAreNotCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(100)
		soon, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		l.add(ctx, "a", 10)
		l.add(soon, "b", 10_000)
		l.add(drivers.Background(soon), "c", 10_000)
		l.add(ctx, "d", 10)
		l.wg.Wait()
		if got, want := l.after["d"], 200*time.Millisecond; got != want {
			t.Errorf("the last was served after %v, want %v; all: %v", got, want, l.after)
		}
		if l.after["b cancelled"] != 50*time.Millisecond || l.after["c cancelled"] != 50*time.Millisecond {
			t.Errorf("served %v", l.after)
		}
	})
}

// A caller that waits then waits for what it lacks, at the new rate. Without a rate nobody waits.
func TestRateChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(10)
		l.add(ctx, "first", 10)                         // a second
		l.add(ctx, "second", 10)                        // until the end of another one
		time.Sleep(500 * time.Millisecond)              // the first lacks 5 units
		l.limiter.set(50)                               // 100 ms, and 200 ms for the second
		time.Sleep(200 * time.Millisecond)              // the second lacks 5 units
		l.limiter.set(1)                                // 5 s
		l.add(inBackground, "third", 1_000_000_000_000) // waits behind the second
		l.add(ctx, "fourth", 1_000_000_000_000)         // also behind it, and before the third
		time.Sleep(6 * time.Second)                     // the fourth waits for its units now
		l.limiter.set(0)                                // and for nothing any more
		l.add(ctx, "fifth", 1_000_000_000_000)          // without a limit
		l.limiter.set(100)                              // what was not limited is not charged
		l.add(ctx, "sixth", 100)                        // as slack permits
		l.wg.Wait()
		for name, want := range map[string]time.Duration{
			"first": 600 * time.Millisecond, "second": 5700 * time.Millisecond,
			"third": 6700 * time.Millisecond, "fourth": 6700 * time.Millisecond, "fifth": 6700 * time.Millisecond,
			"sixth": 6700*time.Millisecond + time.Second - slack,
		} {
			if got := l.after[name]; got != want {
				t.Errorf("%s was served after %v, want %v", name, got, want)
			}
		}
	})
}
