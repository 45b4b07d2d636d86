package placement

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/drivers/refcount"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// A fill is one copy in flight. It is readable while it is in flight, and afterwards as long
// as there are references to it. Its life:
//
//  1. newFill, under Handler.mu, when the entry has been claimed.
//  2. begin reserves room, opens the source and creates the copy. Then started is closed. If
//     there is no copy to be filled, err is set before.
//  3. Readers and workers take blocks from the block map and fetch them (fetch.go). The
//     blocks land one by one, as they arrive.
//  4. The goroutine that lands the last block starts another one, which commits the copy and
//     publishes its level; or the first goroutine that meets an error discards the copy. Then
//     ended is closed, and the claim is over.
//  5. The last release closes the files.
type fill struct {
	handler    *Handler
	gate       *gate  // of the source, or of the peers
	queue      *queue // the same
	entry      *metadata.Entry
	name       string
	size       int64
	rank       int    // of this node among the choices for the file; 0 without peers
	foreign    bool   // the blocks come from the peers
	weight     load   // what one background request for the fill transfers, at most
	forOpen    bool   // caused by an open: the first block is needed at once
	prefetched bool   // started before the first open of the file
	windowed   bool   // the copy is in the window, and is not committed
	admitted   bool   // the exchange, if there is one, counts the copy
	slot       slot   // guarded by queue.mu
	begin      func() // starts the copy, once; returns when that is done
	begun      bool   // begin was called for a reader; guarded by Handler.mu
	blocks     *blockMap
	pinned     *pinned   // nil: the content is not known before
	interest   *interest // of readers; nil: the file is not large

	started chan struct{} // closed when the following are set
	err     error         // why there is no copy to be filled
	tier    *tiers.Tier
	room    *tiers.Reservation
	source  drivers.Object
	opened  time.Time        // when the source was opened
	stream  drivers.Streamer // the source, if it is a Streamer, else nil
	copy    drivers.Writer

	ctx    context.Context    // of streams
	cancel context.CancelFunc // ends ctx, when the copy is committed or discarded
	ended  chan struct{}      // closed when the copy is committed or discarded

	held       bool                  // the copy is complete, and in the window; guarded by Handler.mu
	read       atomic.Bool           // a reader has joined the fill
	refused    atomic.Pointer[error] // an error of the source that is final, by isFinal
	unreadable atomic.Bool           // the copy was not readable while it was being committed
	refs       refcount.Count        // the first reference is the handler's, until ended
}

// newFill makes a fill from the source or, if foreign is set, from the peers. rank is that of this
// node among the choices for the file.
func newFill(h *Handler, e *metadata.Entry, rank int, foreign bool) *fill {
	f := &fill{
		handler: h, gate: h.gate, queue: h.queue, entry: e, name: e.Path(), size: e.Size(), rank: rank, foreign: foreign,
		started: make(chan struct{}),
		ended:   make(chan struct{}),
	}
	stride := h.stride
	if foreign {
		f.gate, f.queue, stride = h.peers.gate, h.peers.queue, 0
	}
	f.blocks = newBlockMap(e.Size(), stride)
	f.pinned = newPinned(f)
	if h.peers == nil {
		f.interest = newInterest(f.size)
	}
	f.weight.blocks = min(blocks(f.size), max(1, blocks(stride)))
	f.weight.bytes = min(f.size, int64(f.weight.blocks)*blockSize)
	f.ctx, f.cancel = context.WithCancel(h.ctx)
	var begun atomic.Bool
	f.begin = func() {
		if begun.Swap(true) {
			<-f.started
			return
		}
		f.start()
	}
	return f
}

// start is begin, without the guarantee that it runs once.
func (f *fill) start() {
	defer close(f.started)
	if f.isLazy() {
		f.handler.limitLazy(f)
	}
	if err := panics.Do(f.prepare); err != nil {
		f.giveUp(err)
		return
	}
	if f.isLazy() {
		return
	}
	if f.forOpen { // a file is opened in order to be read
		f.fetchFirst()
	}
	if f.size > blockSize || !f.forOpen {
		f.enqueue()
	}
}

// enqueue queues f for workers, if they have something to do.
func (f *fill) enqueue() {
	f.queue.add(f)
	if !f.blocks.isOpen() { // the end may have come before add
		f.queue.remove(f)
	}
}

// prepare makes the fill ready to fetch blocks, unless none is needed or possible.
func (f *fill) prepare() error {
	h := f.handler
	switch {
	case h.ctx.Err() != nil:
		return errStopped
	case f.entry.Stale(): // since it was claimed
		return drivers.ErrChanged
	case h.recheck(f.entry):
		return errPublished
	}
	if err := f.allocate(); err != nil {
		if h.ctx.Err() != nil {
			err = errStopped // whatever the error was, the stop may have caused it
		}
		return err
	}
	if h.stride > 0 && !f.foreign {
		f.stream, _ = drivers.As[drivers.Streamer](f.source)
	}
	return nil
}

// fetchFirst fetches the first block for a reader, or the first unit of a lazy fill, unless it was
// fetched or is in flight. It returns the flight, or nil if the fill has failed. The blocks that one
// request serves with the first are fetched, too, unless the file has several ranges and a crowd of
// readers waits, since that would delay them.
func (f *fill) fetchFirst() *flight {
	to := f.blocks.len()
	switch {
	case f.isLazy():
		to = 1
	case to > f.blocks.stride && f.gate.crowded():
		to = unitsOfBlock
	}
	first, taken := f.blocks.lookupFirst(to)
	f.fetchDemand(taken)
	return first
}

// allocate opens the source and creates the copy. It does both at the same time, since the
// source may be slow to open.
func (f *fill) allocate() error {
	h := f.handler
	t, room := h.window.tier(), f.room
	if !f.windowed {
		var err error
		if t, room, err = h.reserveFor(f); err != nil {
			return err
		}
	}
	ctx := h.ctx
	if !f.forOpen {
		ctx = drivers.Background(ctx)
	}
	opened := make(chan error, 1)
	go func() {
		opened <- panics.Do(func() (err error) {
			f.source, err = f.open(ctx)
			f.opened = time.Now()
			return err
		})
	}()
	failure := f.create(t, room)
	if err := <-opened; err != nil {
		if f.copy != nil {
			f.copy.Abort()
			f.room.Return()
		}
		return err
	}
	return failure
}

// open opens the place that the blocks come from.
func (f *fill) open(ctx context.Context) (drivers.Object, error) {
	if f.foreign {
		return f.handler.openAtPeers(ctx, f.entry)
	}
	return openSource(ctx, f.handler, f.entry)
}

// create creates the copy on t, where it has room, or on a lower tier.
func (f *fill) create(t *tiers.Tier, room *tiers.Reservation) error {
	h := f.handler
	for {
		w, err := t.Create(h.ctx, f.entry.CopyName(), f.entry.Info())
		if err == nil {
			f.tier, f.room, f.copy = t, room, w
			return nil
		}
		room.Return()
		below := h.levels.Below(t)
		if f.windowed {
			below = nil
		}
		if t, room = f.reserve(below); t == nil {
			if h.full(f.size) { // the tier has found that its device has no room, and has logged it
				h.skip(f.entry)
				return errNoRoom
			}
			h.log.Warn("copy not started", "path", f.name, "err", err)
			return fmt.Errorf("%w: %w", errNoRoom, err)
		}
	}
}

// giveUp ends a fill that could not be started. The error is the source's, or one that
// isElsewhere or is errPublished.
func (f *fill) giveUp(err error) {
	f.err = err
	if f.windowed {
		f.room.Return()
	}
	tierFailed := errors.Is(err, errNoRoom) && err != errNoRoom
	if tierFailed {
		atomic.AddInt64(&f.handler.counters.Failed, 1)
	}
	f.end(errors.Is(err, errPublished), tierFailed)
}

// maxCommits is the number of commits that may be in progress before background workers wait,
// and commitPause is how long they wait. A disk confirms many copies in the time of one.
const (
	maxCommits  = 64
	commitPause = time.Second
)

// commitLater calls commit, once, on another goroutine, because a commit waits for the disk.
// Meanwhile the fill is readable. Background work waits if the disk is slower than the source.
func (f *fill) commitLater(ctx context.Context) {
	slots := f.handler.commits
	acquired := make(chan struct{})
	f.handler.wg.Go(func() {
		slots <- struct{}{}
		close(acquired)
		defer func() { <-slots }()
		defer panics.Contain()
		f.commit()
	})
	if !drivers.IsBackground(ctx) {
		return
	}
	select {
	case <-acquired:
	case <-time.After(commitPause):
	}
}

// commit makes the copy the best one of the file. The level is published when the copy is in
// place, and not before.
func (f *fill) commit() {
	if f.pinned != nil {
		if err := f.pinned.finish(f); err != nil {
			f.discard(err)
			return
		}
	}
	if f.windowed {
		f.keep()
		return
	}
	if f.entry.Stale() { // the name belongs to another version
		f.discard(drivers.ErrChanged)
		return
	}
	h := f.handler
	if err := f.copy.Commit(); err != nil {
		f.discard(err)
		return
	}
	f.room.Commit()
	if f.entry.Stale() { // since the check above
		h.names.LeftCopy(f.entry)
	}
	atomic.AddInt64(&h.counters.Placed, 1)
	atomic.AddInt64(&h.counters.PlacedBytes, f.size)
	if f.prefetched {
		atomic.AddInt64(&h.counters.Prefetched, 1)
		f.entry.File().MarkPrefetched()
	}
	h.bad.remove(f.entry)
	f.entry.Publish(f.tier.Level())
	if h.checks.early && f.size > blockSize {
		h.checks.add(f.entry)
	}
	f.end(true, false)
}

// fail discards the copy, once, and readers continue at the source. A copy of which all
// blocks are present is left to commit.
func (f *fill) fail(cause error) {
	if f.blocks.fail(cause) {
		f.discard(cause)
	}
}

// failCopy is fail for an error that is not the source's. That a copy has changed, as a truncated one
// has, says nothing about the source.
func (f *fill) failCopy(cause error) {
	if errors.Is(cause, drivers.ErrChanged) {
		cause = fmt.Errorf("copy: %v", cause)
	}
	f.fail(cause)
}

// discard ends a fill without a copy.
func (f *fill) discard(cause error) {
	f.blocks.close(cause)
	f.cancel()
	f.copy.Abort()
	if !f.isLazy() { // otherwise readers may stay for long, and the removed copy takes the room until then
		f.room.Return()
	}
	h := f.handler
	stopped := h.ctx.Err() != nil || cause == errTakenOver || cause == errNotYet || cause == errNoRoom || cause == errStopped
	if !stopped {
		atomic.AddInt64(&h.counters.Failed, 1)
		level := drivers.WarnLevel(cause)
		if cause == errStuck || errors.Is(cause, drivers.ErrMismatch) { // of hundreds of files; mismatched has logged the first
			level = slog.LevelDebug
		}
		h.log.Log(h.ctx, level, "copy failed", "path", f.name, "tier", f.tier.Name(), "err", cause)
	}
	f.end(false, !stopped)
}

// end ends the claim.
func (f *fill) end(published, failed bool) {
	f.cancel()
	f.queue.remove(f)
	f.handler.large.remove(f)
	switch {
	case published:
		f.handler.placed(f.entry)
	case f.admitted:
		f.handler.dismiss(f.entry)
	}
	f.handler.forget(f, published, failed)
	if f.windowed {
		f.handler.window.remove(f)
	}
	close(f.ended)
	f.release()
}

// abandon ends the fill because the handler stops. If the fill is about to end, abandon waits
// for that.
func (f *fill) abandon() {
	f.begin()
	if f.err == nil {
		f.fail(errStopped)
	}
	if f.handler.unhold(f) {
		f.expel()
	}
	<-f.ended
}

// wait waits for the end of the claim.
func (f *fill) wait(ctx context.Context) error { return waitFor(ctx, f.ended) }

// release drops a reference. The last one closes the files.
func (f *fill) release() {
	if !f.refs.Release() {
		return
	}
	if f.copy != nil {
		f.copy.Close()
		f.room.Return()
	}
	if f.source != nil {
		f.source.Close()
	}
}

// awaitFirst waits for the beginning of the file. If that was never fetched, awaitFirst fetches it, as
// the first read after an open would. The error is ctx's, or a final error of the source.
// Other failures do not matter here: readers continue elsewhere.
func (f *fill) awaitFirst(ctx context.Context) error {
	defer f.gate.demand().done()
	if fl := f.fetchFirst(); fl != nil {
		if err := f.await(ctx, fl); err != nil {
			return err
		}
	}
	if err := f.refused.Load(); err != nil { // for any block
		return *err
	}
	return nil
}

// isFinal reports whether the source would return err again for the same version.
func isFinal(err error) bool {
	return errors.Is(err, drivers.ErrChanged) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)
}
