package placement

import (
	"context"
	"maps"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// The predictors inOrder and scattered predict which files will be opened, from the files that were
// opened. Workers pull their predictions one at a time. Each holds a position in its predictions, so
// that a million predicted files cost no more than one. Their methods may be called concurrently.
// The method next returns an entry to prefetch, or nil if there is none until the next open. It
// makes no request. The file may be placed already, or be in flight.

// predict passes an open with a context to the plans and, if none has predicted it, to the predictors. missing
// means that the file has no copy; first, that it was not opened before.
func (h *Handler) predict(ctx context.Context, e *metadata.Entry, missing, first bool) {
	if missing && h.peers != nil {
		atomic.AddInt64(&h.peers.spare.opens, 1)
	}
	if len(h.levels.Tiers()) == 0 {
		return
	}
	if h.planned(ctx, e) {
		h.wantWhole(e, (*fill).want)
		return
	}
	var recognized, more bool
	i, listed := h.names.Index(e)
	var share share
	if first {
		share = h.scattered.shares.opened(e, i, listed)
	} else {
		share = h.scattered.shares.of(e.Parent())
	}
	if listed {
		noOrder, fruitless := h.scattered.order(e.Parent())
		if recognized, more = h.inOrder.opened(opening{e, i, first, share, noOrder, fruitless}); more {
			h.queue.feedUrgent()
		}
	}
	if h.scattered.opened(e, recognized, missing) {
		h.queue.feedIdle()
	}
}

// nextInOrder returns the next prediction of inOrder.
func (h *Handler) nextInOrder() prediction {
	e := h.inOrder.next()
	if e == nil {
		return nil
	}
	return func() *fill { return h.beginInOrder(e) }
}

// nextScattered returns the next prediction of scattered.
func (h *Handler) nextScattered() prediction {
	e := h.scattered.next()
	if e == nil {
		return nil
	}
	return func() *fill { return h.beginScattered(e) }
}

// beginInOrder claims a file that is about to be opened, and returns its fill, or nil.
func (h *Handler) beginInOrder(e *metadata.Entry) *fill {
	if !h.mayPredict(e) {
		return nil
	}
	f := h.prefetch(e, nil)
	if f != nil {
		h.scattered.predictedInOrder(e)
	}
	return f
}

// predictTimeout bounds a request for the attributes of a predicted file. A part of the source that
// hangs must not keep a worker from the others. listTimeout bounds a listing, for which no worker
// waits: that of a directory of 1,000,000 names takes long.
const (
	predictTimeout = 2 * time.Second
	listTimeout    = 5 * time.Minute
)

// beginScattered claims a file that may be opened at some time, and returns its fill, or nil. It
// requests its attributes first if they are not known. A directory is listed instead.
func (h *Handler) beginScattered(e *metadata.Entry) *fill {
	if e.IsDir() {
		h.wg.Go(func() {
			defer panics.Contain()
			h.listAhead(e)
		})
		return nil
	}
	ctx, cancel := context.WithTimeout(drivers.Background(h.ctx), predictTimeout)
	defer cancel()
	wasKnown := !e.Unknown()
	now, err := h.names.Known(ctx, e)
	var f *fill
	switch {
	case err != nil:
		now = e
		if ctx.Err() != nil {
			h.scattered.fail(e.Parent())
		}
	case (wasKnown || now.Size() <= maxScattered) && h.mayPredict(now): // otherwise its turn comes later, or never
		f = h.prefetch(now, nil)
	}
	if h.scattered.settle(e, now, f != nil) {
		h.queue.feedIdle()
	}
	return f
}

// listAhead lists a directory of predicted files. scattered bounds the number of calls.
func (h *Handler) listAhead(dir *metadata.Entry) {
	ctx, cancel := context.WithTimeout(drivers.Background(h.ctx), listTimeout)
	defer cancel()
	if err := h.names.ListAhead(ctx, dir); err != nil {
		h.scattered.fail(dir)
	}
	if h.scattered.listed(dir) {
		h.queue.feedIdle()
	}
}

// prefetch claims e and returns its fill, which the caller begins. It returns nil if the file
// is placed, or cannot be copied now. room is that in the window for the copy, or nil.
func (h *Handler) prefetch(e *metadata.Entry, room *tiers.Reservation) *fill {
	if h.names.HasPieces(e) {
		return h.prefetchPieces(e)
	}
	if e.Level() != tiers.AtSource || e.Claimed() {
		return nil
	}
	rank := h.rank(e)
	foreign := h.isForeign(e, rank, forBackground)
	if room == nil && h.mayCopy(e, rank, forBackground) != nil || foreign && h.peers.isBusy() {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if h.ctx.Err() != nil || h.fills[e] != nil || now.Before(h.backoffs[e].until) || h.racy.has(e, now) || !e.Claim() {
		return nil
	}
	f := newFill(h, e, rank, foreign)
	f.prefetched, f.windowed, f.room = true, room != nil, room
	h.fills[e] = f
	return f
}

// hasSpareRoom reports whether the tiers have room for a file that may never be opened, of a
// dataset of a number of files and bytes, by estimate. That is so if the dataset and all known
// files, or all files of this node, fit into the tiers, or else while less than half of the tiers
// is used: placed copies are never evicted, and such a file must not take the room of one that the
// job does read. A job that reads some of the files, which fit into half of the room, has all of
// them placed.
//
// Workers that check at the same time may each take room for one more file.
func (h *Handler) hasSpareRoom(size, files, bytes int64) bool {
	if h.peers != nil && h.peers.spare.fitsOwn() {
		return true
	}
	quota, taken := h.room()
	if h.levels.Footprint(max(h.names.Len(), int(files)), max(h.names.Bytes(), bytes)) <= quota {
		return true
	}
	return taken+h.levels.Allocated(size) <= quota/2
}

// maxDirectories is the number of directories of which a predictor remembers the opens.
const maxDirectories = 1 << 14

// A perDirectory holds the state of a predictor for each directory, and forgets an arbitrary
// one when there are too many.
type perDirectory[T any] map[*metadata.Entry]*T

// get returns the state of a directory, or nil.
func (m perDirectory[T]) get(dir *metadata.Entry) *T { return m[dir] }

// of returns the state of a directory. If there is none, it adds the zero value.
func (m perDirectory[T]) of(dir *metadata.Entry) *T {
	state := m.get(dir)
	if state == nil {
		state = new(T)
		m.set(dir, state)
	}
	return state
}

// set sets the state of a directory.
func (m perDirectory[T]) set(dir *metadata.Entry, state *T) {
	for old := range m {
		if len(m) < maxDirectories {
			break
		}
		delete(m, old)
	}
	m[dir] = state
}

// prune forgets directories that no longer exist.
func (m perDirectory[T]) prune() {
	maps.DeleteFunc(m, func(dir *metadata.Entry, _ *T) bool { return dir.Stale() })
}
