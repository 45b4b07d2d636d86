package placement

import (
	"container/list"
	"sync"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// A queue orders the background work. It decides what comes next; the gate decides when.
// The order is:
//
//  1. Fills that are being read, in turn. Each block that a reader requests gives its fill
//     credit for some turns. The urgent feed has turns, too: it starts copies of files that
//     are about to be opened.
//  2. All other fills, one after the other, in the order in which they were started.
//  3. The planned feed: it starts copies of the pieces of opened files, and of files that the job
//     says it will open.
//  4. The idle feed: it starts copies of files that may be opened at some time.
type queue struct {
	gate *gate

	mu      panics.Mutex // guards the following, and every slot
	cond    sync.Cond    // of mu: something below has changed, or a request has left the gate
	hot     list.List    // of *fill: those with credit, the next turn first; nil stands for the urgent feed
	all     list.List    // of *fill: all fills, in the order of their start
	urgent  feed
	planned feed
	idle    feed
	marker  *list.Element // of the urgent feed in hot; nil if it is not there
	leaving int           // workers that take is to end
	closed  bool
}

// A slot is the position of a fill in a queue.
type slot struct {
	hot, all *list.Element // nil if the fill is not in that list
	credit   int           // turns until the fill leaves hot
	stalled  int           // turns that have stalled
	parked   bool          // out of the lists until no turn is stalled
	fresh    bool          // nothing of the fill was fetched or opened: one worker takes it
}

// A feed yields fills that no reader has caused.
type feed struct {
	next    func() prediction // predicts a file, or returns nil; the queue makes one call at a time
	pending bool              // next may return a prediction
	pulling bool              // a call of next is in progress
}

// A prediction returns the fill of a file that was predicted without a request, or nil if there is
// none. A worker calls it once, in its turn, and it may make requests.
type prediction func() *fill

// credit is the number of turns, of one block or one stream each, that are given to a fill
// ahead of its reader before other fills have their turn. It is enough for two seconds at
// 8 MB/s, and for the largest read-ahead of kernels.
const credit = 16

// newQueue makes a queue with three feeds, which call the functions. Each may be nil.
func newQueue(g *gate, urgent, planned, idle func() prediction) *queue {
	q := &queue{gate: g, urgent: feed{next: urgent}, planned: feed{next: planned}, idle: feed{next: idle}}
	q.cond.L = &q.mu
	return q
}

// add queues a fill that has begun, if it is not queued.
func (q *queue) add(f *fill) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f.slot.fresh = false
	q.list(f)
}

// addNew queues a fill that has not begun.
func (q *queue) addNew(f *fill) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f.slot.fresh = true
	q.list(f)
}

// list puts f at the end of the queue, if it is not there; q.mu must be held.
func (q *queue) list(f *fill) {
	if f.slot.all == nil && !f.slot.parked {
		f.slot.all = q.all.PushBack(f)
		q.cond.Signal()
	}
}

// feedUrgent announces that the urgent feed may yield fills.
func (q *queue) feedUrgent() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.urgent.pending = true
	if q.marker == nil {
		q.marker = q.hot.PushBack((*fill)(nil))
	}
	q.cond.Signal()
}

// feedPlanned announces that the planned feed may yield fills.
func (q *queue) feedPlanned() { q.feed(&q.planned) }

// feedIdle announces that the idle feed may yield fills.
func (q *queue) feedIdle() { q.feed(&q.idle) }

// feed announces that a feed other than the urgent one may yield fills.
func (q *queue) feed(f *feed) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f.pending = true
	q.cond.Signal()
}

// touch gives f credit, if it is queued: a reader has requested one of its blocks.
func (q *queue) touch(f *fill) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := &f.slot
	if s.all == nil {
		return
	}
	s.credit = credit
	if s.hot == nil {
		s.hot = q.hot.PushBack(f)
	}
}

// remove takes f out of the queue, if it is there.
func (q *queue) remove(f *fill) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.unlist(f)
	f.slot.parked = false
}

// unlist takes f out of the lists; q.mu must be held.
func (q *queue) unlist(f *fill) {
	if f.slot.hot != nil {
		q.hot.Remove(f.slot.hot)
	}
	if f.slot.all != nil {
		q.all.Remove(f.slot.all)
	}
	f.slot.hot, f.slot.all, f.slot.credit = nil, nil, 0
}

// take waits for a fill whose next blocks a worker fetches, and returns nil when the worker is to end:
// the queue is closed, or there are to be fewer workers. The fill stays in the queue for other workers. The caller removes it if it has
// no absent block left, and calls done in any case.
func (q *queue) take() *fill {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.closed {
		f, from := q.front()
		switch {
		case q.leaving > 0:
			q.leaving--
			q.cond.Signal() // which this worker may have consumed
			return nil
		case f != nil && q.gate.admit(f.weight):
			if f.slot.fresh { // it returns when it has begun
				f.slot.fresh = false
				q.unlist(f)
			}
			q.spend(f)
			q.cond.Signal() // f may have blocks for another worker
			return f
		case from != nil && q.gate.admit(unknown): // the prediction may make a request
			if f := q.pull(from); f != nil {
				return f
			}
		default:
			q.cond.Wait()
		}
	}
	return nil
}

// front returns the fill, or the feed, that has the next turn; q.mu must be held.
func (q *queue) front() (*fill, *feed) {
	for e := q.hot.Front(); e != nil; e = e.Next() {
		if f := e.Value.(*fill); f != nil {
			return f, nil
		}
		if !q.urgent.pulling {
			return nil, &q.urgent
		}
	}
	if e := q.all.Front(); e != nil {
		return e.Value.(*fill), nil
	}
	for _, f := range [...]*feed{&q.planned, &q.idle} {
		if f.pending && !f.pulling {
			return nil, f
		}
	}
	return nil, nil
}

// spend takes one turn of credit from f if it is hot; q.mu must be held.
func (q *queue) spend(f *fill) {
	s := &f.slot
	if s.hot == nil {
		return
	}
	if s.credit--; s.credit > 0 {
		q.hot.MoveToBack(s.hot)
	} else {
		q.hot.Remove(s.hot)
		s.hot = nil
	}
}

// unknown is the load of a prediction before its fill is known.
var unknown = load{blocks: 1}

// pull returns a new fill of a feed, or nil if it has none for the next prediction. The caller was
// admitted by the gate with an unknown load; pull replaces that by the weight of the fill. Like a fill with
// credit, the urgent feed goes to the end of hot after its turn. q.mu must be held; pull releases it
// for a while.
func (q *queue) pull(from *feed) *fill {
	from.pulling, from.pending = true, false
	q.cond.Signal() // another worker may take what comes after the feed
	q.mu.Unlock()
	begin := from.next()
	q.mu.Lock()
	from.pulling = false
	if begin != nil {
		from.pending = true
		if from == &q.urgent { // the marker stays in hot during the pull
			q.hot.MoveToBack(q.marker)
		}
	}
	if !q.urgent.pending && !q.urgent.pulling && q.marker != nil {
		q.hot.Remove(q.marker)
		q.marker = nil
	}
	q.cond.Signal() // another worker may take what comes next
	var f *fill
	if begin != nil {
		q.mu.Unlock()
		panics.Do(func() error { f = begin(); return nil }) // which logs it
		if f != nil && f.foreign {                          // it is for other workers
			f.queue.addNew(f)
			f = nil
		}
		q.mu.Lock()
	}
	if f != nil {
		q.gate.leave(unknown.minus(f.weight))
	} else {
		q.gate.leave(unknown)
	}
	q.cond.Signal()
	return f
}

// done ends the turn that take returned.
func (q *queue) done(f *fill) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.gate.leave(f.weight)
	q.cond.Signal()
}

// stall ends the turn that take returned for other fills, because it has stalled. f gets no turn
// until resume: otherwise its other blocks would stall one worker after another.
func (q *queue) stall(f *fill) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f.slot.stalled++
	if f.slot.all != nil {
		q.unlist(f)
		f.slot.parked = true
	}
	q.gate.leave(f.weight)
	q.cond.Signal()
}

// resume ends a turn that has stalled. f goes to the end of the queue, unless it was removed.
func (q *queue) resume(f *fill) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f.slot.stalled--
	if f.slot.parked && f.slot.stalled == 0 {
		f.slot.parked = false
		f.slot.all = q.all.PushBack(f)
		q.cond.Signal()
	}
}

// dismiss makes n calls of take, now or later, return nil.
func (q *queue) dismiss(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.leaving += n
	q.cond.Broadcast()
}

// keep undoes up to n dismissals that have had no effect yet, and returns their number.
func (q *queue) keep(n int) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n = min(n, q.leaving)
	q.leaving -= n
	return n
}

// close makes take return nil, now and later.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.cond.Broadcast()
}

// len returns the number of queued fills.
func (q *queue) len() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return int64(q.all.Len())
}
