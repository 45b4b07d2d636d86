package placement

import (
	"container/list"
	"sync"
	"time"
)

// A queue holds the fills that have blocks left for the background. Those that
// are being read come first, in turn: each block that a reader asks for gives
// its fill credit for as many as are fetched ahead. The rest are completed one
// after the other, in the order in which they were started. When there are none,
// those are begun that nobody has asked for yet.
//
// While a reader waits for a block, only a few of the workers may be let through:
// demand goes before prefetch. No worker is let through while the others have much
// under way, or, as long as a reader jumps about in a file, an eighth of that: all
// that is under way shares the network with what it waits for, and it waits for
// each block, where a reader in order has them brought ahead of it.
type queue struct {
	few  int   // workers let through while a reader waits
	most int64 // bytes under way with which no more workers are let through

	mu      sync.Mutex // guards the following
	cond    sync.Cond  // of mu: something below has changed
	hot     list.List  // fills with credit, the next to be served first
	all     list.List  // all fills, by start
	later   list.List  // fills to be begun when there is nothing else to do
	waiting int        // readers that wait for a block
	jumping int        // those of them that have jumped to it
	jumped  time.Time  // when the last of them ceased to wait
	active  int        // workers that fetch one
	flying  int64      // bytes that they have been sent for, by fill.weight
	closed  bool
}

// A place is where in a queue a fill is; it is guarded by queue.mu.
type place struct {
	hot, all, later *list.Element // nil where it is not
	credit          int           // takes before the fill is no longer hot
}

// credit is how many blocks, or streams of them, are fetched ahead of a reader
// before other files get their turn: enough for two seconds at 8 MB/s, and for
// the largest read-ahead that kernels do.
const credit = 16

func newQueue(few int, most int64) *queue {
	q := &queue{few: few, most: most}
	q.cond.L = &q.mu
	return q
}

// add queues a new fill.
func (q *queue) add(f *fill) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f.place.all = q.all.PushBack(f)
	q.cond.Signal()
}

// hasten has a worker begin f before others, once, though it is not in the queue
// yet.
func (q *queue) hasten(f *fill) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f.place.credit = 1
	f.place.hot = q.hot.PushBack(f)
	q.cond.Signal()
}

// maxLater is how many fills may wait until there is nothing else to do: enough
// to keep the workers busy from one burst of opens to the next.
const maxLater = 256

// hasRoom reports whether postpone may be called.
func (q *queue) hasRoom() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.later.Len() < maxLater
}

// postpone has a worker begin f when there is nothing else to do.
func (q *queue) postpone(f *fill) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f.place.later = q.later.PushBack(f)
	q.cond.Signal()
}

// touch says that a reader has asked for a block of f, which matters if f is
// queued.
func (q *queue) touch(f *fill) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := &f.place
	if p.all == nil {
		return
	}
	p.credit = credit
	if p.hot == nil {
		p.hot = q.hot.PushBack(f)
	}
}

// remove takes f out, if it is queued.
func (q *queue) remove(f *fill) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := &f.place
	if p.hot != nil {
		q.hot.Remove(p.hot)
	}
	if p.all != nil {
		q.all.Remove(p.all)
	}
	if p.later != nil {
		q.later.Remove(p.later)
	}
	*p = place{}
}

// wait says that a reader begins to wait for a block, and whether it has jumped to
// it; waited, which is told the same, ends it.
func (q *queue) wait(jumped bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting++
	if jumped {
		q.jumping++
	}
}

// waited says that a reader no longer waits.
func (q *queue) waited(jumped bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting--
	if jumped {
		q.jumping--
		q.jumped = time.Now()
	}
	if q.waiting == 0 {
		q.cond.Broadcast()
	}
}

// crowd is with how many readers that wait already there are many.
const crowd = 8

// crowded reports whether many wait besides the one who asks.
func (q *queue) crowded() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting > crowd
}

// jumpAgain is how soon a reader that has jumped is expected to do so again. The
// workers do not fill the network in between.
const jumpAgain = 100 * time.Millisecond

// full reports whether as much is under way as may be; q.mu must be held. What
// lets others through later is the end of something that is under way.
func (q *queue) full() bool {
	if q.flying < q.most/8 {
		return false
	}
	return q.flying >= q.most || q.jumping > 0 || time.Since(q.jumped) < jumpAgain
}

// take waits for a fill to fetch a block of, and reports false when the queue
// is closed. The fill stays where it is, for other workers; the caller removes
// it if it has no block left, and calls done in any case.
func (q *queue) take() (*fill, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		switch {
		case q.closed:
			return nil, false
		case q.waiting > 0 && q.active >= q.few, q.full():
		case q.hot.Len() > 0:
			return q.start(q.spend()), true
		case q.all.Len() > 0:
			return q.start(q.all.Front().Value.(*fill)), true
		case q.later.Len() > 0:
			f := q.later.Remove(q.later.Front()).(*fill)
			f.place.later = nil
			return q.start(f), true
		}
		q.cond.Wait()
	}
}

// start begins a take, and wakes the next worker, since f may have more blocks
// than one; q.mu must be held.
func (q *queue) start(f *fill) *fill {
	q.active++
	q.flying += f.weight()
	q.cond.Signal()
	return f
}

// spend returns the hot fill whose turn it is, for one of its credit; q.mu
// must be held.
func (q *queue) spend() *fill {
	e := q.hot.Front()
	f := e.Value.(*fill)
	p := &f.place
	if p.credit--; p.credit > 0 {
		q.hot.MoveToBack(e)
	} else {
		q.hot.Remove(e)
		p.hot = nil
	}
	return f
}

// done ends the take of f.
func (q *queue) done(f *fill) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.active--
	q.flying -= f.weight()
	q.cond.Signal()
}

// close ends every take, now and later.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.cond.Broadcast()
}

// len returns the number of fills that are queued.
func (q *queue) len() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return int64(q.all.Len())
}
