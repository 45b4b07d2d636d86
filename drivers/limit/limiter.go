package limit

import (
	"context"
	"slices"
	"sync"
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
type limiter struct {
	perSecond int64 // 0: unlimited

	mu      sync.Mutex // guards the following
	paid    time.Time  // until when the rate is used up
	waiting [2][]*waiter
	serving bool // a timer will call serve
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
	if l.perSecond <= 0 || ctx.Err() != nil {
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
	if !l.serving {
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
	l.serving = false
	for w := l.next(); w != nil; w = l.next() {
		now := time.Now()
		l.charge(now, w.n)
		if wait := l.paid.Sub(now); wait > 0 {
			l.serving = true
			time.AfterFunc(wait, func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				close(w.granted)
				l.serve()
			})
			return
		}
		close(w.granted)
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
	if earliest := now.Add(-slack); l.paid.Before(earliest) {
		l.paid = earliest
	}
	l.paid = l.paid.Add(time.Duration(float64(n) / float64(l.perSecond) * float64(time.Second)))
}
