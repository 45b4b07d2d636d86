package placement

import (
	"container/list"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/drivers/sequential"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// Of a large file, readers may want a part: the footer and two columns of a Parquet file, a sample of an
// HDF5 file, the index of an archive. The fill that the first read of such a file begins is lazy: it
// fetches the units that readers ask for, and few others, and takes room as they arrive. When the file is
// wanted, the fill becomes one like others. A lazy fill that ends is discarded, like every incomplete copy.
//
// A file is wanted if readers ask for wantedRun bytes in sequence, or for bytes of an eighth of its blocks;
// and if it is placed on request, or is in the plan. If its tier has no room for the rest, the lazy fill
// fails: the next one finds another tier, or the file is read at the source. If most of the large files that
// readers have begun in a directory were wanted by them, others are copied as a whole from their open on,
// and are predicted. Files whose copies were complete before they were opened tell nothing about that.
//
// A fill is not lazy with peers, nor if the SHA-256 of the file is known: only the whole file shows that
// it is the right one.

// The rules of lazy fills.
const (
	lazyFrom    = 8 << 20  // bytes of a file above which it is large
	wantedRun   = 4 << 20  // bytes asked for in sequence, of which the kernel may have read 1 MiB ahead
	wantedShare = 8        // one of so many blocks is enough
	wantedLeast = 8        // blocks, in a file of fewer than 64
	runGap      = 1 << 20  // between requests of a run, which overtake each other
	growMost    = 64 << 20 // bytes by which the room grows at most

	maxLazy   = 4096 // lazy fills: each has two open files
	lazyTries = 16   // of dropping one, if there are too many
	habitSize = 64   // large files after which the earlier ones count half
)

// An interest is what readers have asked for of a large file, in one fill. Its methods may be called
// concurrently.
type interest struct {
	lazy    atomic.Bool   // the fill is lazy; set before it starts, and not again after it was reset
	wanted  atomic.Bool   // readers want the file; not reset
	growing chan struct{} // of capacity 1; the goroutine that has sent to it may extend the room of a lazy fill

	elem *list.Element // in lazyFills.lru, or nil; guarded by lazyFills.mu
	used time.Time     // when the file was opened, or was found to be open; guarded by lazyFills.mu

	mu     panics.Mutex                 // guards the following
	runs   sequential.Tracker[coverage] // of offsets
	asked  []uint64                     // a bit for each block of which bytes were asked for
	blocks int                          // the number of these
}

// A coverage is how much of a run readers have asked for, and up to where.
type coverage struct{ bytes, end int64 }

// newInterest returns the interest in a file of some size, or nil if it is not large.
func newInterest(size int64) *interest {
	if size <= lazyFrom {
		return nil
	}
	return &interest{
		growing: make(chan struct{}, 1),
		runs:    sequential.Tracker[coverage]{Max: crowd, Behind: runGap, Ahead: runGap},
		asked:   make([]uint64, (blocks(size)+63)/64),
	}
}

// record records that a reader asks for n bytes at an offset of a file of a number of blocks. It returns
// how many bytes from there the reader is expected to ask for; and reports whether nothing was asked for
// before, and whether the file is wanted since this request.
//
// A reader that goes on in sequence is expected to ask for as many bytes as it has so far, and one that leaves
// units out for none. One that begins elsewhere, as with the next sample, is expected to ask for a typical run.
func (i *interest) record(off, n int64, of int) (expected int64, first, wanted bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	first = i.blocks == 0
	run, continues := i.runs.Access(off, off+n)
	follows := off <= run.Data.end+unitSize
	run.Data.bytes += max(0, off+n-max(off, run.Data.end))
	run.Data.end = run.Next
	for b := off / blockSize; b <= (off+n-1)/blockSize; b++ {
		if bit := uint64(1) << (b % 64); i.asked[b/64]&bit == 0 {
			i.asked[b/64] |= bit
			i.blocks++
		}
	}
	wanted = run.Data.bytes >= wantedRun || i.blocks >= max(of/wantedShare, wantedLeast)
	switch {
	case !continues:
		expected = i.typical()
	case follows:
		expected = run.Data.bytes
	}
	return expected, first, wanted && !i.wanted.Swap(wanted)
}

// typical returns the length of a typical run in bytes: the lower median of those before the last one. It does
// not depend on an index that is read now and then, or on a few runs that other readers have just begun. It is
// 0 before there are two. i.mu must be held.
func (i *interest) typical() int64 {
	runs := i.runs.Streams()
	lengths := make([]int64, len(runs)-1)
	for r := range lengths {
		lengths[r] = runs[r].Data.bytes
	}
	if len(lengths) < 2 {
		return 0
	}
	slices.Sort(lengths)
	return lengths[(len(lengths)-1)/2]
}

// isLazy reports whether f fetches only what readers ask for.
func (f *fill) isLazy() bool { return f.interest != nil && f.interest.lazy.Load() }

// isPartial reports whether f may fetch less than a block for a reader. Content that is known before is compared
// by blocks.
func (f *fill) isPartial() bool { return f.interest != nil && f.pinned == nil }

// hasParts reports whether f is lazy, and has started.
func (f *fill) hasParts() bool { return f.isLazy() && isClosed(f.started) && f.err == nil }

// asked is called when a reader asks for n bytes at an offset, which are in the file. It returns the offset
// up to which a request for units goes if it does not have all of them: as far as the reader is expected to
// read, but at most a block. If the reader goes on in sequence, each request is twice as long as the one before.
func (f *fill) asked(off, n int64) (ahead int64) {
	i := f.interest
	if i == nil || f.blocks.complete.Load() && i.wanted.Load() { // nothing will be fetched, or learned
		return off + n
	}
	expected, first, wanted := i.record(off, n, blocks(f.size))
	if first || wanted {
		f.handler.large.learn(f.entry, first, wanted)
	}
	if wanted && i.lazy.Load() {
		f.want()
	}
	return min(off+max(n, min(expected, blockSize)), f.size)
}

// want is fetchRest on another goroutine.
func (f *fill) want() {
	f.refs.Acquire()
	f.handler.wg.Go(func() {
		defer panics.Contain()
		defer f.release()
		f.fetchRest()
	})
}

// fetchRest lets f fetch the rest of the file, if it is lazy. If its tier has no room for that, f fails
// with errNoRoom. The caller holds a reference, and f has started.
func (f *fill) fetchRest() {
	if !f.isLazy() {
		return
	}
	i := f.interest
	i.growing <- struct{}{}
	defer func() { <-i.growing }()
	if !f.room.Extend(f.handler.ctx, f.size) {
		f.fail(errNoRoom)
		return
	}
	f.handler.large.remove(f)
	if i.lazy.Swap(false) {
		f.enqueue()
	}
}

// grow takes room for the blocks of which a lazy fill has parts, or fetches some, and reports success. Each
// time asks the tier; therefore it doubles the room if it can, up to growMost.
func (f *fill) grow() bool {
	if !f.isLazy() {
		return true
	}
	f.interest.growing <- struct{}{}
	defer func() { <-f.interest.growing }()
	need := f.blocks.room()
	return f.room.Extend(f.handler.ctx, min(lazyRoom(need), f.size)) || f.room.Extend(f.handler.ctx, min(need, f.size))
}

// lazyRoom returns the room that a lazy fill takes that needs some of it.
func lazyRoom(need int64) int64 {
	room := int64(blockSize)
	for room < need {
		room += min(room, growMost)
	}
	return room
}

// write writes what has arrived, at an offset of f, to the copy.
func (f *fill) write(p []byte, off int64) error {
	if !f.grow() {
		return errNoRoom
	}
	if _, err := f.copy.WriteAt(p, off); err != nil {
		return err
	}
	if f.isLazy() {
		f.room.Wrote(int64(len(p)))
	}
	return nil
}

// isOld reports whether f will read at the source what it may have opened there long ago.
func (f *fill) isOld() bool {
	return f.isLazy() && !f.blocks.complete.Load() && time.Since(f.opened) >= sourceTTL
}

// reserve reserves room for f on the first of some tiers that has room for the whole copy: for a lazy
// fill, that of one block. It returns nil if none has.
func (f *fill) reserve(among []*tiers.Tier) (*tiers.Tier, *tiers.Reservation) {
	t, room := f.handler.reserve(f.size, among)
	if t != nil && f.isLazy() {
		room.Shrink(blockSize)
	}
	return t, room
}

// lazyFills are the lazy fills of a handler, and what readers have done with large files before. The
// methods may be called concurrently.
type lazyFills struct {
	max int

	mu   panics.Mutex        // guards the following
	lru  list.List           // of *fill: the lazy ones, the least recently opened one first
	dirs perDirectory[habit] // what readers do with the large files of a directory
	all  habit               // with those of all directories
}

// A habit counts the large files that readers have begun to read, and those of them that were wanted.
type habit struct{ begun, wanted int }

func newLazyFills(handles int) *lazyFills {
	return &lazyFills{max: max(1, min(handles/8, maxLazy)), dirs: make(perDirectory[habit])}
}

// add adds what a reader has done with a file.
func (h *habit) add(begun, wanted bool) {
	if begun {
		h.begun++
	}
	if wanted {
		h.wanted++
	}
	if h.begun > habitSize {
		h.begun, h.wanted = h.begun/2, h.wanted/2
	}
}

// isWhole reports whether most files were wanted.
func (h *habit) isWhole() bool { return h.wanted > 0 && 2*h.wanted >= h.begun }

// learn records what a reader has done with a large file.
func (l *lazyFills) learn(e *metadata.Entry, begun, wanted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dirs.of(e.Parent()).add(begun, wanted)
	l.all.add(begun, wanted)
}

// add makes f, which has not started, lazy, unless the readers of its directory want whole files.
func (l *lazyFills) add(f *fill) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.dirs.get(f.entry.Parent()); h != nil && h.isWhole() {
		return
	}
	i := f.interest
	i.lazy.Store(true)
	i.elem, i.used = l.lru.PushBack(f), time.Now()
}

// touch records that f is in use, if it is lazy.
func (l *lazyFills) touch(f *fill) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := f.interest; i.elem != nil {
		l.lru.MoveToBack(i.elem)
		i.used = time.Now()
	}
}

// remove removes f, if it is there.
func (l *lazyFills) remove(f *fill) {
	if f.interest == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := f.interest; i.elem != nil {
		l.lru.Remove(i.elem)
		i.elem = nil
	}
}

// list lists the lazy fills.
func (l *lazyFills) list() (all []*fill) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := l.lru.Front(); e != nil; e = e.Next() {
		all = append(all, e.Value.(*fill))
	}
	return all
}

// surplus returns the least recently opened lazy fill if there are too many, or nil.
func (l *lazyFills) surplus() *fill {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lru.Len() <= l.max {
		return nil
	}
	return l.lru.Front().Value.(*fill)
}

// isOver reports whether a lazy fill is of no use any more, unless it has users.
func (l *lazyFills) isOver(f *fill, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return f.entry.Stale() || now.Sub(f.interest.used) > maxIdle
}

// predicts reports whether e may be copied before it is opened: it is not large, or readers want the
// large files of its directory or, if they have begun none there, of others.
func (l *lazyFills) predicts(e *metadata.Entry) bool {
	if e.Size() <= lazyFrom {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.dirs.get(e.Parent())
	if h == nil {
		h = &l.all
	}
	return h.isWhole()
}

// prune forgets directories that no longer exist.
func (l *lazyFills) prune() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dirs.prune()
}

// mayPredict reports whether the predictors may have e copied.
func (h *Handler) mayPredict(e *metadata.Entry) bool { return h.peers != nil || h.large.predicts(e) }

// isLazy reports whether the fill of e is lazy.
func (h *Handler) isLazy(e *metadata.Entry) bool {
	f := h.lazyFill(e)
	if f == nil {
		return false
	}
	f.release()
	return true
}

// wantWhole calls a function, want or fetchRest, for the fill of e, if that is lazy.
func (h *Handler) wantWhole(e *metadata.Entry, want func(*fill)) {
	if f := h.lazyFill(e); f != nil {
		want(f)
		f.release()
	}
}

// lazyFill returns the fill of e with a reference if it is lazy and has started, or nil.
func (h *Handler) lazyFill(e *metadata.Entry) *fill {
	if e.Size() <= lazyFrom || !e.Claimed() {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.fills[e]
	if f == nil || !f.hasParts() || !f.refs.Acquire() {
		return nil
	}
	return f
}

// limitLazy is called before f starts, which is lazy. If there are too many lazy fills, it drops others.
// If those that were not opened for the longest time have users, f is not lazy.
func (h *Handler) limitLazy(f *fill) {
	var ended []*fill
	defer func() { h.discardLater(ended) }()
	for range lazyTries {
		switch other := h.large.surplus(); {
		case other == nil:
			return
		case other != f && h.endLazy(other):
			ended = append(ended, other)
		}
	}
	h.large.remove(f)
	f.interest.lazy.Store(false)
}

// discardLater discards lazy fills that have ended, on another goroutine: a tier may hang.
func (h *Handler) discardLater(ended []*fill) {
	if len(ended) == 0 {
		return
	}
	h.wg.Go(func() {
		defer panics.Contain()
		for _, f := range ended {
			f.discard(errStopped)
		}
	})
}

// sweepLazy drops the lazy fills that are of no use any more.
func (h *Handler) sweepLazy(now time.Time) {
	for _, f := range h.large.list() {
		if h.large.isOver(f, now) {
			h.dropLazy(f)
		}
	}
}

// dropParts is Drop for the lazy fills.
func (h *Handler) dropParts(paths []string, r *DropReport) {
	for _, f := range h.large.list() {
		name := f.entry.Path()
		if !slices.ContainsFunc(paths, func(p string) bool { return p == "." || p == name || strings.HasPrefix(name, p+"/") }) {
			continue
		}
		h.files.forgetRecent(f.entry)
		if h.dropLazy(f) {
			r.Copies++
			r.Bytes += f.room.Bytes()
		}
	}
}

// relieveLazy drops the lazy fills without users: descriptors are scarce.
func (h *Handler) relieveLazy() {
	var ended []*fill
	for _, f := range h.large.list() {
		if h.endLazy(f) {
			ended = append(ended, f)
		}
	}
	h.discardLater(ended)
}

// dropLazy drops a lazy fill and reports success: it has no users.
func (h *Handler) dropLazy(f *fill) bool {
	if !h.endLazy(f) {
		return false
	}
	f.discard(errStopped)
	return true
}

// endLazy ends a lazy fill, which the caller discards, and reports success. One with users is as if it
// were opened now.
func (h *Handler) endLazy(f *fill) bool {
	if !h.unclaim(f) {
		h.large.touch(f)
		return false
	}
	h.large.remove(f)
	return true
}

// unclaim ends the claim of a lazy fill without users which is not being committed, and reports success.
func (h *Handler) unclaim(f *fill) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil || h.fills[f.entry] != f || !f.hasParts() || !f.refs.Last() || !f.blocks.fail(errStopped) {
		return false
	}
	delete(h.fills, f.entry)
	f.entry.Release()
	return true
}

// lazyStats returns the number of lazy fills, and the bytes that they have copied.
func (h *Handler) lazyStats() (files, bytes int64) {
	all := h.large.list()
	for _, f := range all {
		bytes += f.blocks.copied()
	}
	return int64(len(all)), bytes
}
