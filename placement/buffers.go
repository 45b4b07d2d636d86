package placement

import (
	"context"
	"sync"
)

// buffers are the memory for blocks: a fixed number, made when first needed.
type buffers struct {
	tokens chan struct{}
	pool   sync.Pool
}

func newBuffers(n int) *buffers {
	return &buffers{
		tokens: make(chan struct{}, n),
		pool:   sync.Pool{New: func() any { b := make([]byte, blockSize); return &b }},
	}
}

// get waits for a buffer. The caller gives it back by put.
func (b *buffers) get(ctx context.Context) (*[]byte, error) {
	select {
	case b.tokens <- struct{}{}:
		return b.pool.Get().(*[]byte), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// put gives a buffer back. One that was abandoned to an operation that has not
// ended is not used again.
func (b *buffers) put(buf *[]byte, abandoned bool) {
	if !abandoned {
		b.pool.Put(buf)
	}
	<-b.tokens
}
