package placement

import "context"

// buffers is a fixed number of blocks of memory. A block is allocated when it is first
// needed, and is never freed. A sync.Pool would lose its blocks in each garbage collection,
// and allocating them again would cause more collections.
type buffers struct {
	free   chan []byte   // allocated and not in use
	unmade chan struct{} // has one value for each block that may still be allocated
}

func newBuffers(n int) *buffers {
	b := &buffers{free: make(chan []byte, n), unmade: make(chan struct{}, n)}
	for range n {
		b.unmade <- struct{}{}
	}
	return b
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
	if abandoned {
		b.replace()
	} else {
		b.free <- buf
	}
}

// replace allows another buffer in the place of one in use, which is not returned with put.
func (b *buffers) replace() { b.unmade <- struct{}{} }

// empty reports whether get would wait.
func (b *buffers) empty() bool { return len(b.free)+len(b.unmade) == 0 }
