package placement

import (
	"errors"
	"sync/atomic"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// MaxWorkers is the largest number of background workers.
const MaxWorkers = 256

// A staff is the number of background workers, which may change at any time.
type staff struct {
	wanted atomic.Int64 // how many there are, apart from those that end after their turn

	mu      panics.Mutex // held while the number changes; guards the following
	serving bool         // Run has started the workers, and does not end them yet
}

// workers returns the number of background workers.
func (h *Handler) workers() int { return int(h.staff.wanted.Load()) }

// peerWorkersOf returns the number of workers for requests to the peers beside those for the source.
func peerWorkersOf(workers int) int { return min(workers, peerWorkers) }

// startWorkers starts the workers.
func (h *Handler) startWorkers() {
	h.staff.mu.Lock()
	defer h.staff.mu.Unlock()
	h.staff.serving = true
	h.hire(h.gate, h.queue, h.workers())
	if h.peers != nil {
		h.hire(h.peers.gate, h.peers.queue, peerWorkersOf(h.workers()))
	}
}

// endWorkers waits for the end of the workers. Their queues are closed.
func (h *Handler) endWorkers() {
	h.staff.mu.Lock()
	h.staff.serving = false
	h.staff.mu.Unlock()
	h.pool.Wait()
}

// SetWorkers changes the number of background workers, and with it the most requests in flight. Nothing
// that is in flight is interrupted: a worker that is not needed any more ends after its turn.
func (h *Handler) SetWorkers(n int) {
	n = max(1, min(n, MaxWorkers))
	h.staff.mu.Lock()
	defer h.staff.mu.Unlock()
	before := int(h.staff.wanted.Swap(int64(n)))
	h.gate.resize(n)
	if h.staff.serving {
		h.employ(h.gate, h.queue, n-before)
	}
	if h.peers == nil {
		return
	}
	before, n = peerWorkersOf(before), peerWorkersOf(n)
	h.peers.gate.resize(n)
	if h.staff.serving {
		h.employ(h.peers.gate, h.peers.queue, n-before)
	}
}

// employ changes the number of workers of a queue by n, which may be negative.
func (h *Handler) employ(g *gate, q *queue, n int) {
	if n < 0 {
		q.dismiss(-n)
		return
	}
	h.hire(g, q, n-q.keep(n))
}

// hire starts n workers.
func (h *Handler) hire(g *gate, q *queue, n int) {
	for range n {
		h.startWorker(g, q)
	}
}

// startWorker starts one background worker, for requests to the source or to the peers.
func (h *Handler) startWorker(g *gate, q *queue) {
	h.pool.Go(func() { panics.Repeat(h.ctx, func() { h.work(g, q) }) })
}

// work is one background worker. If a turn stalls, another worker takes its place, and it ends
// after the turn.
func (h *Handler) work(g *gate, q *queue) {
	background := drivers.Background(h.ctx)
	for f := q.take(); f != nil; f = q.take() {
		buf, err := g.blocks.get(h.ctx, nil)
		if err != nil {
			q.done(f)
			return
		}
		turn := g.turns.watch(func() {
			g.blocks.replace()
			q.stall(f)
			h.startWorker(g, q)
		})
		err = f.fetchNext(background, buf, turn)
		if stalled := turn.end(); stalled {
			q.resume(f)
			return
		}
		g.blocks.put(buf, errors.Is(err, drivers.ErrAbandoned))
		q.done(f)
	}
}
