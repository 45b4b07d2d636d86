package blob

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// A requestKind is a class of requests, as stores charge for them.
type requestKind int

const (
	other requestKind = iota // not sent by this package
	list
	get
)

// A trace records one request that was sent with its context, and the response as
// it arrived. It does not depend on the library that sent the request.
type trace struct {
	kind     requestKind
	watchdog *watchdog // of the caller that waits for the response
	began    time.Time // before the request was signed
	sent     bool
	status   int         // of the response; 0: there was none
	header   http.Header // of the response
	length   int64       // Content-Length of the response; -1: unknown
	requests int         // sent
	tokens   tokenCheck  // of the requests, if they are for a listing

	timed bool          // it was signed with a time
	ahead time.Duration // of this machine's clock, with which it was signed
}

type traceKey struct{}

// withTrace returns a context for one request, and the trace that records it.
func withTrace(ctx context.Context, k requestKind, watchdog *watchdog) (context.Context, *trace) {
	t := &trace{kind: k, watchdog: watchdog, began: time.Now()}
	return context.WithValue(ctx, traceKey{}, t), t
}

// A transport sends all requests to a store, and counts them. It has the clock for their signatures. It reuses
// connections. Each concurrent request has a connection of its own: requests that
// share one, as in HTTP/2, share the bandwidth of one.
type transport struct {
	inner    *http.Transport
	counters *Counters
	clock    clock
}

func newTransport(counters *Counters) *transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &transport{counters: counters, inner: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
		MaxIdleConnsPerHost:   maxIdleConns,
		IdleConnTimeout:       90 * time.Second,
		DisableCompression:    true, // an object is returned as it is stored, compressed or not
		Protocols:             protocols,
		ReadBufferSize:        64 << 10,
	}}
}

// maxIdleConns is the number of idle connections to a store that stay open.
const maxIdleConns = 256

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	tr, _ := r.Context().Value(traceKey{}).(*trace)
	if tr == nil {
		atomic.AddInt64(&t.counters.Others, 1)
		return t.inner.RoundTrip(r)
	}
	if err := tr.check(r); err != nil {
		return nil, err
	}
	atomic.AddInt64(t.counters.request(tr.kind), 1)
	tr.sent = true
	tr.watchdog.restart()
	resp, err := t.inner.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	tr.status, tr.header, tr.length = resp.StatusCode, resp.Header, resp.ContentLength
	if tr.throttled() {
		atomic.AddInt64(&t.counters.Throttled, 1)
	}
	success := resp.StatusCode/100 == 2
	if success && tr.timed {
		t.clock.accepted(tr)
	}
	switch {
	case !success: // the libraries read all of it
		resp.Body = &boundedBody{ReadCloser: resp.Body, left: maxErrorBody, end: io.EOF}
	case tr.kind == list:
		resp.Body = &boundedBody{ReadCloser: resp.Body, left: maxListing, end: errLargeListing, watchdog: tr.watchdog}
	}
	return resp, nil
}

// The libraries keep a whole listing in memory, and the whole body of an error. A listing has up to
// 1000 keys of up to 1024 bytes.
const (
	maxListing   = 32 << 20
	maxErrorBody = 1 << 20
)

// errLargeListing is the error for a response to a listing request that is longer than maxListing.
var errLargeListing = fmt.Errorf("the response to a listing request is longer than %d bytes", maxListing)

// A boundedBody is a body that ends, with the error end, after the bytes that are left.
type boundedBody struct {
	io.ReadCloser
	left     int
	end      error
	watchdog *watchdog // records the progress; may be nil
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, b.end
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	if b.watchdog != nil {
		b.watchdog.received(n)
	}
	return n, err
}

// throttled reports whether the response requests a lower rate.
func (t *trace) throttled() bool {
	return t.status == http.StatusTooManyRequests || t.status == http.StatusServiceUnavailable
}
