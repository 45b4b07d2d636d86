package limit

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A limiter is a rate limiter: it grants units at a fixed rate, to one caller after the
// other. It keeps the time until which the rate is used up. The next caller advances that
// time by the units that it takes, and returns when the time has come. The
// rate is therefore exact for any number of callers.
//
// Callers are served in the order of their arrival, except that a caller in the background
// counts as having arrived maxYield later. A demand read thus waits for at most one
// background request that is being admitted, unless that request has already waited for
// maxYield. A background request never waits for demand reads that arrive more than
// maxYield after it, so that a reader that comes to depend on it is not starved.
//
// The rate may change at any time. A caller that waits then waits for what it still lacks, at the
// new rate.
type limiter struct {
	perSecond atomic.Int64 // 0: unlimited; written while mu is held

	mu      sync.Mutex // guards the following
	paid    time.Time  // until when the rate is used up
	first   *waiter    // its units are taken, and it waits for its time; a timer will call serve
	waiting [2][]*waiter
}

// The queues of waiting callers.
const (
	demand = iota
	background
)

// A waiter is a waiting caller.
type waiter struct {
	n       int64
	arrival time.Time     // maxYield after the real one if in the background
	granted chan struct{} // closed when the rate admits the units
}

const (
	// slack is how far paid may lag behind the time. Timers fire about a
	// millisecond late, and the next units make up for it.
	slack = 10 * time.Millisecond

	// maxYield bounds how long a background request lets demand reads pass.
	maxYield = time.Second
)

// wait returns when the rate admits n more units, or with the error of ctx. A caller that is
// still in a queue when ctx is done is not charged.
func (l *limiter) wait(ctx context.Context, n int64) error {
	if l.perSecond.Load() <= 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	w := &waiter{n: n, arrival: time.Now(), granted: make(chan struct{})}
	queue := demand
	if drivers.IsBackground(ctx) {
		queue = background
		w.arrival = w.arrival.Add(maxYield)
	}
	l.mu.Lock()
	l.waiting[queue] = append(l.waiting[queue], w)
	if l.first == nil {
		l.serve()
	}
	l.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
		l.cancel(queue, w)
		return ctx.Err()
	}
}

// set changes the rate. 0 admits all callers, also those that wait.
func (l *limiter) set(perSecond int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, old := time.Now(), l.perSecond.Swap(perSecond)
	switch debt := l.paid.Sub(now); {
	case perSecond <= 0:
		l.paid = time.Time{}
	case debt > 0:
		l.paid = now.Add(duration(debt.Seconds()*float64(old), perSecond))
	}
	l.serve()
}

// cancel removes w from its queue.
func (l *limiter) cancel(queue int, w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting[queue], w); i >= 0 {
		l.waiting[queue] = slices.Delete(l.waiting[queue], i, i+1)
	}
}

// serve grants units to callers until one of them has to wait, and sets a timer for it.
// l.mu must be held.
func (l *limiter) serve() {
	for {
		if l.first == nil {
			if l.first = l.next(); l.first == nil {
				return
			}
			l.charge(time.Now(), l.first.n)
		}
		if wait := time.Until(l.paid); wait > 0 {
			time.AfterFunc(wait, func() { // after a change of the rate, another timer may have been faster
				l.mu.Lock()
				defer l.mu.Unlock()
				l.serve()
			})
			return
		}
		close(l.first.granted)
		l.first = nil
	}
}

// next removes the next caller from its queue. It returns nil if none waits. l.mu must be
// held.
func (l *limiter) next() *waiter {
	queue := &l.waiting[demand]
	if back := l.waiting[background]; len(back) > 0 && (len(*queue) == 0 || back[0].arrival.Before((*queue)[0].arrival)) {
		queue = &l.waiting[background]
	}
	if len(*queue) == 0 {
		return nil
	}
	w := (*queue)[0]
	*queue = slices.Delete(*queue, 0, 1)
	return w
}

// charge advances paid by n units. l.mu must be held.
func (l *limiter) charge(now time.Time, n int64) {
	rate := l.perSecond.Load()
	if rate <= 0 {
		return
	}
	if earliest := now.Add(-slack); l.paid.Before(earliest) {
		l.paid = earliest
	}
	l.paid = l.paid.Add(duration(float64(n), rate))
}

// duration returns the time that n units take, at most a century.
func duration(n float64, perSecond int64) time.Duration {
	const most = 100 * 365 * 24 * time.Hour
	return time.Duration(math.Min(n/float64(perSecond)*float64(time.Second), float64(most)))
}
