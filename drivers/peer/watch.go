package peer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

const (
	// stall is how long a reader waits for minProgress bytes before the peer is pinged. With the
	// time-out of the ping, a peer that hangs costs a reader less than 2 s.
	stall       = 700 * time.Millisecond
	minProgress = 64 << 10

	// maxStalls is the number of stalls in a row that a peer may have that answers pings and does
	// not wait for the content.
	maxStalls = 3

	// maxWait bounds the time for which a peer may wait for the content.
	maxWait = time.Minute
)

// A watch cancels a request to a peer while a reader waits and too few bytes arrive. If there are
// fewer than minProgress in a stall, it pings the peer on another connection:
//
//   - A peer that does not answer is dead or stopped. The request ends.
//   - A peer that waits for its source is not left: all nodes would turn to the source at once.
//   - Any other peer may be on a slow network. It has maxStalls.
//
// One goroutine calls its methods.
type watch struct {
	peer   *peer
	nonce  string // of the request
	ctx    context.Context
	cancel context.CancelCauseFunc
	since  time.Time // of the request

	header   atomic.Bool    // the header has arrived, and so the content is there
	received atomic.Int64   // bytes since the last stall began
	stalls   int            // in a row; used by fire
	wg       sync.WaitGroup // of fire

	mu      panics.Mutex // guards the following
	timer   *time.Timer  // calls fire
	waiting bool         // the reader waits
	waits   int          // waits that have begun
	firing  bool         // fire is in progress, and starts the timer again
	closed  bool
}

// newWatch returns the watch of a request, whose reader waits. The caller closes it.
func newWatch(ctx context.Context, p *peer, nonce string) *watch {
	w := &watch{peer: p, nonce: nonce, since: time.Now(), waiting: true}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(stall, func() {
		defer panics.Contain()
		w.fire()
	})
	return w
}

// wait begins a wait of the reader.
func (w *watch) wait() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.received.Store(0)
	w.waiting = true
	w.waits++
	if !w.firing {
		w.timer.Reset(stall)
	}
}

// pause ends a wait of the reader.
func (w *watch) pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = false
	w.timer.Stop()
}

// close ends the request.
func (w *watch) close() {
	w.mu.Lock()
	w.closed = true
	w.timer.Stop()
	w.mu.Unlock()
	w.cancel(context.Canceled)
	w.wg.Wait()
}

// fire judges the peer after a stall.
func (w *watch) fire() {
	w.mu.Lock()
	if w.closed || !w.waiting || w.firing {
		w.mu.Unlock()
		return
	}
	w.firing = true
	waits := w.waits
	w.wg.Add(1)
	w.mu.Unlock()
	defer w.wg.Done()
	err := panics.Do(w.judge)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.firing = false
	if !w.waiting || w.closed {
		return
	}
	if err != nil && w.waits == waits { // otherwise the bytes have arrived meanwhile
		w.cancel(&miss{stuck, err})
		return
	}
	w.timer.Reset(stall)
}

// judge returns an error if the request is to end.
func (w *watch) judge() error {
	if w.received.Swap(0) >= minProgress {
		w.stalls = 0
		return nil
	}
	state, err := w.peer.ping(w.ctx, w.nonce)
	switch {
	case err != nil:
		return fmt.Errorf("%s does not respond: %w", w.peer.name, err)
	case state == stateWaiting && !w.header.Load():
		if time.Since(w.since) > maxWait {
			return fmt.Errorf("%s waited longer than %v", w.peer.name, maxWait)
		}
		w.stalls = 0
	default:
		if w.stalls++; w.stalls >= maxStalls {
			return fmt.Errorf("%s sends less than %d bytes in %v", w.peer.name, minProgress, stall)
		}
	}
	return nil
}
