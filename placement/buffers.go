package placement

import "context"

// buffers are the memory for blocks: a fixed number, made when first needed and
// then kept. The garbage collector would take them from a sync.Pool each time
// it runs, and it would run the more often for having to make them again.
type buffers struct {
	free   chan []byte   // made, and not in use
	unmade chan struct{} // one for each that may still be made
}

func newBuffers(n int) *buffers {
	b := &buffers{free: make(chan []byte, n), unmade: make(chan struct{}, n)}
	for range n {
		b.unmade <- struct{}{}
	}
	return b
}

// get waits for a buffer. The caller gives it back by put.
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

// put gives a buffer back. One that was abandoned to an operation that has not
// ended is not used again.
func (b *buffers) put(buf []byte, abandoned bool) {
	if abandoned {
		b.unmade <- struct{}{}
	} else {
		b.free <- buf
	}
}
