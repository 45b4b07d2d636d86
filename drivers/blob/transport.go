package blob

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// A kind is what a request is for, in the way that stores charge for it.
type kind int

// The kinds of requests.
const (
	other kind = iota // none that this package sends
	list
	get
)

// A trace is what is known of the one request that was sent with its context:
// the answer as it came, whichever library asked.
type trace struct {
	kind   kind
	dog    *watchdog // of whoever waits for the answer
	began  time.Time // before it was signed
	sent   bool
	status int         // of the answer; 0: there was none
	header http.Header // of the answer
	length int64       // of its body, as it says; -1: it does not
}

type traceKey struct{}

// traced returns a context for one request, and what will be known of it.
func traced(ctx context.Context, k kind, dog *watchdog) (context.Context, *trace) {
	t := &trace{kind: k, dog: dog, began: time.Now()}
	return context.WithValue(ctx, traceKey{}, t), t
}

// A transport sends all requests to a store, and counts them. Connections are
// used again; there are as many as there are requests at once, since one that
// all share, as in HTTP/2, has the bandwidth of one.
type transport struct {
	inner    *http.Transport
	counters *Counters
}

func newTransport(counters *Counters) *transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &transport{counters: counters, inner: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
		MaxIdleConnsPerHost:   maxIdle,
		IdleConnTimeout:       90 * time.Second,
		DisableCompression:    true, // content is what was stored, compressed or not
		Protocols:             protocols,
		ReadBufferSize:        64 << 10,
	}}
}

// maxIdle is how many connections are kept for the next request.
const maxIdle = 256

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	tr, _ := r.Context().Value(traceKey{}).(*trace)
	if tr == nil {
		atomic.AddInt64(&t.counters.Others, 1)
		return t.inner.RoundTrip(r)
	}
	if tr.kind == get && tr.status != 0 {
		return nil, errTwice
	}
	atomic.AddInt64(t.counters.request(tr.kind), 1)
	tr.sent = true
	tr.dog.watch()
	resp, err := t.inner.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	tr.status, tr.header, tr.length = resp.StatusCode, resp.Header, resp.ContentLength
	if tr.throttled() {
		atomic.AddInt64(&t.counters.Throttled, 1)
	}
	return resp, nil
}

// errTwice is the error of a library that goes on by itself where an answer ended
// early: without a pause, and unseen by whoever compares answers with what was
// asked for.
var errTwice = errors.New("the answer ended early")

// throttled reports whether the answer asks to slow down.
func (t *trace) throttled() bool {
	return t.status == http.StatusTooManyRequests || t.status == http.StatusServiceUnavailable
}
