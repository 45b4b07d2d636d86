package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/peer"
)

// MaxListedPeers is the largest roster whose nodes are in a Status. Each of them has metrics of its
// own. A PeerReport has the nodes of any roster.
const MaxListedPeers = 64

// Peers are the nodes that share their tiers with this one, and what was read from them and for
// them.
type Peers struct {
	Roster  Roster `json:"roster" help:"The list of the nodes."`
	Self    string `json:"self" metric:"peers_info" labels:"self" help:"Name of this node in the roster. Empty: it is not in the roster."`
	Serving bool   `json:"serving" metric:"peers_serving" help:"Whether this node serves others (peers.serve)."`
	Up      int64  `json:"up" metric:"peers_up" help:"Other nodes that reads use."`

	Reads       int64 `json:"reads" metric:"peers_reads_total" help:"Answers with content that other nodes have sent to this one."`
	Bytes       int64 `json:"bytes" metric:"peers_read_bytes_total" help:"Bytes of files received from other nodes."`
	Failovers   int64 `json:"failovers" metric:"peers_failovers_total" help:"Reads that a node has failed, and that went on elsewhere."`
	Misses      int64 `json:"misses" metric:"peers_misses_total" help:"Requests to other nodes that brought no content."`
	ServedReads int64 `json:"served_reads" metric:"peers_served_reads_total" help:"Answers with content that this node has sent to others."`
	ServedBytes int64 `json:"served_bytes" metric:"peers_served_bytes_total" help:"Bytes of files sent to other nodes."`
	Joined      int64 `json:"joined" metric:"peers_joined_total" help:"Answers to other nodes from a copy that was still being made."`

	Nodes []Peer `json:"nodes" help:"The other nodes, if the roster has at most 64 nodes."`
}

// A Roster is the list of the nodes that share their tiers.
type Roster struct {
	Hash  string `json:"hash" metric:"peers_info" labels:"roster" help:"Hash of the names and weights of the nodes. Nodes with another hash do not serve this one." family:"Always 1. The labels are the hash of the roster and the name of this node in it."`
	Nodes int64  `json:"nodes" metric:"peers_nodes" help:"Number of nodes."`

	Group  int64 `json:"group" help:"Number of the group of this node, from 1. Hash and nodes are those of the group."`
	Groups int64 `json:"groups" help:"Number of groups (peers.group). Each forms a cache of its own."`
}

// A Peer is another node, and the traffic with it.
type Peer struct {
	Name    string `json:"name" label:"peer" help:"Name of the node in the roster."`
	Address string `json:"address" help:"Its address, host:port."`
	Up      bool   `json:"up" metric:"peer_up" help:"Whether reads use the node. One that has failed is skipped until it answers again."`

	peer.Counters
}

// Add adds the counters of a node to those of all nodes.
func (p *Peers) Add(n Peer) {
	p.Reads += n.Reads
	p.Bytes += n.Bytes
	p.Failovers += n.Failovers
	p.ServedReads += n.ServedReads
	p.ServedBytes += n.ServedBytes
	p.Joined += n.Joined
	p.Misses += n.Missed()
	if n.Up {
		p.Up++
	}
}

// Missed returns the number of requests to the node that brought no content.
func (n Peer) Missed() (all int64) {
	for causes, i := reflect.ValueOf(n.Misses), 0; i < causes.NumField(); i++ {
		all += causes.Field(i).Int()
	}
	return all
}

// A PeerReport is the response to GET /v1/peers: what each node of the roster says about itself.
type PeerReport struct {
	Roster Roster       `json:"roster"`
	Self   string       `json:"self"`
	Nodes  []PeerAnswer `json:"nodes"` // all nodes of the roster, in its order; none without peers
}

// A PeerAnswer is what one node says about itself, and the traffic between it and this node.
type PeerAnswer struct {
	Peer

	Self       bool    `json:"self,omitempty"`      // it is this node
	Problem    string  `json:"problem,omitempty"`   // why it does not share its tiers with this node
	Remedy     string  `json:"remedy,omitempty"`    // a sentence: what to do about Problem
	Milkweed   string  `json:"milkweed,omitempty"`  // its version
	ClockAhead float64 `json:"clock_ahead_seconds"` // by which its clock is ahead of that of this node

	QuotaBytes  int64 `json:"quota_bytes"`  // of all its tiers
	UsedBytes   int64 `json:"used_bytes"`   // of all its tiers
	Files       int64 `json:"files"`        // copies in its tiers
	SourceBytes int64 `json:"source_bytes"` // that it has read from the source
	PeerBytes   int64 `json:"peer_bytes"`   // that it has read from all other nodes

	Exchange *drivers.ExchangeState `json:"exchange,omitempty"` // nil: it exchanges no files
}

// Describe sets what a node says about itself.
func (a *PeerAnswer) Describe(i peer.Info) {
	a.Milkweed = i.Version
	a.Files, a.SourceBytes, a.PeerBytes, a.Exchange = i.Files, i.SourceBytes, i.PeerBytes, i.Exchange
	for _, t := range i.Tiers {
		a.QuotaBytes += t.Capacity
		a.UsedBytes += t.Used
	}
}

func (s *Server) peers(w http.ResponseWriter, r *http.Request) {
	report, err := s.Daemon.Peers(r.Context())
	if err != nil {
		respondError(w, err)
		return
	}
	respond(w, report)
}

// Peers asks every node of the roster about itself, through the daemon.
func (c *Client) Peers(ctx context.Context) (PeerReport, error) {
	body, err := c.get(ctx, "/v1/peers")
	if err != nil {
		return PeerReport{}, err
	}
	var r PeerReport
	if err := json.Unmarshal(body, &r); err != nil {
		return PeerReport{}, fmt.Errorf("peers: %w", err)
	}
	return r, nil
}

func (p *Peers) check() error {
	if p.Roster.Hash == "" || p.Roster.Nodes < 1 || p.Roster.Group < 1 || p.Roster.Group > p.Roster.Groups {
		return errors.New("no roster")
	}
	return nil
}
