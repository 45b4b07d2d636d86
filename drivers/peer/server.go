package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

const (
	// maxConnections bounds the connections of a server. Further ones wait in the kernel. They also
	// take at most a quarter of the descriptors of the process: a stranger can have connections, and
	// the mount needs descriptors.
	maxConnections = 16384

	// maxBuffers bounds the blocks in memory that a server sends or waits for, see buffers. Further
	// requests for blocks that it cannot send from a file wait.
	maxBuffers = 128

	// sendTimeout bounds the time in which a client must take an answer.
	sendTimeout = time.Minute

	// closeTimeout is how long Close waits for answers in flight.
	closeTimeout = time.Second
)

// A Server answers the requests of other nodes.
type Server struct {
	node     *Node
	files    Files
	listener *listener
	server   http.Server
	replays  replays
	buffers  *buffers

	mu       panics.Mutex            // guards the following
	requests map[string]*atomic.Bool // by nonce, of requests for files: whether they wait for the content
	closed   bool                    // no request begins

	cancel context.CancelFunc // of all requests
	wg     sync.WaitGroup     // of the loop that accepts connections, and of requests
}

// Listen serves files to the other nodes. address is "HOST:PORT"; without a host, it is that of all
// interfaces. Without a secret, Listen fails for an address that is not of the loopback interface.
// The caller closes the Server, before the Node.
func (n *Node) Listen(address string, files Files) (*Server, error) {
	if n.self < 0 {
		return nil, errors.New("peers: a node that is not in the roster serves nobody")
	}
	inner, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	if n.cfg.Secret == nil {
		if err := checkLoopback(inner.Addr().String()); err != nil {
			inner.Close()
			return nil, fmt.Errorf("peers: listen on %s: %w", address, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{
		node: n, files: files, cancel: cancel,
		listener: newListener(inner.(*net.TCPListener), descriptors(maxConnections, 4), ctx.Done()),
		buffers:  newBuffers(maxBuffers),
		requests: make(map[string]*atomic.Bool),
	}
	s.server = http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       serverIdleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(n.cfg.Log.Handler(), slog.LevelDebug),

		DisableGeneralOptionsHandler: true, // it waits for a body
		BaseContext:                  func(net.Listener) context.Context { return ctx },
		ConnState:                    s.listener.changed,
	}
	var accepted net.Listener = s.listener
	if n.cfg.TLS != nil {
		accepted = n.listenTLS(accepted)
	}
	s.wg.Go(func() {
		defer panics.Contain()
		s.server.Serve(accepted)
	})
	return s, nil
}

// Addr returns the address at which the server listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Close ends the server. Answers that are being sent have a second.
func (s *Server) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	s.server.Shutdown(ctx)
	s.cancel()
	s.server.Close()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.wg.Wait()
}

// enter begins a request, and reports false if the server is closed. The caller calls wg.Done.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.wg.Add(1)
	}
	return !s.closed
}

// A listener bounds the connections. It does not wrap them, because a wrapper hides the descriptor
// from sendfile(2).
type listener struct {
	*net.TCPListener
	slots  chan struct{} // has an element for each connection, and for Accept
	closed <-chan struct{}
}

// newListener makes a listener with at most max connections. When closed is, Accept fails.
func newListener(inner *net.TCPListener, max int, closed <-chan struct{}) *listener {
	return &listener{TCPListener: inner, slots: make(chan struct{}, max), closed: closed}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.TCPListener.Accept()
	if err != nil {
		<-l.slots
	}
	return c, err
}

// changed is the ConnState of an http.Server.
func (l *listener) changed(_ net.Conn, state http.ConnState) {
	if state == http.StateClosed {
		<-l.slots
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		panic(http.ErrAbortHandler)
	}
	defer s.wg.Done()
	defer func() {
		if v := recover(); v != nil {
			if v != http.ErrAbortHandler {
				panics.Note(v)
			}
			panic(http.ErrAbortHandler) // ends the connection without a message
		}
	}()
	if r.ContentLength != 0 { // no request of a peer has a body, and net/http would wait for it
		http.NewResponseController(w).SetReadDeadline(time.Now())
		panic(http.ErrAbortHandler)
	}
	c := &call{server: s, w: w, ctx: r.Context()}
	if err := c.accept(r); err != nil {
		if r := (*refusal)(nil); !errors.As(err, &r) || r.status != http.StatusPreconditionRequired {
			w.Header()["Connection"] = []string{"close"} // otherwise, strangers could keep all connections
		}
		c.refuse(err)
		return
	}
	switch c.req.path {
	case filePath:
		c.file()
	case pingPath:
		c.ping()
	case infoPath:
		c.info()
	}
}

// A call is a request that is being answered.
type call struct {
	server *Server
	w      http.ResponseWriter
	ctx    context.Context
	req    *request
	from   *peer  // nil before the request was accepted
	holder holder // of the buffers
}

// A refusal is an error with a status.
type refusal struct {
	status int
	err    error
}

func (r *refusal) Error() string { return r.err.Error() }

func refuse(status int, format string, args ...any) error {
	return &refusal{status, fmt.Errorf(format, args...)}
}

// accept parses a request and authenticates it. The error is a *refusal. A request for an Info need
// not agree with this node about anything but the secret and the protocol.
func (c *call) accept(r *http.Request) error {
	path := r.URL.Path
	if r.Method != http.MethodGet || path != filePath && path != pingPath && path != infoPath {
		return refuse(http.StatusBadRequest, "%s %s is no request of a peer", r.Method, path)
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return refuse(http.StatusBadRequest, "query: %w", err)
	}
	req, mac, err := parseRequest(path, query, r.Header)
	if version := otherVersion(""); errors.As(err, &version) {
		return refuse(http.StatusUpgradeRequired, "%w", err)
	}
	if err != nil {
		return refuse(http.StatusBadRequest, "%w", err)
	}
	c.req = req
	cfg := &c.server.node.cfg
	if err := c.authenticate(mac); err != nil {
		return err
	}
	sender := c.server.node.named(req.from)
	if r.TLS != nil && sender != nil {
		if err := certifies(r.TLS.PeerCertificates[0], sender); err != nil {
			return refuse(http.StatusForbidden, "the certificate is not for %s: %w", req.from, err)
		}
	}
	if path == infoPath {
		return nil
	}
	switch {
	case req.dataset != cfg.Dataset:
		return refuse(http.StatusMisdirectedRequest, "%s serves dataset %q, not %q", cfg.Self, cfg.Dataset, req.dataset)
	case req.to != cfg.Self:
		return refuse(http.StatusMisdirectedRequest, "this node is %s, not %s", cfg.Self, req.to)
	case req.roster != cfg.Roster.Hash():
		return refuse(http.StatusConflict, "the roster of %s has the hash %s, not %s", cfg.Self, cfg.Roster.Hash(), req.roster)
	}
	if req.from == "" {
		c.from = c.server.node.outside
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		c.holder = holder{c.from, host}
		return nil
	}
	if sender == nil {
		return refuse(http.StatusUnauthorized, "the roster of %s does not name %q", cfg.Self, req.from)
	}
	c.from, c.holder = sender, holder{peer: sender}
	return nil
}

// authenticate checks the MAC of the request, its expiry, that it is for this instance of the node,
// and that it is new. Requests that an earlier instance has received are not known. Without a
// secret, it checks nothing.
func (c *call) authenticate(mac string) error {
	s := c.server.node.cfg.Secret
	if s == nil {
		return nil
	}
	if !equal(mac, c.req.mac(s)) {
		return refuse(http.StatusUnauthorized, "the request is not signed with the secret of %s", c.server.node.cfg.Self)
	}
	expiry, err := parseTimestamp(c.req.expiry)
	if err != nil {
		return refuse(http.StatusBadRequest, "expiry: %w", err)
	}
	now := time.Now()
	if left := expiry.Sub(now); left < 0 || left > 2*lifetime {
		return refuse(http.StatusUnauthorized, "the clock of %s is %v ahead of that of %s", c.server.node.cfg.Self, (lifetime - left).Round(time.Second), c.req.from)
	}
	if c.req.instance != c.server.node.instance {
		return refuse(http.StatusPreconditionRequired, "the request is not for this start of %s", c.server.node.cfg.Self)
	}
	if err := c.server.replays.admit(c.req.nonce, expiry, now); err != nil {
		return refuse(http.StatusUnauthorized, "%w", err)
	}
	return nil
}

// writeHeader sends a header, with the line that each answer has. body is that of an answer that is
// not of a file.
func (c *call) writeHeader(status int, line answerLine, body string) {
	line.clock, line.mac = timestamp(time.Now()), noMAC
	h := c.w.Header()
	h["Date"] = nil
	if c.req != nil {
		line.mac = line.proof(c.server.node.cfg.Secret, c.req, status, h, body)
	}
	h[hAnswer] = []string{line.words() + " " + line.mac}
	http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(sendTimeout))
	c.w.WriteHeader(status)
}

// reply sends an answer that is not of a file.
func (c *call) reply(status int, line answerLine, body string) {
	h := c.w.Header()
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	h["Content-Type"] = []string{"text/plain; charset=utf-8"}
	c.writeHeader(status, line, body)
	io.WriteString(c.w, body)
}

// refuse answers with an error.
func (c *call) refuse(err error) {
	status := http.StatusBadGateway
	var r *refusal
	switch {
	case errors.As(err, &r):
		status = r.status
	case errors.Is(err, drivers.ErrFull):
		status = http.StatusInsufficientStorage
	case errors.Is(err, drivers.ErrChanged):
		status = http.StatusPreconditionFailed
	case errors.Is(err, fs.ErrNotExist):
		status = http.StatusNotFound
	}
	line := answerLine{}
	if status == http.StatusPreconditionRequired {
		line.state = c.server.node.instance
	}
	c.reply(status, line, err.Error())
}

// The states of a request, as a ping reports them.
const (
	stateWaiting = "waiting" // for the content
	stateSending = "sending"
	stateUnknown = "unknown" // no such request is in flight
)

// ping answers that this node is alive, and what the request that the ping names does.
func (c *call) ping() {
	s := c.server
	s.mu.Lock()
	waits := s.requests[c.req.name]
	s.mu.Unlock()
	state := stateUnknown
	switch {
	case waits != nil && waits.Load():
		state = stateWaiting
	case waits != nil:
		state = stateSending
	}
	c.reply(http.StatusOK, answerLine{state: state}, "")
}

// An Info is what a node reports of itself.
type Info struct {
	Name     string    `json:"name"`
	Protocol int       `json:"protocol"`
	Dataset  string    `json:"dataset"`
	Roster   string    `json:"roster"` // its hash
	Clock    time.Time `json:"clock"`
	About
}

// Info returns what this node reports of itself.
func (n *Node) Info() Info {
	i := Info{Name: n.cfg.Self, Protocol: Protocol, Dataset: n.cfg.Dataset, Roster: n.cfg.Roster.Hash(), Clock: time.Now()}
	if n.cfg.About != nil {
		i.About = n.cfg.About()
	}
	return i
}

// info answers with the Info of this node.
func (c *call) info() {
	body, err := json.Marshal(c.server.node.Info())
	if err != nil {
		c.refuse(err)
		return
	}
	c.reply(http.StatusOK, answerLine{}, string(body))
}
