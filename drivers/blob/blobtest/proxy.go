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

// A Proxy is a reverse proxy that adds the delays and faults of its Plan. It forwards
// requests unchanged, including the Host, so that signatures stay valid. Its methods may
// be called concurrently.
type Proxy struct {
	URL string // for clients

	server    *httptest.Server
	backend   *url.URL
	transport *http.Transport
	plan      atomic.Pointer[plan]
	closing   context.Context // done when the test ends

	kinds         [Head + 1]atomic.Int64
	bytes         atomic.Int64
	conns, broken atomic.Int64
	total         rateLimiter

	mu     sync.Mutex // guards the following
	faults map[Fault]int64
}

// idleTimeout is shorter than the idle time-outs of the servers, so that the Proxy never
// sends a request on a connection that the server closes.
const idleTimeout = 3 * time.Second

// ProxyStats has the counters of a Proxy since its start.
type ProxyStats struct {
	Gets   int64 // requests by kind; see KindOf
	Lists  int64
	Heads  int64
	Others int64

	Bytes  int64           // of the bodies that were forwarded
	Conns  int64           // connections from clients
	Broken int64           // requests without a response from the server: the client gets a reset
	Faults map[Fault]int64 // injected faults
}

// NewProxy starts a Proxy for the server at the URL backend. The Proxy is closed when
// the test ends.
func NewProxy(t testing.TB, backend string, plan Plan) *Proxy {
	t.Helper()
	p := newProxy(t, backend, plan)
	p.server.Start()
	p.URL = p.server.URL
	return p
}

// NewTLSProxy is NewProxy with an https:// URL. Clients must trust its Certificate.
func NewTLSProxy(t testing.TB, backend string, plan Plan) *Proxy {
	t.Helper()
	p := newProxy(t, backend, plan)
	p.server.Config.ErrorLog = log.New(io.Discard, "", 0) // some tests make handshakes fail
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
		transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 1 << 10, IdleConnTimeout: idleTimeout},
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

// Certificate returns the certificate of a Proxy with TLS.
func (p *Proxy) Certificate() *x509.Certificate { return p.server.Certificate() }

// SetPlan replaces the plan for all later requests.
func (p *Proxy) SetPlan(plan Plan) { p.plan.Store(newPlan(plan)) }

// Stats returns the current counters.
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

// count counts an injected fault.
func (p *Proxy) count(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults[f]++
}

// connKey is the context key of the rateLimiter of a connection.
type connKey struct{}

func (p *Proxy) connContext(ctx context.Context, _ net.Conn) context.Context {
	p.conns.Add(1)
	return context.WithValue(ctx, connKey{}, new(rateLimiter))
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.kinds[KindOf(r)].Add(1)
	plan := p.plan.Load()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(p.closing, cancel)()
	x := &exchange{Proxy: p, plan: plan, outcome: plan.decide(r), w: w, r: r.WithContext(ctx)}
	if !sleep(ctx, x.outcome.latency) {
		panic(http.ErrAbortHandler)
	}
	x.serve()
}

// An exchange is one request and its response.
type exchange struct {
	*Proxy
	plan    *plan
	outcome outcome
	w       http.ResponseWriter
	r       *http.Request
}

// serve forwards the request and the response, with the fault of the outcome.
func (x *exchange) serve() {
	fault := x.outcome.fault
	if _, ok := errorResponses[fault]; ok {
		x.count(fault)
		writeError(x.w, x.r, fault, x.plan.RetryAfter)
		return
	}
	if fault == Reset {
		x.count(fault)
		x.closeConn(true)
		return
	}
	resp, err := x.transport.RoundTrip(x.forwarded())
	if err != nil {
		x.broken.Add(1)
		x.closeConn(true)
		return
	}
	defer resp.Body.Close()
	x.send(resp)
}

// forwarded returns the request for the server.
func (x *exchange) forwarded() *http.Request {
	r := x.r.Clone(x.r.Context())
	r.RequestURI = "" // must be empty in client requests
	r.URL.Scheme, r.URL.Host = x.backend.Scheme, x.backend.Host
	dropHopByHop(r.Header)
	if _, ok := r.Header["User-Agent"]; !ok {
		r.Header["User-Agent"] = nil // or net/http would add its own
	}
	return r
}

// dropHopByHop removes the headers that apply to a single connection.
func dropHopByHop(h http.Header) {
	for _, name := range []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"} {
		h.Del(name)
	}
}

// send sends the server's response to the client, with the fault of the outcome.
func (x *exchange) send(resp *http.Response) {
	dropHopByHop(resp.Header)
	rate, length := int64(0), resp.ContentLength
	body := x.r.Method != http.MethodHead && length != 0
	switch fault := x.outcome.fault; {
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
		x.copy(x.w, io.LimitReader(resp.Body, x.truncatedLength(length)), 0)
		x.closeConn(fault == ResetBody)
		return
	}
	x.sendHead(resp)
	if !x.copy(x.w, resp.Body, rate) {
		panic(http.ErrAbortHandler)
	}
}

// sendHead sends the status and the headers of a response.
func (x *exchange) sendHead(resp *http.Response) {
	h := x.w.Header()
	maps.Copy(h, resp.Header)
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // or net/http would guess it
	}
	x.w.WriteHeader(resp.StatusCode)
}

// truncatedLength returns the number of bytes after which a body ends too early: at
// least 1, and fewer than all. If the length is unknown, -1, it is less than 64.
func (x *exchange) truncatedLength(length int64) int64 {
	if length < 0 {
		length = 64
	}
	return 1 + int64(x.outcome.where*float64(length-1))
}

// makeStale replaces the ETag by that of another version, and decrements the generation,
// which Google's servers send too.
func makeStale(h http.Header) {
	h.Set("Etag", `"stale"`)
	if generation, err := strconv.ParseInt(h.Get("X-Goog-Generation"), 10, 64); err == nil {
		h.Set("X-Goog-Generation", strconv.FormatInt(generation-1, 10))
	}
}

// sendShortLength sends a body that is longer than its Content-Length, which net/http
// does not allow. It also sends "Connection: close": a client that reused the connection
// would log the unexpected bytes.
func (x *exchange) sendShortLength(resp *http.Response) {
	conn, out := x.hijack()
	defer conn.Close()
	head := resp.Header.Clone()
	head.Set("Content-Length", strconv.FormatInt(resp.ContentLength/2, 10))
	head.Set("Connection", "close")
	// out keeps its first error, and returns it to copy.
	fmt.Fprintf(out, "HTTP/1.1 %s\r\n", resp.Status)
	head.Write(out)
	out.WriteString("\r\n")
	x.copy(out, resp.Body, 0)
	out.Flush()
}

// hijack takes over the connection from the HTTP server.
func (x *exchange) hijack() (net.Conn, *bufio.Writer) {
	conn, buf, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // the connection is broken already
	}
	return conn, buf.Writer
}

// closeConn sends the buffered bytes and closes the connection, with a reset or
// normally.
func (x *exchange) closeConn(reset bool) {
	conn, out := x.hijack()
	defer conn.Close()
	out.Flush() // an error means that the client has gone
	if secure, ok := conn.(*tls.Conn); ok && reset {
		conn = secure.NetConn() // without a close_notify alert
		defer conn.Close()
	}
	if tcp, ok := conn.(*net.TCPConn); ok && reset {
		tcp.SetLinger(0)
	}
}

// buffers has buffers for copy. Large buffers save system calls.
var buffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// copy copies a body at the lowest of rate and the rates of the plan; 0 is no limit. It
// reports whether the whole body was received and sent.
func (x *exchange) copy(dst io.Writer, src io.Reader, rate int64) bool {
	buffer := buffers.Get().(*[256 << 10]byte)
	defer buffers.Put(buffer)
	conn, body := x.r.Context().Value(connKey{}).(*rateLimiter), new(rateLimiter)
	chunk := buffer[:chunkSize(len(buffer), rate, x.plan.Rate, x.plan.ConnRate)]
	for {
		n, err := src.Read(chunk)
		wait := max(body.reserve(n, rate), conn.reserve(n, x.plan.ConnRate), x.total.reserve(n, x.plan.Rate))
		if wait > 0 && !sleep(x.r.Context(), wait) {
			return false
		}
		x.bytes.Add(int64(n)) // before Write: then a client may check the counter
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

// chunkSize returns the number of bytes to copy at once: at most those of 20 ms at the
// lowest rate, so that slow bodies arrive evenly.
func chunkSize(size int, rates ...int64) int {
	for _, rate := range rates {
		if rate > 0 {
			size = min(size, max(int(rate/50), 1))
		}
	}
	return size
}
