package placement

import (
	"context"
	"sync/atomic"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// A flight is the fetch of one block. From the moment when the block has arrived until it is
// written to the tier, readers copy it from memory.
type flight struct {
	block   int
	arrived chan struct{} // closed when data is set, or when the flight has landed
	landed  chan struct{} // closed when the flight has ended; err is set before
	err     error         // why the block is not present

	demanded atomic.Bool // a reader has caused the fetch, and has not begun to wait for it
	timing   timing      // set before data; zero if the block has not arrived

	mu   panics.RWMutex // guards the following
	data []byte         // the block; nil before it has arrived, and when it is written
}

func newFlight(block int) *flight {
	return &flight{block: block, arrived: make(chan struct{}), landed: make(chan struct{})}
}

// readAt copies from the block if it is in memory, and reports whether it is.
func (fl *flight) readAt(p []byte, off int64) bool {
	fl.mu.RLock()
	defer fl.mu.RUnlock()
	if fl.data != nil {
		copy(p, fl.data[off:])
	}
	return fl.data != nil
}

// arrive makes the block available to readers. The caller calls unset before it uses data
// for something else.
func (fl *flight) arrive(data []byte) {
	fl.mu.Lock()
	fl.data = data
	fl.mu.Unlock()
	close(fl.arrived)
}

// unset waits for readers that copy from the block, and ends its time in memory.
func (fl *flight) unset() {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.data = nil
}

// end ends the flight.
func (fl *flight) end(err error) {
	fl.err = err
	close(fl.landed)
	if !isClosed(fl.arrived) {
		close(fl.arrived)
	}
}

// wait waits until the block is in memory, or until the flight has landed.
func (fl *flight) wait(ctx context.Context) error { return waitFor(ctx, fl.arrived) }

// waitFor waits until c is closed. The error is ctx's.
func waitFor(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// isClosed reports whether c is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
