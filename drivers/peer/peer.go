// Package peer reads files from the other nodes of a job, and serves this node's copies to them.
//
// The nodes are those of a roster, and a hash of the name of a file says which of them owns it. A
// node that lacks a file requests its blocks from the owner, then from the second choice of the
// hash, and then reads the source. The owner reads the source once and serves each block when it
// has arrived. A node never requests a file on behalf of another one.
//
// Only bytes come from peers: names and versions come from the source. A request names the version
// that it wants, and each block of an answer is compared with its checksum. A peer that lacks the
// version, fails, or gives a wrong answer is a miss, and the read continues elsewhere: readers see
// the errors of the source only.
//
// The protocol is HTTP/1.1, with ranges of whole blocks. message.go defines it, docs/security.md
// says what it protects.
package peer

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/peer/roster"
)

// Files are the files that a Server serves.
type Files interface {
	// OpenShared opens the version of a file or piece that another node requests. name is the unit
	// of drivers.CutUnit. rank is the place of this node among its owners, as that node computes
	// it: 0 for the owner, 1 for the second choice, -1 if only a copy is to be sent. The content is
	// that of a copy or of a fill, which OpenShared may start, from the source and never from
	// another node.
	//
	// The error matches drivers.ErrFull if no tier has room for the file, fs.ErrNotExist if there
	// is no copy and this node does not own the file with that rank, and drivers.ErrChanged if the
	// source has another version. ReadAt of the Object waits for blocks that are in flight.
	OpenShared(ctx context.Context, name string, want drivers.Info, rank int) (drivers.Object, error)
}

// A Config describes this node and its peers.
type Config struct {
	Roster  *roster.Roster
	Self    string  // the name of this node in the roster; "": it is not in it, and serves nobody
	Dataset string  // the dataset and the job; nodes of another one are refused
	Secret  *Secret // nil: there is none, and all nodes are on this machine
	TLS     *TLS    // nil: connections are plain

	// Up reports whether a node is believed to be alive. It is a hint, and may be nil.
	Up func(name string) bool

	// About is what Info reports of this node; nil: nothing.
	About func() About

	Log *slog.Logger
}

// About describes a node, for people and for the exchange.
type About struct {
	Version string `json:"version"` // of the program
	Tiers   []Tier `json:"tiers"`

	Files       int64 `json:"files"`        // copies in its tiers
	SourceBytes int64 `json:"source_bytes"` // read from the source
	PeerBytes   int64 `json:"peer_bytes"`   // read from other nodes

	Exchange *drivers.ExchangeState `json:"exchange,omitempty"` // nil: the node has no exchange
}

// A Tier is the size of a tier of a node, in bytes.
type Tier struct {
	Name     string `json:"name"`
	Capacity int64  `json:"capacity"`
	Used     int64  `json:"used"`
}

// A Node is this node. It is a client of the others, and Listen makes it a server. Its methods may
// be called concurrently.
type Node struct {
	cfg      Config
	self     int     // index in the roster; -1: not in it
	peers    []*peer // by index in the roster; that of this node only counts
	outside  *peer   // only counts: all nodes that are not in the roster
	instance string  // distinguishes this Node from earlier ones of the same name

	transport *http.Transport
	probes    *http.Transport // of pings, which have connections of their own
	cache     blockCache

	ctx    context.Context // done when the Node is closed
	cancel context.CancelFunc
	wg     sync.WaitGroup // of background pings
}

// New makes the node of a roster that cfg describes. The caller closes it.
func New(cfg Config) (*Node, error) {
	n := &Node{cfg: cfg, self: -1, instance: newInstance(), cache: blockCache{max: cacheBlocks}}
	for i, node := range cfg.Roster.Nodes() {
		if node.Name == cfg.Self {
			n.self = i
		}
		n.peers = append(n.peers, &peer{node: n, index: i, name: node.Name, address: node.Address, slots: make(chan struct{}, maxRequests)})
	}
	n.outside = &peer{node: n, index: -1}
	if n.self < 0 && cfg.Self != "" {
		return nil, fmt.Errorf("peers: this node is %q, which the roster does not name; set peers.name, or correct the roster", cfg.Self)
	}
	if cfg.TLS != nil && n.self >= 0 {
		if err := certifies(n.identity().certificate.Leaf, n.peers[n.self]); err != nil {
			return nil, fmt.Errorf("peers: the certificate is not for this node: %w", err)
		}
	}
	n.transport = n.newTransport(maxRequests, descriptors(maxIdleRequests, 8))
	n.probes = n.newTransport(maxPings, descriptors(maxIdlePings, 64))
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n, nil
}

// named returns the peer with a name, or nil. Peers are in the order of their names.
func (n *Node) named(name string) *peer {
	i, ok := slices.BinarySearchFunc(n.peers, name, func(p *peer, name string) int { return strings.Compare(p.name, name) })
	if !ok {
		return nil
	}
	return n.peers[i]
}

// Close ends pings, and closes idle connections. Objects are closed before.
func (n *Node) Close() {
	n.cancel()
	n.wg.Wait()
	n.transport.CloseIdleConnections()
	n.probes.CloseIdleConnections()
}

// Nodes returns the number of nodes of the roster, and the index of this one in Roster.Nodes, which is
// -1 if it is not in the roster.
func (n *Node) Nodes() (count, self int) { return len(n.peers), n.self }

// Rank returns the place of this node among the owners of a file: 0 for its owner, 1 for the second
// choice, and -1 if it is neither.
func (n *Node) Rank(name string) int {
	if n.self < 0 {
		return -1
	}
	if rank := n.cfg.Roster.Rank(name, n.self); rank < choices {
		return rank
	}
	return -1
}

const (
	// choices is the number of owners of a file.
	choices = 2

	// maxRequests is the number of requests in flight, and so of connections, to one peer.
	maxRequests = 64

	// maxPings is the number of pings in flight to one peer.
	maxPings = 8

	// These bound the connections to all peers that have no request, for requests and for pings.
	// They also take at most an eighth and a 64th of the descriptors of the process.
	maxIdleRequests = 1024
	maxIdlePings    = 64

	// connectTimeout bounds a connection attempt.
	connectTimeout = 500 * time.Millisecond

	// idleTimeout is how long a client keeps a connection without a request. That of servers is
	// longer, so that a server does not close a connection that is about to be used.
	idleTimeout       = 90 * time.Second
	serverIdleTimeout = 2 * time.Minute
)

// descriptors returns most or, if that is less, a part of the descriptors that this process may have.
func descriptors(most, parts uint64) int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		l.Cur = 1024
	}
	return int(max(1, min(most, l.Cur/parts)))
}

// newTransport makes a pool of connections, of which a peer has at most number. At most idle, of all
// peers, are kept while they have no request.
func (n *Node) newTransport(number, idle int) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	dialer := &net.Dialer{Timeout: connectTimeout, KeepAlive: 15 * time.Second}
	if n.cfg.Secret == nil {
		dialer.Control = func(_, address string, _ syscall.RawConn) error { return checkLoopback(address) }
	}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		DialTLSContext:         n.dialTLS(dialer.DialContext),
		MaxConnsPerHost:        number,
		MaxIdleConnsPerHost:    number,
		MaxIdleConns:           idle,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true,
		Protocols:              protocols,
	}
}

// checkLoopback returns an error if address, an IP address with a port, is not of this machine's
// loopback interface.
func checkLoopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("%s: peers without a secret may use loopback addresses only; create one with `milkweed peers keygen` and set peers.secret_file", address)
	}
	return nil
}
