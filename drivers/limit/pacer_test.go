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

var behind = drivers.Background(ctx)

// A log notes who went when, in a bubble of synctest.
type log struct {
	p     *pacer
	start time.Time
	wg    sync.WaitGroup

	mu   sync.Mutex // guards the following
	went []string
	at   map[string]time.Duration
}

func newLog(perSecond int64) *log {
	l := &log{p: &pacer{perSecond: perSecond}, start: time.Now(), at: make(map[string]time.Duration)}
	l.p.paid = l.start // no slack
	return l
}

// come has a caller wait, and returns when he does.
func (l *log) come(ctx context.Context, name string, n int64) {
	l.wg.Go(func() {
		if l.p.wait(ctx, n) != nil {
			name += " gave up"
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.went = append(l.went, name)
		l.at[name] = time.Since(l.start)
	})
	synctest.Wait()
}

func (l *log) want(t *testing.T, want ...string) {
	t.Helper()
	l.wg.Wait()
	if !slices.Equal(l.went, want) {
		t.Errorf("went %q, want %q", l.went, want)
	}
}

func TestForegroundGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(100)
		l.come(behind, "b1", 10) // is being served when the others come
		l.come(behind, "b2", 10)
		l.come(behind, "b3", 10)
		l.come(ctx, "f1", 10)
		l.come(ctx, "f2", 10)
		l.want(t, "b1", "f1", "f2", "b2", "b3")
		if got, want := l.at["f1"], 200*time.Millisecond; got != want {
			t.Errorf("the first of the foreground went after %v, want %v", got, want)
		}
	})
}

// With the foreground never at rest, one in the background goes when it has
// been patient, before who came later than that.
func TestBackgroundIsNotStarved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(100)
		stop, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		for range 2 { // there is always one who waits
			l.wg.Go(func() {
				for stop.Err() == nil {
					l.p.wait(ctx, 10)
				}
			})
		}
		synctest.Wait()
		l.come(behind, "b", 10)
		l.wg.Wait()
		if got, most := l.at["b"], maxYield+300*time.Millisecond; got < maxYield || got > most {
			t.Errorf("went after %v, want from %v to %v", got, maxYield, most)
		}
	})
}

func TestRateIsExactForManyCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(1000)
		for i := range 200 {
			each := ctx
			if i%3 == 0 {
				each = behind
			}
			l.wg.Go(func() {
				for n := range int64(10) {
					l.p.wait(each, n)
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

// The rate holds on a clock that is not fake, where all wake up late.
func TestRateIsNotExceeded(t *testing.T) {
	const rate, each = 100_000, 50
	p := &pacer{perSecond: rate}
	start := time.Now()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range each {
				p.wait(ctx, 20)
			}
		})
	}
	wg.Wait()
	if got, least := time.Since(start), 20*each*20*time.Second/rate-slack; got < least {
		t.Errorf("took %v, want at least %v", got, least)
	}
}

func TestWhoGivesUpPaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(100)
		soon, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		l.come(ctx, "a", 10)
		l.come(soon, "b", 10_000)
		l.come(drivers.Background(soon), "c", 10_000)
		l.come(ctx, "d", 10)
		l.wg.Wait()
		if got, want := l.at["d"], 200*time.Millisecond; got != want {
			t.Errorf("the last went after %v, want %v; all: %v", got, want, l.at)
		}
		if l.at["b gave up"] != 50*time.Millisecond || l.at["c gave up"] != 50*time.Millisecond {
			t.Errorf("went %v", l.at)
		}
	})
}
