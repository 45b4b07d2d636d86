package peer

import (
	"container/list"
	"context"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// Buffers are a bounded number of buffers of one block. A holder gets one while it has less than half
// as many as are free. So a node that does not take its answers holds a third of them at most, and
// each further one a third of the rest.
type buffers struct {
	mu      panics.Mutex // guards the following
	free    []*[block]byte
	held    map[holder]int
	waiting list.List // of *bufferWait, the oldest first
}

// A holder is a node that has buffers.
type holder struct {
	peer *peer
	host string // the address of a node that is not in the roster; all of these have one peer
}

// A bufferWait is a request that waits for a buffer.
type bufferWait struct {
	by  holder
	got chan *[block]byte // gets one buffer
}

// newBuffers makes n buffers, none of which takes memory before its first use.
func newBuffers(n int) *buffers {
	return &buffers{free: make([]*[block]byte, n), held: make(map[holder]int)}
}

// get waits for a buffer for a request of by.
func (b *buffers) get(ctx context.Context, by holder) (*[block]byte, error) {
	w := &bufferWait{by, make(chan *[block]byte, 1)}
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
		b.release(by, buf)
	default:
		b.waiting.Remove(element)
	}
	return nil, context.Cause(ctx)
}

// put returns a buffer that by has got.
func (b *buffers) put(by holder, buf *[block]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.release(by, buf)
}

// release is put. b.mu must be held.
func (b *buffers) release(by holder, buf *[block]byte) {
	b.free = append(b.free, buf)
	if b.held[by]--; b.held[by] == 0 {
		delete(b.held, by)
	}
	b.serve()
}

// serve gives buffers to the requests that may have one. b.mu must be held.
func (b *buffers) serve() {
	for e := b.waiting.Front(); e != nil && len(b.free) > 0; {
		w, next := e.Value.(*bufferWait), e.Next()
		if 2*b.held[w.by] < len(b.free) {
			last := len(b.free) - 1
			buf := b.free[last]
			b.free = b.free[:last]
			if buf == nil {
				buf = new([block]byte)
			}
			b.held[w.by]++
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
