package placement

import (
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/placement/observe"
	"github.com/milkweedfs/milkweed/tiers"
)

// SizeBounds are the upper bounds of the buckets of Usage.FileSizes and Usage.RequestSizes. The last
// bucket has none.
var SizeBounds = [...]int64{4 << 10, 16 << 10, 64 << 10, 128 << 10, 512 << 10, 1 << 20, 8 << 20, 64 << 20, 1 << 30}

// Sizes counts sizes by SizeBounds: those up to the bound, and above the one before.
type Sizes [len(SizeBounds) + 1]int64

// add counts a size; it may be called concurrently.
func (s *Sizes) add(size int64) {
	i := 0
	for i < len(SizeBounds) && size > SizeBounds[i] {
		i++
	}
	atomic.AddInt64(&s[i], 1)
}

// load returns the counters now.
func (s *Sizes) load() (now Sizes) {
	for i := range s {
		now[i] = atomic.LoadInt64(&s[i])
	}
	return now
}

// Usage is how readers have used the mount since the daemon started. Of reads in passthrough, and of
// reads from the page cache, the daemon knows nothing.
type Usage struct {
	ActiveSeconds int64 `json:"active_seconds" help:"Seconds in which readers opened or read something."`

	Files       int64 `json:"files" help:"Different files opened."`
	FilesBytes  int64 `json:"files_bytes" help:"Sizes of these files, each counted once."`
	DaemonBytes int64 `json:"daemon_files_bytes" help:"Sizes of those of these files that were never opened in passthrough: the daemon has seen all of their reads, except from the page cache."`
	InOrder     int64 `json:"in_order" help:"Opens whose path follows that of the open before, in the same directory."`
	Neighbors   int64 `json:"neighbors" help:"Opens in the directory of the open before."`

	Spliced    int64 `json:"spliced" help:"Reads whose offset is not known, because the data was spliced."`
	Sequential int64 `json:"sequential" help:"Reads that begin a file, or begin within 2 MiB of the end of the read before."`
	Random     int64 `json:"random" help:"Other reads."`

	FileSizes    Sizes `json:"file_sizes" help:"Opens by the size of the file: up to 4 KiB, 16 KiB, 64 KiB, 128 KiB, 512 KiB, 1 MiB, 8 MiB, 64 MiB, 1 GiB, and more."`
	RequestSizes Sizes `json:"request_sizes" help:"Reads by the number of bytes, in the same steps."`
}

// usage records how readers use the mount. The rest of the package counts opens by level in it.
type usage struct {
	opens       [tiers.MaxTiers + 1]observe.Opens // by level; updated atomically, as the following are
	passthrough [tiers.MaxTiers + 1]observe.Opens // by level
	fillOpens   observe.Opens

	spliced, sequential, random int64
	fileSizes, requestSizes     Sizes

	lastActive, activeSeconds atomic.Int64 // in seconds since 1970; a number of different values of it

	mu     panics.Mutex    // guards the following
	last   *metadata.Entry // of the last open
	seen   idSet           // files opened
	direct idSet           // files opened in passthrough
	counts Usage           // what the opens say
}

// active records that there is a reader now.
func (u *usage) active() {
	now := time.Now().Unix()
	if last := u.lastActive.Load(); last != now && u.lastActive.CompareAndSwap(last, now) {
		u.activeSeconds.Add(1)
	}
}

// opened records an open of e by a reader.
func (u *usage) opened(e *metadata.Entry) {
	u.active()
	u.fileSizes.add(e.Size())
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.seen.add(e.ID()) {
		u.counts.Files++
		u.counts.FilesBytes += e.Size()
		u.counts.DaemonBytes += e.Size()
	}
	if last := u.last; last != nil && last != e && last.Parent() == e.Parent() {
		u.counts.Neighbors++
		if last.Name() < e.Name() {
			u.counts.InOrder++
		}
	}
	u.last = e
}

// openedDirectly records that the kernel reads an open of e on a level without the daemon.
func (u *usage) openedDirectly(e *metadata.Entry, l tiers.Level) {
	u.passthrough[l].Add(e.Size())
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.direct.add(e.ID()) && u.seen.has(e.ID()) {
		u.counts.DaemonBytes -= e.Size()
	}
}

// wasOpened reports whether a reader has opened e.
func (u *usage) wasOpened(e *metadata.Entry) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.seen.has(e.ID())
}

// near is the distance from the end of the last read within which a read is sequential: the kernel sends
// the requests of its read-ahead in parallel, and they arrive out of order.
const near = 2 << 20

// read records a read of n bytes of f in v. off is -1 if it was spliced.
func (u *usage) read(f *file, v *view, off int64, n int) {
	if n <= 0 || f.forPeer {
		return
	}
	if !v.inPieces { // otherwise the files of the pieces count their bytes
		u.place(f.handler, v).AddRead(int64(n))
	}
	if f.entry.File() != f.entry {
		return
	}
	u.active()
	u.requestSizes.add(int64(n))
	end := f.end.Load()
	kind := &u.random
	switch {
	case off < 0:
		kind = &u.spliced
	case off == 0, off >= end-near && off <= end+near:
		kind = &u.sequential
	}
	atomic.AddInt64(kind, 1)
	if off >= 0 {
		f.end.Store(off + int64(n))
	}
}

// place returns the counters of the place of a view.
func (u *usage) place(h *Handler, v *view) *observe.Opens {
	switch {
	case v.fill != nil:
		return &u.fillOpens
	case v.atPeers:
		return &h.peers.opens
	}
	return &u.opens[v.level]
}

// now returns the Usage.
func (u *usage) now() Usage {
	u.mu.Lock()
	now := u.counts
	u.mu.Unlock()
	now.ActiveSeconds = u.activeSeconds.Load()
	now.Spliced, now.Sequential, now.Random = atomic.LoadInt64(&u.spliced), atomic.LoadInt64(&u.sequential), atomic.LoadInt64(&u.random)
	now.FileSizes, now.RequestSizes = u.fileSizes.load(), u.requestSizes.load()
	return now
}
