package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/drivers/peer"
	"github.com/milkweedfs/milkweed/drivers/peer/gossip"
	"github.com/milkweedfs/milkweed/drivers/peer/roster"
	"github.com/milkweedfs/milkweed/tiers"
)

// A peering is the part of a daemon that shares its tiers with other nodes:
//
//  1. openPeers reads the secret and the certificate, resolves the roster, and finds this node and its group in it.
//  2. The tiers get the node, through which files of other nodes are read.
//  3. When the placement works, and before the mount, start serves the other nodes, and tells them
//     that this one is up.
//  4. When the mount has ended, stop ends that first. Files that are open are still read from others.
//  5. close ends the rest.
//
// The zero value has no peers.
type peering struct {
	config  config.Peers
	dataset string
	secret  *peer.Secret // nil: none
	nodes   roster.Group // the nodes that form one cache
	self    roster.Node  // the zero value if this node is not in the roster
	node    *peer.Node   // nil: no peers
	server  *peer.Server
	members atomic.Pointer[gossip.Members] // nil: no gossip
}

// defaultPort is the port of a node for which neither the roster nor peers.listen has one.
const defaultPort = 7440

// peersError returns an error of the peers with its remedy.
func peersError(err error, remedy string) error {
	return &exit.Error{Code: exit.Peers, Err: err, Remedy: remedy}
}

// openPeers makes the peers of a configuration, which may have none. It waits for a roster that is
// not complete yet, for peers.wait at most, and tells waits what is missing. about describes this node to others.
func openPeers(
	ctx context.Context, c config.Peers, dataset string, about func() peer.About, waits func(cause error), log *slog.Logger,
) (p *peering, err error) {
	p = &peering{config: c, dataset: dataset}
	if c.Roster == "" {
		return p, nil
	}
	if c.SecretFile != "" {
		if p.secret, err = peer.ReadSecret(c.SecretFile); err != nil {
			return p, peersError(err, config.SecretRemedy)
		}
	}
	var secure *peer.TLS
	if c.TLSCert != "" {
		if secure, err = peer.ReadTLS(c.TLSCert, c.TLSKey, c.TLSCA); err != nil {
			return p, peersError(fmt.Errorf("peers: %w", err), "Correct peers.tls_cert, peers.tls_key and peers.tls_ca.")
		}
	}
	all, err := resolveRoster(ctx, c, waits, log)
	if err != nil {
		return p, err
	}
	this := roster.This(c.Name, c.Listen)
	i, err := all.Find(this)
	switch {
	case err == nil:
		p.self = all.Nodes()[i]
	case c.Serve || c.Name != "":
		return p, peersError(fmt.Errorf("peers: %w", err), "Set peers.name to the name by which the roster has this node, or correct the roster, which must be the same on all nodes.")
	default: // the group of some node, so that such nodes are spread over the groups
		i = all.Owner(strings.Join(this.Hosts, " "))
	}
	p.nodes = all.Group(c.Group, i)
	p.node, err = peer.New(peer.Config{
		Roster: p.nodes.Roster, Self: p.self.Name, Dataset: dataset, Secret: p.secret, TLS: secure, Up: p.up, About: about, Log: log,
	})
	if err != nil {
		return p, peersError(err, "Correct peers.roster, or the certificate in peers.tls_cert.")
	}
	return p, nil
}

// Messages about what a roster waits for come after a pause, and then again and again.
const (
	firstWaiting = time.Second
	nextWaiting  = time.Minute
)

// resolveRoster resolves the roster. If that takes long, it logs why.
func resolveRoster(ctx context.Context, c config.Peers, waits func(cause error), log *slog.Logger) (*roster.Roster, error) {
	bounded, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	next := time.Now().Add(firstWaiting)
	waiting := func(cause error) {
		waits(cause)
		if now := time.Now(); now.After(next) {
			log.Warn("waiting for the other nodes", "cause", cause, "roster", c.Roster, "at_most", c.Wait)
			next = now.Add(nextWaiting)
		}
	}
	r, err := roster.Resolve(bounded, c.Roster, roster.Options{Port: portOf(c.Listen), Min: c.Min, Waiting: waiting})
	switch {
	case err == nil:
		return r, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		return nil, peersError(fmt.Errorf("peers: after %v, the roster is not complete: %w", c.Wait, err),
			"Start the other nodes, or set peers.min to their number and peers.wait to a longer time.")
	}
	return nil, peersError(fmt.Errorf("peers: roster: %w", err), "Correct peers.roster. `milkweed peers --help` describes the forms of a roster.")
}

// portOf returns the port of peers.listen, or the default.
func portOf(listen string) int {
	_, port, _ := net.SplitHostPort(listen)
	n, _ := strconv.Atoi(port)
	return cmp.Or(n, defaultPort)
}

// tiers returns the peers for tiers.New.
func (p *peering) tiers() tiers.Peers {
	if p.node == nil {
		return nil
	}
	return p.node
}

// index returns "INDEX/COUNT", this node's index in the roster of the group and the number of nodes in
// that, or "" if this node is not in it.
func (p *peering) index() string {
	if p.node == nil {
		return ""
	}
	count, self := p.node.Nodes()
	if self < 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", self, count)
}

// listen returns the address on which this node serves.
func (p *peering) listen() string {
	if p.config.Listen != "" {
		return p.config.Listen
	}
	if p.secret == nil || config.IsLoopback(p.self.Address) {
		return p.self.Address
	}
	_, port, _ := net.SplitHostPort(p.self.Address)
	return ":" + port
}

// start serves files to the other nodes, unless peers.serve is false.
func (p *peering) start(files peer.Files, log *slog.Logger) error {
	if p.node == nil {
		return nil
	}
	if p.config.Serve {
		var err error
		p.server, err = p.node.Listen(p.listen(), files)
		switch {
		case errors.Is(err, unix.EADDRINUSE):
			return peersError(err, "Another program on this node uses the port. Choose another one for all nodes of this job, such as -o peers_listen=:7450.")
		case err != nil && p.secret == nil:
			return peersError(err, config.SecretRemedy)
		case err != nil:
			return peersError(err, "Set peers.listen to an address of this node.")
		}
	}
	if p.config.Serve && p.config.Gossip && p.nodes.Len() > 1 {
		if err := p.join(log); err != nil {
			log.Warn("no gossip between the nodes: each notices by itself when another one is down", "err", err)
		}
	}
	log.Info("sharing the tiers", "roster", p.nodes.Hash(), "nodes", p.nodes.Len(), "group", p.nodes.Number, "groups", p.nodes.Of, "self", p.self.Name, "serve", p.config.Serve)
	return nil
}

// join tells the other nodes that this one is up, and learns which of them are, on the port after
// that of the data.
func (p *peering) join(log *slog.Logger) error {
	bind, err := gossip.NextPort(p.listen())
	if err != nil {
		return err
	}
	c := gossip.Config{Label: p.dataset + "/" + p.nodes.Hash(), Name: p.self.Name, Bind: bind, Others: make(map[string]string), Joined: p.node.Joined, Log: log}
	if p.secret != nil {
		c.Key = p.secret.GossipKey()
	}
	for _, n := range p.nodes.Nodes() {
		if n.Name == p.self.Name {
			continue
		}
		if c.Others[n.Name], err = gossip.NextPort(n.Address); err != nil {
			return err
		}
	}
	m, err := gossip.Join(c)
	if err == nil {
		p.members.Store(m)
	}
	return err
}

// up reports whether a node is believed to be up.
func (p *peering) up(name string) bool {
	m := p.members.Load()
	return m == nil || m.Up(name)
}

// stop ends serving other nodes, and tells them that this one is down.
func (p *peering) stop() {
	if m := p.members.Swap(nil); m != nil {
		m.Close()
	}
	if p.server != nil {
		p.server.Close()
		p.server = nil
	}
}

// close ends the rest.
func (p *peering) close() {
	p.stop()
	if p.node != nil {
		p.node.Close()
	}
}

// others returns the indexes of the n nodes that follow this one in the roster, without it.
func (p *peering) others(n int) []int {
	var all []int
	nodes := p.nodes.Nodes()
	start := 0
	for i := range nodes {
		if nodes[i].Name == p.self.Name {
			start = i + 1
		}
	}
	for i := range nodes {
		if j := (start + i) % len(nodes); nodes[j].Name != p.self.Name && len(all) < n {
			all = append(all, j)
		}
	}
	return all
}

const (
	askTimeout  = 3 * time.Second
	askParallel = 256
)

// ask asks nodes, by index in the roster, about themselves. It calls answer for each, several times
// at once; ahead is by how much the clock of the node is ahead.
func (p *peering) ask(ctx context.Context, nodes []int, answer func(i int, info peer.Info, ahead time.Duration, err error)) {
	slots := make(chan struct{}, askParallel)
	var asking sync.WaitGroup
	for _, i := range nodes {
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			var info peer.Info
			began := time.Now()
			err := panics.Do(func() (err error) {
				info, err = p.node.Ask(ctx, p.nodes.Nodes()[i].Name)
				return err
			})
			between := began.Add(time.Since(began) / 2)
			answer(i, info, info.Clock.Sub(between), err)
		})
	}
	asking.Wait()
}

// These bound check: how long it waits for a roster, and how many nodes it asks.
const (
	checkWait  = 3 * time.Second
	checkNodes = 256
)

// checkPeers returns the findings about the peers of a configuration.
func checkPeers(ctx context.Context, cfg *config.Config) []check.Finding {
	c := cfg.Peers
	c.Wait = min(c.Wait, checkWait)
	quiet := slog.New(slog.DiscardHandler)
	p, err := openPeers(ctx, c, config.DatasetID(cfg.Source.Name()), nil, func(error) {}, quiet)
	if err != nil {
		return check.PeersError(err)
	}
	defer p.close()
	if p.node == nil {
		return nil
	}
	g := check.PeerGroup{This: p.node.Info(), Nodes: p.nodes.Len(), Number: p.nodes.Number, Groups: p.nodes.Of, Secret: p.secret != nil}
	if c.Serve {
		g.Listen = p.listen()
	}
	nodes := p.others(checkNodes)
	if i, err := p.nodes.Find(roster.Identity{Name: p.self.Name}); err == nil {
		nodes = append(nodes, i)
	}
	answers := make([]check.PeerAnswer, p.nodes.Len())
	p.ask(ctx, nodes, func(i int, info peer.Info, ahead time.Duration, err error) {
		answers[i] = check.PeerAnswer{Info: info, Ahead: ahead, Err: err}
	})
	for _, i := range nodes {
		a := answers[i]
		a.Name, a.Address = p.nodes.Nodes()[i].Name, p.nodes.Nodes()[i].Address
		g.Answers = append(g.Answers, a)
	}
	return check.Peers(g)
}

// about describes this node to the others.
func (d *daemon) about() peer.About {
	a := peer.About{Version: version(), SourceBytes: d.levels.Source().Stats().Bytes, Exchange: d.handler.ExchangeState()}
	for _, t := range d.levels.Tiers() {
		s := t.Stats()
		a.Files += s.Files
		a.Tiers = append(a.Tiers, peer.Tier{Name: s.Name, Capacity: s.Quota, Used: s.Used + s.Filling})
	}
	for _, s := range d.peers.node.Stats() {
		a.PeerBytes += s.Bytes
	}
	return a
}

// peerStatus returns the peers for the status, or nil if there are none.
func (d *daemon) peerStatus() *control.Peers {
	p := d.peers
	if p.node == nil {
		return nil
	}
	s := &control.Peers{
		Roster: p.roster(),
		Self:   p.self.Name, Serving: p.config.Serve, Nodes: []control.Peer{},
	}
	for _, n := range p.node.Stats() {
		if n.Name == p.self.Name {
			continue
		}
		other := peerOf(n)
		s.Add(other)
		if s.Roster.Nodes <= control.MaxListedPeers {
			s.Nodes = append(s.Nodes, other)
		}
	}
	return s
}

// roster describes the group of this node.
func (p *peering) roster() control.Roster {
	return control.Roster{Hash: p.nodes.Hash(), Nodes: int64(p.nodes.Len()), Group: int64(p.nodes.Number), Groups: int64(p.nodes.Of)}
}

func peerOf(n peer.NodeStats) control.Peer {
	return control.Peer{Name: n.Name, Address: n.Address, Up: n.Up, Counters: n.Counters}
}

// Peers implements control.Daemon.
func (d *daemon) Peers(ctx context.Context) (control.PeerReport, error) {
	p := d.peers
	if p.node == nil {
		return control.PeerReport{}, nil
	}
	r := control.PeerReport{Roster: p.roster(), Self: p.self.Name}
	for _, n := range p.node.Stats() {
		a := control.PeerAnswer{Peer: peerOf(n)}
		if a.Self = n.Name == p.self.Name; a.Self {
			a.Describe(p.node.Info())
		}
		r.Nodes = append(r.Nodes, a)
	}
	p.ask(ctx, p.others(p.nodes.Len()), func(i int, info peer.Info, ahead time.Duration, err error) {
		a := &r.Nodes[i]
		a.Problem, a.Remedy = check.PeerProblem(p.node.Info(), check.PeerAnswer{Name: a.Name, Address: a.Address, Info: info, Ahead: ahead, Err: err})
		if err == nil {
			a.Describe(info)
			a.ClockAhead = ahead.Seconds()
		}
	})
	return r, nil
}
