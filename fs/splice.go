package fs

import (
	"os"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// A Borrower is an Object that may have its content in a local file from which
// reads never hang.
type Borrower interface {
	// Borrow returns the descriptor of that file. The caller gives it back
	// when it has read n bytes of it; it is valid until then. After an error
	// the Object is read by ReadAt.
	Borrow() (fd uintptr, giveBack func(n int), err error)
}

// maxSplice is the largest read that is answered by way of a pipe, which has to
// hold it. Where the kernel asks for a megabyte, which only root can make it do,
// a copy costs no more than the calls that it takes to do without.
const maxSplice = 256 << 10

var pageSize = uint64(os.Getpagesize())

// A splicedResult is an answer with pages of a file, which go-fuse moves to the
// kernel by way of a pipe and does not copy.
type splicedResult struct {
	fd       uintptr
	off      int64
	n        int
	giveBack func(n int)
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
func (r *splicedResult) Done() { r.giveBack(r.n) }

// splice answers a read with pages of the file itself, if it is where that
// works, and else returns nil.
func (f *fileSystem) splice(in *fuse.ReadIn) fuse.ReadResult {
	if in.Size > maxSplice || in.Offset%pageSize != 0 { // or it would need more pages of the pipe
		return nil
	}
	fd, giveBack, size, ok := f.borrow(in)
	if !ok {
		return nil
	}
	n := min(int64(in.Size), size-int64(in.Offset))
	if n <= 0 { // of an answer without bytes there is no Done
		giveBack(0)
		return nil
	}
	return &splicedResult{fd, int64(in.Offset), int(n), giveBack}
}

// borrow borrows the file that a request is for, which has size bytes.
func (f *fileSystem) borrow(in *fuse.ReadIn) (fd uintptr, giveBack func(n int), size int64, ok bool) {
	e := f.names.Get(in.NodeId)
	if e == nil {
		return 0, nil, 0, false
	}
	var err error
	if f.mode == Stateless {
		fd, giveBack, err = f.reader.Borrow(e)
		return fd, giveBack, e.Size(), err == nil
	}
	h, _ := f.files.get(in.Fh)
	b, ok := h.obj.(Borrower)
	if !ok {
		return 0, nil, 0, false
	}
	fd, giveBack, err = b.Borrow()
	return fd, giveBack, e.Size(), err == nil
}
