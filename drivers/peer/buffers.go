package peer

import (
	"container/list"
	"context"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// Buffers are a bounded number of buffers of one block. A peer gets one while it holds less than half
// as many as are free. So a peer that does not take its answers holds a third of them at most, and
// each further one a third of the rest.
type buffers struct {
	mu      panics.Mutex // guards the following
	free    []*[block]byte
	held    map[*peer]int
	waiting list.List // of *bufferWait, the oldest first
}

// A bufferWait is a request that waits for a buffer.
type bufferWait struct {
	peer *peer
	got  chan *[block]byte // gets one buffer
}

// newBuffers makes n buffers, none of which takes memory before its first use.
func newBuffers(n int) *buffers {
	return &buffers{free: make([]*[block]byte, n), held: make(map[*peer]int)}
}

// get waits for a buffer for a request of p.
func (b *buffers) get(ctx context.Context, p *peer) (*[block]byte, error) {
	w := &bufferWait{p, make(chan *[block]byte, 1)}
	b.mu.Lock()
	element := b.waiting.PushBack(w)
	b.serve()
	b.mu.Unlock()
	select {
	case buf := <-w.got:
		return buf, nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case buf := <-w.got: // meanwhile
		b.release(p, buf)
	default:
		b.waiting.Remove(element)
	}
	return nil, context.Cause(ctx)
}

// put returns a buffer that p has got.
func (b *buffers) put(p *peer, buf *[block]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.release(p, buf)
}

// release is put. b.mu must be held.
func (b *buffers) release(p *peer, buf *[block]byte) {
	b.free = append(b.free, buf)
	if b.held[p]--; b.held[p] == 0 {
		delete(b.held, p)
	}
	b.serve()
}

// serve gives buffers to the requests that may have one. b.mu must be held.
func (b *buffers) serve() {
	for e := b.waiting.Front(); e != nil && len(b.free) > 0; {
		w, next := e.Value.(*bufferWait), e.Next()
		if 2*b.held[w.peer] < len(b.free) {
			last := len(b.free) - 1
			buf := b.free[last]
			b.free = b.free[:last]
			if buf == nil {
				buf = new([block]byte)
			}
			b.held[w.peer]++
			b.waiting.Remove(e)
			w.got <- buf
		}
		e = next
	}
}

// idle returns the number of buffers that no request has.
func (b *buffers) idle() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.free)
}
