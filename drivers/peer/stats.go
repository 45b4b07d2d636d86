package peer

import (
	"errors"
	"reflect"
	"sync/atomic"

	"github.com/milkweedfs/milkweed/drivers"
)

// NodeStats are the counters of the traffic with one node.
type NodeStats struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	Up      bool   `json:"up"` // whether reads use the node now; true for this node
	Counters
}

// Counters count the traffic with one node since the daemon started. They only grow.
type Counters struct {
	Reads       int64 `json:"reads" metric:"peer_reads_total" help:"Answers with content that the node has sent to this one."`
	Bytes       int64 `json:"bytes" metric:"peer_read_bytes_total" help:"Bytes of files received from the node."`
	ServedReads int64 `json:"served_reads" metric:"peer_served_reads_total" help:"Answers with content that this node has sent to the node."`
	ServedBytes int64 `json:"served_bytes" metric:"peer_served_bytes_total" help:"Bytes of files sent to the node."`
	Joined      int64 `json:"joined" metric:"peer_joined_total" help:"Answers to the node from a copy that was still being made."`
	Failovers   int64 `json:"failovers" metric:"peer_failovers_total" help:"Reads that the node has failed, and that went on elsewhere."`

	Misses Misses `json:"misses" help:"Requests to the node that brought no content, by cause."`
}

// Misses count the requests to a node that brought no content, by cause.
type Misses struct {
	Absent      int64 `json:"absent" metric:"peer_misses_total" labels:"cause=absent" help:"The node does not have the file." family:"Requests to the node that brought no content, by cause."`
	Changed     int64 `json:"changed" metric:"peer_misses_total" labels:"cause=changed" help:"The node has another version of the file."`
	Full        int64 `json:"full" metric:"peer_misses_total" labels:"cause=full" help:"The node has no room for the file."`
	Failed      int64 `json:"failed" metric:"peer_misses_total" labels:"cause=failed" help:"The node could not read the file, or is busy."`
	Unreachable int64 `json:"unreachable" metric:"peer_misses_total" labels:"cause=unreachable" help:"No connection."`
	Restarting  int64 `json:"restarting" metric:"peer_misses_total" labels:"cause=restarting" help:"The node was started anew again and again, or its address leads to several nodes in turn."`
	Stuck       int64 `json:"stuck" metric:"peer_misses_total" labels:"cause=stuck" help:"The node is too slow, or does not respond."`
	Broken      int64 `json:"broken" metric:"peer_misses_total" labels:"cause=broken" help:"The answer was cut short or is not of the protocol."`
	Corrupt     int64 `json:"corrupt" metric:"peer_misses_total" labels:"cause=corrupt" help:"The bytes differ from their checksum, or are of another version."`
	Unproven    int64 `json:"unproven" metric:"peer_misses_total" labels:"cause=unproven" help:"The answer was not signed with the secret."`
	Refused     int64 `json:"refused" metric:"peer_misses_total" labels:"cause=refused" help:"The node refused the request: the secrets or the clocks differ."`
	Misdirected int64 `json:"misdirected" metric:"peer_misses_total" labels:"cause=misdirected" help:"The address is that of another node or dataset."`
	Roster      int64 `json:"roster" metric:"peer_misses_total" labels:"cause=roster" help:"The node has another roster."`
	Protocol    int64 `json:"protocol" metric:"peer_misses_total" labels:"cause=protocol" help:"The node has another version of the protocol."`
	TLS         int64 `json:"tls" metric:"peer_misses_total" labels:"cause=tls" help:"One of the two nodes does not use TLS, or one refuses the certificate of the other."`
}

// Stats returns the counters of all nodes, in the order of the roster.
func (n *Node) Stats() []NodeStats {
	var all []NodeStats
	for _, p := range n.peers {
		all = append(all, NodeStats{
			Name: p.name, Address: p.address, Up: p.index == n.self || p.isUp(),
			Counters: drivers.Snapshot(&p.counters),
		})
	}
	return all
}

// A cause is why a request brought no content.
type cause int

// The causes. Those from unreachable on are failures of the node; the others concern one file.
const (
	absent cause = iota
	changed
	full
	failed
	unreachable
	restarting
	stuck
	broken
	corrupt
	unproven
	refused
	misdirected
	otherRoster
	otherProtocol
	otherTLS
)

// ofNode reports whether the cause is a failure of the node.
func (c cause) ofNode() bool { return c >= unreachable }

// counter returns the counter of a cause.
func (m *Misses) counter(c cause) *int64 {
	return [...]*int64{
		&m.Absent, &m.Changed, &m.Full, &m.Failed, &m.Unreachable, &m.Restarting, &m.Stuck, &m.Broken, &m.Corrupt,
		&m.Unproven, &m.Refused, &m.Misdirected, &m.Roster, &m.Protocol, &m.TLS,
	}[c]
}

// Cause returns why a request brought no content, by the name that Misses has for it, such as
// "unreachable". It is "" for other errors than those of requests.
func Cause(err error) string {
	var m *miss
	if !errors.As(err, &m) {
		return ""
	}
	return reflect.TypeFor[Misses]().Field(int(m.cause)).Tag.Get("json")
}

// A miss is the error of a request that brought no content.
type miss struct {
	cause cause
	err   error
}

func (m *miss) Error() string { return m.err.Error() }
func (m *miss) Unwrap() error { return m.err }

// count adds n to a counter.
func count(counter *int64, n int64) { atomic.AddInt64(counter, n) }
