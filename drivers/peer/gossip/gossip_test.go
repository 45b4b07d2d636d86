package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/goleak"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// TestMain fails if goroutines are left. Those of memberlist that wait for a probe when their
// member is closed end with its time-out, which is longer on a busy machine.
func TestMain(m *testing.M) {
	code := m.Run()
	for deadline := time.Now().Add(30 * time.Second); code == 0; {
		err := goleak.Find()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

var key = bytes.Repeat([]byte{7}, KeySize)

// A group is a set of nodes on loopback, with short intervals.
type group struct {
	t     *testing.T
	label string
	key   []byte
	addrs map[string]string // of the gossip of nodes
	tune  func(*memberlist.Config)
}

// patient lets a live node that does not run for a second on a busy machine stay alive.
func patient(c *memberlist.Config) {
	c.ProbeInterval, c.ProbeTimeout = 300*time.Millisecond, 150*time.Millisecond
}

// newGroup returns a group of nodes a, b and so on, of which none is started.
func newGroup(t *testing.T, n int) *group {
	g := &group{t: t, label: t.Name(), key: key, addrs: make(map[string]string)}
	for i := range n {
		g.addrs[nodeName(i)] = freeAddress(t)
	}
	return g
}

func nodeName(i int) string { return fmt.Sprintf("n%02d", i) }

// ports are the next ports that tests use. They are below those that the kernel gives to others.
var ports atomic.Int32

// freeAddress returns an address of a port that is free for TCP and UDP.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 1000 {
		address := fmt.Sprintf("127.0.0.2:%d", 20000+(os.Getpid()*64+int(ports.Add(1)))%10000)
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		l.Close()
		p, err := net.ListenPacket("udp", address)
		if err != nil {
			continue
		}
		p.Close()
		return address
	}
	t.Fatal("there is no free port")
	return ""
}

// config returns the configuration of a node.
func (g *group) config(name string) Config {
	others := make(map[string]string)
	for other, address := range g.addrs {
		if other != name {
			others[other] = address
		}
	}
	return Config{
		Label: g.label, Name: name, Bind: g.addrs[name], Others: others, Key: g.key,
		Log:   slog.New(slog.NewTextHandler(io.Discard, nil)),
		pause: 200 * time.Millisecond,
		tune: func(c *memberlist.Config) {
			c.ProbeInterval, c.ProbeTimeout = 100*time.Millisecond, 50*time.Millisecond
			c.GossipInterval, c.PushPullInterval = 20*time.Millisecond, 500*time.Millisecond
			c.SuspicionMaxTimeoutMult, c.AwarenessMaxMultiplier = 2, 2
			c.GossipToTheDeadTime = 300 * time.Millisecond
			if g.tune != nil {
				g.tune(c)
			}
		},
	}
}

// start starts a node until the end of the test.
func (g *group) start(c Config) *Members {
	g.t.Helper()
	m, err := Join(c)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(sync.OnceFunc(m.Close))
	return m
}

// startAll starts all nodes and waits until they know each other.
func (g *group) startAll() map[string]*Members {
	g.t.Helper()
	all := make(map[string]*Members)
	for name := range g.addrs {
		all[name] = g.start(g.config(name))
	}
	for name, m := range all {
		for other := range g.addrs {
			drivertest.Eventually(g.t, name+" knows "+other, func() bool { return m.alive(other) == 1 })
		}
	}
	return all
}

// alive returns the number of members of a node that m takes for alive, or -1 if it knows none.
func (m *Members) alive(name string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n, known := m.up[name]; known {
		return n
	}
	return -1
}

// die ends m as SIGKILL does: nobody is told.
func (m *Members) die() {
	m.cancel()
	m.transport.interrupt()
	<-m.done
	m.list.Shutdown()
	m.list = nil // Close is to be called by the end of the test
}

func TestJoin(t *testing.T) {
	g := newGroup(t, 4)
	g.tune = patient
	all := g.startAll()
	a := all["n00"]
	if !a.Up("n01") || !a.Up("n00") || !a.Up("unknown") {
		t.Error("a node that lives, this one, or an unknown one is not up")
	}
	if s := a.Stats(); s.Joined != 3 || s.Lost != 0 {
		t.Errorf("the counters are %+v", s)
	}

	// Nobody is missing, so that nobody is contacted again.
	for _, m := range all {
		m.mu.Lock()
		for name := range m.config.Others {
			if m.up[name] == 0 {
				t.Errorf("%s is missing", name)
			}
		}
		m.mu.Unlock()
		if targets := m.missing(t.Context(), nil); targets != nil {
			t.Errorf("%v are contacted", targets)
		}
	}
}

// Joined is told each other node when it appears, and when it is back.
func TestJoined(t *testing.T) {
	g := newGroup(t, 2)
	c := g.config("n00")
	joined := make(chan string, 10)
	c.Joined = func(name string) { joined <- name }
	g.start(c)
	for range 2 {
		m, err := Join(g.config("n01"))
		if err != nil {
			t.Fatal(err)
		}
		if got := <-joined; got != "n01" {
			t.Errorf("%s has joined, want n01", got)
		}
		m.Close()
	}
}

// A node that leaves is down at once, and again up when it is back.
func TestLeave(t *testing.T) {
	g := newGroup(t, 3)
	all := g.startAll()
	m, err := Join(g.config("n02"))
	if err == nil {
		m.Close()
		t.Fatal("two nodes have the same address")
	}
	all["n02"].Close()
	all["n02"].list = nil
	for _, name := range []string{"n00", "n01"} {
		drivertest.Eventually(t, name+" finds n02 down", func() bool { return !all[name].Up("n02") })
	}
	g.start(g.config("n02"))
	for _, name := range []string{"n00", "n01"} {
		drivertest.Eventually(t, name+" finds n02 up", func() bool { return all[name].Up("n02") })
	}
}

// A node whose process dies is down after a while.
func TestDeath(t *testing.T) {
	g := newGroup(t, 4)
	g.tune = patient
	all := g.startAll()
	all["n03"].die()
	for _, name := range []string{"n00", "n01", "n02"} {
		drivertest.Eventually(t, name+" finds n03 down", func() bool { return !all[name].Up("n03") })
		if !all[name].Up("n00") || !all[name].Up("n01") || !all[name].Up("n02") {
			t.Errorf("%s finds a live node down", name)
		}
	}
}

// A node that starts again before its death was noticed is up, and stays up when its predecessor is
// found dead.
func TestRestartAtOnce(t *testing.T) {
	g := newGroup(t, 3)
	g.tune = patient
	all := g.startAll()
	all["n02"].die()
	again := g.start(g.config("n02"))
	down := false
	for _, name := range []string{"n00", "n01"} {
		m := all[name]
		drivertest.Eventually(t, name+" has only the new n02", func() bool {
			down = down || m.Stats().Joined >= 3 && !m.Up("n02")
			return m.Stats().Joined >= 3 && m.Stats().Lost >= 1
		})
		if down || !m.Up("n02") || m.alive("n02") != 1 {
			t.Errorf("%s has %d members n02, and found it down: %v", name, m.alive("n02"), down)
		}
		drivertest.Eventually(t, "the new n02 knows "+name, func() bool { return again.alive(name) == 1 })
	}
}

// A node that starts again with another address is found.
func TestRestartElsewhere(t *testing.T) {
	g := newGroup(t, 3)
	all := g.startAll()
	all["n02"].die()
	g.addrs["n02"] = freeAddress(t)
	g.start(g.config("n02"))
	drivertest.Eventually(t, "n00 has only the new n02", func() bool { return all["n00"].Stats().Lost >= 1 && all["n00"].alive("n02") == 1 })
}

// All nodes start again at the same time.
func TestRestartOfAll(t *testing.T) {
	g := newGroup(t, 4)
	for _, m := range g.startAll() {
		m.die()
	}
	g.startAll()
}

// Nodes with another key, without one, or with another label know nothing of each other.
func TestGroupsDoNotMix(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"key":    func(c *Config) { c.Key = bytes.Repeat([]byte{8}, KeySize) },
		"no key": func(c *Config) { c.Key = nil },
		"label":  func(c *Config) { c.Label += "2" },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGroup(t, 4)
			var one, two []*Members
			for i := range 4 {
				c := g.config(nodeName(i))
				if i >= 2 {
					change(&c)
					two = append(two, g.start(c))
				} else {
					one = append(one, g.start(c))
				}
			}
			for i := range 2 {
				drivertest.Eventually(t, "the groups are joined", func() bool {
					return one[i].alive(nodeName(1-i)) == 1 && two[i].alive(nodeName(3-i)) == 1
				})
			}
			// Each node has contacted each node of the other group.
			for _, m := range append(one, two...) {
				drivertest.Eventually(t, "the others are contacted", func() bool { return m.Stats().Failed >= 3 })
			}
			for i := range 2 {
				for j := range 2 {
					if one[i].alive(nodeName(2+j)) != -1 || two[i].alive(nodeName(j)) != -1 {
						t.Error("nodes of two groups know each other")
					}
				}
			}
		})
	}
}

// Nodes that were separated for longer than memberlist remembers each other find each other again.
func TestPartition(t *testing.T) {
	g := newGroup(t, 4)
	var separated atomic.Bool
	left := func(address string) bool { return address == g.addrs["n00"] || address == g.addrs["n01"] }
	all := make(map[string]*Members)
	for name, own := range g.addrs {
		c := g.config(name)
		c.drops = func(_, address string) bool { return separated.Load() && left(address) != left(own) }
		all[name] = g.start(c)
	}
	for round := range 2 {
		separated.Store(round == 1)
		for name, m := range all {
			for other, address := range g.addrs {
				same := left(g.addrs[name]) == left(address)
				drivertest.Eventually(t, fmt.Sprintf("in round %d, %s sees %s", round, name, other), func() bool {
					return (m.alive(other) == 1) == (same || round == 0)
				})
			}
		}
	}
	for _, m := range all {
		drivertest.Eventually(t, "the dead are forgotten", func() bool { return m.Stats().Failed > 0 && len(m.list.Members()) == 2 })
	}
	time.Sleep(500 * time.Millisecond) // longer than GossipToTheDeadTime
	separated.Store(false)
	for name, m := range all {
		for other := range g.addrs {
			drivertest.Eventually(t, name+" sees "+other+" again", func() bool { return m.alive(other) == 1 })
		}
	}
}

// All works over TCP if no UDP packet arrives.
func TestWithoutUDP(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for time limits of members")
	}
	g := newGroup(t, 3)
	g.tune = patient
	all := make(map[string]*Members)
	for name := range g.addrs {
		c := g.config(name)
		c.drops = func(network, _ string) bool { return network == "udp" }
		all[name] = g.start(c)
	}
	for name, m := range all {
		for other := range g.addrs {
			drivertest.Eventually(t, name+" knows "+other, func() bool { return m.alive(other) == 1 })
		}
	}
	all["n02"].die()
	drivertest.Eventually(t, "n00 finds n02 down", func() bool { return !all["n00"].Up("n02") })
	drivertest.Eventually(t, "n01 finds n02 down", func() bool { return !all["n01"].Up("n02") })
	for range 60 { // rounds of probes, in which a node that UDP cannot reach would be found dead
		time.Sleep(50 * time.Millisecond)
		if !all["n00"].Up("n01") || !all["n01"].Up("n00") {
			t.Fatal("a live node is down")
		}
	}
}

// A node that nobody answers says so once, and joins when somebody starts.
func TestAlone(t *testing.T) {
	g := newGroup(t, 2)
	var log drivertest.Buffer
	c := g.config("n00")
	c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo}))
	a := g.start(c)
	drivertest.Eventually(t, "n00 has tried three times", func() bool { return a.Stats().Failed >= 3 })
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "found no other node") {
		t.Errorf("the log is %s", log.String())
	}
	if !a.Up("n01") {
		t.Error("an unknown node is down")
	}
	g.start(g.config("n01"))
	drivertest.Eventually(t, "n00 knows n01", func() bool { return a.alive("n01") == 1 })
}

// A node that listens on all addresses advertises the one from which it reaches others.
func TestAdvertise(t *testing.T) {
	g := newGroup(t, 2)
	c := g.config("n00")
	c.Bind = strings.Replace(c.Bind, "127.0.0.2", "", 1)
	g.start(c)
	b := g.start(g.config("n01"))
	drivertest.Eventually(t, "n01 knows n00", func() bool { return b.alive("n00") == 1 })
	b.cancel()
	<-b.done // b.list is set
	for _, n := range b.list.Members() {
		if !n.Addr.IsLoopback() {
			t.Errorf("%s advertises %s", n.Name, n.Address())
		}
	}
}

// Close leaves no socket, also when connections are open.
func TestClose(t *testing.T) {
	before := sockets(t)
	g := newGroup(t, 2)
	for name, address := range g.addrs {
		m, err := Join(g.config(name))
		if err != nil {
			t.Fatal(err)
		}
		idle, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		drivertest.Eventually(t, "the connection is open at the other end", func() bool {
			m.transport.mu.Lock()
			defer m.transport.mu.Unlock()
			return len(m.transport.conns) > 0
		})
		m.Close()
		idle.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, idle); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a connection is open after Close")
		}
		idle.Close()
	}
	if after := sockets(t); after > before {
		t.Errorf("there are %d sockets more", after-before)
	}
}

// Close returns also if this node never knew its own address, and packets have arrived.
func TestCloseWithoutAddress(t *testing.T) {
	g := newGroup(t, 1)
	c := g.config("n00")
	c.Bind = strings.Replace(c.Bind, "127.0.0.2", "", 1)
	c.Others = map[string]string{"x": "no host:1"}
	m, err := Join(c)
	if err != nil {
		t.Fatal(err)
	}
	packet, err := net.Dial("udp", g.addrs["n00"])
	if err != nil {
		t.Fatal(err)
	}
	defer packet.Close()
	packet.Write([]byte("x"))
	waits := regexp.MustCompile(`\[chan send\]:\n\S*udpListen`)
	drivertest.Eventually(t, "the packet waits", func() bool {
		stacks := make([]byte, 1<<20)
		return waits.Match(stacks[:runtime.Stack(stacks, true)])
	})
	m.Close()
}

func sockets(t *testing.T) (n int) {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if target, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.HasPrefix(target, "socket:") {
			n++
		}
	}
	return n
}

// Many members need few goroutines each.
func TestManyMembers(t *testing.T) {
	if testing.Short() {
		t.Skip("has 32 members")
	}
	const n = 32
	g := newGroup(t, n)
	g.tune = func(c *memberlist.Config) { // this machine has few cores
		c.ProbeInterval, c.ProbeTimeout = time.Second, 500*time.Millisecond
	}
	before := runtime.NumGoroutine()
	g.startAll()
	if each := (runtime.NumGoroutine() - before) / n; each > 20 {
		t.Errorf("a member needs %d goroutines", each)
	}
}

// Connections of strangers are closed if there are many, and do not take the descriptors of the mount.
func TestStreamsAreBounded(t *testing.T) {
	g := newGroup(t, 2)
	name := nodeName(0)
	g.start(g.config(name))
	var kept atomic.Int32
	var all sync.WaitGroup
	defer all.Wait()
	for range 2 * maxStreams {
		c, err := net.Dial("tcp", g.addrs[name])
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		all.Go(func() {
			c.SetReadDeadline(time.Now().Add(streamTimeout / 2))
			if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
				kept.Add(1)
			}
		})
	}
	all.Wait()
	if got := kept.Load(); got > maxStreams || got == 0 {
		t.Errorf("%d connections at the same time, want 1 to %d", got, maxStreams)
	}
}

func TestErrors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for want, c := range map[string]Config{
		"missing port":           {Bind: "127.0.0.1", Key: key},
		"is not a port":          {Bind: "127.0.0.1:x", Key: key},
		"host is not an address": {Bind: "host:1", Key: key},
		"31 bytes instead of 32": {Bind: "127.0.0.1:1", Key: key[1:]},
		"without a key":          {Bind: ":1"},
		"without a key it":       {Bind: "10.0.0.1:1"},
		"address already in use": {Bind: l.Addr().String(), Key: key},
	} {
		c.Log = slog.New(slog.DiscardHandler)
		if m, err := Join(c); err == nil {
			m.Close()
			t.Errorf("Join succeeds, want %s", want)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %s", err, want)
		}
	}
}

// Hosts are looked up once.
func TestResolve(t *testing.T) {
	m := &Members{config: Config{Others: map[string]string{"a": "127.0.0.1:7", "b": "localhost:8"}, Log: slog.New(slog.DiscardHandler)}}
	resolved := make(map[string]string)
	if targets := m.missing(t.Context(), resolved); len(targets) != 2 || resolved["a"] != "127.0.0.1:7" || !strings.HasSuffix(resolved["b"], ":8") {
		t.Errorf("got %v and %v", targets, resolved)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // no lookup succeeds from here
	if targets := m.missing(ctx, resolved); len(targets) != 2 {
		t.Errorf("got %v from known addresses", targets)
	}
}

func TestNextPort(t *testing.T) {
	for address, want := range map[string]string{":7440": ":7441", "node1:1": "node1:2", "[::1]:9": "[::1]:10", "a": "", "a:0": "", "a:65535": "", "a:x": ""} {
		if got, err := NextPort(address); got != want || (err != nil) != (want == "") {
			t.Errorf("NextPort(%q) = %q, %v; want %q", address, got, err, want)
		}
	}
}
