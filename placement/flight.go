package placement

import (
	"context"
	"sync/atomic"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// A flight is the fetch of a block, or of a part of one. From the moment when the bytes have arrived
// until they are written to the tier, readers copy them from memory.
type flight struct {
	from    int           // the first unit
	to      int           // the unit after the last one
	arrived chan struct{} // closed when data is set, or when the flight has landed
	landed  chan struct{} // closed when the flight has ended; err is set before
	err     error         // why the units are not present

	demanded atomic.Bool // a reader has caused the fetch, and has not begun to wait for it
	timing   timing      // set before data; zero if the bytes have not arrived

	mu   panics.RWMutex // guards the following
	data []byte         // nil before the bytes have arrived, and when they are written
}

func newFlight(from int) *flight {
	return &flight{from: from, arrived: make(chan struct{}), landed: make(chan struct{})}
}

// readAt copies bytes of the flight, from an offset of the file on, if they are in memory, and reports
// whether they are.
func (fl *flight) readAt(p []byte, off int64) bool {
	fl.mu.RLock()
	defer fl.mu.RUnlock()
	if fl.data != nil {
		copy(p, fl.data[off-int64(fl.from)*unitSize:])
	}
	return fl.data != nil
}

// arrive makes the bytes available to readers. The caller calls unset before it uses data
// for something else.
func (fl *flight) arrive(data []byte) {
	fl.mu.Lock()
	fl.data = data
	fl.mu.Unlock()
	close(fl.arrived)
}

// unset waits for readers that copy from memory. No other reader does so after that.
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

// wait waits until the bytes are in memory, or until the flight has landed.
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
