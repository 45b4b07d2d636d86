package placement

import (
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/tiers"
)

// A gate decides how much background work may be in flight. Demand reads and background
// work share the source and the network, so that background requests in flight can make demand
// reads slower. The limit is that of a controller (concurrency.go), which measures both.
//
// The gate also counts the readers that wait for blocks of fills, and owns the buffers of blocks
// in flight, which bound their number. None of its limits counts requests and readers that the
// source leaves without an answer (stalls.go); a prediction that hangs counts until predictTimeout.
//
// The rate limiter of drivers/limit does something else: among the requests that wait inside a
// source with a capped rate, it serves demand reads before background requests. The limiter
// cannot cancel a request in flight. The gate limits background requests for every source, with
// or without a rate limit.
type gate struct {
	control *controller
	demands *buffers // of demand reads
	blocks  *buffers // of background requests
	reads   *stalls  // demand fetches without an answer
	turns   *stalls  // turns of workers without an answer
	streams bool     // the source is best read in streams, whose number does not depend on that of workers

	waits tiers.Histogram // how long readers waited

	mu       panics.Mutex // guards the following
	waiting  int          // readers that wait, for less than waitStall
	inFlight load         // of background requests
}

// A load is what some requests transfer.
type load struct {
	blocks int
	bytes  int64
}

func (l load) plus(m load) load  { return load{l.blocks + m.blocks, l.bytes + m.bytes} }
func (l load) minus(m load) load { return load{l.blocks - m.blocks, l.bytes - m.bytes} }

// streamBlocks is the largest limit for a source that is best read in streams, and does not state
// its concurrency. 10 Gb/s transfer 128 MiB in a tenth of a second; docs/performance.md has the
// measurements.
const streamBlocks = 128

// startBlocks is the first limit for other sources.
const startBlocks = 4

// newGate makes the gate of a number of background workers for a source.
func newGate(workers int, source drivers.Profile) *gate {
	control := newController(startBlocks, workers)
	if stride := blocks(source.Stride); stride > 1 {
		most := streamBlocks
		if source.Concurrency > 0 {
			most = source.Concurrency * stride
		}
		control = newController(most/2, most) // a stream takes long, and with it the rise of the limit
		control.least = control.bytes
	}
	return &gate{
		control: control,
		demands: newBuffers(demandBlocks(workers), maxDemands),
		blocks:  newBuffers(workers, max(workers, MaxWorkers)),
		reads:   newStalls(readStall, maxStallReads),
		turns:   newStalls(turnStall, maxStallTurns),
		streams: control.least > blockSize,
	}
}

// The bounds of the blocks of demand reads.
const (
	minDemands = 16
	maxDemands = 64
)

// demandBlocks returns the number of blocks of demand reads beside a number of workers.
func demandBlocks(workers int) int { return max(minDemands, min(2*workers, maxDemands)) }

// resize changes the number of workers. Requests in flight go on. Calls of resize are not concurrent.
func (g *gate) resize(workers int) {
	if !g.streams {
		g.control.SetMax(workers)
	}
	g.demands.resize(demandBlocks(workers))
	g.blocks.resize(workers)
}

// A wait is the time during which one reader waits.
type wait struct {
	gate    *gate
	since   time.Time
	stall   *time.Timer
	counted bool // guarded by gate.mu
}

// demand records that a reader begins to wait. The caller calls done when the wait ends. A
// reader that has waited for waitStall does not count any more: its request hangs at the source.
func (g *gate) demand() *wait {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting++
	w := &wait{gate: g, since: time.Now(), counted: true}
	w.stall = time.AfterFunc(waitStall, func() {
		defer panics.Contain()
		w.leave()
	})
	return w
}

// done records that the reader no longer waits.
func (w *wait) done() {
	w.stall.Stop()
	w.gate.waits.Observe(time.Since(w.since))
	w.leave()
}

// leave ends the count of a wait.
func (w *wait) leave() {
	g := w.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.counted {
		w.counted = false
		g.waiting--
	}
}

// stuck reports whether a demand fetch would wait for others that the source does not answer.
func (g *gate) stuck() bool { return g.demands.empty() && isClosed(g.reads.atBound()) }

// crowd is the number of waiting readers above which an open fetches one block instead of a
// range. It is also the number of sequential readers that are distinguished in one file.
const crowd = 8

// crowded reports whether more than crowd readers wait.
func (g *gate) crowded() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting > crowd
}

// admit reports whether a background request may start now. If so, the caller calls leave when the
// request has ended. The size of the request itself does not matter: otherwise small requests would
// overtake a large one for ever.
func (g *gate) admit(request load) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.control.Admits(g.inFlight.blocks, g.inFlight.bytes) {
		return false
	}
	g.inFlight = g.inFlight.plus(request)
	return true
}

// leave ends an admitted request, or the difference between it and what was given to admit.
func (g *gate) leave(request load) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight = g.inFlight.minus(request)
}

// stalled returns the number of requests without an answer.
func (g *gate) stalled() int64 { return int64(g.reads.count() + g.turns.count()) }

// background returns the blocks of background requests in flight.
func (g *gate) background() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inFlight.blocks
}
