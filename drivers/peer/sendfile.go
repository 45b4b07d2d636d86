package peer

import (
	"errors"
	"io"
	"net/http"
	"syscall"

	"github.com/milkweedfs/milkweed/drivers"
)

// maxSending bounds the ranges of files in the process that are being sent with sendfile(2). Each takes a
// thread while the disk is read, and a Go program ends when it has 10,000.
const maxSending = 1024

// sending admits ranges of files. Others are sent by way of memory, and read through the tier.
var sending = drivers.NewCallLimit(maxSending)

// LimitThreads must be called before the first Server is made, where the threads of the process are limited.
// Files are then sent with sendfile(2) only as far as more, which makes threads for up to n calls and returns
// for how many, has made some.
func LimitThreads(more func(n int) int) { sending.Lower(0, more) }

// A fileRange is a range of a file that net/http sends. It is read at explicit offsets, so that
// requests can share an open file: opening it again would take as long as authenticating a request.
type fileRange struct {
	fd   int // owned by the range
	span span
}

// openRange returns a range of the file of a copy. The caller calls close.
func openRange(obj drivers.Object, s span) (r *fileRange, close func(), err error) {
	b, ok := drivers.As[drivers.BackingFiler](obj)
	if !ok {
		return nil, nil, errors.ErrUnsupported
	}
	r = &fileRange{span: s}
	release, err := b.BackingFile(func(fd uintptr) error {
		again, _, errno := syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_DUPFD_CLOEXEC, 0)
		if errno != 0 {
			return errno
		}
		r.fd = int(again)
		return nil
	})
	return r, func() {
		syscall.Close(r.fd)
		release()
	}, err
}

// send sends the range as the body of an answer.
func (r *fileRange) send(w http.ResponseWriter) {
	if to, ok := w.(io.ReaderFrom); ok {
		to.ReadFrom(r)
	} else {
		io.Copy(w, struct{ io.Reader }{r})
	}
}

// Read implements io.Reader. net/http reads the first 512 bytes.
func (r *fileRange) Read(p []byte) (int, error) {
	if r.span.n == 0 {
		return 0, io.EOF
	}
	n, err := syscall.Pread(r.fd, p[:min(int64(len(p)), r.span.n)], r.span.off)
	if n <= 0 {
		return 0, errors.Join(err, io.ErrUnexpectedEOF)
	}
	r.advance(n)
	return n, nil
}

// advance removes the first n bytes.
func (r *fileRange) advance(n int) { r.span = span{r.span.off + int64(n), r.span.n - int64(n)} }

// WriteTo implements io.WriterTo with sendfile(2). net/http passes a range to the ReadFrom of the
// TCP connection, which calls WriteTo.
func (r *fileRange) WriteTo(w io.Writer) (sent int64, err error) {
	c, ok := w.(syscall.Conn)
	if !ok {
		return io.Copy(w, struct{ io.Reader }{r})
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	all := r.span.n
	var failure error
	err = raw.Write(func(fd uintptr) (done bool) {
		for r.span.n > 0 {
			off := r.span.off
			n, err := syscall.Sendfile(int(fd), r.fd, &off, int(r.span.n))
			switch {
			case err == syscall.EAGAIN:
				return false
			case err == syscall.EINTR:
			case err != nil:
				failure = err
				return true
			case n == 0:
				failure = io.ErrUnexpectedEOF
				return true
			default:
				r.advance(n)
			}
		}
		return true
	})
	return all - r.span.n, errors.Join(err, failure)
}
