package blobtest

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A Proxy stands between clients and a server, and does with requests what its
// Plan says. What it sends on is as it came, down to the Host, so that
// signatures hold. Its methods may be called concurrently.
type Proxy struct {
	URL string // where it answers

	server    *httptest.Server
	backend   *url.URL
	transport *http.Transport
	plan      atomic.Pointer[plan]
	closing   context.Context // done when the test is over

	kinds         [Head + 1]atomic.Int64
	bytes         atomic.Int64
	conns, broken atomic.Int64
	total         pacer

	mu     sync.Mutex // guards the following
	faults map[Fault]int64
}

// idleTime is less than any of the servers keeps a connection that is not used.
const idleTime = 3 * time.Second

// ProxyStats is what a Proxy has seen since it was started.
type ProxyStats struct {
	Gets   int64 // requests of the kinds that KindOf knows
	Lists  int64
	Heads  int64
	Others int64

	Bytes  int64           // of the bodies of all answers that were sent on
	Conns  int64           // connections that clients have made
	Broken int64           // requests that the server did not answer; the client's connection is reset
	Faults map[Fault]int64 // those that happened
}

// NewProxy starts a Proxy before the server at the URL backend. It ends with the
// test.
func NewProxy(t testing.TB, backend string, plan Plan) *Proxy {
	t.Helper()
	p := newProxy(t, backend, plan)
	p.server.Start()
	p.URL = p.server.URL
	return p
}

// NewTLSProxy is NewProxy at an https:// URL. Nobody who does not know its
// Certificate trusts it.
func NewTLSProxy(t testing.TB, backend string, plan Plan) *Proxy {
	t.Helper()
	p := newProxy(t, backend, plan)
	p.server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that are meant to fail
	p.server.StartTLS()
	p.URL = p.server.URL
	return p
}

func newProxy(t testing.TB, backend string, plan Plan) *Proxy {
	t.Helper()
	u, err := url.Parse(backend)
	if err != nil {
		t.Fatalf("start a proxy: %v", err)
	}
	closing, cancel := context.WithCancel(context.Background())
	p := &Proxy{
		backend:   u,
		transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 1 << 10, IdleConnTimeout: idleTime},
		closing:   closing,
		faults:    make(map[Fault]int64),
	}
	p.SetPlan(plan)
	p.server = httptest.NewUnstartedServer(p)
	p.server.Config.ConnContext = p.connContext
	t.Cleanup(func() {
		cancel()
		p.server.CloseClientConnections()
		p.server.Close()
		p.transport.CloseIdleConnections()
	})
	return p
}

// Certificate is that of a Proxy with TLS.
func (p *Proxy) Certificate() *x509.Certificate { return p.server.Certificate() }

// SetPlan has the requests that come from now on follow another plan, from its
// beginning.
func (p *Proxy) SetPlan(plan Plan) { p.plan.Store(newPlan(plan)) }

// Stats returns what was seen so far.
func (p *Proxy) Stats() ProxyStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return ProxyStats{
		Gets: p.kinds[Get].Load(), Lists: p.kinds[List].Load(),
		Heads: p.kinds[Head].Load(), Others: p.kinds[Other].Load(),
		Bytes: p.bytes.Load(), Conns: p.conns.Load(), Broken: p.broken.Load(),
		Faults: maps.Clone(p.faults),
	}
}

// count counts a fault that happens.
func (p *Proxy) count(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults[f]++
}

// connKey is the key of the pacer of a connection.
type connKey struct{}

func (p *Proxy) connContext(ctx context.Context, _ net.Conn) context.Context {
	p.conns.Add(1)
	return context.WithValue(ctx, connKey{}, new(pacer))
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.kinds[KindOf(r)].Add(1)
	plan := p.plan.Load()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(p.closing, cancel)()
	x := &exchange{Proxy: p, plan: plan, fate: plan.draw(r), w: w, r: r.WithContext(ctx)}
	if !sleep(ctx, x.fate.latency) {
		panic(http.ErrAbortHandler)
	}
	x.serve()
}

// An exchange is one request and its answer.
type exchange struct {
	*Proxy
	plan *plan
	fate fate
	w    http.ResponseWriter
	r    *http.Request
}

func (x *exchange) serve() {
	fault := x.fate.fault
	if _, ok := answers[fault]; ok {
		x.count(fault)
		answer(x.w, x.r, fault, x.plan.RetryAfter)
		return
	}
	if fault == Reset {
		x.count(fault)
		x.hangUp(true)
		return
	}
	resp, err := x.transport.RoundTrip(x.onward())
	if err != nil {
		x.broken.Add(1)
		x.hangUp(true)
		return
	}
	defer resp.Body.Close()
	x.send(resp)
}

// onward is the request as it goes to the server.
func (x *exchange) onward() *http.Request {
	r := x.r.Clone(x.r.Context())
	r.RequestURI = "" // of servers, not of clients
	r.URL.Scheme, r.URL.Host = x.backend.Scheme, x.backend.Host
	dropHopByHop(r.Header)
	if _, ok := r.Header["User-Agent"]; !ok {
		r.Header["User-Agent"] = nil // none, and not that of net/http
	}
	return r
}

// dropHopByHop removes what is about one connection.
func dropHopByHop(h http.Header) {
	for _, name := range []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"} {
		h.Del(name)
	}
}

// send sends the answer of the server, with the fault that it is to have.
func (x *exchange) send(resp *http.Response) {
	dropHopByHop(resp.Header)
	rate, length := int64(0), resp.ContentLength
	body := x.r.Method != http.MethodHead && length != 0
	switch fault := x.fate.fault; {
	case fault == Late:
		x.count(fault)
	case fault == Slow && body:
		x.count(fault)
		rate = x.plan.SlowRate
	case fault == StaleETag && resp.Header.Get("Etag") != "":
		x.count(fault)
		makeStale(resp.Header)
	case fault == ShortLength && body && length > 1:
		x.count(fault)
		x.sendShortLength(resp)
		return
	case (fault == ResetBody || fault == Truncated) && body && length != 1:
		x.count(fault)
		x.sendHead(resp)
		x.copy(x.w, io.LimitReader(resp.Body, x.cut(length)), 0)
		x.hangUp(fault == ResetBody)
		return
	}
	x.sendHead(resp)
	if !x.copy(x.w, resp.Body, rate) {
		panic(http.ErrAbortHandler)
	}
}

func (x *exchange) sendHead(resp *http.Response) {
	h := x.w.Header()
	maps.Copy(h, resp.Header)
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // not to be guessed
	}
	x.w.WriteHeader(resp.StatusCode)
}

// cut is after how many bytes a body ends too early: at least 1, and less than
// all. Where nobody knows how many there are, it is soon.
func (x *exchange) cut(length int64) int64 {
	if length < 0 {
		length = 64
	}
	return 1 + int64(x.fate.where*float64(length-1))
}

// makeStale gives an answer the ETag of another version, and the generation that
// Google's servers have beside it.
func makeStale(h http.Header) {
	h.Set("Etag", `"stale"`)
	if generation, err := strconv.ParseInt(h.Get("X-Goog-Generation"), 10, 64); err == nil {
		h.Set("X-Goog-Generation", strconv.FormatInt(generation-1, 10))
	}
}

// sendShortLength sends more than it announces, which net/http does not do. It
// announces the end of the connection: a client that used it again would log what
// it finds there.
func (x *exchange) sendShortLength(resp *http.Response) {
	conn, out := x.hijack()
	defer conn.Close()
	head := resp.Header.Clone()
	head.Set("Content-Length", strconv.FormatInt(resp.ContentLength/2, 10))
	head.Set("Connection", "close")
	// An error of out stays, and is found by the copy.
	fmt.Fprintf(out, "HTTP/1.1 %s\r\n", resp.Status)
	head.Write(out)
	out.WriteString("\r\n")
	x.copy(out, resp.Body, 0)
	out.Flush()
}

// hijack takes the connection from the HTTP server.
func (x *exchange) hijack() (net.Conn, *bufio.Writer) {
	conn, buf, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // the connection is broken already
	}
	return conn, buf.Writer
}

// hangUp ends the connection, after what was written to it: by a reset, or in
// good order.
func (x *exchange) hangUp(reset bool) {
	conn, out := x.hijack()
	defer conn.Close()
	out.Flush() // if it fails the client has gone, and cannot be hung up on
	if secure, ok := conn.(*tls.Conn); ok && reset {
		conn = secure.NetConn() // so that no close_notify announces the end
		defer conn.Close()
	}
	if tcp, ok := conn.(*net.TCPConn); ok && reset {
		tcp.SetLinger(0)
	}
}

// buffers are what bodies are copied with. Large ones save system calls.
var buffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// copy copies a body, not faster than all rates allow and rate is, if it is not
// 0. It reports whether all came, and went.
func (x *exchange) copy(dst io.Writer, src io.Reader, rate int64) bool {
	buffer := buffers.Get().(*[256 << 10]byte)
	defer buffers.Put(buffer)
	conn, own := x.r.Context().Value(connKey{}).(*pacer), new(pacer)
	chunk := buffer[:chunkSize(len(buffer), rate, x.plan.Rate, x.plan.ConnRate)]
	for {
		n, err := src.Read(chunk)
		wait := max(own.pass(n, rate), conn.pass(n, x.plan.ConnRate), x.total.pass(n, x.plan.Rate))
		if wait > 0 && !sleep(x.r.Context(), wait) {
			return false
		}
		x.bytes.Add(int64(n)) // before the client can have them all
		if _, err := dst.Write(chunk[:n]); err != nil {
			return false
		}
		if wait > 0 && dst == io.Writer(x.w) && http.NewResponseController(x.w).Flush() != nil {
			return false
		}
		if err != nil {
			return err == io.EOF
		}
	}
}

// chunkSize is how much is copied at once: no more than passes in 20 ms at the
// lowest of the rates, so that bytes come one after the other.
func chunkSize(size int, rates ...int64) int {
	for _, rate := range rates {
		if rate > 0 {
			size = min(size, max(int(rate/50), 1))
		}
	}
	return size
}
