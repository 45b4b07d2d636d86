package fs

import (
	"math/bits"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// A bufferPool holds buffers for the replies to reads, by powers of two. The buffers of
// go-fuse cannot be used, because go-fuse always reuses them: a buffer to which a hung
// device may still write must not be reused.
type bufferPool [bits.UintSize]sync.Pool

// get returns a buffer of at least n bytes.
func (p *bufferPool) get(n int) []byte {
	class := bits.Len(uint(max(n, 4096) - 1))
	if b, ok := p[class].Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 1<<class)
}

// put returns a buffer of get to the pool.
func (p *bufferPool) put(b []byte) {
	b = b[:cap(b)]
	p[bits.Len(uint(len(b)-1))].Put(&b)
}

// A readResult is the reply to a read in a pooled buffer. It has Slices because go-fuse
// otherwise calls Done before the reply is written to the kernel.
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
