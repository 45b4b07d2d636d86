package placement

import "sync"

// A queue holds the fills that have blocks left for the background. Fills that
// are being read come first, and get credit blocks fetched ahead for each
// block read; the rest are completed in the order in which they were started.
//
// While a reader waits for a block, only a few of the workers are let through:
// demand goes before prefetch.
type queue struct {
	few int // workers let through while a reader waits

	mu      sync.Mutex // guards the following
	cond    sync.Cond  // of mu: something below has changed
	hot     []*fill    // being read
	cold    []*fill    // the rest, and what has used up its credit
	queued  int64      // fills in either or both
	waiting int        // readers that wait for a block
	active  int        // workers that fetch one
	closed  bool
}

// A place is where in a queue a fill is; it is guarded by queue.mu.
type place struct {
	hot, cold bool
	credit    int // blocks to fetch before the fill is no longer hot
}

// credit is how many blocks are fetched ahead of a reader before other files
// get their turn: enough for two seconds at 8 MB/s, and for the largest
// read-ahead that kernels do.
const credit = 16

func newQueue(few int) *queue {
	q := &queue{few: few}
	q.cond.L = &q.mu
	return q
}

// add queues a new fill.
func (q *queue) add(f *fill) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.push(f)
}

// touch says that a reader has asked for a block of f.
func (q *queue) touch(f *fill) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f.place.credit = credit
	q.push(f)
}

// push puts f where its credit says, unless it is there; q.mu must be held.
func (q *queue) push(f *fill) {
	p := &f.place
	was := p.hot || p.cold
	switch {
	case p.credit > 0 && !p.hot:
		p.hot = true
		q.hot = append(q.hot, f)
	case p.credit == 0 && !p.cold:
		p.cold = true
		q.cold = append(q.cold, f)
	}
	if !was {
		q.queued++
	}
	q.cond.Signal()
}

// pop takes the first fill out of one of the lists; q.mu must be held.
func (q *queue) pop(list *[]*fill) *fill {
	f := (*list)[0]
	(*list)[0] = nil
	*list = (*list)[1:]
	p := &f.place
	if list == &q.hot {
		p.hot = false
	} else {
		p.cold = false
	}
	if !p.hot && !p.cold {
		q.queued--
	}
	return f
}

// wait says that a reader begins to wait for a block; waited ends it.
func (q *queue) wait() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting++
}

// waited says that a reader no longer waits.
func (q *queue) waited() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting--
	if q.waiting == 0 {
		q.cond.Broadcast()
	}
}

// take waits for a fill to fetch a block of, and reports false when the queue
// is closed. The caller calls done when it has fetched it, and put, before
// that, if there may be more blocks.
func (q *queue) take() (*fill, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		switch {
		case q.closed:
			return nil, false
		case q.waiting > 0 && q.active >= q.few:
		case len(q.hot) > 0:
			q.active++
			return q.pop(&q.hot), true
		case len(q.cold) > 0:
			q.active++
			return q.pop(&q.cold), true
		}
		q.cond.Wait()
	}
}

// put queues a fill again that was taken.
func (q *queue) put(f *fill) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f.place.credit = max(f.place.credit-1, 0)
	q.push(f)
}

// done ends a take.
func (q *queue) done() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.active--
	q.cond.Signal()
}

// close ends every take, now and later.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.cond.Broadcast()
}

// len returns the number of fills that are queued. Some may turn out to have
// been completed by their readers.
func (q *queue) len() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.queued
}
