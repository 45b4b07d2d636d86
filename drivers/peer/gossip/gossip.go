// Package gossip is what the nodes of a job know about each other's life. It is a hint: it decides
// which node is asked first, and neither who owns a file nor whether a read succeeds. All of
// Milkweed works without it.
//
// It is the only package that imports memberlist, the SWIM protocol of Consul and Nomad. A panic
// in a goroutine of memberlist ends the process, because Go cannot contain it.
package gossip

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// KeySize is the size of Config.Key in bytes.
const KeySize = 32

// Config describes a node.
type Config struct {
	Label  string            // of the group: members of groups with other labels are ignored
	Name   string            // of this node in the roster
	Others map[string]string // HOST:PORT of the other nodes, by name; a host is resolved once
	Bind   string            // ADDRESS:PORT to listen on with TCP and UDP; ADDRESS may be empty
	Key    []byte            // encrypts all messages, KeySize bytes; empty: none, on loopback only
	Log    *slog.Logger

	// Joined is called when another node appears. It may be nil. It must not block, or call methods
	// of Members. It is not called when Close has returned.
	Joined func(name string)

	// For tests.
	tune  func(*memberlist.Config)
	drops func(network, address string) bool // whether messages to an address are lost
	pause time.Duration                      // longest time between attempts to join
}

// Members are the nodes that are known to live. The methods may be called concurrently.
type Members struct {
	config    Config
	label     string
	transport *transport
	cancel    context.CancelFunc
	done      chan struct{}          // closed when run has returned
	list      *memberlist.Memberlist // set by run; nil if the network was never ready

	mu    sync.Mutex     // guards the following
	ended bool           // Joined is not called any more
	up    map[string]int // how many members live, by the name of their node; a node that restarts has two
	stats Stats
}

// Stats are the counters of Members.
type Stats struct {
	Joined   int64 // members that appeared, this node excluded
	Lost     int64 // members that left or were found dead
	Attempts int64 // times that missing nodes were contacted
	Failed   int64 // of these, times without an answer
}

const (
	// probeInterval is long, because a node under load answers late, and a wrong hint costs more
	// than a late one (consul#916): the data path notices a dead node itself.
	probeInterval = 2 * time.Second

	// streamTimeout bounds a connection to a member.
	streamTimeout = 5 * time.Second

	// maxTargets is how many missing nodes are contacted at a time. Each node chooses them at
	// random, so that the nodes of a large job do not all join by the same few.
	maxTargets = 4

	firstPause = time.Second      // after a failed attempt to join; it doubles
	maxPause   = 30 * time.Second // between attempts to join

	resolveTimeout = 5 * time.Second // of one name
	leaveTimeout   = time.Second     // for telling others that this node leaves
)

// Join listens on Config.Bind and joins the other nodes in the background. If they do not answer,
// it tries again until Close: members that were separated for a while find each other again. The
// error is one of the configuration or of listening; it is never about other nodes.
func Join(c Config) (*Members, error) {
	host, port, err := net.SplitHostPort(c.Bind)
	if err != nil {
		return nil, fmt.Errorf("gossip: %w", err)
	}
	if len(c.Key) != 0 && len(c.Key) != KeySize {
		return nil, fmt.Errorf("gossip: the key has %d bytes instead of %d", len(c.Key), KeySize)
	}
	a, err := netip.ParseAddr(host)
	if err != nil && host != "" {
		return nil, fmt.Errorf("gossip: %s is not an address", host)
	}
	if len(c.Key) == 0 && !a.IsLoopback() {
		return nil, errors.New("gossip: without a key it listens on a loopback address only")
	}
	if c.pause == 0 {
		c.pause = maxPause
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("gossip: %q is not a port", port)
	}
	t, err := listen(host, int(number), c)
	if err != nil {
		return nil, fmt.Errorf("gossip: %w", err)
	}
	// The label is in the open part of each message.
	label := sha256.Sum256([]byte(c.Label))
	m := &Members{
		config:    c,
		label:     hex.EncodeToString(label[:8]),
		transport: t,
		done:      make(chan struct{}),
		up:        make(map[string]int),
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go func() {
		defer close(m.done)
		defer panics.Contain()
		m.run(ctx)
	}()
	return m, nil
}

// NextPort returns address with its port plus one. Gossip listens on the port after that of the
// data plane, since both need TCP. The ports of two nodes of one host must not be neighbours.
func NextPort(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || n == 65535 {
		return "", fmt.Errorf("%s: there is no port after %s", address, port)
	}
	return net.JoinHostPort(host, strconv.Itoa(int(n)+1)), nil
}

// Up reports whether the node called name lives. It is true for a node of which nothing is known.
func (m *Members) Up(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, known := m.up[name]
	return n > 0 || !known
}

// Stats returns the current counters.
func (m *Members) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats
}

// Close tells other members that this node leaves, and returns when all sockets are closed. It
// must be called once. A goroutine that waits for the answer to a probe, or for DNS, ends with that:
// a probe takes up to 16 s.
func (m *Members) Close() {
	m.mu.Lock()
	m.ended = true
	m.mu.Unlock()
	m.cancel()
	m.transport.interrupt()
	<-m.done
	if m.list != nil {
		m.list.Leave(leaveTimeout)
		m.list.Shutdown()
	}
	m.transport.Shutdown()
}
