package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/milkweedfs/milkweed/drivers"
)

// An object is one version of one object of the bucket. It holds nothing at the
// store: each read asks for its version by name.
type object struct {
	bucket *Bucket
	name   string
	key    string
	info   drivers.Info
	window window
}

var (
	_ drivers.Object   = (*object)(nil)
	_ drivers.Streamer = (*object)(nil)
)

func (o *object) Info() drivers.Info { return o.info }

func (o *object) Close() error {
	o.empty(true)
	return nil
}

// stride is how much is asked for at once, in bytes. docs/performance.md says
// how it was chosen: at 20 ms a request, one stream then spends most of its time
// on bytes and not on waiting.
const stride = 8 << 20

// ReadAt implements drivers.Object.
func (o *object) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, wrap(ctx, "read", o.name, errors.New("negative offset"))
	}
	n := min(int64(len(p)), o.info.Size-off)
	if n <= 0 {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	if err := ctx.Err(); err != nil {
		return 0, wrap(ctx, "read", o.name, err)
	}
	ok, err := o.readAhead(ctx, p[:n], off)
	if !ok {
		n, err = o.readHere(ctx, p[:n], off)
	} else if err != nil {
		n = 0
	}
	if err == nil && n < int64(len(p)) {
		err = io.EOF
	}
	return int(n), err
}

// readHere asks for p, and for nothing else.
func (o *object) readHere(ctx context.Context, p []byte, off int64) (int64, error) {
	s, err := o.Stream(ctx, off, int64(len(p)))
	if err != nil {
		return 0, err
	}
	defer s.Close()
	n, err := io.ReadFull(s, p)
	return int64(n), err
}

// Stream implements drivers.Streamer. It asks for nothing until it is read.
func (o *object) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	if off < 0 || n < 0 || off+n > o.info.Size {
		return nil, wrap(ctx, "read", o.name, fmt.Errorf("%d bytes at %d of %d", n, off, o.info.Size))
	}
	return &stream{object: o, ctx: ctx, off: off, end: off + n, effort: o.bucket.effort(reading)}, nil
}

// A stream reads a range of an object. Where the answer ends too early it asks
// for the rest, of the same version.
type stream struct {
	object   *object
	ctx      context.Context
	off, end int64 // what is yet to be read
	effort   effort
	body     *body       // nil: there is no request under way
	failed   *storeError // what ended the last answer, until it is dealt with
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	if s.off == s.end {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), s.end-s.off)]
	for {
		n, err := s.read(p)
		s.off += int64(n)
		atomic.AddInt64(&s.object.bucket.counters.Bytes, int64(n))
		if n > 0 {
			s.effort.succeeded()
			s.failed = err // for the next call, like one that comes without bytes
			return n, nil
		}
		if err == nil {
			continue
		}
		if err := s.effort.again(s.ctx, s.object.bucket.vendor, err); err != nil {
			return 0, wrap(s.ctx, "read", s.object.name, err)
		}
	}
}

// read reads from the body of an answer, for which it asks if there is none.
func (s *stream) read(p []byte) (int, *storeError) {
	if err := s.failed; err != nil {
		s.failed = nil
		return 0, err
	}
	if s.body == nil {
		var err *storeError
		if s.body, err = s.object.get(s.ctx, s.off, s.end-s.off); err != nil {
			return 0, err
		}
	}
	n, err := s.body.Read(p)
	if err != nil && s.off+int64(n) < s.end {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		t := s.body.trace
		s.Close()
		return n, explain(s.object.bucket.vendor, t, err)
	}
	return n, nil
}

// Close implements io.Closer.
func (s *stream) Close() error {
	if s.body == nil {
		return nil
	}
	b := s.body
	s.body = nil
	return b.Close()
}

// A body is what an answer brings.
type body struct {
	io.ReadCloser
	trace  *trace
	dog    *watchdog
	cancel context.CancelFunc
}

func (b *body) Read(p []byte) (int, error) {
	b.dog.watch()
	n, err := b.ReadCloser.Read(p)
	return n, b.dog.rest(err)
}

// Close ends the request, also one that is not at its end.
func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.cancel()
	return err
}

// get sends a request for n bytes from offset off, and a second one if the first
// is not answered soon and the location says so.
func (o *object) get(ctx context.Context, off, n int64) (*body, *storeError) {
	if hedge := o.bucket.location.Hedge; hedge > 0 {
		return o.race(ctx, off, n, hedge)
	}
	return o.request(ctx, off, n)
}

// request sends one request for n bytes from offset off.
func (o *object) request(ctx context.Context, off, n int64) (*body, *storeError) {
	b := o.bucket
	ctx, dog, cancel := watched(ctx, b.stall)
	asking, t := traced(ctx, get, dog)
	r, err := b.vendor.read(asking, o.key, o.info.Version, off, n)
	if err = dog.rest(err); err == nil {
		if err = o.check(t, off, n); err == nil {
			return &body{r, t, dog, cancel}, nil
		}
		r.Close()
	}
	cancel()
	return nil, explain(b.vendor, t, err)
}

// check finds out whether an answer is the one that was asked for. A server, or
// a proxy before it, may know nothing of conditions or ranges.
func (o *object) check(t *trace, off, n int64) error {
	if v := o.bucket.vendor.version(t.header); v != "" && o.info.Version != "" && v != o.info.Version {
		return fmt.Errorf("%w: it is %s now, and was %s", errVersion, bare(v), bare(o.info.Version))
	}
	from, size, ranged := contentRange(t.header.Get("Content-Range"))
	switch {
	case ranged && size >= 0 && size != o.info.Size:
		return fmt.Errorf("%w: it has %d bytes now, and had %d", errVersion, size, o.info.Size)
	case ranged && from != off, !ranged && (off != 0 || n != o.info.Size):
		return fmt.Errorf("asked for %d bytes from %d, and answered with the range %q", n, off, t.header.Get("Content-Range"))
	case t.length >= 0 && t.length != n:
		return fmt.Errorf("asked for %d bytes, and answered with %d", n, t.length)
	}
	return nil
}

// contentRange reads the header of that name: "bytes 0-99/1000", whose size may
// be "*", which is -1.
func contentRange(h string) (from, size int64, ok bool) {
	span, total, ok := strings.Cut(strings.TrimPrefix(h, "bytes "), "/")
	first, _, dash := strings.Cut(span, "-")
	from, err := strconv.ParseInt(first, 10, 64)
	if !ok || !dash || err != nil {
		return 0, 0, false
	}
	size, err = strconv.ParseInt(total, 10, 64)
	if err != nil {
		size = -1
	}
	return from, size, true
}
