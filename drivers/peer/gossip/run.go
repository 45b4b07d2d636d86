package gossip

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"log"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
)

// run joins the other nodes, and joins them again while some are missing, until ctx is done. After
// a partition, memberlist contacts the members that it has found dead for half a minute only. It also
// does not repair by itself that a node is taken for dead after many have restarted (memberlist#311).
func (m *Members) run(ctx context.Context) {
	resolved := make(map[string]string) // addresses of nodes, by name
	logged := false
	for pause := min(firstPause, m.config.pause); ; {
		targets := m.missing(ctx, resolved)
		joined, err := 0, m.create(targets)
		if err == nil && len(targets) > 0 {
			joined, err = m.list.Join(targets)
			m.attempted(joined)
		}
		if err == nil {
			pause = m.config.pause
		} else if pause == m.config.pause && !logged && m.Stats().Joined == 0 && ctx.Err() == nil {
			m.config.Log.Warn("gossip found no other node; it goes on trying", "error", err)
			logged = true
		}
		// Nodes that start at the same time should not contact others at the same time.
		timer := time.NewTimer(pause/2 + mathrand.N(pause/2+1))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		pause = min(2*pause, m.config.pause)
	}
}

var errUnresolved = errors.New("no other node has an address")

// create starts memberlist, once it is known with which address this node reaches others.
func (m *Members) create(targets []string) error {
	if m.list != nil {
		return nil
	}
	advertise, err := m.transport.localAddress(targets)
	if err != nil {
		return err
	}
	list, err := memberlist.Create(m.settings(advertise))
	m.list = list
	return err
}

// settings returns the configuration of memberlist. Nodes have no metadata and send no messages of
// their own, for which packets have no space in a large group (memberlist#299).
func (m *Members) settings(advertise netip.AddrPort) *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	// A process that starts again is another member: its predecessor may still be taken for alive,
	// at another address (memberlist#157), or be found dead later.
	c.Name = m.config.Name + separator + rand.Text()
	c.Label = m.label
	c.Transport = m.transport
	c.AdvertiseAddr, c.AdvertisePort = advertise.Addr().String(), int(advertise.Port())
	c.SecretKey = m.config.Key
	c.Events = events{m}
	c.Logger = log.New(debugLog{m.config.Log}, "", 0)
	c.TCPTimeout = streamTimeout
	c.ProbeInterval = probeInterval
	c.GossipInterval = 500 * time.Millisecond
	c.DeadNodeReclaimTime = 30 * time.Second
	c.EnableCompression = false
	if m.config.tune != nil {
		m.config.tune(c)
	}
	return c
}

// separator stands between the name of a node and the nonce of a process.
const separator = "#"

// missing returns the addresses of some nodes of which no member is alive. It looks up hosts that
// are not in resolved, and adds their addresses.
func (m *Members) missing(ctx context.Context, resolved map[string]string) []string {
	var names, targets []string
	m.mu.Lock()
	for name := range m.config.Others {
		if m.up[name] == 0 {
			names = append(names, name)
		}
	}
	m.mu.Unlock()
	mathrand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names[:min(maxTargets, len(names))] {
		if resolved[name] == "" {
			address, err := resolve(ctx, m.config.Others[name])
			if err != nil {
				m.config.Log.Debug("gossip", "node", name, "error", err)
				continue
			}
			resolved[name] = address
		}
		targets = append(targets, resolved[name])
	}
	return targets
}

// resolve returns ADDRESS:PORT of HOST:PORT.
func resolve(ctx context.Context, address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return "", err
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	slices.SortFunc(addrs, netip.Addr.Compare) // IPv4 first
	return net.JoinHostPort(addrs[0].String(), port), nil
}

// attempted counts an attempt to join.
func (m *Members) attempted(joined int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.Attempts++
	if joined == 0 {
		m.stats.Failed++
	}
}

// events are the calls of memberlist about its members. memberlist holds its lock meanwhile.
type events struct{ m *Members }

var _ memberlist.EventDelegate = events{}

// NotifyJoin implements memberlist.EventDelegate.
func (e events) NotifyJoin(n *memberlist.Node) { e.change(n, 1) }

// NotifyLeave implements memberlist.EventDelegate: n has left, or was found dead.
func (e events) NotifyLeave(n *memberlist.Node) { e.change(n, -1) }

// NotifyUpdate implements memberlist.EventDelegate.
func (e events) NotifyUpdate(*memberlist.Node) {}

func (e events) change(n *memberlist.Node, by int) {
	name, _, _ := strings.Cut(n.Name, separator)
	e.m.mu.Lock()
	defer e.m.mu.Unlock()
	e.m.up[name] += by
	switch {
	case name == e.m.config.Name:
	case by > 0:
		e.m.stats.Joined++
		if joined := e.m.config.Joined; joined != nil && !e.m.ended {
			joined(name)
		}
	default:
		e.m.stats.Lost++
	}
}

// debugLog receives the log of memberlist, line by line. To memberlist, a member that ends is an
// error; to Milkweed it is none.
type debugLog struct{ log *slog.Logger }

func (l debugLog) Write(line []byte) (int, error) {
	_, text, found := bytes.Cut(line, []byte("memberlist: "))
	if !found {
		text = line
	}
	l.log.Debug("gossip", "message", string(bytes.TrimSpace(text)))
	return len(line), nil
}
