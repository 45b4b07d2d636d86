package peer

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/drivers/peer/roster"
	"github.com/milkweedfs/milkweed/drivers/posix"
)

// Each field of a request is covered by its MAC, and a request is valid once and for a short time.
func TestRequestsAreAuthenticated(t *testing.T) {
	r, b, _, name, data := threeNodes(t, 1000)
	put("dir/other", data, b)
	p := r.introduce(1)
	good := func() *request {
		req := p.request(filePath, name)
		req.rng, req.version, req.rank = "bytes=0-999", versionTag(infoOf(name, data)), "0"
		return req
	}
	status := func(req *request, h http.Header) (int, string) {
		t.Helper()
		resp, err := p.node.transport.RoundTrip(&http.Request{Method: http.MethodGet, URL: req.url(p.address), Header: h})
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	req := good()
	h := req.header(req.mac(secret))
	if got, body := status(req, h); got != http.StatusPartialContent || body != string(data) {
		t.Fatalf("a valid request: status %d", got)
	}
	if got, body := status(req, h); got != http.StatusUnauthorized || !strings.Contains(body, "before") {
		t.Errorf("a replayed request: status %d, %s", got, body)
	}
	for name, change := range map[string]func(*request){
		"name": func(r *request) { r.name = "dir/other" }, "range": func(r *request) { r.rng = "bytes=0-99" },
		"version": func(r *request) { r.version = `"1 2.3 "` }, "dataset": func(r *request) { r.dataset = "x" },
		"roster": func(r *request) { r.roster = "x" }, "from": func(r *request) { r.from = "c" },
		"to": func(r *request) { r.to = "c" }, "rank": func(r *request) { r.rank = "1" },
		"instance": func(r *request) { r.instance = newInstance() },
		"nonce":    func(r *request) { r.nonce = nonce(newInstance(), 1) },
		"expiry":   func(r *request) { r.expiry = timestamp(time.Now().Add(lifetime + time.Second)) },
		"path":     func(r *request) { r.path = pingPath },
	} {
		req := good()
		mac := req.mac(secret)
		change(req)
		if got, body := status(req, req.header(mac)); got != http.StatusUnauthorized || !strings.Contains(body, "not signed") {
			t.Errorf("a request with another %s: status %d, %s", name, got, body)
		}
	}
	req = good()
	if got, _ := status(req, req.header(noMAC)); got != http.StatusUnauthorized {
		t.Errorf("a request without MAC: status %d", got)
	}
	for shift, text := range map[time.Duration]string{
		-time.Minute: "the clock of b is 1m0s ahead of that of a", time.Minute: "the clock of b is -1m0s ahead of that of a",
	} {
		req := good()
		req.expiry = timestamp(time.Now().Add(shift + lifetime))
		if got, body := status(req, req.header(req.mac(secret))); got != http.StatusUnauthorized || !strings.Contains(body, text) {
			t.Errorf("a request from a clock %v off: status %d, %s", shift, got, body)
		}
	}
}

// A request that a server has received is refused after its restart, too. Clients repeat theirs.
func TestReplayAfterRestart(t *testing.T) {
	r, _, _, name, data := threeNodes(t, 1000)
	p := r.nodes[0].peers[1]
	send := func(h http.Header, u *url.URL) int {
		t.Helper()
		resp, err := p.node.transport.RoundTrip(&http.Request{Method: http.MethodGet, URL: u, Header: h})
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	r.wantContent(r.open(name), data)
	req := p.request(filePath, name)
	req.rng, req.version, req.rank = "bytes=0-999", versionTag(infoOf(name, data)), "0"
	h := req.header(req.mac(secret))
	if got := send(h, req.url(p.address)); got != http.StatusPartialContent {
		t.Fatalf("a valid request: status %d", got)
	}
	r.servers[1].Close()
	again, err := New(r.nodes[1].cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	s, err := again.Listen("127.0.0.1:0", r.servers[1].files)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r.setAddress(1, s.Addr().String())
	if got := send(h, req.url(p.address)); got != http.StatusPreconditionRequired {
		t.Errorf("a replayed request after the restart: status %d", got)
	}
	r.wantContent(r.open(name), data)
	if got := r.stats(0, 1); got.Reads != 2 || got.Failovers != 0 || (got.Misses != Misses{}) {
		t.Errorf("counters: %+v", got)
	}
}

// An address that leads to two nodes in turn, or to one that starts again and again, is no fault of
// the protocol.
func TestInstancesInTurn(t *testing.T) {
	r, _, _, name, data := threeNodes(t, 1000)
	again, err := New(r.nodes[1].cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	s, err := again.Listen("127.0.0.1:0", r.servers[1].files)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var requests atomic.Int64
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		[]*Server{r.servers[1], s}[(requests.Add(1)-1)%2].ServeHTTP(w, req)
	}))
	defer front.Close()
	r.setAddress(1, strings.TrimPrefix(front.URL, "http://"))
	r.wantContent(r.open(name), data)
	if got := r.stats(0, 1); got.Reads != 0 || got.Failovers != 1 || (got.Misses != Misses{Restarting: 1}) {
		t.Errorf("counters: %+v", got)
	}
}

// The MAC of an answer is of one request: that of another node or file is not used, although
// each node numbers its requests to each other node from 1.
func TestAnswersAreOfTheRequest(t *testing.T) {
	r, _, _, name, data := threeNodes(t, 1000)
	for what, change := range map[string]func(*request){
		"node": func(r *request) { r.to = "c" }, "name": func(r *request) { r.name = "dir/other" },
		"range": func(r *request) { r.rng = "bytes=0-99" }, "path": func(r *request) { r.path = infoPath },
	} {
		p := r.introduce(1)
		req := p.request(filePath, name)
		req.rng, req.version, req.rank = "bytes=0-999", versionTag(infoOf(name, data)), "0"
		resp, err := p.roundTrip(t.Context(), p.node.transport, req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if _, err := p.verify(req, resp, ""); err != nil {
			t.Fatal(err)
		}
		change(req)
		if _, err := p.verify(req, resp, ""); Cause(err) != "unproven" {
			t.Errorf("an answer for another %s: %v", what, err)
		}
	}
}

// A client without the secret does not keep its connection, whatever it announces.
func TestStrangersKeepNoConnection(t *testing.T) {
	r, _, _, _, _ := threeNodes(t, 1000)
	for name, text := range map[string]string{
		"refused":     "GET /v1/file HTTP/1.1\r\nHost: b\r\n\r\n",
		"with a body": "GET /v1/file HTTP/1.1\r\nHost: b\r\nContent-Length: 10\r\n\r\n",
		"with chunks": "GET /v1/file HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n",
		"of no file":  "OPTIONS * HTTP/1.1\r\nHost: b\r\nContent-Length: 10\r\n\r\n",
		"of HTTP/2":   "PRI * HTTP/2.0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", r.nodes[0].peers[1].address)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			io.WriteString(c, text)
			c.SetReadDeadline(time.Now().Add(5 * time.Second))
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is kept")
			}
		})
	}
}

// A request that is not one of the protocol is refused, and the next one is served.
func TestBadRequests(t *testing.T) {
	r, _, _, name, data := threeNodes(t, 1000)
	p := r.introduce(1)
	for _, change := range []func(*request){
		func(r *request) { r.path = "/v1/unknown" },
		func(r *request) { r.rng = "" },
		func(r *request) { r.rng = "bytes=5-" },
		func(r *request) { r.rng = "bytes=1-1000" },
		func(r *request) { r.rng = "bytes=1048576-1048577" },
		func(r *request) { r.rng = "bytes=0-99999999999" },
		func(r *request) { r.version = "*" },
		func(r *request) { r.rank = "" },
		func(r *request) { r.name = "../etc/passwd" },
		func(r *request) { r.name = "/etc/passwd" },
		func(r *request) { r.name = "." },
		func(r *request) { r.name = "../etc/passwd\x001.2" },
		func(r *request) { r.name = "\x001.2" },
	} {
		req := p.request(filePath, name)
		req.rng, req.version, req.rank = "bytes=0-999", versionTag(infoOf(name, data)), "0"
		change(req)
		resp, err := p.roundTrip(context.Background(), p.node.transport, req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%+v: status %d, want 400", req, resp.StatusCode)
		}
	}
	r.wantContent(r.open(name), data)
}

// Without a secret, nothing but the loopback interface is used, and the error has the remedy.
func TestNoSecret(t *testing.T) {
	source := newMemory(map[string][]byte{})
	r := newRig(t, source, func(c *Config) { c.Secret = nil }, newMemory(map[string][]byte{"f": content(10)}))
	for _, address := range []string{":0", "0.0.0.0:0", "[::]:0"} {
		s, err := r.nodes[0].Listen(address, source)
		if err == nil {
			s.Close()
			t.Errorf("Listen(%q) succeeds", address)
		} else if !strings.Contains(err.Error(), "milkweed peers keygen") {
			t.Errorf("Listen(%q): %v, without the remedy", address, err)
		}
	}
	put("f", content(10), source)
	r.wantContent(r.open("f"), content(10))
	r.setAddress(1, "192.0.2.1:7440")
	if _, err := r.nodes[0].Ask(context.Background(), "b"); err == nil || !strings.Contains(err.Error(), "milkweed peers keygen") {
		t.Errorf("a request to another machine: %v", err)
	}
}

// A node reports itself to nodes that disagree about the dataset and the roster, too.
func TestAsk(t *testing.T) {
	about := About{Version: "v1", Tiers: []Tier{{"ram", 100, 50}}}
	r := newRig(t, newMemory(nil), func(c *Config) {
		c.About = func() About { return about }
		c.Dataset = "dataset of " + c.Self
	}, newMemory(nil))
	got, err := r.nodes[0].Ask(context.Background(), "b")
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "b" || got.Protocol != Protocol || got.Dataset != "dataset of b" || got.Roster != r.nodes[0].Info().Roster ||
		got.Version != "v1" || len(got.Tiers) != 1 || got.Tiers[0] != about.Tiers[0] || time.Since(got.Clock).Abs() > time.Minute {
		t.Errorf("got %+v", got)
	}
	if _, err := r.nodes[0].Ask(context.Background(), "z"); err == nil {
		t.Error("a node that the roster does not name: no error")
	}
}

// When the client goes away, the request ends, and the descriptor and the buffer are released.
func TestClientGoesAway(t *testing.T) {
	r, b, _, name, data := threeNodes(t, 1000)
	b.copies = false
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	b.beforeRead(func(c context.Context, _ int64) error {
		cancel()
		<-c.Done()
		ended <- c.Err()
		return c.Err()
	})
	if _, err := r.open(name).ReadAt(ctx, make([]byte, 1000), 0); err == nil {
		t.Error("the read succeeds")
	}
	<-ended
	b.beforeRead(nil)
	r.wantContent(r.open(name), data)
	drivertest.Eventually(t, "all buffers are returned", func() bool { return r.servers[1].buffers.idle() == maxBuffers })
	drivertest.Eventually(t, "no request is left", func() bool {
		r.servers[1].mu.Lock()
		defer r.servers[1].mu.Unlock()
		return len(r.servers[1].requests) == 0
	})
}

// A node whose requests all wait, and hold buffers, leaves some to the other nodes. The same holds
// for nodes that are not in the roster.
func TestOnePeerLeavesBuffers(t *testing.T) {
	for name, outside := range map[string]bool{"in the roster": false, "outside": true} {
		t.Run(name, func(t *testing.T) { testOnePeerLeavesBuffers(t, outside) })
	}
}

func testOnePeerLeavesBuffers(t *testing.T, outside bool) {
	b := newMemory(make(map[string][]byte))
	r := newRig(t, newMemory(nil), func(c *Config) {
		if outside && c.Self != "b" {
			c.Self = ""
		}
	}, b, nil)
	r.nodes[2].transport.DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext
	name, data := "f", content(1000)
	put(name, data, b)
	waits := make(chan struct{})
	var first atomic.Bool // of the requests of a
	first.Store(true)
	var blocked atomic.Int64 // requests that hold buffers
	b.before = func(ctx context.Context, _ int64) error {
		if first.Load() {
			blocked.Add(1)
			<-waits
		}
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	buffers := r.servers[1].buffers
	waiting := func() int {
		buffers.mu.Lock()
		defer buffers.mu.Unlock()
		return buffers.waiting.Len() + int(blocked.Load())
	}
	p := r.introduce(1)
	for range 2 * maxBuffers { // more than the client has in flight, as if it had closed connections
		req := p.request(filePath, name)
		req.rng, req.version, req.rank = "bytes=0-999", versionTag(infoOf(name, data)), "0"
		all.Go(func() {
			if resp, err := p.roundTrip(ctx, &http.Transport{DisableKeepAlives: true}, req); err == nil {
				resp.Body.Close()
			}
		})
	}
	drivertest.Eventually(t, "the requests of a wait", func() bool { return waiting() == 2*maxBuffers })
	first.Store(false)
	r.nodes[2].peers[1].address = p.address
	bounded, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	a, err := r.nodes[2].peers[1].get(bounded, name, infoOf(name, data), 0, span{0, 1000})
	if err != nil {
		t.Error(err)
	} else {
		a.close()
	}
	close(waits)
	cancel()
	all.Wait()
}

// A panic costs one request.
func TestPanicOfARequest(t *testing.T) {
	r, b, _, name, data := threeNodes(t, 1000)
	b.copies = false
	before := panics.Count()
	b.beforeRead(func(context.Context, int64) error { panic("test") })
	slog.SetDefault(slog.New(slog.DiscardHandler))
	r.wantContent(r.open(name), data)
	if got := panics.Count() - before; got != 1 {
		t.Errorf("%d panics, want 1", got)
	}
	b.beforeRead(nil)
	if _, err := r.nodes[0].Ask(context.Background(), "b"); err != nil {
		t.Errorf("after the panic: %v", err)
	}
}

// Close ends requests that wait.
func TestClose(t *testing.T) {
	r, b, _, name, data := threeNodes(t, 1000)
	b.copies = false
	b.beforeRead(func(c context.Context, _ int64) error {
		go r.servers[1].Close()
		<-c.Done()
		return c.Err()
	})
	r.wantContent(r.open(name), data)
}

// Connections leave descriptors for the mount.
func TestConnectionsLeaveDescriptors(t *testing.T) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []uint64{256, 1024, min(l.Cur, 65536)} {
		low := syscall.Rlimit{Cur: limit, Max: l.Max}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
			t.Fatal(err)
		}
		defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l)
		r, _, _, _, _ := threeNodes(t, 1000)
		if got, want := cap(r.servers[1].listener.slots), int(limit/4); got > want {
			t.Errorf("with %d descriptors: %d connections, want at most %d", limit, got, want)
		}
	}
}

// A client of many nodes keeps few connections without requests, for files and for pings.
func TestIdleConnectionsAreBounded(t *testing.T) {
	const limit, peers = 1024, 300
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit, Max: l.Max}); err != nil {
		t.Fatal(err)
	}
	n := newRig(t, nil, nil).nodes[0]
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp4", ":0")
	if err != nil {
		t.Fatal(err)
	}
	var open atomic.Int64
	server := http.Server{
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				open.Add(1)
			case http.StateClosed:
				open.Add(-1)
			}
		},
	}
	go server.Serve(listener)
	defer server.Close()
	for what, tt := range map[string]struct {
		transport *http.Transport
		want      int64
	}{"files": {n.transport, limit / 8}, "pings": {n.probes, limit / 64}} {
		for i := range peers {
			address := fmt.Sprintf("127.0.%d.%d:%d", 1+i/200, 1+i%200, listener.Addr().(*net.TCPAddr).Port)
			resp, err := tt.transport.RoundTrip(&http.Request{Method: http.MethodGet, URL: new(request).url(address), Header: http.Header{}})
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		drivertest.Eventually(t, fmt.Sprintf("%d connections for %s", tt.want, what), func() bool { return open.Load() == tt.want })
		tt.transport.CloseIdleConnections()
		drivertest.Eventually(t, "no connection", func() bool { return open.Load() == 0 })
	}
}

// A server has a bounded number of connections. Further ones wait, and are served then.
func TestConnectionsAreBounded(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const bound, clients = 2, 8
	var (
		open, most atomic.Int64
		connected  sync.WaitGroup
	)
	connected.Add(clients)
	l := newListener(inner.(*net.TCPListener), bound, nil)
	server := http.Server{
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { connected.Wait() }),
		ConnState: func(c net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				most.Store(max(most.Load(), open.Add(1)))
			case http.StateClosed:
				open.Add(-1)
			}
			l.changed(c, state)
		},
	}
	go server.Serve(l)
	defer server.Close()
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			c, err := net.Dial("tcp", inner.Addr().String())
			connected.Done()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
			if answer, err := io.ReadAll(c); err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 200")) {
				t.Errorf("answer %q, %v", answer, err)
			}
		})
	}
	all.Wait()
	if most.Load() != bound {
		t.Errorf("%d connections at once, want %d", most.Load(), bound)
	}
}

// A secret is read from a file that only its owner can read.
func TestSecretFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	for _, tt := range []struct {
		name, text string
		mode       fs.FileMode
		err        string
	}{
		{"good", NewSecret(), 0o600, ""},
		{"read-only", NewSecret(), 0o400, ""},
		{"readable by the group", NewSecret(), 0o640, "chmod 600"},
		{"readable by all", NewSecret(), 0o644, "chmod 600"},
		{"empty", "", 0o600, "milkweed peers keygen"},
		{"something else", "password\n", 0o600, "milkweed peers keygen"},
		{"short", secretPrefix + base64.StdEncoding.EncodeToString(make([]byte, 31)), 0o600, "milkweed peers keygen"},
		{"without its prefix", strings.TrimPrefix(NewSecret(), secretPrefix), 0o600, "milkweed peers keygen"},
	} {
		os.Remove(path)
		if err := os.WriteFile(path, []byte(tt.text), tt.mode); err != nil {
			t.Fatal(err)
		}
		s, err := ReadSecret(path)
		switch {
		case tt.err == "" && (err != nil || len(s.GossipKey()) != 32 || bytes.Equal(s.GossipKey(), s.messages)):
			t.Errorf("%s: %v", tt.name, err)
		case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
			t.Errorf("%s: got %v, want an error with %q", tt.name, err, tt.err)
		}
	}
	if _, err := ReadSecret(t.TempDir()); err == nil {
		t.Error("a directory is no secret")
	}
	if one, other := NewSecret(), NewSecret(); one == other {
		t.Error("two secrets are equal")
	}
}

const (
	// sendfileDir is the variable that makes the test binary read a copy from itself.
	sendfileDir = "MILKWEED_PEER_TEST_DIR"

	// noThreads is the variable that lets it make no threads meanwhile.
	noThreads = "MILKWEED_PEER_TEST_NO_THREADS"
)

// sendfileSize is the size of that copy.
const sendfileSize = 5<<20 + 100

// A copy is sent with sendfile(2): all of it, but for the bytes that net/http sends with the header.
func TestSendfile(t *testing.T) {
	if sent := bySendfile(t); sent < sendfileSize-1024 {
		t.Errorf("sendfile has sent %d bytes, want at least %d", sent, sendfileSize-1024)
	}
}

// Where there can be no more threads, a copy is read through its tier, which bounds the reads.
func TestSendfileNeedsThreads(t *testing.T) {
	t.Setenv(noThreads, "true")
	if sent := bySendfile(t); sent != 0 {
		t.Errorf("sendfile has sent %d bytes, want 0", sent)
	}
}

// bySendfile returns how many bytes of a copy of sendfileSize bytes are sent with sendfile(2).
func bySendfile(t *testing.T) (sent int) {
	t.Helper()
	drivertest.Need(t, "strace")
	log := filepath.Join(t.TempDir(), "strace")
	cmd := exec.Command("strace", "-f", "-qq", "-e", "trace=sendfile", "-o", log, os.Args[0])
	cmd.Env = append(os.Environ(), sendfileDir+"="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	calls, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)sendfile.*\) += (\d+)$`).FindAllSubmatch(calls, -1) {
		n, _ := strconv.Atoi(string(m[1]))
		sent += n
	}
	return sent
}

// A posixFiles serves the copies of a store.
type posixFiles struct{ *posix.Store }

func (f posixFiles) OpenShared(ctx context.Context, name string, _ drivers.Info, _ int) (drivers.Object, error) {
	return f.Open(ctx, name)
}

// newCopy makes a store in dir that has one copy, and returns the store.
func newCopy(dir, name string, data []byte) (*posix.Store, error) {
	s, err := posix.OpenStore(posix.StoreConfig{Tier: dir, Dataset: "test", Source: "/source"})
	if err != nil {
		return nil, err
	}
	w, err := s.Create(context.Background(), name, infoOf(name, data))
	if err != nil {
		return nil, err
	}
	defer w.Close()
	if _, err := w.WriteAt(data, 0); err != nil {
		return nil, err
	}
	return s, w.Commit()
}

// readCopyFromItself serves a copy from dir, and reads it.
func readCopyFromItself(dir string) {
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	if os.Getenv(noThreads) != "" {
		LimitThreads(func(int) int { return 0 })
	}
	all, err := roster.New([]roster.Node{{Name: "a"}, {Name: "b"}})
	check(err)
	newNode := func(self string) *Node {
		n, err := New(Config{Roster: all, Self: self, Log: slog.New(slog.DiscardHandler)})
		check(err)
		return n
	}
	data := content(sendfileSize)
	store, err := newCopy(dir, "f", data)
	check(err)
	defer store.Close()
	client, owner := newNode("a"), newNode("b")
	defer client.Close()
	defer owner.Close()
	server, err := owner.Listen("127.0.0.1:0", posixFiles{store})
	check(err)
	defer server.Close()
	client.peers[1].address = server.Addr().String()
	o, err := client.OpenVersion(context.Background(), "f", infoOf("f", data), nil)
	check(err)
	defer o.Close()
	for range 2 { // the first read compares the blocks on the disk with their checksums
		got := make([]byte, len(data))
		_, err := o.ReadAt(context.Background(), got, 0)
		check(err)
		if !bytes.Equal(got, data) {
			panic("wrong bytes")
		}
	}
}
