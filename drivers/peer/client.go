package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// A peer is a node of the roster, as this node sees it.
type peer struct {
	node     *Node
	index    int // in the roster
	name     string
	address  string
	slots    chan struct{} // has an element for each request in flight
	sequence atomic.Uint64 // of the last nonce
	instance atomic.Value  // string: of the peer, when it was last asked
	counters Counters      // updated atomically
	health   health
}

// request returns a request for name to the peer.
func (p *peer) request(path, name string) *request {
	cfg := &p.node.cfg
	instance, _ := p.instance.Load().(string)
	return &request{
		instance: instance,
		path:     path, name: name, dataset: cfg.Dataset, roster: cfg.Roster.Hash(),
		from: cfg.Self, to: p.name,
		nonce: nonce(p.node.instance, p.sequence.Add(1)), expiry: timestamp(time.Now().Add(lifetime)),
	}
}

// exchange sends a request, and returns the answer when its header has arrived. A peer refuses a
// request that does not name its instance, and names it in the answer. The request is then sent
// again, once.
func (p *peer) exchange(ctx context.Context, via *http.Transport, r *request) (*http.Response, error) {
	resp, err := p.roundTrip(ctx, via, r)
	if err != nil || resp.StatusCode != http.StatusPreconditionRequired {
		return resp, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return nil, err
	}
	line, err := p.verify(r, resp, string(body))
	if err != nil {
		return nil, err
	}
	p.instance.Store(line.state)
	r.instance = line.state
	return p.roundTrip(ctx, via, r)
}

// roundTrip sends a request once.
func (p *peer) roundTrip(ctx context.Context, via *http.Transport, r *request) (*http.Response, error) {
	u := r.url(p.address)
	if p.node.cfg.TLS != nil {
		u.Scheme = "https"
	}
	req := (&http.Request{
		Method: http.MethodGet, URL: u, Host: p.address, Header: r.header(r.mac(p.node.cfg.Secret)),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	return via.RoundTrip(req)
}

// verify checks the MAC of an answer, and its version of the protocol. body is as for
// answerLine.proof.
func (p *peer) verify(r *request, resp *http.Response, body string) (*answerLine, error) {
	line, err := parseAnswerLine(resp.Header.Get(hAnswer))
	if version := otherVersion(""); errors.As(err, &version) {
		return nil, &miss{otherProtocol, fmt.Errorf("%s answers with %w", p.name, err)}
	}
	if err != nil {
		return nil, &miss{broken, err}
	}
	if s := p.node.cfg.Secret; s != nil && !equal(line.mac, line.proof(s, r, resp.StatusCode, resp.Header, body)) {
		return nil, &miss{unproven, fmt.Errorf("the answer of %s (status %d) is not signed with the secret of this node", p.name, resp.StatusCode)}
	}
	return line, nil
}

// causes are the causes of the misses that the statuses of answers stand for; any other status is
// one of a broken peer.
var causes = map[int]cause{
	http.StatusNotFound:             absent,
	http.StatusPreconditionFailed:   changed,
	http.StatusInsufficientStorage:  full,
	http.StatusBadGateway:           failed,
	http.StatusPreconditionRequired: restarting,
	http.StatusUnauthorized:         refused,
	http.StatusMisdirectedRequest:   misdirected,
	http.StatusConflict:             otherRoster,
	http.StatusUpgradeRequired:      otherProtocol,
	http.StatusForbidden:            otherTLS,
}

// readError reads an answer with an error, which is a *miss. It closes the body.
func (p *peer) readError(r *request, resp *http.Response) error {
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return &miss{broken, err}
	}
	if p.node.cfg.TLS == nil && strings.HasPrefix(string(body), plainRefusal) {
		return &miss{otherTLS, fmt.Errorf("%s: %w", p.name, ErrTLS)}
	}
	if _, err := p.verify(r, resp, string(body)); err != nil {
		return err
	}
	c, ok := causes[resp.StatusCode]
	if !ok {
		c = broken
	}
	return &miss{c, fmt.Errorf("%s answers: %s", p.name, body)}
}

// missOf returns the miss that an error of a connection stands for. other is the cause if the error
// does not say it.
func (p *peer) missOf(err error, other cause) *miss {
	if m, ok := errors.AsType[*miss](err); ok {
		return m
	}
	if isAlert(err) {
		return &miss{otherTLS, fmt.Errorf("%s refuses the certificate of this node: %w", p.name, err)}
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		other = unreachable
	}
	return &miss{other, fmt.Errorf("%s: %w", p.name, err)}
}

// ask sends a request whose answer is not of a file, and returns the answer, whose MAC is right. It
// fails when ctx is done.
func (p *peer) ask(ctx context.Context, r *request) (*answerLine, []byte, error) {
	resp, err := p.exchange(ctx, p.node.probes, r)
	if err != nil {
		return nil, nil, p.missOf(err, unreachable)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, nil, p.readError(r, resp)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return nil, nil, &miss{broken, err}
	}
	line, err := p.verify(r, resp, string(body))
	return line, body, err
}

// pingTimeout bounds a ping.
const pingTimeout = time.Second

// ping returns the state of the request with a nonce, or stateUnknown for "". It fails if the peer
// does not answer in time.
func (p *peer) ping(ctx context.Context, nonce string) (state string, err error) {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	line, _, err := p.ask(ctx, p.request(pingPath, nonce))
	if err != nil {
		return "", err
	}
	return line.state, nil
}

// Ask returns what a node reports of itself. The difference of the clocks is known to the duration of
// the request. If the node refuses the request, the error says why.
func (n *Node) Ask(ctx context.Context, name string) (Info, error) {
	p := n.named(name)
	if p == nil {
		return Info{}, fmt.Errorf("peer %s: the roster does not name it", name)
	}
	i, err := p.info(ctx)
	if err != nil {
		return Info{}, fmt.Errorf("peer %s: %w", name, err)
	}
	return i, nil
}

// info returns what the peer reports of itself.
func (p *peer) info(ctx context.Context) (i Info, err error) {
	_, body, err := p.ask(ctx, p.request(infoPath, ""))
	if err != nil {
		return Info{}, err
	}
	if err := json.Unmarshal(body, &i); err != nil {
		return Info{}, &miss{broken, err}
	}
	return i, nil
}

// ExchangeOf returns the state of the exchange of the node with an index in Roster.Nodes, or the zero
// value if that has none. A node that does not answer within a second, or is not of this roster and
// dataset, is skipped from then on, as one that fails a read. ExchangeOf makes no request to a node
// that is skipped, and returns an error.
func (n *Node) ExchangeOf(ctx context.Context, node int) (drivers.ExchangeState, error) {
	p := n.peers[node]
	s, err := p.exchangeState(ctx)
	if err != nil {
		return drivers.ExchangeState{}, fmt.Errorf("peer %s: %w", p.name, err)
	}
	return s, nil
}

// exchangeState is ExchangeOf. Errors are a *miss, errSkipped or ctx's.
func (p *peer) exchangeState(ctx context.Context) (s drivers.ExchangeState, err error) {
	if !p.usable() {
		return s, errSkipped
	}
	bounded, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	i, err := p.info(bounded)
	if ctx.Err() != nil {
		return s, context.Cause(ctx)
	}
	if cfg := &p.node.cfg; err == nil && (i.Name != p.name || i.Dataset != cfg.Dataset || i.Roster != cfg.Roster.Hash()) {
		err = &miss{misdirected, fmt.Errorf("%s of dataset %q and roster %s answers", i.Name, i.Dataset, i.Roster)}
	}
	if err != nil {
		p.skip(err)
		return s, err
	}
	if i.Exchange != nil {
		s = *i.Exchange
	}
	return s, nil
}

const (
	firstPause = time.Second      // for which a peer is skipped after its first failure
	maxPause   = 30 * time.Second // after further ones, with doubled pauses between

	// trust is how long a peer is used after an answer although it is believed to be dead.
	trust = 5 * time.Second
)

// A health decides whether a peer is used. A peer that has failed is skipped for a pause, and then
// until a ping succeeds; the same holds for one that is believed to be dead.
type health struct {
	mu       panics.Mutex // guards the following
	failures int          // since the last answer with content
	until    time.Time    // before it, there is no ping
	skipped  bool         // a ping must succeed before the peer is used
	pinging  bool
	answered time.Time // the last answer or ping
}

// isUp reports whether the peer would be used now.
func (h *health) isUp(believed bool, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.skipped && (believed || now.Sub(h.answered) <= trust)
}

// use reports whether the peer may be used. If it may not, but a ping is due, ping is true: the
// caller sends one, and calls pinged.
func (h *health) use(believed bool, now time.Time) (ok, ping bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !believed && now.Sub(h.answered) > trust {
		h.skipped = true
	}
	if !h.skipped {
		return true, false
	}
	if h.pinging || now.Before(h.until) {
		return false, false
	}
	h.pinging = true
	return false, true
}

// pinged records the end of a ping.
func (h *health) pinged(ok bool, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pinging = false
	if ok {
		h.skipped, h.answered = false, now
	} else {
		h.pause(now)
	}
}

// retry reports whether the peer is skipped, and no ping is in progress. Then the caller sends one,
// although the pause has not passed, and calls pinged.
func (h *health) retry() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.skipped || h.pinging {
		return false
	}
	h.pinging = true
	return true
}

// fail records a failure. It reports whether the peer was used until now, and is skipped from now on.
func (h *health) fail(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.skipped { // because of another request that was in flight
		return false
	}
	h.skipped = true
	h.pause(now)
	return true
}

// pause begins a pause. h.mu must be held.
func (h *health) pause(now time.Time) {
	h.until = now.Add(min(maxPause, firstPause<<min(h.failures, 10)))
	h.failures++
}

// succeed records an answer with content.
func (h *health) succeed(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures, h.answered = 0, now
}

// usable reports whether reads use the peer now. If a ping is due, it sends one in the background.
func (p *peer) usable() bool {
	ok, ping := p.health.use(p.believed(), time.Now())
	if ping {
		p.pingLater()
	}
	return ok
}

// believed reports whether the peer is believed to be alive.
func (p *peer) believed() bool {
	up := p.node.cfg.Up
	return up == nil || up(p.name)
}

// isUp reports whether reads would use the peer now.
func (p *peer) isUp() bool { return p.health.isUp(p.believed(), time.Now()) }

// Joined says that a node may be up again. If reads do not use it, it is pinged now, in the
// background, and not when a read needs it. Joined is not called after Close.
func (n *Node) Joined(name string) {
	if p := n.named(name); p != nil && p.index != n.self && p.health.retry() {
		p.pingLater()
	}
}

// pingLater sends the ping that health has requested, in the background.
func (p *peer) pingLater() {
	n := p.node
	n.wg.Go(func() {
		err := panics.Do(func() error {
			_, err := p.ping(n.ctx, "")
			return err
		})
		alone := n.isAlone()
		p.health.pinged(err == nil, time.Now())
		if err == nil && alone {
			n.rejoin()
		}
	})
}

// isAlone reports whether all peers are skipped.
func (n *Node) isAlone() bool {
	for i, p := range n.peers {
		if i != n.self && p.health.isUp(true, time.Now()) {
			return false
		}
	}
	return true
}

// rejoin pings all peers that are skipped. All were, and one answers again: most likely, this node
// was cut off. Until the others are used, their files would be read elsewhere, and from the source.
func (n *Node) rejoin() {
	for _, p := range n.peers {
		if p.index != n.self && p.health.retry() {
			p.pingLater()
		}
	}
}

// note counts the miss err, and skips the peer if it has failed. It returns err.
func (p *peer) note(err error) error {
	var m *miss
	if !errors.As(err, &m) {
		return err
	}
	count(p.counters.Misses.counter(m.cause), 1)
	if m.cause.ofNode() {
		count(&p.counters.Failovers, 1)
		p.skip(err)
	}
	return err
}

// skip skips the peer, which has failed with err.
func (p *peer) skip(err error) {
	if p.health.fail(time.Now()) {
		p.node.cfg.Log.Warn("peer skipped", "peer", p.name, "err", err)
	}
}
