package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/milkweedfs/milkweed/drivers"
)

// An object is one version of one object in the bucket. It keeps no state at the
// store: each request names the version.
type object struct {
	bucket *Bucket
	name   string
	key    string
	info   drivers.Info

	// Requests are sent one by one until one of them is not refused, so that an archived object takes one.
	// first is nil if the bucket has shown no archived object.
	first chan struct{} // has an element while one is in flight
	tried atomic.Bool   // one was not refused
}

var (
	_ drivers.Object   = (*object)(nil)
	_ drivers.Streamer = (*object)(nil)
)

func (o *object) Info() drivers.Info { return o.info }

func (o *object) Close() error { return nil }

// stride is the preferred length of a request, in bytes. docs/performance.md has the
// measurement: with a latency of 20 ms, a stream of such requests spends most of
// its time on the transfer.
const stride = 8 << 20

// ReadAt implements drivers.Object. It sends one request for exactly the range.
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
	s, err := o.Stream(ctx, off, n)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	got, err := io.ReadFull(s, p[:n])
	if err == nil && n < int64(len(p)) {
		err = io.EOF
	}
	return got, err
}

// Stream implements drivers.Streamer. The first Read sends the first request.
func (o *object) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	if off < 0 || n < 0 || off+n > o.info.Size {
		return nil, wrap(ctx, "read", o.name, fmt.Errorf("range of %d bytes from offset %d is outside the %d bytes of the object", n, off, o.info.Size))
	}
	s := &stream{object: o, ctx: ctx, off: off, end: off + n, retry: o.bucket.retrier(readRetries)}
	if n == o.info.Size {
		s.sum = o.newWholeSum()
	}
	return s, nil
}

// A stream reads a range of an object. After a response that ends too early it
// requests the remaining range of the same version.
type stream struct {
	object   *object
	ctx      context.Context
	off, end int64 // the remaining range
	retry    retrier
	progress int         // bytes since retry.succeeded, if fewer than minProgress
	sum      *wholeSum   // nil: not computed
	body     *body       // nil: no request is in flight
	err      *storeError // ended the last response together with data; the next Read handles it
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	if s.off == s.end {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), s.end-s.off)]
	for {
		n, err := s.readBody(p)
		s.off += int64(n)
		atomic.AddInt64(&s.object.bucket.counters.Bytes, int64(n))
		if n > 0 {
			if s.sum != nil {
				s.sum.Write(p[:n])
				if s.off == s.end {
					s.sum.end()
				}
			}
			if s.progress += n; s.progress >= minProgress {
				s.progress = 0
				s.retry.succeeded()
			}
			s.err = err
			return n, nil
		}
		if err == nil {
			continue
		}
		if err := s.retry.wait(s.ctx, err); err != nil {
			return 0, wrap(s.ctx, "read", s.object.name, err)
		}
	}
}

// readBody reads from the body of a response. It sends a request if there is none.
func (s *stream) readBody(p []byte) (int, *storeError) {
	if err := s.err; err != nil {
		s.err = nil
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
		return n, s.object.bucket.classify(t, err)
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

// A body is the body of a response. Its watchdog cancels a Read that stalls.
type body struct {
	io.ReadCloser
	trace    *trace
	watchdog *watchdog
	cancel   context.CancelFunc
}

func (b *body) Read(p []byte) (int, error) {
	b.watchdog.arm()
	n, err := b.ReadCloser.Read(p)
	b.watchdog.received(n)
	return n, b.watchdog.disarm(err)
}

// Close ends the request. It cancels a request that is still in flight.
func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.cancel()
	return err
}

// get requests n bytes from offset off, unless the store has just refused its requests.
func (o *object) get(ctx context.Context, off, n int64) (*body, *storeError) {
	if o.first != nil && !o.tried.Load() {
		select {
		case o.first <- struct{}{}:
			if o.tried.Load() {
				<-o.first
			} else {
				defer func() { <-o.first }()
			}
		case <-ctx.Done():
			return nil, &storeError{errno: syscall.EIO, text: context.Cause(ctx).Error()}
		}
	}
	if err := o.bucket.admit(ctx); err != nil {
		return nil, err
	}
	if err, _ := o.bucket.refused.get(o); err != nil {
		return nil, err
	}
	return o.request(ctx, off, n)
}

// request is get, whatever the store has refused. It hedges the request if the location enables that.
func (o *object) request(ctx context.Context, off, n int64) (b *body, err *storeError) {
	if delay := o.bucket.location.Hedge; delay > 0 {
		b, err = o.sendHedged(ctx, off, n, delay)
	} else {
		b, err = o.send(ctx, off, n)
	}
	refused := err != nil && err.isRefusal()
	err = o.bucket.settle(ctx, o, err)
	if !refused {
		o.tried.Store(true)
	}
	return b, err
}

// send sends one request for n bytes from offset off, and another one if the store describes its objects
// otherwise in responses than in listings.
func (o *object) send(ctx context.Context, off, n int64) (*body, *storeError) {
	b, refused, err := o.sendOnce(ctx, off, n)
	if refused && o.reconcile(ctx) {
		b, _, err = o.sendOnce(ctx, off, n)
	}
	return b, err
}

// sendOnce sends one request. If refused, the object has another revision than the expected one.
func (o *object) sendOnce(ctx context.Context, off, n int64) (_ *body, refused bool, _ *storeError) {
	b, expected := o.bucket, o.expected()
	ctx, watchdog, cancel := withWatchdog(ctx, b.stallTimeout)
	traceCtx, t := withTrace(ctx, get, watchdog)
	r, err := b.vendor.read(traceCtx, o.key, expected.version, off, n)
	watchdog.received(minProgress) // the header
	if err = watchdog.disarm(err); err == nil {
		if err = o.checkResponse(t, expected, off, n); err == nil {
			return &body{r, t, watchdog, cancel}, false, nil
		}
		r.Close()
	}
	cancel()
	return nil, t.status == http.StatusPreconditionFailed || errors.Is(err, errRevision), b.classify(t, err)
}

// checkResponse returns an error if a response does not have the expected revision and the requested
// range. A server, or a proxy before it, may ignore conditions and ranges.
func (o *object) checkResponse(t *trace, expected revision, off, n int64) error {
	found := o.bucket.vendor.revision(t.header)
	if err := found.check(expected); err != nil {
		return err
	}
	from, size, ranged := contentRange(t.header.Get("Content-Range"))
	switch {
	case ranged && size >= 0 && size != o.info.Size:
		return fmt.Errorf("%w: its size is %d bytes, want %d", errVersion, size, o.info.Size)
	case ranged && from != off, !ranged && (off != 0 || n != o.info.Size):
		return fmt.Errorf("requested %d bytes from offset %d, received the range %q", n, off, t.header.Get("Content-Range"))
	case t.length >= 0 && t.length != n:
		return fmt.Errorf("requested %d bytes, received %d", n, t.length)
	}
	if found.tellsMore(expected) {
		return found.check(o.pin(found))
	}
	return nil
}

// contentRange parses a Content-Range header, such as "bytes 0-99/1000". An unknown
// size, "*", is returned as -1.
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
