// Package placement is the placement handler: it decides which file is copied
// to which tier, and copies it, and it opens files where they are best read.
//
// The first open of a file that is only at the source starts a fill: the file
// is given room on the fastest tier that has it, and is copied there block by
// block, each block when a reader needs it or, failing that, by a pool of
// background workers. A fill is read while it is in flight, so no reader waits
// for more than the block it asked for, and no block is fetched twice. What
// was placed stays; a file that fits nowhere is read from the source.
//
// Memory: a block is 1 MiB and is held only while it is copied; of a stream, one
// is at a time. At most workers + max(16, min(2·workers, 64)) blocks are held at
// once, 24 MiB with 8 workers and 128 MiB with 64, plus those left in operations
// that a hung device never ended.
package placement

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// A Handler places the files of one dataset. Its methods may be called
// concurrently.
//
// Lock order: Handler.mu before fill.mu before queue.mu.
type Handler struct {
	levels  *tiers.Hierarchy
	names   *metadata.Container
	log     *slog.Logger
	workers int
	remote  bool     // each operation of the source is a request over a network
	demand  *buffers // for blocks that a reader waits for
	queue   *queue

	ctx  context.Context // done when the handler is to stop
	stop context.CancelFunc
	wg   sync.WaitGroup // what start and fetch have under way

	mu      sync.Mutex                // guards the following
	fills   map[*metadata.Entry]*fill // of the entries that are claimed
	retries map[*metadata.Entry]retry // of those whose last copy failed

	files files
	ahead ahead
	spare atomic.Int64 // what fills will take of the tiers that wait to be begun, by fill.spare

	// Counters, updated atomically.
	counters    Counters
	opens, lent [tiers.MaxTiers + 1]Opens // by level
	fillOpens   Opens
}

// A retry says when a copy that failed may be tried again. One that nobody
// asks for is forgotten in the end.
type retry struct {
	failures int
	at       time.Time
}

// The backoff of failed copies doubles from minBackoff to maxBackoff.
const (
	minBackoff = time.Second
	maxBackoff = 5 * time.Minute
)

// A Config configures a Handler.
type Config struct {
	Workers     int // background workers, at least 1
	IdleHandles int // files that may stay open at the source without a user, because no tier has room for them
}

// New makes a handler. The caller calls Run, which does the background copying. Files can be
// opened before and without Run.
func New(levels *tiers.Hierarchy, names *metadata.Container, cfg Config, log *slog.Logger) *Handler {
	workers := cfg.Workers
	h := &Handler{
		levels: levels, names: names, log: log, workers: workers, files: files{keep: cfg.IdleHandles},
		remote:  levels.Source().Profile().Latency == drivers.LatencyRequest,
		demand:  newBuffers(max(16, min(2*workers, 64))),
		fills:   make(map[*metadata.Entry]*fill),
		retries: make(map[*metadata.Entry]retry),
	}
	h.queue = newQueue(h.few(), h.most())
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h
}

// few returns how many workers go on while a reader waits. A parallel file system
// that is asked for more at once keeps the reader waiting longer. An object store
// does not: each answer takes its time, whatever else is asked, and one stream
// does not fill the network.
func (h *Handler) few() int {
	if h.remote {
		return h.workers
	}
	return max(1, h.workers/4)
}

// most returns how many bytes the workers have under way at most. From an object
// store large files come in streams of many blocks, of which a few fill the
// network; with more of them each would be slower, also the one that a reader
// waits for. Small files are few bytes and mostly latency, so that all workers go
// on. 128 MiB are what 10 Gb/s bring in a tenth of a second; docs/performance.md has
// what was measured.
func (h *Handler) most() int64 {
	if h.remote {
		return 128 << 20
	}
	return math.MaxInt64
}

// Run copies in the background until ctx is done. It returns when all copies
// under way have ended; those not complete are thrown away. Files can still be
// opened and read after it, but no copies are made.
func (h *Handler) Run(ctx context.Context) {
	defer context.AfterFunc(ctx, h.stop)()
	defer context.AfterFunc(h.ctx, h.queue.close)()
	var workers sync.WaitGroup
	for range h.workers {
		workers.Go(h.work)
	}
	h.sweep()
	h.files.close()
	workers.Wait()
	h.mu.Lock()
	left := slices.Collect(maps.Values(h.fills)) // there will be no more
	h.mu.Unlock()
	for _, f := range left {
		f.abandon()
	}
	h.wg.Wait()
}

// sweep closes files that nobody needs open any more, until the handler is to
// stop.
func (h *Handler) sweep() {
	tick := time.NewTicker(linger / 2)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			h.files.sweep(now)
			h.ahead.prune(now)
			h.prune(now)
		case <-h.ctx.Done():
			return
		}
	}
}

// prune forgets failures that nobody has come back to.
func (h *Handler) prune(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.retries, func(_ *metadata.Entry, r retry) bool { return now.Sub(r.at) > maxBackoff })
}

// work is one background worker: it takes the next block of the fill that most
// needs it.
func (h *Handler) work() {
	buf, background := make([]byte, blockSize), drivers.Background(h.ctx)
	for {
		f, ok := h.queue.take()
		if !ok {
			return
		}
		f.begin()
		if taken := f.next(); taken == nil {
			h.queue.remove(f)
		} else if errors.Is(f.fetch(background, taken, buf), drivers.ErrAbandoned) {
			buf = make([]byte, blockSize)
		}
		h.queue.done(f)
	}
}

// An Outcome is how Place ended.
type Outcome int

// The outcomes of Place.
const (
	Placed  Outcome = iota // there is a copy on a tier
	Skipped                // no tier has room
	Failed                 // copying failed
)

// Place copies a file to a tier, and returns when it is there or will not be.
// It copies in the background, behind what readers ask for.
func (h *Handler) Place(ctx context.Context, e *metadata.Entry) (Outcome, error) {
	for {
		if e.Level() != tiers.AtSource || e.Size() == 0 {
			return Placed, nil
		}
		f, err := h.join(ctx, e, true)
		switch {
		case errors.Is(err, errSettled):
			continue
		case errors.Is(err, errNoRoom):
			return Skipped, nil
		case err != nil:
			return Failed, err
		}
		if err = f.wait(ctx); err == nil {
			err = f.result()
		}
		f.release()
		if err != nil {
			return Failed, err
		}
		return Placed, nil
	}
}

// errNoRoom is the error of a fill for which no tier has room now.
var errNoRoom = errors.New("no tier has room")

// errSettled is the error of a fill that was not needed: a tier turned out to
// have a copy.
var errSettled = errors.New("a copy was found")

// errBackoff is the error of a fill that failed lately.
var errBackoff = errors.New("copying failed lately")

// errStopped is the error of a fill that ended because the handler stops.
var errStopped = errors.New("placement has stopped")

// join returns the fill of e, starting it if there is none, with a reference
// that the caller gives back by release. Of all who call at once, one starts
// it. Insistent callers do not wait for the backoff of failed copies.
func (h *Handler) join(ctx context.Context, e *metadata.Entry, insistent bool) (*fill, error) {
	if !e.Claimed() && !e.Unverified() && !h.Fits(e.Size()) { // what recheck finds is the file, or gives room back
		h.skip(e)
		return nil, errNoRoom
	}
	if h.remote && !insistent {
		h.queue.wait(false) // already now, so that those who open files are counted
		defer h.queue.waited(false)
	}
	h.mu.Lock()
	f := h.fills[e]
	switch {
	case h.ctx.Err() != nil: // checked under the lock: Run ends all fills that it then sees
		h.mu.Unlock()
		return nil, errStopped
	case f != nil:
		if f.ahead && !isClosed(f.started) {
			h.wg.Go(f.begin) // the workers may have other things to do
		}
	case !insistent && !e.Stale() && time.Now().Before(h.retries[e].at):
		h.mu.Unlock()
		return nil, errBackoff
	case !e.Claim():
		h.mu.Unlock() // it was placed this moment, or is stale
		if e.Stale() {
			return nil, drivers.ErrChanged
		}
		return nil, errSettled
	default:
		f = newFill(h, e)
		f.opened = !insistent
		h.fills[e] = f
		h.wg.Go(f.begin)
	}
	f.retain()
	h.mu.Unlock()

	select {
	case <-f.started:
		if f.err != nil {
			f.release()
			return nil, f.err
		}
		return f, nil
	case <-ctx.Done():
		f.release()
		return nil, context.Cause(ctx)
	}
}

// reserve takes room for size bytes on the first of some tiers that has it. It
// returns nil if none has.
func (h *Handler) reserve(size int64, among []*tiers.Tier) (*tiers.Tier, *tiers.Reservation) {
	for _, t := range among {
		if room, ok := t.Reserve(h.ctx, size); ok {
			return t, room
		}
	}
	return nil, nil
}

// Fits reports whether some tier's quota leaves room for size bytes.
func (h *Handler) Fits(size int64) bool {
	for _, t := range h.levels.Tiers() {
		if t.Fits(size) {
			return true
		}
	}
	return false
}

// full reports whether no tier's quota leaves room for size bytes. While a tier
// is still being counted nothing can be said.
func (h *Handler) full(size int64) bool {
	for _, t := range h.levels.Tiers() {
		if !t.Scanned() || t.Fits(size) {
			return false
		}
	}
	return true
}

// skip counts e among the files that no tier has room for, once.
func (h *Handler) skip(e *metadata.Entry) {
	if h.full(e.Size()) && e.Skip() {
		atomic.AddInt64(&h.counters.Skipped, 1)
	}
}

// forget ends the handler's care for a fill, and the claim of one that is not
// published: both at once, so that join finds the one or can have the other.
// If the fill failed, its entry's next copy has to wait.
func (h *Handler) forget(f *fill, published, failed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.fills, f.entry)
	if !published {
		f.entry.Release()
	}
	if !failed {
		delete(h.retries, f.entry)
		return
	}
	r := h.retries[f.entry]
	pause := maxBackoff
	if r.failures < 16 {
		pause = min(minBackoff<<r.failures, maxBackoff)
	}
	h.retries[f.entry] = retry{r.failures + 1, time.Now().Add(pause)}
}

// Filling returns how many bytes of e the fill under way has copied, and
// reports whether there is one.
func (h *Handler) Filling(e *metadata.Entry) (int64, bool) {
	h.mu.Lock()
	f := h.fills[e]
	h.mu.Unlock()
	if f == nil {
		return 0, false
	}
	return f.present(), true
}

// Counters count what a handler has done since the daemon started. They only grow. The
// tags are those of tiers.TierCounters.
type Counters struct {
	Placed      int64 `json:"placed" metric:"placements_total" labels:"result=placed" help:"Copies committed." family:"Files to place, by result."`
	PlacedBytes int64 `json:"placed_bytes" metric:"placed_bytes_total" help:"Sizes of the copies committed."`
	Prefetched  int64 `json:"prefetched" metric:"prefetched_files_total" help:"Copies committed that were started before the first open of the file."`
	Skipped     int64 `json:"skipped" metric:"placements_total" labels:"result=skipped" help:"Files for which no tier had room."`
	Failed      int64 `json:"failed" metric:"placements_total" labels:"result=failed" help:"Copies that failed."`
}

// Fills describe the copies in flight at one moment.
type Fills struct {
	InFlight      int64 `json:"in_flight" metric:"fills_in_flight" help:"Copies in flight."`
	InFlightBytes int64 `json:"in_flight_bytes" metric:"fills_in_flight_bytes" help:"Sizes of the files whose copies are in flight."`
	Queued        int64 `json:"queued" metric:"fills_queued" help:"Copies with blocks that wait for a background worker."`
}

// Stats describes a handler at one moment.
type Stats struct {
	Counters
	Fills

	Kept      int64   // files of the source in the idle-handle cache
	Opens     []Opens // opens by level; Opens[0] at the source
	Lent      []Opens // those of them that the kernel reads by itself
	FillOpens Opens   // opens of files whose copies were in flight
}

// Opens counts how often files were opened.
type Opens struct {
	Files int64 // opens
	Bytes int64 // the sizes of the files
}

// add counts the open of a file of size bytes.
func (o *Opens) add(size int64) {
	atomic.AddInt64(&o.Files, 1)
	atomic.AddInt64(&o.Bytes, size)
}

// Stats returns what the handler has done so far.
func (h *Handler) Stats() Stats {
	n := len(h.levels.Tiers()) + 1
	opens, lent := drivers.Snapshot(&h.opens), drivers.Snapshot(&h.lent)
	s := Stats{
		Counters: drivers.Snapshot(&h.counters),
		Fills:    Fills{Queued: h.queue.len()},
		Kept:     h.files.len(),
		Opens:    opens[:n], Lent: lent[:n], FillOpens: drivers.Snapshot(&h.fillOpens),
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s.InFlight = int64(len(h.fills))
	for _, f := range h.fills {
		s.InFlightBytes += f.size
	}
	return s
}
