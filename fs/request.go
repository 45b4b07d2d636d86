package fs

import (
	"context"
	"math/bits"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// grace is how long a request goes on after its caller was sent a signal. The
// kernel does not say which: most signals are caught, and a program that reads
// a file expects no EINTR. Only when the source hangs, and the caller perhaps
// was killed, must the request end before its answer.
const grace = 5 * time.Second

// A request is the context of one request of the kernel: it is done when its
// caller was interrupted, and grace has passed since. Most requests never ask,
// and for them it costs nothing. It must be ended.
type request struct {
	context.Context
	cancel <-chan struct{} // closed when the caller is interrupted

	mu    sync.Mutex    // guards the following
	done  chan struct{} // closed when the request is to be given up; nil until somebody asks
	ended chan struct{} // closed by end; nil like done
	over  bool          // end was called
}

func newRequest(cancel <-chan struct{}) *request {
	return &request{Context: context.Background(), cancel: cancel}
}

// Done returns a channel that is closed when the request is to be given up.
func (r *request) Done() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == nil {
		r.done, r.ended = make(chan struct{}), make(chan struct{})
		if !r.over {
			go r.watch()
		}
	}
	return r.done
}

func (r *request) watch() {
	select {
	case <-r.cancel:
	case <-r.ended:
		return
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-timer.C:
		close(r.done)
	case <-r.ended:
	}
}

// Err returns context.Canceled once Done is closed.
func (r *request) Err() error {
	r.mu.Lock()
	done := r.done
	r.mu.Unlock()
	select {
	case <-done: // never, while it is nil
		return context.Canceled
	default:
		return nil
	}
}

// end says that the request has been answered.
func (r *request) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	if r.ended != nil {
		close(r.ended)
	}
}

// A bufferPool holds buffers for answers to reads, by powers of two. They are
// not go-fuse's, which come back to it in any case: one that a hung device may
// still write to must not.
type bufferPool [bits.UintSize]sync.Pool

// get returns a buffer of at least n bytes.
func (p *bufferPool) get(n int) []byte {
	class := bits.Len(uint(max(n, 4096) - 1))
	if b, ok := p[class].Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 1<<class)
}

// put gives a buffer back.
func (p *bufferPool) put(b []byte) {
	b = b[:cap(b)]
	p[bits.Len(uint(len(b)-1))].Put(&b)
}

// A readResult is an answer in a pooled buffer, which goes back to the pool
// when the kernel has it. go-fuse knows by Slices that it must not be done
// before that.
type readResult struct {
	pool *bufferPool
	buf  []byte
	n    int
}

var _ fuse.ReadResult = (*readResult)(nil)

func (r *readResult) Slices() ([][]byte, fuse.Status) { return [][]byte{r.buf[:r.n]}, fuse.OK }
func (r *readResult) Bytes(dst []byte) ([]byte, fuse.Status) {
	return dst[:copy(dst, r.buf[:r.n])], fuse.OK
}
func (r *readResult) Size() int { return r.n }
func (r *readResult) Done()     { r.pool.put(r.buf) }
