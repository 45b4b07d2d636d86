// Package metadata is the metadata container: the namespace of a dataset. It maps each
// logical path to the attributes of the file and to the level of its best copy.
//
// The namespace is loaded on demand: a name by one Stat of the source, a directory by one
// ReadDir, and the levels by the same request to each tier. Nothing is loaded in advance,
// so a mount costs the same for ten files and for ten million. Names and attributes are
// cached for a TTL. When they are next used after that, they are validated at the source.
//
// If the source is a drivers.Lister, such as an object store, names are found by listing: a
// lookup lists the directory. Concurrent lookups share one listing, and its result is
// cached. A single name is requested by Stat only if it is not cached and the listing takes
// too long, or if the name was invalidated.
//
// An Entry is one version of one file. When the source has another version, that version
// gets another Entry with another ID, and the old one becomes stale. File handles that are
// open on a stale entry continue to read the old version. No reader sees a mixture.
package metadata

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"path"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/tiers"
)

// A Container is the namespace of one dataset. Its methods may be called concurrently,
// except Close.
//
// Lock order: a directory, then a directory inside it, the pieces or the outdated parts; the entry
// table is last.
type Container struct {
	levels      *tiers.Hierarchy
	source      *tiers.Source
	byListing   bool // names are found by listing: the source is a drivers.Lister
	byName      bool // listings have no attributes: the source is a remote drivers.Namer
	ttl         time.Duration
	snapshotTTL time.Duration // see Options; at most ttl
	racy        time.Duration // age below which the times of a directory prove nothing
	log         *slog.Logger
	start       time.Time // the origin of now
	root        *Entry
	rootFile    rootFile
	roots       atomic.Uint32         // counts the replacements of the root
	distrusted  atomic.Uint32         // time when the source was last found to be another one, by now; 0: never
	top         atomic.Pointer[Entry] // see Top
	table       table
	pieceSize   int64 // see Options
	pieces      pieceTable
	snapshot    *Snapshot     // nil: there is none
	changes     atomic.Uint64 // see Changes
	overtaken   chan struct{} // see Overtaken; has room for one element
	warned      atomic.Uint32 // time of the last warning about the source, by now; 0: none
	warnedFull  atomic.Uint32 // the same about a file that is Unsized and has content
	outdated    outdatedParts
	hidesNames  atomic.Bool        // a name was found that a listing lacks, and that may be new
	unanswered  atomic.Uint32      // time when the source last did not confirm that a name is missing, by now; 0: never
	forgot      atomic.Int64       // time when the kernel was last to forget missing names, in nanoseconds since start; 0: never
	sweeps      SweepCounters      // updated atomically
	xattrs      replyCache[[]byte] // nil: the attribute does not exist
	holes       replyCache[[]drivers.Hole]
	accesses    replyCache[struct{}] // requests in flight; see Permit
	mayDeny     bool                 // the source is a drivers.Permitter
	waits       tiers.Histogram      // see Waits

	background background // runs the listings, if names are found by listing
}

// Options configure a Container. The zero value caches nothing.
type Options struct {
	TTL      time.Duration // how long names and attributes are cached before they are validated
	Snapshot *Snapshot     // the metadata snapshot to start from, which is of the same source; nil: none

	// SnapshotTTL is how long the attributes of files in the snapshot are cached, from the first
	// use of their directory, if the times of the directory prove that no name in it has changed.
	// If it is 0, or names are found by listing, all TTLs of the snapshot continue as if this
	// container had made the requests.
	SnapshotTTL time.Duration

	// RacyWindow is the age of the times of a directory below which they do not prove that no name
	// in it has changed: the granularity of these times, and the difference between the clocks of
	// the source and of this machine.
	RacyWindow time.Duration

	// Generation is the name of the directory in the root of the source that is shown first as the root
	// of the mount, if the source holds generations; "": it holds none.
	Generation string

	// PieceSize is the size of a file above which it is divided into pieces of this size. It is a
	// multiple of drivers.ChecksumBlock; 0: no file is divided.
	PieceSize int64
}

// New returns the namespace of the source of levels. It makes one request to the source,
// for the root. The caller closes the container and then the snapshot.
func New(ctx context.Context, levels *tiers.Hierarchy, opts Options, log *slog.Logger) (*Container, error) {
	c := &Container{
		levels: levels,
		source: levels.Source(),
		ttl:    opts.TTL,
		racy:   opts.RacyWindow,

		pieceSize: opts.PieceSize,
		overtaken: make(chan struct{}, 1),
		log:       log,
		start:     time.Now().Add(-maxSnapshotAge),
	}
	c.byListing = c.source.IsLister()
	c.mayDeny = c.source.DeniesFiles()
	if !c.byListing {
		c.snapshotTTL = min(opts.SnapshotTTL, opts.TTL)
	}
	c.byName = !c.byListing && c.source.IsNamer() && !c.source.Profile().Local
	c.background.ctx, c.background.stop = context.WithCancelCause(context.Background())
	info, err := c.statRoot(ctx)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("source: %w", syscall.ENOTDIR)
	}
	c.root = makeEntry(nil, info, c.now())
	c.table.add(c.root)
	c.root.lookups.Store(1) // the kernel never forgets the root
	if opts.Snapshot != nil {
		c.useSnapshot(opts.Snapshot)
	}
	if err := c.useGeneration(ctx, opts.Generation); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close cancels the listings in flight, and waits until they have returned. No other method may be
// called after it.
func (c *Container) Close() { c.background.close() }

// Waits records how long the requests of the kernel for names and attributes waited: those whose
// reply was not cached. The caller of the other methods observes them.
func (c *Container) Waits() *tiers.Histogram { return &c.waits }

// Root returns the root directory of the source. Its ID is 1.
func (c *Container) Root() *Entry { return c.root }

// Get returns the entry with an ID, or nil if there is none or it was forgotten.
func (c *Container) Get(id uint64) *Entry { return c.table.get(id) }

// Len returns the number of entries that are loaded.
func (c *Container) Len() int { return int(c.table.live.Load()) }

// Bytes returns the total size of the regular files that are loaded and whose attributes are known.
// Like Len, it includes stale entries that the kernel has not forgotten.
func (c *Container) Bytes() int64 { return c.table.bytes.Load() }

// The container's clock counts ticks in 32 bits, which last 13 years. It starts a year before
// the container is made, because a snapshot has entries that were validated before that.
const (
	tick           = 100 * time.Millisecond
	maxSnapshotAge = 365 * 24 * time.Hour
)

// now returns the time in ticks since c.start. It is never 0.
func (c *Container) now() uint32 { return uint32(time.Since(c.start)/tick) + 1 }

// since returns the time that has passed since then, a result of now.
func (c *Container) since(then uint32) time.Duration { return time.Duration(c.now()-then) * tick }

// fresh reports whether then, a time of validation, is less than the TTL ago, and after the source was
// last distrusted. 0 means never.
func (c *Container) fresh(then uint32) bool {
	return then != 0 && then > c.distrusted.Load() && c.since(then) < c.ttl
}

// ttlsUntil returns how many TTLs had passed at a time.
func (c *Container) ttlsUntil(then uint32) uint32 {
	return then / uint32(min(max(c.ttl/tick, 1), math.MaxUint32))
}

// TTL returns for how much longer the attributes of e are cached. The kernel must not cache
// them for longer.
func (c *Container) TTL(e *Entry) time.Duration {
	validated := e.validated.Load()
	if !c.fresh(validated) {
		return 0
	}
	return c.ttl - c.since(validated)
}

// warnInterval is the time between two warnings. Without it, an outage of the source would
// be logged once for each name.
const warnInterval = 10 * time.Second

// warn logs that a request to the source for e has failed.
func (c *Container) warn(e *Entry, err error) {
	if c.mayWarn(&c.warned) {
		c.log.Log(context.Background(), drivers.WarnLevel(err), "request to the source failed; serving cached metadata", "path", e.Path(), "err", err)
	}
}

// mayWarn reports whether the last warning of a kind is long enough ago, and records another one.
func (c *Container) mayWarn(warned *atomic.Uint32) bool {
	last := warned.Load()
	return (last == 0 || c.since(last) >= warnInterval) && warned.CompareAndSwap(last, c.now())
}

// Readlink returns the target of a symbolic link at the source.
func (c *Container) Readlink(ctx context.Context, e *Entry) (string, error) {
	return c.source.Readlink(ctx, e.Path())
}

// Statfs returns the size of the source's storage.
func (c *Container) Statfs(ctx context.Context) (drivers.Statfs, error) {
	return c.source.Statfs(ctx)
}

// Resolve returns the entry of a path below the root, such as "train/a.jpg", or of "."
// itself. It does not follow symbolic links.
func (c *Container) Resolve(ctx context.Context, name string) (*Entry, error) {
	e := c.root
	if name = path.Clean(name); name == "." {
		return e, nil
	}
	for elem := range strings.SplitSeq(name, "/") {
		var err error
		if e, err = c.Lookup(ctx, e, elem); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return e, nil
}
