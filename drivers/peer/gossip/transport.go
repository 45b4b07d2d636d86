package gossip

import (
	"context"
	"errors"
	"log"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// A transport is memberlist's own, which it completes: it knows all connections, so that none is
// open after Shutdown.
type transport struct {
	*memberlist.NetTransport
	drops   func(network, address string) bool // see Config; may be nil
	host    string                             // that it listens on; may be empty
	streams chan net.Conn
	ctx     context.Context // done after interrupt
	cancel  context.CancelFunc
	stop    func()        // ends relay
	stopped chan struct{} // closed by stop
	relayed chan struct{} // closed when relay has returned

	mu    sync.Mutex // guards the following
	conns map[*conn]bool
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

// listen opens the sockets of a transport.
func listen(host string, port int, c Config) (*transport, error) {
	bind := host
	if bind == "" {
		bind = "0.0.0.0" // and IPv6, if the host has it
	}
	inner, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{
		BindAddrs: []string{bind},
		BindPort:  port,
		Logger:    log.New(debugLog{c.Log}, "", 0),
	})
	if err != nil {
		return nil, err
	}
	t := &transport{
		NetTransport: inner,
		drops:        c.drops,
		host:         host,
		streams:      make(chan net.Conn),
		stopped:      make(chan struct{}),
		relayed:      make(chan struct{}),
		conns:        make(map[*conn]bool),
	}
	t.stop = sync.OnceFunc(func() { close(t.stopped) })
	t.ctx, t.cancel = context.WithCancel(context.Background())
	go t.relay()
	return t, nil
}

// localAddress returns the address at which others reach t: its own, or the one from which it
// reaches one of targets. It sends nothing.
func (t *transport) localAddress(targets []string) (netip.AddrPort, error) {
	port := uint16(t.GetAutoBindPort())
	if a, err := netip.ParseAddr(t.host); err == nil && !a.IsUnspecified() {
		return netip.AddrPortFrom(a, port), nil
	}
	err := errUnresolved
	for _, target := range targets {
		var c net.Conn
		if c, err = net.Dial("udp", target); err != nil {
			continue
		}
		a := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
		c.Close()
		return netip.AddrPortFrom(a, port), nil
	}
	return netip.AddrPort{}, err
}

// maxStreams is the number of connections with which further ones of others are closed. memberlist
// has no bound, and waits for streamTimeout before it knows whether a client has the key. A node that
// is not served tries again later.
const maxStreams = 32

// isCrowded reports whether there are maxStreams connections.
func (t *transport) isCrowded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.conns) >= maxStreams
}

// relay passes the connections that others open on to memberlist. After interrupt it also drops
// what nobody else may receive, so that NetTransport can end.
func (t *transport) relay() {
	defer close(t.relayed)
	defer panics.Contain()
	var packets <-chan *memberlist.Packet
	interrupted := t.ctx.Done()
	for {
		select {
		case c := <-t.NetTransport.StreamCh():
			if t.isCrowded() {
				c.Close()
				continue
			}
			c = t.track(c)
			select {
			case t.streams <- c:
			case <-t.ctx.Done():
				c.Close()
			}
		case <-interrupted:
			interrupted, packets = nil, t.PacketCh()
		case <-packets:
		case <-t.stopped:
			return
		}
	}
}

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// DialTimeout implements memberlist.Transport.
func (t *transport) DialTimeout(address string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: address}, timeout)
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	if t.drops != nil && t.drops("tcp", a.Addr) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("lost by a test")}
	}
	d := net.Dialer{Timeout: timeout}
	c, err := d.DialContext(t.ctx, "tcp", a.Addr)
	if err != nil {
		return nil, err
	}
	return t.track(c), nil
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (t *transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	if t.drops != nil && t.drops("udp", a.Addr) {
		return time.Now(), nil
	}
	return t.NetTransport.WriteToAddress(b, a)
}

// interrupt closes all connections, those that are opened later too. Packets are still sent.
func (t *transport) interrupt() {
	t.cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns {
		c.Conn.Close()
	}
}

// Shutdown implements memberlist.Transport: it closes all sockets. It may be called several times.
func (t *transport) Shutdown() error {
	t.interrupt()
	err := t.NetTransport.Shutdown()
	t.stop()
	<-t.relayed
	return err
}

// A conn is a connection of a transport.
type conn struct {
	net.Conn
	t *transport
}

// track returns c so that interrupt closes it.
func (t *transport) track(c net.Conn) net.Conn {
	tracked := &conn{c, t}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		c.Close()
		return tracked
	}
	t.conns[tracked] = true
	return tracked
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.t.mu.Lock()
	delete(c.t.conns, c)
	c.t.mu.Unlock()
	return c.Conn.Close()
}
