package placement

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// Placed copies are never evicted, so that a copy of another node's file must not take room that
// this node needs for files which it is to place for all. The spare room is what the tiers have
// left minus what the unplaced files need of which this node is the owner or a further choice: the
// second choice places what an owner has no room for. It is known when all directories are listed,
// and the sizes of these files are known. A plan does not suffice: it may name only the files that
// the job of this node reads, while the node owns files that others read.
//
// A census counts the files anew, by their entries, in the background. Between two of them, a copy
// of such a file changes the room that is left and the need alike, and the spare room remains as it
// is; a foreign copy takes its size from it. So nothing has to be recorded when files come, go,
// change or are placed. A census runs only when a foreign copy was refused since the last one. It
// takes a small share of the time of one core: ranks are computed once for each entry.
//
// The directories that are missing are listed, and the sizes requested, in the background, in
// proportion to the files that are opened without a copy (opensPerListing).

// spare is the room for copies of other nodes' files. Its methods may be called concurrently.
type spare struct {
	wanted chan struct{} // of capacity 1: a census is to run
	opens  int64         // files that were opened without a copy; updated atomically

	mu      panics.Mutex // guards the following
	known   bool
	own     int64 // what is left of the tiers when all files that this node owns are placed
	all     int64 // the same, and all of which it is a further choice
	pending int64 // taken, and not reserved yet
}

func newSpare() spare { return spare{wanted: make(chan struct{}, 1)} }

// isKnown reports whether the spare room is known, and is not used up.
func (s *spare) isKnown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known && s.all > 0
}

// fitsOwn reports whether all files that this node owns are known to fit.
func (s *spare) fitsOwn() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known && s.own >= 0
}

// allows reports whether a copy of some bytes may be made, of a file of which the node has a rank
// other than 0. foreign means that the blocks come from the peers; otherwise this node makes the
// copy in the place of the owner.
func (s *spare) allows(rank int, foreign bool, bytes int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.has(rank, foreign, bytes)
}

// has is allows; s.mu must be held.
func (s *spare) has(rank int, foreign bool, bytes int64) bool {
	if !foreign { // a node of a job that lists nothing is full of its own files when others are
		return !s.known || s.own >= bytes
	}
	ok := s.known && (s.all >= bytes || rank > 0 && s.all >= 0) // bytes are part of the need of a further choice
	if !ok {
		s.want()
	}
	return ok
}

// want makes a census run.
func (s *spare) want() {
	select {
	case s.wanted <- struct{}{}:
	default:
	}
}

// take is allows for a copy that is made. If it reports true, the caller reserves the room, and then
// calls reserved.
func (s *spare) take(rank int, foreign bool, bytes int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.has(rank, foreign, bytes) {
		return false
	}
	s.own -= bytes
	if rank < 0 {
		s.all -= bytes
	}
	s.pending += bytes
	return true
}

// reserved records that room which was taken is now reserved on a tier.
func (s *spare) reserved(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending -= bytes
}

// set records the result of a census, and reports whether it differs from what was known. left
// returns the room that some tiers have left, and their number. Each of these is full when less is
// left than the next file needs, which is at most largest.
func (s *spare) set(known bool, left func() (bytes int64, tiers int), ownNeed, need, largest int64) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	free, n := left()
	free -= s.pending + int64(max(n-1, 0))*largest
	own, all := free-ownNeed, free-need
	changed = known != s.known || own != s.own || all != s.all
	s.known, s.own, s.all = known, own, all
	return changed
}

// The pace of the census.
const (
	censusStep  = 1024             // entries that are counted at once
	censusShare = 4                // pauses of a pass, as a multiple of the time that it counts
	minCensus   = time.Second      // between two passes
	maxCensus   = time.Minute      // the pause doubles to this while nothing changes
	idleCensus  = 20               // the same at least, as a multiple of the duration of a pass
	censusAsks  = 256              // names and directories that one pass requests
	censusAsk   = 10 * time.Second // after which such a request is given up
)

// A census counts the files that this node is to place. One goroutine uses it.
type census struct {
	handler *Handler
	spent   int64 // requests

	ranked, owned, further idSet // entries by rank: known, 0, and more than 0
	failed                 idSet // entries of which the source has returned an error: they count as empty until they are known

	// The result of the pass in progress.
	largest  int64 // file that a tier could hold
	ownNeed  int64
	need     int64
	max      int64             // the largest of the files that are needed
	complete bool              // all directories are listed, and all sizes known
	unlisted []*metadata.Entry // directories that are not listed; censusAsks at most
	sizeless []*metadata.Entry // files whose sizes are not known; censusAsks at most
}

// runCensus counts while foreign copies are refused, until the handler is to stop.
func (h *Handler) runCensus() {
	c := &census{handler: h}
	pause := minCensus
	for {
		select {
		case <-h.peers.spare.wanted:
		case <-h.ctx.Done():
			return
		}
		began := time.Now()
		changed := c.run(h.ctx)
		took := time.Since(began)
		if pause = min(2*pause, maxCensus); changed {
			pause = minCensus
		}
		if sleep(h.ctx, max(pause, idleCensus*took)) != nil {
			return
		}
	}
}

// run makes one pass, and reports whether the result differs from the one before.
func (c *census) run(ctx context.Context) (changed bool) {
	h := c.handler
	if slices.ContainsFunc(h.levels.Tiers(), func(t *tiers.Tier) bool { return !t.Scanned() }) {
		return false
	}
	if h.peers.rerank.Swap(false) {
		c.ranked, c.owned, c.further = nil, nil, nil
	}
	*c = census{handler: h, spent: c.spent, ranked: c.ranked, owned: c.owned, further: c.further, failed: c.failed, complete: true}
	c.largest = h.largestFile()
	for next := uint64(1); next != 0; {
		began := time.Now()
		next = h.names.Visit(next, censusStep, c.count)
		if sleep(ctx, censusShare*time.Since(began)) != nil {
			return false
		}
	}
	changed = h.peers.spare.set(c.complete, h.left, c.ownNeed, c.need, c.max)
	if c.ask(ctx) {
		h.peers.spare.want()
		changed = true
	}
	return changed
}

// count counts an entry.
func (c *census) count(e *metadata.Entry) {
	h := c.handler
	if h.names.HasPieces(e) && e.Level() == tiers.AtSource {
		pieces, _ := h.names.Pieces(h.ctx, e)
		for _, p := range pieces {
			c.count(p)
		}
		return
	}
	switch {
	case c.failed.has(e.ID()) && (e.Unknown() || e.IsDir() && !h.names.IsListed(e)): // it may be known since
		return
	case e.IsDir():
		if !h.names.IsListed(e) {
			c.complete = false
			c.unlisted = addUpTo(c.unlisted, e)
		}
		return
	case !mayBeFile(e) || e.Level() != tiers.AtSource || !e.Unknown() && (e.Size() == 0 || e.Size() > c.largest):
		return
	}
	if c.ranked.add(e.ID()) {
		switch rank := h.rank(e); {
		case rank == 0:
			c.owned.add(e.ID())
		case rank > 0:
			c.further.add(e.ID())
		}
	}
	owned := c.owned.has(e.ID())
	if !owned && !c.further.has(e.ID()) {
		return
	}
	if e.Unknown() {
		c.complete = false
		c.sizeless = addUpTo(c.sizeless, e)
		return
	}
	bytes := h.levels.Allocated(e.Size())
	c.need += bytes
	c.max = max(c.max, bytes)
	if owned {
		c.ownNeed += bytes
	}
}

// addUpTo appends e, unless there are censusAsks entries.
func addUpTo(all []*metadata.Entry, e *metadata.Entry) []*metadata.Entry {
	if len(all) == censusAsks {
		return all
	}
	return append(all, e)
}

// ask lists directories and requests sizes, as far as the opens allow, and reports whether it has.
func (c *census) ask(ctx context.Context) (asked bool) {
	h := c.handler
	ctx = drivers.Background(ctx)
	within := func(e *metadata.Entry, n int64, request func(context.Context) error) bool {
		if c.spent+n > atomic.LoadInt64(&h.peers.spare.opens)/opensPerListing || ctx.Err() != nil {
			return false
		}
		c.spent += n
		ctx, cancel := context.WithTimeout(ctx, censusAsk)
		defer cancel()
		if err := request(ctx); err != nil && ctx.Err() == nil {
			c.failed.add(e.ID())
		}
		asked = true
		return true
	}
	for _, dir := range c.unlisted {
		pages := 1 + min(dir.Info().Size/listingPage, maxPages)
		if !within(dir, pages, func(ctx context.Context) error { return h.names.ListAhead(ctx, dir) }) {
			return asked
		}
	}
	for _, e := range c.sizeless {
		if !within(e, 1, func(ctx context.Context) error { _, err := h.names.Known(ctx, e); return err }) {
			return asked
		}
	}
	return asked
}

// left returns the room that the tiers which accept copies have left, and the number of these.
func (h *Handler) left() (bytes int64, accepting int) {
	for _, t := range h.levels.Tiers() {
		if t.Accepts() {
			quota, taken := t.Room()
			bytes += quota - taken
			accepting++
		}
	}
	return bytes, accepting
}

// largestFile returns the size of the largest file that a tier could hold.
func (h *Handler) largestFile() (size int64) {
	for _, t := range h.levels.Tiers() {
		quota, _ := t.Room()
		size = max(size, quota)
	}
	return size
}
