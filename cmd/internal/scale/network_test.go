package scale

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// A link transfers bytes at a rate, in the order in which the transfers begin.
type link struct {
	rate float64 // bytes per second

	mu   sync.Mutex // guards the following
	free time.Time  // when all transfers that have begun will have ended
}

// reserve begins a transfer, and returns its end.
func (l *link) reserve(n int64) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(float64(n) / l.rate * float64(time.Second)))
	return l.free
}

// transfer moves n bytes over links that work at the same time: the slowest one decides.
func transfer(n int64, links ...*link) {
	var end time.Time
	for _, l := range links {
		if e := l.reserve(n); e.After(end) {
			end = e
		}
	}
	time.Sleep(time.Until(end))
}

// A host is what every node has: a network interface with a link in each direction, and a life.
type host struct {
	index   int
	in, out link
	down    chan struct{} // closed when the node is lost
	read    atomic.Int64  // bytes that the node has read from the source
	served  atomic.Int64  // bytes that other nodes have read from the node
	sockets sockets
}

func newHost(index int, rate float64) *host {
	return &host{index: index, in: link{rate: rate}, out: link{rate: rate}, down: make(chan struct{})}
}

func (h *host) isDown() bool {
	select {
	case <-h.down:
		return true
	default:
		return false
	}
}

// sockets counts the connections of a node. A connection is made when all others to the same node
// are in use, and is kept: an epoch here is shorter than the time after which it would be closed.
type sockets struct {
	mu       sync.Mutex // guards the following
	inUse    map[int]int
	open     map[int]int
	all      int // connections that this node has made
	accepted int // connections that others have made to it
}

// connect takes a connection to a node, and reports whether it is a new one.
func (s *sockets) connect(to int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inUse == nil {
		s.inUse, s.open = make(map[int]int), make(map[int]int)
	}
	s.inUse[to]++
	if s.inUse[to] <= s.open[to] {
		return false
	}
	s.open[to]++
	s.all++
	return true
}

func (s *sockets) release(to int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inUse[to]--
}

func (s *sockets) accept() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepted++
}

func (s *sockets) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all + s.accepted
}

// The constants of drivers/peer that the model of its client needs. TestConstants compares them.
const (
	choices        = 2
	connectTimeout = 500 * time.Millisecond
	stall          = 700 * time.Millisecond
	pingTimeout    = time.Second
	refusalTTL     = 10 * time.Second
	firstPause     = time.Second
	maxPause       = 30 * time.Second
)

// errLost is the error of a request to a node that does not answer.
var errLost = errors.New("the node does not answer")

// request is a request of one node to another for n bytes. answer returns when the other has them. A
// node that is lost sends nothing any more, as one that has lost its power.
func (c *cluster) request(ctx context.Context, from, to *host, n int64, answer func(context.Context) error) error {
	if to.isDown() {
		time.Sleep(connectTimeout)
		return errLost
	}
	if from.sockets.connect(to.index) {
		to.sockets.accept()
		time.Sleep(c.latency) // the handshake
	}
	defer from.sockets.release(to.index)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- answer(ctx) }()
	select {
	case err := <-done:
		if err != nil && !to.isDown() {
			time.Sleep(c.latency)
			return err
		}
	case <-to.down:
		cancel(errLost)
		<-done
	}
	if !to.isDown() {
		transfer(n, &to.out, &from.in)
		time.Sleep(c.latency)
	}
	if to.isDown() {
		time.Sleep(stall + pingTimeout)
		return errLost
	}
	to.served.Add(n)
	return nil
}

// A health is what a node knows about the life of another one, as in drivers/peer.
type health struct {
	mu       sync.Mutex // guards the following
	failures int
	until    time.Time
	skipped  bool
	pinging  bool
}

// use reports whether the node may be used, or is to be pinged first.
func (h *health) use() (ok, ping bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.skipped {
		return true, false
	}
	if h.pinging || time.Now().Before(h.until) {
		return false, false
	}
	h.pinging = true
	return false, true
}

func (h *health) fail() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.skipped {
		h.pause()
	}
}

// pause skips the node. h.mu must be held.
func (h *health) pause() {
	h.skipped = true
	h.until = time.Now().Add(min(maxPause, firstPause<<min(h.failures, 10)))
	h.failures++
}

func (h *health) pinged(ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pinging = false
	if ok {
		h.skipped, h.failures = false, 0
	} else {
		h.pause()
	}
}
