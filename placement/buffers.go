package placement

import (
	"context"
	"sync/atomic"
)

// buffers is a number of blocks of memory. A block is allocated when it is first
// needed, and is freed only if the number is lowered. A sync.Pool would lose its blocks in each garbage
// collection, and allocating them again would cause more collections.
type buffers struct {
	free   chan []byte   // allocated and not in use
	unmade chan struct{} // has one value for each block that may still be allocated

	n      int          // the number; used by resize only
	excess atomic.Int64 // blocks in use that are not to be used again, because the number was lowered
}

// newBuffers makes n buffers. There may be most of them later.
func newBuffers(n, most int) *buffers {
	b := &buffers{free: make(chan []byte, most), unmade: make(chan struct{}, most)}
	b.resize(n)
	return b
}

// resize changes the number of buffers. Those in use stay valid. Calls of resize are not concurrent.
func (b *buffers) resize(n int) {
	for ; b.n < n; b.n++ {
		b.replace()
	}
	for ; b.n > n; b.n-- {
		select {
		case <-b.unmade:
		case <-b.free:
		default:
			b.excess.Add(1)
		}
	}
}

// drop reports whether one buffer is not to be used again.
func (b *buffers) drop() bool {
	for n := b.excess.Load(); n > 0; n = b.excess.Load() {
		if b.excess.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}

// get waits for a buffer, which the caller returns with put. The error is errStuck if stuck is
// closed before, and errStopped if ctx is done.
func (b *buffers) get(ctx context.Context, stuck <-chan struct{}) ([]byte, error) {
	if buf := b.tryGet(); buf != nil {
		return buf, nil
	}
	select {
	case buf := <-b.free:
		return buf, nil
	case <-b.unmade:
		return make([]byte, blockSize), nil
	case <-stuck:
		return nil, errStuck
	case <-ctx.Done():
		return nil, errStopped
	}
}

// tryGet returns a buffer, or nil if all are in use. It prefers one that was allocated.
func (b *buffers) tryGet() []byte {
	select {
	case buf := <-b.free:
		return buf
	default:
	}
	select {
	case <-b.unmade:
		return make([]byte, blockSize)
	default:
		return nil
	}
}

// put returns a buffer. An abandoned buffer belongs to an operation that has not ended. It
// is never used again, and another one may be allocated in its place.
func (b *buffers) put(buf []byte, abandoned bool) {
	switch {
	case abandoned:
		b.replace()
	case !b.drop():
		b.free <- buf
	}
}

// replace allows another buffer in the place of one in use, which is not returned with put.
func (b *buffers) replace() {
	if !b.drop() {
		b.unmade <- struct{}{}
	}
}

// empty reports whether get would wait.
func (b *buffers) empty() bool { return len(b.free)+len(b.unmade) == 0 }
