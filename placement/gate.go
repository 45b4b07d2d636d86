package placement

import (
	"math"
	"sync"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/tiers"
)

// A gate decides how much background work may be in flight. Demand reads and background
// work share the source and the network, so that background requests in flight make demand
// reads slower. The gate counts the readers that wait for blocks of fills, with how they
// access the file, and the background requests in flight with their bytes.
//
// The rules depend on the latency class of the source:
//
//   - In a file system, requests in flight delay each other. While a reader waits, at most
//     a quarter of the workers start another request.
//   - With drivers.LatencyRequest a request takes the same time however many are in flight,
//     and one stream does not saturate the network. All workers may go on while the bytes
//     in flight are below a limit. While a reader reads at random, the limit is an eighth
//     of that: such a reader waits for every block, whereas the blocks of a sequential
//     reader are fetched ahead of it.
//
// The gate also owns the buffers of demand reads, which bound their number. None of its limits
// counts requests and readers that the source leaves without an answer (stalls.go).
//
// The rate limiter of drivers/limit does something else: among the requests that wait inside a
// source with a capped rate, it serves demand reads before background requests. The limiter
// cannot cancel a request in flight. The gate limits background requests for every source, with
// or without a rate limit.
type gate struct {
	maxYielding int      // background requests in flight at most, while a reader waits
	maxBytes    int64    // bytes of background requests in flight at most
	buffers     *buffers // of demand reads
	reads       *stalls  // demand fetches without an answer
	turns       *stalls  // turns of workers without an answer
	opened      func()   // called when admit may succeed after it failed; no lock is held

	waits tiers.Histogram // how long readers waited

	mu         sync.Mutex // guards the following
	waiting    int        // readers that wait, for less than waitStall
	random     int        // those of them that read at random
	lastRandom time.Time  // when the last of those ceased to wait
	requests   int        // background requests in flight
	inFlight   int64      // their bytes
}

// defaultBytes is the limit of bytes in flight for a source that does not state its
// concurrency. 10 Gb/s transfer 128 MiB in a tenth of a second; docs/performance.md has the
// measurements. Large files arrive in streams of many blocks, of which a few saturate the
// network. Additional streams would slow down each of them, also those of readers. Small
// files are few bytes, so that all workers go on.
const defaultBytes = 128 << 20

// newGate makes the gate of a number of background workers for a source.
func newGate(workers int, source drivers.Profile) *gate {
	g := &gate{
		maxYielding: max(1, workers/4),
		maxBytes:    math.MaxInt64,
		buffers:     newBuffers(max(16, min(2*workers, 64))),
		reads:       newStalls(readStall, maxStallReads),
		turns:       newStalls(turnStall, maxStallTurns),
		opened:      func() {},
	}
	if source.Latency == drivers.LatencyRequest {
		g.maxYielding, g.maxBytes = workers, defaultBytes
		if source.Concurrency > 0 && source.Stride > 0 {
			g.maxBytes = int64(source.Concurrency) * source.Stride
		}
	}
	return g
}

// An access is how a waiting reader accesses its file.
type access int

const (
	sequentialAccess access = iota // opens, too: most files are read from their beginning
	randomAccess
)

// A wait is the time during which one reader waits.
type wait struct {
	gate    *gate
	access  access
	since   time.Time
	stall   *time.Timer
	counted bool // guarded by gate.mu
}

// demand records that a reader begins to wait. The caller calls done when the wait ends. A
// reader that has waited for waitStall does not count any more: its request hangs at the source,
// so that less background work would not shorten the wait.
func (g *gate) demand(a access) *wait {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting++
	if a == randomAccess {
		g.random++
	}
	w := &wait{gate: g, access: a, since: time.Now(), counted: true}
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
	if w.gate.leaveWait(w) {
		w.gate.opened()
	}
}

// leaveWait ends the count of a wait, and reports whether it was the last one that counted.
func (g *gate) leaveWait(w *wait) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !w.counted {
		return false
	}
	w.counted = false
	g.waiting--
	if w.access == randomAccess {
		g.random--
		g.lastRandom = time.Now()
	}
	return g.waiting == 0
}

// stuck reports whether a demand fetch would wait for others that the source does not answer.
func (g *gate) stuck() bool { return g.buffers.empty() && isClosed(g.reads.atBound()) }

// crowd is the number of waiting readers above which an open fetches one block instead of a
// range. It is also the number of sequential readers that are distinguished in one file.
const crowd = 8

// crowded reports whether more than crowd readers wait.
func (g *gate) crowded() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting > crowd
}

// admit reports whether a background request of some bytes may start now. If so, the caller
// calls leave when the request has ended. The size of the request itself does not matter:
// otherwise small requests would overtake a large one for ever.
func (g *gate) admit(bytes int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting > 0 && g.requests >= g.maxYielding || g.full() {
		return false
	}
	g.requests++
	g.inFlight += bytes
	return true
}

// grow adds to the bytes of an admitted request, whose size was not known before.
func (g *gate) grow(bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight += bytes
}

// leave ends an admitted request. bytes is what was given to admit and to grow.
func (g *gate) leave(bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.requests--
	g.inFlight -= bytes
}

// randomPause is how soon a random-access reader is expected to wait again. The limit of
// bytes in flight stays low until then.
const randomPause = 100 * time.Millisecond

// full reports whether the limit of bytes in flight is reached. When the limit rises again
// because randomPause has passed, no event reports it. None is needed: a request is in
// flight then, and its end wakes the queue. g.mu must be held.
func (g *gate) full() bool {
	if g.inFlight < g.maxBytes/8 {
		return false
	}
	return g.inFlight >= g.maxBytes || g.random > 0 || time.Since(g.lastRandom) < randomPause
}
