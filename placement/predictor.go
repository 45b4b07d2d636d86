package placement

import (
	"maps"
	"time"

	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// A predictor predicts which files will be opened, from the files that were opened. Workers
// pull its predictions one at a time. It holds a position in them, so that a million predicted
// files cost no more than one. Its methods may be called concurrently.
type predictor interface {
	// opened records an open of e, which is file i of its directory by name. It reports
	// whether the predictor recognizes the open as part of its pattern, and whether next may
	// return a file.
	opened(e *metadata.Entry, i int) (recognized, more bool)

	// next returns a file to prefetch, or nil if there is none until the next open. It
	// returns each prediction once. The file may be placed already.
	next() *metadata.Entry

	// prune drops state that is of no use any more.
	prune(now time.Time)
}

// noPredictor recognizes nothing and predicts nothing.
type noPredictor struct{}

func (noPredictor) opened(*metadata.Entry, int) (recognized, more bool) { return false, false }
func (noPredictor) next() *metadata.Entry                               { return nil }
func (noPredictor) prune(time.Time)                                     {}

// predict passes an open to inOrder and, if that does not recognize it, to scattered.
func (h *Handler) predict(e *metadata.Entry) {
	if len(h.levels.Tiers()) == 0 {
		return
	}
	i, listed := h.names.Index(e)
	if !listed {
		return
	}
	recognized, more := h.inOrder.opened(e, i)
	if more {
		h.queue.feedUrgent()
	}
	if recognized {
		return
	}
	if _, more := h.scattered.opened(e, i); more {
		h.queue.feedIdle()
	}
}

// pullInOrder claims the next file that is about to be opened, and returns its fill, or nil.
func (h *Handler) pullInOrder() *fill {
	return h.pull(h.inOrder, func(int64) bool { return true })
}

// pullScattered claims the next file that may be opened at some time, and returns its fill,
// or nil.
func (h *Handler) pullScattered() *fill { return h.pull(h.scattered, h.hasSpareRoom) }

// pull claims the next file of p that can be placed and for whose size room reports true. It
// returns the fill, which the caller begins.
func (h *Handler) pull(p predictor, room func(size int64) bool) *fill {
	for e := p.next(); e != nil && h.ctx.Err() == nil; e = p.next() {
		if e.Level() != tiers.AtSource || e.Claimed() || !h.Fits(e.Size()) || !room(e.Size()) {
			continue
		}
		if f := h.prefetch(e); f != nil {
			return f
		}
	}
	return nil
}

// prefetch claims e and returns its fill, which the caller begins. It returns nil if the file
// cannot be copied now.
func (h *Handler) prefetch(e *metadata.Entry) *fill {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if h.ctx.Err() != nil || h.fills[e] != nil || now.Before(h.backoffs[e].until) || h.racy.has(e, now) || !e.Claim() {
		return nil
	}
	f := newFill(h, e)
	f.prefetched = true
	h.fills[e] = f
	return f
}

// hasSpareRoom reports whether the tiers have room for a file that may never be opened.
// That is so if all known files fit into the tiers together, or else while less than half of
// the tiers is used: placed copies are never evicted, and such a file must not take the room
// of one that the job does read. A job that reads some of the files, which fit into half of
// the room, has all of them placed.
//
// Workers that check at the same time may each take room for one more file.
func (h *Handler) hasSpareRoom(size int64) bool {
	var quota, taken int64
	for _, t := range h.levels.Tiers() {
		q, n := t.Room()
		quota, taken = quota+q, taken+n
	}
	if tiers.Footprint(h.names.Len(), h.names.Bytes()) <= quota {
		return true
	}
	return taken+tiers.Footprint(1, size) <= quota/2
}

// maxDirectories is the number of directories of which a predictor remembers the opens.
const maxDirectories = 1 << 14

// A perDirectory holds the state of a predictor for each directory, and forgets an arbitrary
// one when there are too many.
type perDirectory[T any] map[*metadata.Entry]*T

// get returns the state of a directory, or nil.
func (m perDirectory[T]) get(dir *metadata.Entry) *T { return m[dir] }

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
