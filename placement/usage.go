package placement

import (
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// SizeBounds are the upper bounds of the buckets of Sizes. The last bucket has none.
var SizeBounds = [...]int64{4 << 10, 16 << 10, 64 << 10, 128 << 10, 512 << 10, 1 << 20, 8 << 20, 64 << 20, 1 << 30}

// Sizes counts sizes in bytes by SizeBounds: those up to the bound, and above the one before.
type Sizes [len(SizeBounds) + 1]int64

// Add counts a size. It may be called concurrently.
func (s *Sizes) Add(size int64) {
	i := 0
	for i < len(SizeBounds) && size > SizeBounds[i] {
		i++
	}
	atomic.AddInt64(&s[i], 1)
}

// Usage is how readers have used the mount since the daemon started. Of reads in passthrough, and of
// reads from the page cache, the daemon knows nothing.
type Usage struct {
	ActiveSeconds int64 `json:"active_seconds" help:"Seconds in which readers opened or read something, or waited for that."`

	Files     int64 `json:"files" help:"Different files that were opened."`
	InOrder   int64 `json:"in_order" help:"Opens whose name follows that of the open before, in the same directory."`
	Neighbors int64 `json:"neighbors" help:"Opens in the directory of the open before, of another file."`

	Spliced    int64 `json:"spliced" help:"Reads whose offset is not known, because the data was spliced."`
	Sequential int64 `json:"sequential" help:"Reads that begin a file, or begin within 2 MiB of the end of the read before."`
	Random     int64 `json:"random" help:"Other reads."`

	FileSizes    Sizes `json:"file_sizes" help:"Opens by the size of the file: up to 4 KiB, 16 KiB, 64 KiB, 128 KiB, 512 KiB, 1 MiB, 8 MiB, 64 MiB, 1 GiB, and more."`
	RequestSizes Sizes `json:"request_sizes" help:"Reads by the number of bytes, in the same steps."`
}

// usage records how readers use the mount. Its counters are updated atomically.
type usage struct {
	opens       [tiers.MaxTiers + 1]Opens // by level
	passthrough [tiers.MaxTiers + 1]Opens // those that the kernel reads without the daemon; by level
	fills       Opens                     // of files whose copies are in flight
	counts      Usage

	lastActive atomic.Int64 // the last second that ActiveSeconds has, since 1970

	mu   panics.Mutex    // guards the following
	last *metadata.Entry // of the last open
}

// active records that there was a reader from a time on until now.
func (u *usage) active(from time.Time) {
	now := time.Now().Unix()
	for last := u.lastActive.Load(); last < now; last = u.lastActive.Load() {
		if u.lastActive.CompareAndSwap(last, now) {
			atomic.AddInt64(&u.counts.ActiveSeconds, now-max(last, from.Unix()-1))
			return
		}
	}
}

// opened records an open of e by a reader, which has begun at a time. It reports whether that is the first.
func (u *usage) opened(e *metadata.Entry, began time.Time) (first bool) {
	if first = e.MarkOpened(); first {
		atomic.AddInt64(&u.counts.Files, 1)
	}
	u.active(began)
	u.counts.FileSizes.Add(e.Size())
	u.mu.Lock()
	defer u.mu.Unlock()
	if last := u.last; last != nil && last != e && last.Parent() == e.Parent() {
		atomic.AddInt64(&u.counts.Neighbors, 1)
		if last.Name() < e.Name() {
			atomic.AddInt64(&u.counts.InOrder, 1)
		}
	}
	u.last = e
	return first
}

// near is the distance from the end of the last read within which a read is sequential: the kernel sends
// the requests of its read-ahead in parallel, and they arrive out of order.
const near = 2 << 20

// IsSequential reports whether a read at an offset begins a file, or goes on near the end of the last read
// of it.
func IsSequential(off, end int64) bool { return off == 0 || off >= end-near && off <= end+near }

// read records that a reader got n bytes of f in a view, by a read that has begun at a time. off is -1 if
// they were spliced.
func (u *usage) read(f *file, v *view, off int64, n int, began time.Time) {
	if n <= 0 || f.forPeer {
		return
	}
	if !v.inPieces { // otherwise the files of the pieces count their bytes
		atomic.AddInt64(&u.at(f.handler, v).Read, int64(n))
	}
	if f.entry.IsPiece() {
		return
	}
	u.active(began)
	u.counts.RequestSizes.Add(int64(n))
	kind := &u.counts.Random
	switch {
	case off < 0:
		kind = &u.counts.Spliced
	case IsSequential(off, f.end.Load()):
		kind = &u.counts.Sequential
	}
	atomic.AddInt64(kind, 1)
	if off >= 0 {
		f.end.Store(off + int64(n))
	}
}

// at returns the counters of the place of a view.
func (u *usage) at(h *Handler, v *view) *Opens {
	switch {
	case v.fill != nil:
		return &u.fills
	case v.atPeers:
		return &h.peers.opens
	}
	return &u.opens[v.level]
}
