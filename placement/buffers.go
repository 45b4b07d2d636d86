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

// get waits for a buffer. The caller returns it with put.
func (b *buffers) get(ctx context.Context) ([]byte, error) {
	select {
	case buf := <-b.free:
		return buf, nil
	default:
	}
	select {
	case buf := <-b.free:
		return buf, nil
	case <-b.unmade:
		return make([]byte, blockSize), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// put returns a buffer. An abandoned buffer belongs to an operation that has not ended. It
// is never used again, and another one may be allocated in its place.
func (b *buffers) put(buf []byte, abandoned bool) {
	if abandoned {
		b.unmade <- struct{}{}
	} else {
		b.free <- buf
	}
}
