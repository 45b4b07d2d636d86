package fs

import (
	"os"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/metadata"
)

// maxSplice is the largest read that is answered by way of a pipe, which has to
// hold it. Where the kernel asks for a megabyte, which only root can make it do,
// a copy costs no more than the calls that it takes to do without.
const maxSplice = 256 << 10

var pageSize = uint64(os.Getpagesize())

// A splicedResult is an answer with pages of a file, which go-fuse moves to the
// kernel by way of a pipe and does not copy.
type splicedResult struct {
	fd      uintptr
	off     int64
	n       int
	release func(n int)
}

var _ fuse.ReadResult = (*splicedResult)(nil)

// Seekable is where go-fuse finds the bytes.
func (r *splicedResult) Seekable() (fd uintptr, off int64, sz int) { return r.fd, r.off, r.n }

func (r *splicedResult) Size() int { return r.n }

// Bytes is for go-fuse when a pipe does not work.
func (r *splicedResult) Bytes(buf []byte) ([]byte, fuse.Status) {
	n, err := syscall.Pread(int(r.fd), buf[:min(len(buf), r.n)], r.off)
	return buf[:max(n, 0)], fuse.ToStatus(err)
}

// Done gives the file back, after the kernel has the answer.
func (r *splicedResult) Done() { r.release(r.n) }

// spliced answers a read of e with pages of the file that c has its content in, if
// it is where that works, and else returns nil.
func spliced(in *fuse.ReadIn, e *metadata.Entry, c content) fuse.ReadResult {
	s, ok := c.(drivers.Splicer)
	if !ok || in.Size > maxSplice || in.Offset%pageSize != 0 { // or it would need more pages of the pipe
		return nil
	}
	n := min(int64(in.Size), e.Size()-int64(in.Offset))
	if n <= 0 { // of an answer without bytes there is no Done
		return nil
	}
	fd, release, err := s.SpliceDescriptor()
	if err != nil {
		return nil
	}
	return &splicedResult{fd, int64(in.Offset), int(n), release}
}
