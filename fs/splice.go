package fs

import (
	"log/slog"
	"os"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hanwen/go-fuse/v2/splice"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
)

// maxSplice is the largest read whose reply is spliced: the pipe has to hold the reply.
// Larger reads occur where root has raised the read-ahead of the mount, and with O_DIRECT. For
// those, one copy costs no more than the system calls that splicing needs.
const maxSplice = 256 << 10

// canSplice reports whether the system calls work that go-fuse needs for splicing. go-fuse panics
// on a goroutine of its own when one of them fails: where a sandbox forbids FIONREAD, or when
// /dev/null, which go-fuse opens once, cannot be opened. canSplice makes that first use.
func canSplice(log *slog.Logger) bool {
	err := panics.Do(func() error {
		pair, err := splice.Get()
		if err != nil {
			return err
		}
		splice.Done(pair)
		return nil
	})
	if err != nil {
		log.Warn("replies are copied, not spliced", "err", err)
	}
	return err == nil
}

var pageSize = uint64(os.Getpagesize())

// A spliceResult is the reply to a read with pages of a file. go-fuse moves the pages to
// the kernel through a pipe, without copying them to a buffer first.
type spliceResult struct {
	fd      uintptr
	off     int64
	n       int
	release func(n int)
}

var _ fuse.ReadResult = (*spliceResult)(nil)

// Seekable returns the location of the bytes. go-fuse splices a result that has it.
func (r *spliceResult) Seekable() (fd uintptr, off int64, sz int) { return r.fd, r.off, r.n }

func (r *spliceResult) Size() int { return r.n }

// Bytes copies the bytes. go-fuse calls it if no pipe can be used.
func (r *spliceResult) Bytes(buf []byte) ([]byte, fuse.Status) {
	n, err := syscall.Pread(int(r.fd), buf[:min(len(buf), r.n)], r.off)
	return buf[:max(n, 0)], statusOf(err)
}

// Done is called after the reply was written to the kernel.
func (r *spliceResult) Done() {
	defer panics.Contain() // go-fuse does not
	r.release(r.n)
}

// spliceReply returns the reply to a read of e that splices from c, or nil if c has no
// splice descriptor or the read is not suitable.
func spliceReply(in *fuse.ReadIn, e *metadata.Entry, c content) fuse.ReadResult {
	s, ok := drivers.As[drivers.Splicer](c)
	if !ok || in.Size > maxSplice || in.Offset%pageSize != 0 { // an unaligned read needs one more page
		return nil
	}
	n := min(int64(in.Size), e.Size()-int64(in.Offset))
	if n <= 0 { // go-fuse does not call Done for an empty reply
		return nil
	}
	fd, release, err := s.SpliceDescriptor()
	if err != nil {
		return nil
	}
	return &spliceResult{fd, int64(in.Offset), int(n), release}
}
