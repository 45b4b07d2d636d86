package placement

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// blockSize is the unit in which files are copied, in bytes: large enough that
// a parallel file system is asked little, small enough that a reader who wants
// 4 KiB is not kept waiting.
const blockSize = 1 << 20

// The states of a block.
const (
	absent byte = iota
	fetching
	present
)

// A fill is one copy in flight, readable while it is in flight and as long as
// somebody holds it. Its life:
//
//  1. newFill, under Handler.mu, when the entry has been claimed.
//  2. begin, and by it start, reserves room, opens the source and creates the
//     copy: at once, or if the file is copied ahead, when a worker or a reader
//     comes to it. Then started is closed, with err set if it did not work out.
//  3. Readers and workers fetch blocks, each by itself, or where the source
//     streams (drivers.Streamer) several in a row by one request: from the one
//     that is wanted to the end of its range of the file, or to the first that
//     somebody else has or fetches. Ranges are as long as the source's stride,
//     so that a file costs as many requests as it has ranges. A reader that
//     jumps, and will do so again, has no more fetched than it wants. The blocks
//     land one by one, as they come.
//  4. The one who fetches the last block commits the copy and publishes its
//     level; or whoever meets an error throws the copy away. Then ended is
//     closed, and the claim is over.
//  5. The last release closes the files.
type fill struct {
	handler *Handler
	entry   *metadata.Entry
	name    string
	size    int64
	opened  bool   // somebody opened the file: the first block is wanted at once
	ahead   bool   // nobody has opened it yet, but is expected to
	spare   int64  // what it is counted with in Handler.spare, until it is started
	place   place  // the queue's
	begin   func() // starts the copy, once; returns when that is done

	started chan struct{} // closed when the following are set
	err     error         // why there is no copy to be filled
	tier    *tiers.Tier
	room    *tiers.Reservation
	source  drivers.Object
	stream  drivers.Streamer // the source, if it streams, and else nil
	stride  int              // blocks of a range; 1 if it does not
	copy    drivers.Writer

	ctx    context.Context    // of streams: done when they are not wanted any more
	hangUp context.CancelFunc // ends ctx, when the copy is committed or thrown away
	ended  chan struct{}      // closed when the copy is committed or thrown away

	mu      sync.Mutex      // guards the following
	blocks  []byte          // their states
	flights map[int]*flight // of the blocks that are being fetched
	first   *flight         // of the first block, once it was begun
	missing int             // blocks that are not present
	after   []int           // for each of some readers the block after the last that it asked for; the latest first
	cause   error           // why the fill failed
	refusal error           // what the source said of the file, if it may not be read or is not what it was
	refs    int
}

// A flight is one block being fetched. Readers get it from memory while it is
// on its way to the tier.
type flight struct {
	block   int
	fetched chan struct{} // closed when data is set, or the flight has landed
	landed  chan struct{} // closed when err is set
	err     error         // why the block is not present

	mu   sync.RWMutex // guards the following
	data []byte       // the block, after fetched and until landed
}

// readAt reads from the block while it is in memory, and reports whether it is.
func (fl *flight) readAt(p []byte, off int64) bool {
	fl.mu.RLock()
	defer fl.mu.RUnlock()
	if fl.data != nil {
		copy(p, fl.data[off:])
	}
	return fl.data != nil
}

// hold sets what readers find in memory; nil waits for those that are at it.
func (fl *flight) hold(data []byte) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.data = data
}

func newFill(h *Handler, e *metadata.Entry) *fill {
	f := &fill{
		handler: h, entry: e, name: e.Path(), size: e.Size(),
		started: make(chan struct{}),
		ended:   make(chan struct{}),
		flights: make(map[int]*flight),
		refs:    1, // the handler's, until ended
	}
	f.ctx, f.hangUp = context.WithCancel(h.ctx)
	f.begin = sync.OnceFunc(f.start)
	return f
}

// start begins the copy.
func (f *fill) start() {
	h := f.handler
	defer func() {
		h.spare.Add(-f.spare) // it is reserved by now, or will not be
		close(f.started)
	}()
	if h.ctx.Err() != nil {
		f.giveUp(errStopped)
		return
	}
	if f.entry.Stale() { // it has waited for its turn
		f.giveUp(drivers.ErrChanged)
		return
	}
	if h.recheck(f.entry) {
		f.giveUp(errSettled)
		return
	}
	if err := f.allocate(); err != nil {
		if h.ctx.Err() != nil {
			err = errStopped // and nobody else's error
		}
		f.giveUp(err)
		return
	}
	f.stream, f.stride = streamer(f.source, h.levels.Source().Profile().Stride)
	n := int((f.size + blockSize - 1) / blockSize)
	f.mu.Lock()
	f.blocks, f.missing = make([]byte, n), n
	if f.opened { // whoever opens a file is about to read it
		f.takeFirst()
	}
	f.mu.Unlock()
	if n > 1 || !f.opened {
		h.queue.add(f)
	}
}

// takeFirst has the first block fetched for whoever opens the file, and what goes
// with it; of a file of several ranges not, where many wait, for it keeps them
// waiting the longer. A file of one range costs one request in any case. f.mu must
// be held.
func (f *fill) takeFirst() {
	to := len(f.blocks)
	if to > f.stride && f.handler.queue.crowded() {
		to = 1
	}
	taken := f.take(0, to)
	f.handler.wg.Go(func() { f.demand(taken) })
}

// weight is how many bytes one turn at the fill may bring, about: those of a
// stream, or all.
func (f *fill) weight() int64 { return min(f.size, usualStride) }

// usualStride is how much object stores are asked for at once, in bytes.
const usualStride = 8 << 20

// streamer returns a file of the source as a drivers.Streamer, if it wants to be
// read as one, and how many blocks it is asked for at once.
func streamer(source drivers.Object, stride int64) (s drivers.Streamer, blocks int) {
	s, ok := drivers.As[drivers.Streamer](source)
	if !ok || stride <= 0 {
		return nil, 1
	}
	return s, int((stride + blockSize - 1) / blockSize)
}

// allocate opens the source and creates the copy, at the same time, since the
// source may be slow to open.
func (f *fill) allocate() error {
	h := f.handler
	t, room := h.reserve(f.size, h.levels.Tiers())
	if t == nil {
		h.skip(f.entry)
		return errNoRoom
	}
	opened := make(chan error, 1)
	go func() {
		var err error
		f.source, err = openSource(h.ctx, h, f.entry)
		opened <- err
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
		if t, room = h.reserve(f.size, h.levels.Below(t)); t == nil {
			h.log.Warn("copy not started", "path", f.name, "err", err)
			return fmt.Errorf("%w: %w", errNoRoom, err)
		}
	}
}

// giveUp ends a fill that could not be started. The error is the source's, or
// one of errSettled, errNoRoom and errStopped, which say where else to read.
func (f *fill) giveUp(err error) {
	f.err = err
	tierFailed := errors.Is(err, errNoRoom) && err != errNoRoom
	if tierFailed {
		atomic.AddInt64(&f.handler.counters.Failed, 1)
	}
	f.end(errors.Is(err, errSettled), tierFailed)
}

// end is the end of the claim.
func (f *fill) end(published, failed bool) {
	f.hangUp()
	f.handler.queue.remove(f)
	f.handler.forget(f, published, failed)
	close(f.ended)
	f.release()
}

// wait waits for the end of the claim.
func (f *fill) wait(ctx context.Context) error {
	select {
	case <-f.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// retain takes a reference; somebody must hold one already.
func (f *fill) retain() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refs++
}

// release gives a reference back. The last one closes the files.
func (f *fill) release() {
	f.mu.Lock()
	f.refs--
	last := f.refs == 0
	f.mu.Unlock()
	if !last {
		return
	}
	if f.copy != nil {
		f.copy.Close()
	}
	if f.source != nil {
		f.source.Close()
	}
}

// result returns why the fill failed, or nil.
func (f *fill) result() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cause
}

// present returns how many bytes have been copied.
func (f *fill) present() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return min(int64(len(f.blocks)-f.missing)*blockSize, f.size)
}

// errFailed is the error of a read from a fill that has failed: the file is to
// be read elsewhere, once the fill has ended. It is never the source's.
var errFailed = errors.New("fill has failed")

// ReadAt reads the file, fetching the blocks that are wanted. An error that
// does not match errFailed is the source's or ctx's; one that matches
// drivers.ErrAbandoned too says that p is lost.
func (f *fill) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off >= f.size {
		return 0, io.EOF
	}
	want := p[:min(int64(len(p)), f.size-off)]
	for n := 0; n < len(want); {
		at := off + int64(n)
		part := want[n:min(len(want), n+int(blockSize-at%blockSize))]
		if err := f.readBlock(ctx, part, at, off+int64(len(want))); err != nil {
			return n, err
		}
		n += len(part)
	}
	if len(want) < len(p) {
		return len(want), io.EOF
	}
	return len(want), nil
}

// readBlock reads p, which is within one block: from the copy, or from the
// flight that brings the block, which it starts if there is none. The reader
// wants what follows too, up to the offset end.
func (f *fill) readBlock(ctx context.Context, p []byte, off, end int64) error {
	b := int(off / blockSize)
	q := f.handler.queue
	inOrder := true
	for first := true; ; first = false {
		f.mu.Lock()
		if first && f.missing > 0 {
			inOrder = f.follow(b)
			q.touch(f)
		}
		if f.blocks[b] == present {
			f.mu.Unlock()
			return f.readCopy(p, off)
		}
		if f.cause != nil {
			f.mu.Unlock()
			return errFailed
		}
		fl, others := f.flights[b]
		if !others {
			to := len(f.blocks)
			if !inOrder {
				to = int((end + blockSize - 1) / blockSize)
			}
			taken := f.take(b, to)
			fl = taken[0]
			f.handler.wg.Go(func() { f.demand(taken) })
		}
		f.mu.Unlock()

		jumped := !inOrder && !others
		q.wait(jumped)
		err := fl.wait(ctx)
		q.waited(jumped)
		if err != nil {
			return err
		}
		if fl.readAt(p, off%blockSize) {
			return nil
		}
		select {
		case <-fl.landed: // at once, or when the copy is thrown away
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		switch {
		case fl.err == nil, others: // who waited for somebody else's asks again
		case errors.Is(fl.err, errFailed):
			return errFailed // what was abandoned, if anything, is not the reader's
		default:
			return fl.err
		}
	}
}

// wait waits until the block is in memory, or the flight has landed.
func (fl *flight) wait(ctx context.Context) error {
	select {
	case <-fl.fetched:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// follow takes notice that a reader asks for block b, and reports whether that
// follows what one asked for before, or is the first. A reader that asks for
// several pieces at once may have the later one noticed first. So many as wait
// before there is a crowd may read the file at different places; f.mu must be
// held.
func (f *fill) follow(b int) bool {
	i := slices.IndexFunc(f.after, func(next int) bool { return b >= next-2 && b <= next+1 })
	next := b + 1
	switch {
	case i >= 0:
		next = max(next, f.after[i])
		f.after = slices.Delete(f.after, i, i+1)
	case len(f.after) == crowd:
		f.after = f.after[:crowd-1]
	}
	f.after = slices.Insert(f.after, 0, next)
	return i >= 0 || b == 0
}

// awaitFirst waits for the first block, which is fetched if it is not there, as
// whoever has opened the file would by reading it. The error is ctx's, or if the
// source said that the file may not be read or is not what it was, the source's.
// Any other failure is for readers to deal with, who have somewhere else to go.
func (f *fill) awaitFirst(ctx context.Context) error {
	q := f.handler.queue
	q.wait(false)
	defer q.waited(false)
	f.mu.Lock()
	if f.first == nil && f.cause == nil {
		f.takeFirst()
	}
	fl := f.first
	f.mu.Unlock()
	if fl != nil {
		if err := fl.wait(ctx); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refusal // of any block
}

// refuse takes notice of an error of the source that isFinal.
func (f *fill) refuse(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refusal = err
}

// isFinal reports whether err, of the source, would be the same if it were asked
// again.
func isFinal(err error) bool {
	return errors.Is(err, drivers.ErrChanged) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)
}

// readCopy reads p, which is present.
func (f *fill) readCopy(p []byte, off int64) error {
	if n, err := f.copy.ReadAt(p, off); n < len(p) {
		f.fail(err)
		return fmt.Errorf("%w: %w", errFailed, err)
	}
	return nil
}

// next takes the next absent block after the last demand, and what goes with it,
// for a worker, who must fetch them. It returns nil if there is none.
func (f *fill) next() []*flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cause != nil || len(f.blocks) == 0 { // it has failed, or could not be begun
		return nil
	}
	from := 0
	if len(f.after) > 0 {
		from = f.after[0] % len(f.blocks)
	}
	b := bytes.IndexByte(f.blocks[from:], absent)
	if b >= 0 {
		b += from
	} else if b = bytes.IndexByte(f.blocks[:from], absent); b < 0 {
		return nil
	}
	return f.take(b, len(f.blocks))
}

// take begins the flight of block b, which is absent, and those of the absent
// blocks that follow it in its range and before block to. The caller must have
// them fetched; f.mu must be held.
func (f *fill) take(b, to int) []*flight {
	var taken []*flight
	for end := min((b/f.stride+1)*f.stride, to); b < end && f.blocks[b] == absent; b++ {
		fl := &flight{block: b, fetched: make(chan struct{}), landed: make(chan struct{})}
		f.blocks[b] = fetching
		f.flights[b] = fl
		if b == 0 {
			f.first = fl
		}
		taken = append(taken, fl)
	}
	f.refs++ // given back by fetch
	return taken
}

// demand fetches blocks for a reader.
func (f *fill) demand(taken []*flight) {
	buf, err := f.handler.demand.get(f.handler.ctx)
	if err != nil { // the handler stops
		f.fail(errStopped)
		for _, fl := range taken {
			f.land(fl, errFailed)
		}
		f.release()
		return
	}
	err = f.fetch(f.handler.ctx, taken, buf)
	f.handler.demand.put(buf, errors.Is(err, drivers.ErrAbandoned))
}

// fetch copies the blocks of some flights, which follow each other, by way of
// buf. An error fails the fill, and ends the flights that have not landed; one
// that does not match errFailed is the source's.
func (f *fill) fetch(ctx context.Context, taken []*flight, buf []byte) error {
	defer f.release()
	in := f.inflow(ctx, len(taken))
	var (
		last bool
		err  error
	)
	for _, fl := range taken {
		if err == nil {
			err = f.bring(in, fl, buf)
		}
		last = f.land(fl, err)
	}
	in.close()
	if last {
		f.commit()
	}
	return err
}

// bring is what fetch does for one flight, but for landing it.
func (f *fill) bring(in *inflow, fl *flight, buf []byte) error {
	sources, err := f.transfer(in, fl, buf)
	if err != nil {
		if sources && isFinal(err) {
			f.refuse(err)
		}
		f.fail(err)
		if !sources {
			err = fmt.Errorf("%w: %w", errFailed, err)
		}
	}
	return err
}

// transfer moves a block from the source to the copy, and reports whether an
// error is the source's.
func (f *fill) transfer(in *inflow, fl *flight, buf []byte) (sources bool, err error) {
	off := int64(fl.block) * blockSize
	buf = buf[:min(blockSize, f.size-off)]
	err = in.read(buf, off)
	if err == io.EOF {
		err = fmt.Errorf("%s: %w", f.name, drivers.ErrChanged) // it is shorter than it was
	}
	if err != nil {
		return in.ctx.Err() == nil, err
	}
	fl.hold(buf)
	defer fl.hold(nil)
	close(fl.fetched)
	_, err = f.copy.WriteAt(buf, off)
	return false, err
}

// An inflow brings blocks that follow each other from the source.
type inflow struct {
	fill   *fill
	ctx    context.Context // when it is done, an error is not the source's
	blocks int             // how many
	stream io.ReadCloser   // what brings them, if the source streams, once it was asked
}

// inflow makes an inflow of some blocks, which the caller closes. A stream ends
// when the fill fails; a read that is under way is left to end, since it could
// only be abandoned.
func (f *fill) inflow(ctx context.Context, blocks int) *inflow {
	in := &inflow{fill: f, ctx: ctx, blocks: blocks}
	if f.stream != nil {
		in.ctx = f.ctx
		if drivers.IsBackground(ctx) {
			in.ctx = drivers.Background(f.ctx)
		}
	}
	return in
}

// read fills p with the next block, which is at off. The error is io.EOF if the
// file ends before.
func (in *inflow) read(p []byte, off int64) error {
	f := in.fill
	if f.stream == nil {
		_, err := f.source.ReadAt(in.ctx, p, off)
		return err
	}
	if in.stream == nil {
		stream, err := f.stream.Stream(in.ctx, off, min(int64(in.blocks)*blockSize, f.size-off))
		if err != nil {
			return err
		}
		in.stream = stream
	}
	for n := 0; n < len(p); {
		if err := in.ctx.Err(); err != nil {
			return err
		}
		m, err := in.stream.Read(p[n:])
		if n += m; n < len(p) && err != nil {
			return err
		}
	}
	return nil
}

// close ends the stream, if there is one. All that it was to bring has been
// read, or is not wanted any more.
func (in *inflow) close() {
	if in.stream != nil {
		in.stream.Close()
	}
}

// land ends a flight, and reports whether it brought the last block and the copy
// is to be committed.
func (f *fill) land(fl *flight, err error) (last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.flights, fl.block)
	fl.err = err
	close(fl.landed)
	if !isClosed(fl.fetched) {
		close(fl.fetched)
	}
	if err != nil {
		f.blocks[fl.block] = absent
		return false
	}
	f.blocks[fl.block] = present
	f.missing--
	return f.missing == 0 && f.cause == nil
}

// commit makes the copy the file's best. The level is published when the copy
// is in place and not before. It is called once, by whoever lands the last
// block.
func (f *fill) commit() {
	if f.entry.Stale() { // its name belongs to another version
		f.discard(drivers.ErrChanged)
		return
	}
	if err := f.copy.Commit(); err != nil {
		f.discard(err)
		return
	}
	h := f.handler
	f.room.Commit()
	atomic.AddInt64(&h.counters.Placed, 1)
	atomic.AddInt64(&h.counters.PlacedBytes, f.size)
	if f.ahead {
		atomic.AddInt64(&h.counters.Prefetched, 1)
	}
	f.entry.Publish(f.tier.Level())
	f.end(true, false)
}

// fail throws the copy away, once. Readers go on at the source. A copy that is
// complete is left to commit, which alone says how it ends. That the source has
// another version is taken notice of in any case.
func (f *fill) fail(cause error) {
	if errors.Is(cause, drivers.ErrChanged) {
		f.handler.names.Changed(f.entry)
	}
	f.mu.Lock()
	ends := f.cause == nil && f.missing > 0
	if ends {
		f.cause = cause
	}
	f.mu.Unlock()
	if ends {
		f.discard(cause)
	}
}

// discard is what fail and commit do about a copy that is not to be.
func (f *fill) discard(cause error) {
	f.mu.Lock()
	f.cause = cause
	f.mu.Unlock()
	f.hangUp()
	f.copy.Abort()
	f.room.Return()
	h := f.handler
	stopped := h.ctx.Err() != nil
	if !stopped {
		atomic.AddInt64(&h.counters.Failed, 1)
		h.log.Warn("copy failed", "path", f.name, "tier", f.tier.Name(), "err", cause)
	}
	f.end(false, !stopped)
}

// abandon ends the fill because the handler stops, unless it is about to end.
func (f *fill) abandon() {
	f.begin()
	if f.err == nil {
		f.fail(errStopped)
	}
	<-f.ended
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
