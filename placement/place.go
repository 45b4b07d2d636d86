package placement

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// An Outcome is the result of Place.
type Outcome int

// The outcomes of Place.
const (
	Placed    Outcome = iota // there is a copy on a tier
	Skipped                  // no tier accepted the copy: it has no room, or is not healthy
	Failed                   // copying failed
	Elsewhere                // other nodes place the file, and this one has no room to spare for it
)

// Errors of a fill that could not be started.
var (
	// errNoRoom: no tier has room now.
	errNoRoom = errors.New("no tier has room")

	// errElsewhere: other nodes place the file, and this one has no room to spare for it.
	errElsewhere = errors.New("other nodes place the file")

	// errForeign: the fill reads from another node, and another node requests the file here.
	errForeign = errors.New("the file is being read from another node")

	// errTakenOver: another node needs the file, and this one reads it from the source from now on.
	errTakenOver = errors.New("another node needs the file")

	// errPublished: no fill is needed, because a copy was published.
	errPublished = errors.New("a copy was found")

	// errBackoff: the last copy failed a short time ago.
	errBackoff = errors.New("copying failed a short time ago")

	// errClaimed: a copy of the file is being removed or verified.
	errClaimed = errors.New("a copy is being removed or verified")

	// errRacy: the content of the file is not identified by its times yet.
	errRacy = errors.New("the file has just changed")

	// errStuck: too many requests are without an answer of the source.
	errStuck = errors.New("the source does not answer")

	// errStopped: the handler stops.
	errStopped = errors.New("placement has stopped")
)

// isElsewhere reports whether err, of join, only means that there is no fill to read from.
func isElsewhere(err error) bool {
	for _, e := range [...]error{errNoRoom, errElsewhere, errBackoff, errClaimed, errRacy, errStuck, errStopped, errLater} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Place copies a file to a tier. It returns when the copy is in place, or when there will be
// none. It copies in the background, after the blocks that readers request.
func (h *Handler) Place(ctx context.Context, e *metadata.Entry) (outcome Outcome, err error) {
	outcome = Failed // if it panics
	defer panics.Catch(&err)
	if h.names.HasPieces(e) && e.Level() == tiers.AtSource {
		pieces, err := h.names.Pieces(ctx, e)
		if err != nil {
			return Failed, err
		}
		return h.placePieces(ctx, pieces)
	}
	if e.Unsized() {
		if err := h.names.Permit(ctx, e); err != nil {
			return Failed, err
		}
	}
	for {
		switch {
		case copied(e).Level() != tiers.AtSource || e.Size() == 0:
			return Placed, nil
		case !e.Placeable():
			return Failed, errReserved
		}
		f, err := h.join(ctx, e, forBackground)
		switch {
		case errors.Is(err, errPublished):
			continue
		case errors.Is(err, errClaimed): // for a moment
			if err := sleep(ctx, claimPoll); err != nil {
				return Failed, err
			}
			continue
		case errors.Is(err, errRacy):
			if err := sleep(ctx, h.racy.wait(e, time.Now())+claimPoll); err != nil {
				return Failed, err
			}
			continue
		case errors.Is(err, errNoRoom):
			return Skipped, nil
		case errors.Is(err, errElsewhere):
			return Elsewhere, nil
		case err != nil:
			return Failed, err
		}
		if f.windowed { // it may stay there for long, and is never placed
			f.release()
			return Skipped, nil
		}
		f.fetchRest()
		if err = f.wait(ctx); err == nil {
			err = f.blocks.failure()
		}
		f.release()
		switch {
		case err == errTakenOver, err == errNoRoom: // there is another fill, or another tier may have room
			continue
		case err != nil:
			return Failed, err
		}
		return Placed, nil
	}
}

// errReserved is the error for a file of the source that can have no copy.
var errReserved = errors.New("its path is reserved for copies; it is read from the source")

// claimPoll is the interval at which Place examines an entry that has another owner.
const claimPoll = 10 * time.Millisecond

// sleep returns after d, or earlier with the error of ctx.
// It makes no timer that is due: the race detector of Go 1.26.8 crashed in one.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// A purpose is why a fill is joined.
type purpose int

const (
	forReader     purpose = iota // a reader has opened the file
	forPeer                      // another node has requested the file: it comes from the source
	forBackground                // the file is placed on request: the backoff of failed copies does not apply
)

// join returns the fill of e with a reference, which the caller releases. It starts the fill
// if there is none; of concurrent callers, one does.
func (h *Handler) join(ctx context.Context, e *metadata.Entry, why purpose) (*fill, error) {
	rank := h.rank(e)
	if why == forPeer && rank < 0 {
		return nil, errElsewhere
	}
	if !e.Claimed() && !e.Unverified() { // otherwise recheck may find a copy, or make room
		if err := h.mayCopy(e, rank, why); err != nil {
			if errors.Is(err, errNoRoom) {
				h.skip(e)
			}
			return nil, err
		}
	}
	if h.objectStore && why != forBackground { // readers that open files count as waiting, too
		defer h.gate.demand().done()
	}
	f, first, err := h.claim(e, rank, why)
	for err == errForeign { // again if a reader of this node was faster
		if err = h.takeOver(ctx, e, rank); err == nil {
			f, first, err = h.claim(e, rank, why)
		}
	}
	if err != nil {
		return nil, err
	}
	if why != forBackground {
		err = h.awaitStart(ctx, f, first)
	} else {
		err = waitFor(ctx, f.started)
	}
	if err != nil {
		f.release()
		return nil, err
	}
	if f.err != nil {
		f.release()
		return nil, f.err
	}
	return f, nil
}

// claim returns the fill of e with a reference. If there is none, claim claims the entry, begins a
// fill on another goroutine or queues it for a worker, and reports first.
func (h *Handler) claim(e *metadata.Entry, rank int, why purpose) (f *fill, first bool, err error) {
	foreign := h.isForeign(e, rank, why)
	h.mu.Lock()
	defer h.mu.Unlock()
	f = h.fills[e]
	switch {
	case h.ctx.Err() != nil: // checked under the lock, since Run ends the fills that it sees then
		return nil, false, errStopped
	case f != nil && why != forBackground && f.unreadable.Load():
		return nil, false, errBackoff
	case f != nil && why == forPeer && f.foreign && f.rank != 0 && f.blocks.isOpen():
		return nil, false, errForeign
	case f != nil:
		if why != forBackground { // a fill in the background may still be queued
			h.beginNow(f)
		}
		if f.isLazy() {
			h.large.touch(f)
		}
	case h.racy.has(e, time.Now()):
		return nil, false, errRacy
	case why != forBackground && h.gateOf(foreign).stuck():
		return nil, false, errStuck
	case why != forBackground && !e.Stale() && time.Now().Before(h.backoffs[e].until):
		return nil, false, errBackoff
	case !e.Claim():
		switch {
		case e.Stale():
			return nil, false, drivers.ErrChanged
		case e.Claimed(): // but not by a fill
			return nil, false, errClaimed
		}
		return nil, false, errPublished
	default:
		f, first = newFill(h, e, rank, foreign), true
		f.forOpen = why != forBackground
		if why == forReader && f.interest != nil && f.pinned == nil {
			h.large.add(f)
		}
		h.fills[e] = f
		if f.forOpen {
			h.beginNow(f)
		} else {
			f.queue.addNew(f)
		}
	}
	f.refs.Acquire() // the handler has a reference to every fill in the map
	if why == forReader {
		f.read.Store(true)
	}
	return f, first, nil
}

// beginNow begins f on another goroutine, without a turn of a worker; h.mu must be held.
func (h *Handler) beginNow(f *fill) {
	if f.begun {
		return
	}
	f.begun = true
	h.wg.Go(func() {
		defer panics.Contain()
		f.begin()
	})
}

// forget removes a fill from the map, and ends the claim if no copy was published. It does
// both under one lock, so that join finds the fill or can claim the entry. If the fill
// failed, the next copy of the entry waits for the backoff.
func (h *Handler) forget(f *fill, published, failed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fills[f.entry] != f { // takeOver has replaced it
		return
	}
	delete(h.fills, f.entry)
	if !published {
		f.entry.Release()
	}
	if failed {
		b := h.backoffs[f.entry]
		if errors.Is(f.blocks.failure(), drivers.ErrShort) || errors.Is(f.err, drivers.ErrUnfit) { // it will most likely be so again
			b.failures = maxDoublings
		}
		h.backoffs[f.entry] = b.next(time.Now())
	} else {
		delete(h.backoffs, f.entry)
	}
}

// A backoff is the time until which an entry is not copied again after a failure.
type backoff struct {
	failures int
	until    time.Time
}

// A backoff doubles from minBackoff to maxBackoff.
const (
	minBackoff   = time.Second
	maxBackoff   = 5 * time.Minute
	maxDoublings = 16
)

// next returns the backoff after another failure.
func (b backoff) next(now time.Time) backoff {
	pause := maxBackoff
	if b.failures < maxDoublings {
		pause = min(minBackoff<<b.failures, maxBackoff)
	}
	return backoff{b.failures + 1, now.Add(pause)}
}

// pruneBackoffs forgets the failures of files that were not opened again.
func (h *Handler) pruneBackoffs(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.backoffs, func(_ *metadata.Entry, b backoff) bool { return now.Sub(b.until) > maxBackoff })
}

// reserve reserves room for size bytes on the first of some tiers that has it. It returns nil
// if none has.
func (h *Handler) reserve(size int64, among []*tiers.Tier) (*tiers.Tier, *tiers.Reservation) {
	for _, t := range among {
		if room, ok := t.Reserve(h.ctx, size); ok {
			return t, room
		}
	}
	return nil, nil
}

// Fits reports whether the quota of some tier leaves room for size bytes that smaller files of a
// plan do not need.
func (h *Handler) Fits(size int64) bool {
	if h.leavesRoom(size) {
		return false
	}
	for _, t := range h.levels.Tiers() {
		if t.Fits(size) {
			return true
		}
	}
	return false
}

// full reports whether no tier's quota leaves room for size bytes. It reports false while a
// tier has not been scanned.
func (h *Handler) full(size int64) bool {
	for _, t := range h.levels.Tiers() {
		if !t.Scanned() || t.Fits(size) {
			return false
		}
	}
	return true
}

// skip counts e as skipped, once, if no tier has room for it.
func (h *Handler) skip(e *metadata.Entry) {
	if h.full(e.Size()) && e.Skip() {
		atomic.AddInt64(&h.counters.Skipped, 1)
	}
}
