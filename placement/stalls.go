package placement

import (
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// A request to the source that hangs cannot be ended, and a storage that hangs often does so in
// part: one server or one directory does not answer, the others do. A request has stalled when
// it made no progress for a time. It then no longer counts towards the limit of requests of its
// kind, and another one may start in its place. It is not ended: its readers go on waiting for
// it, readers that come later join it, and when it is answered its bytes are used.
//
// The number of stalled requests is bounded, since each holds a block of memory and threads. At
// the bound, further requests that stall keep their places. When these are used up, readers read
// what has no copy from the source (errStuck), and workers copy nothing, until the source answers
// one of the requests.
const (
	readStall     = time.Second     // of a demand fetch; a healthy source takes milliseconds
	waitStall     = 2 * time.Second // of a reader's wait, which then no longer counts
	turnStall     = 5 * time.Second // of a worker's turn
	maxStallReads = 256
	maxStallTurns = 64
)

// stalls counts the stalled requests of one kind. Its methods may be called concurrently.
type stalls struct {
	after time.Duration // the time without progress after which the first request has stalled
	max   int

	mu    panics.Mutex  // guards the following
	n     int           // stalled requests
	bound chan struct{} // closed while n is max
}

func newStalls(after time.Duration, max int) *stalls {
	return &stalls{after: after, max: max, bound: make(chan struct{})}
}

// count returns the number of stalled requests.
func (s *stalls) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// atBound returns a channel that is closed when no further request may stall.
func (s *stalls) atBound() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bound
}

// timeout returns the time without progress after which a request has stalled now. It falls with
// the number of stalled requests to a fifth: of 64 that hang, 16 at a time, the last stalls after
// 2 s.
func (s *stalls) timeout() time.Duration {
	return s.after / time.Duration(min(1+(s.count()+15)/16, 5))
}

// add counts one more request, and reports false at the bound.
func (s *stalls) add() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == s.max {
		return false
	}
	if s.n++; s.n == s.max {
		close(s.bound)
	}
	return true
}

// remove counts one request less.
func (s *stalls) remove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == s.max {
		s.bound = make(chan struct{})
	}
	s.n--
}

// A watch observes one request.
type watch struct {
	stalls *stalls
	yield  func() // gives the place of the request to another one; mu is held
	start  time.Time
	opens  bool // the request includes the open of the file; set before the file is read

	mu      panics.Mutex // guards the following
	timer   *time.Timer
	stalled bool
	ended   bool
}

// watch begins to observe a request. It calls yield, at most once and before end returns, if the
// request stalls. The caller calls end.
func (s *stalls) watch(yield func()) *watch {
	w := &watch{stalls: s, yield: yield, start: time.Now()}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(s.timeout(), func() {
		defer panics.Contain()
		w.expire()
	})
	return w
}

// expire records that the request has stalled. At the bound it tries again later.
func (w *watch) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.ended || w.stalled:
	case w.stalls.add():
		w.stalled = true
		w.yield()
	default:
		w.timer.Reset(w.stalls.timeout())
	}
}

// progress records that a part of the request was answered.
func (w *watch) progress() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stalled {
		w.timer.Reset(w.stalls.timeout())
	}
}

// isStalled reports whether the request has stalled.
func (w *watch) isStalled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stalled
}

// end ends the request, and reports whether it has stalled.
func (w *watch) end() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.timer.Stop()
	if w.stalled {
		w.stalls.remove()
	}
	return w.stalled
}
