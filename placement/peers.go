package placement

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/readahead"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// With peers, the source serves each file once for all nodes of a job:
//
//   - Every file has an owner among the nodes, which fills it from the source as a node without
//     peers does, for its own readers, its predictors and the other nodes (shared.go).
//   - The other nodes are foreign to the file. A reader's miss is read from the owner, in a view like
//     that at the source. A copy is made, by a fill from the peers, only from spare room (census.go).
//   - The second choice of a file takes the place of an owner that is down or has no room. The
//     others ask it, and its own reads reach it by withoutPeers.
//   - A fill for another node reads from the source, never from a third node: otherwise nodes
//     could wait for each other. takeOver holds this.
//
// A file above 64 MiB is owned in pieces (pieces.go). What is said of files here is true of each piece.
//
// Fills from the peers load the network and the tiers of another node, and not the source. They have
// a queue, a gate and workers of their own: requests to the peers take no turn of those to the
// source, and the controller of one never measures the other.
//
// The predictors take the files of this node first: others only while the room to spare is known, and
// while few copies from the peers are queued. A file that they leave out is copied when it is
// opened.
type peers struct {
	tiers.Peers
	started time.Time
	gate    *gate
	queue   *queue
	ahead   *readahead.Pool // of files that are read from the peers
	spare   spare
	rerank  atomic.Bool // the ranks of files have changed since the last census
	opens   Opens       // of files that were read from the peers, or in pieces, without a fill
}

// The bounds of fills from the peers.
const (
	peerWorkers = 16 // background workers, if there are as many for the source
	peerBacklog = 64 // queued fills above which nothing is predicted
)

// peerProfile is that of the peers for read-ahead: requests of up to 8 MiB, from the first read on.
var peerProfile = drivers.Profile{Latency: drivers.LatencyRequest, Stride: 8 << 20}

// newPeers makes the part of a handler that needs peers. ahead is the memory for read-ahead.
func newPeers(p tiers.Peers, workers int, ahead int64) *peers {
	g := newGate(peerWorkersOf(workers), drivers.Profile{})
	return &peers{
		Peers: p, started: time.Now(), gate: g, queue: newQueue(g, nil, nil, nil),
		ahead: readahead.NewPool(ahead, peerProfile),
		spare: newSpare(),
	}
}

// isBusy reports whether so many fills from the peers are queued that no other is predicted.
func (p *peers) isBusy() bool { return p.queue.len() >= peerBacklog }

// rank returns the place of this node among the choices for a file. Without peers it is 0. Of a file
// that is exchanged, this node is the owner while it holds it, and else none of the choices.
func (h *Handler) rank(e *metadata.Entry) int {
	s := h.standing(e)
	switch {
	case s.listed && !s.held():
		return -1
	case s.listed || h.peers == nil:
		return 0
	}
	return h.peers.Rank(e.Unit())
}

// isChoice reports whether this node is to fill a file for another node, for which it has a rank.
func (h *Handler) isChoice(e *metadata.Entry, rank int) bool {
	if s := h.standing(e); s.listed {
		return s.now && rank == 0
	}
	return rank >= 0 && rank == h.rank(e)
}

// isForeign reports whether a fill of a file comes from the peers. rank is that of this node.
func (h *Handler) isForeign(e *metadata.Entry, rank int, why purpose) bool {
	if h.peers == nil {
		return false
	}
	if s := h.standing(e); s.listed {
		return !s.held() || s.giver >= 0
	}
	return rank != 0 && why != forPeer
}

// mayPrefetch reports whether this node may copy a file before it is opened.
func (h *Handler) mayPrefetch(e *metadata.Entry) bool {
	if h.peers == nil {
		return true
	}
	if s := h.standing(e); s.listed { // the exchanger places the files of the next epoch
		return s.now
	}
	known := h.peers.spare.isKnown()
	if !h.names.HasPieces(e) {
		return known || h.rank(e) == 0
	}
	pieces := h.names.CachedPieces(e)
	return pieces == nil || slices.ContainsFunc(pieces, func(p *metadata.Entry) bool {
		return p.Level() == tiers.AtSource && !p.Claimed() && (known || h.rank(p) == 0)
	})
}

// gateOf returns the gate of fills from the peers, or of those from the source.
func (h *Handler) gateOf(foreign bool) *gate {
	if foreign {
		return h.peers.gate
	}
	return h.gate
}

// mayCopy returns nil if there is room for a copy of e outside of the window, and the reason if there
// is not. rank is that of this node.
func (h *Handler) mayCopy(e *metadata.Entry, rank int, why purpose) error {
	if s := h.standing(e); s.listed && !s.held() {
		return errElsewhere
	}
	foreign := rank != 0 && why != forPeer
	switch {
	case rank != 0 && !h.peers.spare.allows(rank, foreign, h.levels.Allocated(e.Size())), !h.Fits(e.Size()) && !h.mayMakeRoom(e):
		if foreign {
			return errElsewhere
		}
		return errNoRoom
	}
	return nil
}

// reserveFor reserves room for f outside of the window.
func (h *Handler) reserveFor(f *fill) (*tiers.Tier, *tiers.Reservation, error) {
	bytes := h.levels.Allocated(f.size)
	if err := h.admit(f); err != nil {
		return nil, nil, err
	}
	f.admitted = true
	if f.rank == 0 || h.peers.spare.take(f.rank, f.foreign, bytes) {
		t, room := f.reserve(h.levels.Tiers())
		if t == nil {
			t, room = h.reserveInExchange(f.entry)
		}
		if f.rank != 0 {
			h.peers.spare.reserved(bytes)
		}
		if t != nil {
			return t, room, nil
		}
	}
	if f.foreign && f.rank != 0 {
		return nil, nil, errElsewhere
	}
	h.skip(f.entry)
	return nil, nil, errNoRoom
}

// openAtPeers opens a file at the peers, if the source lets this node open it.
func (h *Handler) openAtPeers(ctx context.Context, e *metadata.Entry) (drivers.Object, error) {
	if err := h.names.Permit(ctx, e); err != nil {
		return nil, err
	}
	if s := h.standing(e); s.listed {
		return h.openExchanged(ctx, e, s)
	}
	return h.peers.OpenVersion(ctx, e.Unit(), e.Info(), func(ctx context.Context) (drivers.Object, error) {
		return h.withoutPeers(ctx, e)
	})
}

// fillKey is the context key of the fill from the peers that makes a request.
type fillKey struct{}

// withoutPeers opens a file that no other node serves. If this node is a further choice, it takes
// the place of the owner, and fills the file for the other nodes, too. A background request of a fill
// fails with errTakenOver: the fill that takes over waits for its turn.
func (h *Handler) withoutPeers(ctx context.Context, e *metadata.Entry) (drivers.Object, error) {
	if rank := h.rank(e); rank > 0 {
		f, _ := ctx.Value(fillKey{}).(*fill)
		if f != nil && drivers.IsBackground(ctx) && h.mayCopy(e, rank, forPeer) == nil {
			if err := h.yield(f, rank); err != nil {
				return nil, err
			}
		}
		o, err := h.openShared(context.WithValue(ctx, peerKey{}, true), e)
		if err == nil {
			return private{o}, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return openForReader(ctx, h, e)
}

// takeOver replaces the fill of e, if it reads from the peers, by one that reads from the source:
// another node has requested the file here, because the owner is down or has no room. Readers of
// the old fill move to the new one. The new fill does not depend on ctx, which may be that of the
// old one: its own read may have found out that the owner is down.
func (h *Handler) takeOver(ctx context.Context, e *metadata.Entry, rank int) error {
	h.mu.Lock()
	f := h.fills[e]
	if f == nil || !f.foreign || h.ctx.Err() != nil {
		h.mu.Unlock()
		return nil
	}
	if f.windowed { // the new fill needs room outside of the window
		if err := h.mayCopy(e, rank, forPeer); err != nil {
			h.mu.Unlock()
			return err
		}
	}
	h.beginNow(f)
	f.refs.Acquire()
	h.mu.Unlock()
	defer f.release()
	if err := waitFor(ctx, f.started); err != nil {
		return err
	}
	if f.err == nil && h.succeed(f, rank, true) {
		f.discard(errTakenOver)
	}
	return nil
}

// yield lets a fill from the source, which waits for its turn, take over from f, of which a background
// request has found no node. It returns errTakenOver, also to the other requests of f that find none; the
// reason if f has failed otherwise; and nil if f goes on.
func (h *Handler) yield(f *fill, rank int) error {
	if h.succeed(f, rank, false) {
		f.discard(errTakenOver)
	}
	return f.blocks.failure()
}

// succeed puts a fill from the source in the place of f, which has started, and reports success: f has
// not ended, and is not complete. The new fill begins when f has ended: at once if now is set, or else
// in its turn. The caller discards f.
func (h *Handler) succeed(f *fill, rank int, now bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil || h.fills[f.entry] != f || !f.blocks.fail(errTakenOver) {
		return false
	}
	next := newFill(h, f.entry, rank, false)
	next.forOpen = now
	begin := next.begin
	next.begin = func() {
		<-f.ended
		begin()
	}
	h.fills[f.entry] = next
	if now {
		h.beginNow(next)
	} else {
		next.prefetched = f.prefetched
		next.queue.addNew(next)
	}
	return true
}

// peerOpens returns the opens of files that were read from the peers, without a fill.
func (h *Handler) peerOpens() Opens {
	if h.peers == nil {
		return Opens{}
	}
	return drivers.Snapshot(&h.peers.opens)
}
