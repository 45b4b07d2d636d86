// Package placement decides which files are copied to which tier, copies them, and opens
// files on the level where they are best read.
//
// The first open of a file that is only at the source starts a fill (fill.go). The fastest
// tier that has room for the file reserves it, and the file is copied there block by block
// (blocks.go, fetch.go): each block when a reader needs it, and the others by a pool of
// background workers (queue.go), as many at a time as do not slow the source down (gate.go,
// concurrency.go). Of a large file, the others are copied when readers have shown that they want
// them (lazy.go). A fill is read while it is in flight. A reader
// therefore waits only for the blocks that it requests, and each block is fetched at most
// once. Some files are copied before they are opened (predictor.go, plan.go). Placed copies are
// never evicted. A file for which no tier has room is read from the source. With peers, the nodes of
// a job fill each file from the source once (peers.go).
//
// Memory: a block is 1 MiB, and is held only while it is copied. A stream of several blocks
// holds one at a time. At most workers + max(16, min(2·workers, 64)) blocks are held at
// once, which is 128 MiB with 64 workers, the default. Requests that a hung source does not
// answer hold at most 320 in addition (stalls.go). With peers, requests to them hold up to 48 blocks
// and 320 in the same way. Most of these take no memory: a new block has
// none before the source writes to it.
package placement

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/drivers/readahead"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// A Handler places the files of one dataset. Its methods may be called concurrently.
//
// Lock order: Handler.mu, then racyFiles.mu; a table shard, then the idle-handle cache; watch.mu,
// then queue.mu, then gate.mu; Handler.mu, then queue.mu; window.mu, then plan.mu, queue.mu or
// Handler.mu; the lock of a predictor, then spare.mu or shares.mu; Handler.mu, then that of a block map.
// controller.mu, stalls.mu, spare.mu, shares.mu, lazyFills.mu and usage.mu are taken last. epochs.mu is held without
// any other lock of this package.
type Handler struct {
	levels      *tiers.Hierarchy
	names       *metadata.Container
	log         *slog.Logger
	stride      int64 // bytes that one request to the source best serves; 0: any number
	objectStore bool  // the source has drivers.LatencyRequest

	gate      *gate
	queue     *queue
	peers     *peers     // nil: there are none
	inOrder   *inOrder   // of files that are about to be opened
	scattered *scattered // of files that may be opened at some time
	plans     *plans
	pieces    pieceFeed
	large     *lazyFills
	window    *planWindow
	files     *table
	sources   sources         // of files that are read in pieces
	ahead     *readahead.Pool // of files that are read from the source
	bad       badCopies
	racy      *racyFiles
	commits   chan struct{} // has an element for each commit in progress
	checks    *checks       // of copies that the kernel may then read directly
	scrubs    scrubs
	waits     waits
	epochs    epochs
	usage     usage
	traces    traces

	exchanges panics.Mutex              // held while the exchange starts or ends
	exchange  atomic.Pointer[exchanger] // nil: there is none

	ctx  context.Context // done when the handler is to stop
	stop context.CancelFunc
	wg   sync.WaitGroup // goroutines that Run waits for
	pool sync.WaitGroup // workers

	staff staff

	mu       panics.Mutex                // guards the following
	fills    map[*metadata.Entry]*fill   // by entry; a claim without a fill verifies or removes a copy
	backoffs map[*metadata.Entry]backoff // of the entries whose last copy failed

	// Counters, updated atomically.
	counters  Counters
	exchanged ExchangeCounters
}

// A Config configures a Handler.
type Config struct {
	Workers     int // background workers, 1 to MaxWorkers
	IdleHandles int // open files of the source without a user that are kept, if no tier has room for them

	// ReadAhead is how many bytes of files that no tier has room for are read ahead into memory,
	// unless the kernel reads ahead by itself (drivers.Profile.ReadsAhead).
	ReadAhead int64

	// Passthrough means that the kernel reads copies directly. Copies are then compared with their
	// checksums as soon as they are placed; otherwise when they are read.
	Passthrough bool

	// RacyWindow is the age of a modification time or change time of the source below which the
	// file is not copied: the granularity of these times, and the difference between the clocks of
	// the source and of this machine. 0: the age does not matter.
	RacyWindow time.Duration
}

// New makes a handler. The caller calls Run, which does the background copying. Files can be
// opened before and without Run.
func New(levels *tiers.Hierarchy, names *metadata.Container, cfg Config, log *slog.Logger) *Handler {
	source := levels.Source().Profile()
	ahead, atPeers := cfg.ReadAhead, cfg.ReadAhead
	switch {
	case source.ReadsAhead:
		ahead = 0
	case levels.Peers() != nil:
		ahead, atPeers = ahead/2, ahead/2
	}
	h := &Handler{
		levels: levels, names: names, log: log,
		stride:      source.Stride,
		objectStore: source.Latency == drivers.LatencyRequest,
		gate:        newGate(cfg.Workers, source),
		bad:         badCopies{ttl: sourceTTL},
		inOrder:     newInOrder(names),
		plans:       newPlans(),
		files:       newTable(cfg.IdleHandles),
		ahead:       readahead.NewPool(ahead, source),
		racy:        newRacyFiles(cfg.RacyWindow),
		commits:     make(chan struct{}, maxCommits),
		checks:      newChecks(cfg.Passthrough),
		large:       newLazyFills(cfg.IdleHandles),
		fills:       make(map[*metadata.Entry]*fill),
		backoffs:    make(map[*metadata.Entry]backoff),
	}
	h.scattered = newScattered(names, waste, h.hasSpareRoom)
	h.window = newPlanWindow(h, cfg.IdleHandles/2)
	if h.objectStore {
		h.scattered.waste = requestWaste
	}
	h.epochs.totals = h.totals
	levels.OnScarcity(func() {
		h.files.relieve()
		h.relieveLazy()
	})
	h.queue = newQueue(h.gate, h.nextInOrder, h.nextPieceOrPlanned, h.nextScattered)
	if p := levels.Peers(); p != nil {
		h.peers = newPeers(p, cfg.Workers, atPeers)
		h.scattered.mine = h.mayPrefetch
		h.scattered.shares.off = true // the nodes read their shares of the dataset together
	}
	h.staff.wanted.Store(int64(cfg.Workers))
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h
}

// Run copies in the background until ctx is done. It returns when no copy is in flight any
// more; incomplete copies are discarded. Files can still be opened and read afterwards, but
// no copies are made.
func (h *Handler) Run(ctx context.Context) {
	defer context.AfterFunc(ctx, h.stop)()
	defer context.AfterFunc(h.ctx, h.queue.close)()
	h.startWorkers()
	if h.peers != nil {
		defer context.AfterFunc(h.ctx, h.peers.queue.close)()
		h.pool.Go(func() { panics.Repeat(h.ctx, h.runCensus) })
	}
	h.pool.Go(func() { panics.Repeat(h.ctx, h.checkCopies) })
	h.pool.Go(func() { panics.Repeat(h.ctx, h.window.run) })
	panics.Repeat(h.ctx, h.sweep)
	h.StopExchange()
	h.files.close()
	h.endWorkers()
	h.mu.Lock()
	left := slices.Collect(maps.Values(h.fills)) // the context is done, so that there will be no more
	h.mu.Unlock()
	for _, f := range left {
		f.abandon()
	}
	h.wg.Wait()
}

// sweep closes idle files and drops state that is of no use any more, until the handler is to
// stop. Files are closed on other goroutines, since a device may hang.
func (h *Handler) sweep() {
	tick := time.NewTicker(recentAge / 2)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			h.wg.Go(func() {
				defer panics.Contain()
				h.files.sweep(now)
			})
			h.wg.Go(func() {
				defer panics.Contain()
				h.settleRacy(now)
			})
			h.wg.Go(func() {
				defer panics.Contain()
				h.sweepLazy(now)
			})
			h.inOrder.prune(now)
			h.scattered.prune(now)
			h.plans.prune(now)
			if h.plans.active() { // a tier may have been scanned, or may work again
				h.queue.feedPlanned()
			}
			h.large.prune()
			h.pruneBackoffs(now)
			h.bad.prune(now)
		case <-h.ctx.Done():
			return
		}
	}
}
