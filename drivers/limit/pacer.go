package limit

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A pacer gives out units at a rate, to one caller after the other. It keeps a
// clock that says when all that was given out is paid for. The next caller
// moves the clock on by what he takes, and goes when it is that late, so that
// the rate is exact for any number of callers.
//
// Callers go in the order in which they came, except that those in the
// background count as having come later, by patience, while others wait.
// Hence nobody waits for one in the background longer than it takes to pay for
// the units it is being given, unless that one has been patient; and one in the
// background waits for nobody who came more than patience after it, so that
// somebody who comes to need what it brings is not kept waiting for ever.
type pacer struct {
	perSecond int64 // 0 is no bound

	mu      sync.Mutex // guards the following
	paid    time.Time
	waiting [2][]*waiter // those who came in the foreground, and in the background
	serving bool         // a timer will call serve
}

// A waiter is a caller who waits.
type waiter struct {
	n    int64
	turn time.Time     // when he came, or counts as having come
	gone chan struct{} // closed when he may go
}

const (
	// slack is how far the clock may lag behind the time: who wakes up late,
	// as all do by about a millisecond, makes up for it with the next units.
	slack = 10 * time.Millisecond

	// patience is how long those in the background let others go first.
	maxYield = time.Second
)

// wait returns when n more units are paid for. If ctx is done before, it
// returns the error of ctx; units that were not being paid for yet are not.
func (p *pacer) wait(ctx context.Context, n int64) error {
	if p.perSecond <= 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	w := &waiter{n: n, turn: time.Now(), gone: make(chan struct{})}
	queue := 0
	if drivers.IsBackground(ctx) {
		queue = 1
		w.turn = w.turn.Add(maxYield)
	}
	p.mu.Lock()
	p.waiting[queue] = append(p.waiting[queue], w)
	if !p.serving {
		p.serve()
	}
	p.mu.Unlock()
	select {
	case <-w.gone:
		return nil
	case <-ctx.Done():
		p.leave(queue, w)
		return ctx.Err()
	}
}

// leave takes w out of its queue.
func (p *pacer) leave(queue int, w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.waiting[queue], w); i >= 0 {
		p.waiting[queue] = slices.Delete(p.waiting[queue], i, i+1)
	}
}

// serve lets callers go that need not wait any more, and sets a timer for the
// next. p.mu must be held.
func (p *pacer) serve() {
	p.serving = false
	for w := p.next(); w != nil; w = p.next() {
		now := time.Now()
		p.pay(now, w.n)
		if wait := p.paid.Sub(now); wait > 0 {
			p.serving = true
			time.AfterFunc(wait, func() {
				p.mu.Lock()
				defer p.mu.Unlock()
				close(w.gone)
				p.serve()
			})
			return
		}
		close(w.gone)
	}
}

// next takes the caller whose turn it is out of his queue; nil: there is none.
// p.mu must be held.
func (p *pacer) next() *waiter {
	queue := &p.waiting[0]
	if back := p.waiting[1]; len(back) > 0 && (len(*queue) == 0 || back[0].turn.Before((*queue)[0].turn)) {
		queue = &p.waiting[1]
	}
	if len(*queue) == 0 {
		return nil
	}
	w := (*queue)[0]
	*queue = slices.Delete(*queue, 0, 1)
	return w
}

// pay moves the clock on by n units. p.mu must be held.
func (p *pacer) pay(now time.Time, n int64) {
	if earliest := now.Add(-slack); p.paid.Before(earliest) {
		p.paid = earliest
	}
	p.paid = p.paid.Add(time.Duration(float64(n) / float64(p.perSecond) * float64(time.Second)))
}
