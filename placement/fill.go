package placement

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

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
//  2. start reserves room, opens the source and creates the copy. Then started
//     is closed, with err set if it did not work out.
//  3. Readers and workers fetch blocks.
//  4. The one who fetches the last block commits the copy and publishes its
//     level; or whoever meets an error throws the copy away. Then ended is
//     closed, and the claim is over.
//  5. The last release closes the files.
type fill struct {
	handler *Handler
	entry   *metadata.Entry
	name    string
	size    int64
	place   place // the queue's

	started chan struct{} // closed when the following are set
	err     error         // why there is no copy to be filled
	tier    *tiers.Tier
	room    *tiers.Reservation
	source  drivers.Object
	copy    drivers.Writer

	ended chan struct{} // closed when the copy is committed or thrown away

	mu      sync.Mutex // guards the following
	blocks  []byte     // their states
	flights map[int]chan struct{}
	missing int   // blocks that are not present
	after   int   // the block after the last that a reader asked for
	cause   error // why the fill failed
	refs    int
}

func newFill(h *Handler, e *metadata.Entry) *fill {
	return &fill{
		handler: h, entry: e, name: e.Path(), size: e.Size(),
		started: make(chan struct{}),
		ended:   make(chan struct{}),
		flights: make(map[int]chan struct{}),
		refs:    1, // the handler's, until ended
	}
}

// start begins the copy.
func (f *fill) start() {
	h := f.handler
	defer close(f.started)
	if h.names.Settle(h.ctx, f.entry) {
		f.giveUp(errSettled)
		return
	}
	if err := f.allocate(); err != nil {
		f.giveUp(err)
		return
	}
	n := int((f.size + blockSize - 1) / blockSize)
	f.mu.Lock()
	f.blocks, f.missing = make([]byte, n), n
	f.mu.Unlock()
	h.queue.add(f)
}

// allocate opens the source, and creates the copy on the fastest tier that has
// room and takes it.
func (f *fill) allocate() error {
	h := f.handler
	var last error
	for _, t := range h.levels.Tiers() {
		room, ok := t.Reserve(h.ctx, f.size)
		if !ok {
			continue
		}
		if err := f.openSource(); err != nil {
			room.Return()
			return err
		}
		w, err := t.Create(h.ctx, f.name, f.source.Info())
		if err != nil {
			room.Return()
			last = err
			continue
		}
		f.tier, f.room, f.copy = t, room, w
		return nil
	}
	if last != nil {
		h.log.Warn("copy not started", "path", f.name, "err", last)
		return fmt.Errorf("%w: %w", errNoRoom, last)
	}
	h.skip(f.entry)
	return errNoRoom
}

// openSource opens the file at the source, if it is not open.
func (f *fill) openSource() error {
	if f.source != nil {
		return nil
	}
	obj, err := openSource(f.handler.ctx, f.handler, f.entry)
	f.source = obj
	return err
}

// giveUp ends a fill that could not be started. The error is the source's, or
// one of errSettled and errNoRoom, which say where else to read.
func (f *fill) giveUp(err error) {
	f.err = err
	tierFailed := errors.Is(err, errNoRoom) && err != errNoRoom
	if tierFailed {
		f.handler.failed.Add(1)
	}
	f.end(err, tierFailed)
}

// end is the end of the claim.
func (f *fill) end(cause error, failed bool) {
	f.mu.Lock()
	f.cause = cause
	f.mu.Unlock()
	f.handler.forget(f, failed)
	if cause != nil && !errors.Is(cause, errSettled) {
		f.entry.Release()
	}
	close(f.ended)
	f.release()
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
// be read elsewhere. It is never the source's.
var errFailed = errors.New("fill has failed")

// ReadAt reads the file, fetching the blocks that are wanted. An error that
// does not match errFailed is the source's or ctx's.
func (f *fill) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off >= f.size {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), f.size-off))
	for b := int(off / blockSize); int64(b)*blockSize < off+int64(n); b++ {
		if err := f.need(ctx, b); err != nil {
			return 0, err
		}
	}
	got, err := f.copy.ReadAt(p[:n], off)
	switch {
	case got == n:
	case errors.Is(err, drivers.ErrAbandoned):
		f.fail(err)
		return 0, err
	default:
		f.fail(err)
		return 0, errFailed
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// need returns when block b is present: it waits for whoever fetches it, or
// has it fetched.
func (f *fill) need(ctx context.Context, b int) error {
	q := f.handler.queue
	for first := true; ; first = false {
		f.mu.Lock()
		if f.blocks[b] == present {
			f.mu.Unlock()
			return nil
		}
		if f.cause != nil {
			f.mu.Unlock()
			return errFailed
		}
		if first {
			f.after = b + 1
			if f.missing > 1 {
				q.touch(f)
			}
		}
		flight := f.flights[b]
		var mine chan error
		if flight == nil {
			flight = f.take(b)
			mine = make(chan error, 1)
			f.handler.wg.Go(func() { mine <- f.demand(b) })
		}
		f.mu.Unlock()

		q.wait()
		select {
		case <-flight:
			q.waited()
		case <-ctx.Done():
			q.waited()
			return context.Cause(ctx)
		}
		if mine != nil {
			if err := <-mine; err != nil {
				return err
			}
		}
	}
}

// next takes the next absent block after the last demand for a worker, who
// must fetch it.
func (f *fill) next() (b int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cause != nil {
		return 0, false
	}
	from := f.after % len(f.blocks)
	b = bytes.IndexByte(f.blocks[from:], absent)
	if b >= 0 {
		b += from
	} else if b = bytes.IndexByte(f.blocks[:from], absent); b < 0 {
		return 0, false
	}
	f.take(b)
	return b, true
}

// take marks block b as being fetched; f.mu must be held.
func (f *fill) take(b int) chan struct{} {
	flight := make(chan struct{})
	f.blocks[b] = fetching
	f.flights[b] = flight
	f.refs++ // given back by fetch
	return flight
}

// demand fetches a block for a reader.
func (f *fill) demand(b int) error {
	buf, err := f.handler.demand.get(f.handler.ctx)
	if err != nil {
		f.land(b, absent)
		f.release()
		return err
	}
	err = f.fetch(b, *buf)
	f.handler.demand.put(buf, errors.Is(err, drivers.ErrAbandoned))
	return err
}

// fetch copies block b, which the caller has taken, by way of buf. An error
// fails the fill; one that does not match errFailed is the source's.
func (f *fill) fetch(b int, buf []byte) error {
	defer f.release()
	off := int64(b) * blockSize
	buf = buf[:min(blockSize, f.size-off)]
	_, err := f.source.ReadAt(f.handler.ctx, buf, off)
	if err == io.EOF {
		err = fmt.Errorf("%s: %w", f.name, drivers.ErrChanged) // it is shorter than it was
	}
	if err != nil {
		f.fail(err)
		f.land(b, absent)
		return err
	}
	if _, err := f.copy.WriteAt(buf, off); err != nil {
		f.fail(err)
		f.land(b, absent)
		if errors.Is(err, drivers.ErrAbandoned) {
			return fmt.Errorf("%w: %w", errFailed, drivers.ErrAbandoned)
		}
		return errFailed
	}
	if f.land(b, present) {
		f.commit()
	}
	return nil
}

// land ends the flight of block b, and reports whether it was the last block.
func (f *fill) land(b int, state byte) (last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.blocks[b] = state
	close(f.flights[b])
	delete(f.flights, b)
	if state == present {
		f.missing--
		return f.missing == 0 && f.cause == nil
	}
	return false
}

// commit makes the copy the file's best. The level is published when the copy
// is in place and not before.
func (f *fill) commit() {
	if f.entry.Stale() { // its name belongs to another version
		f.fail(drivers.ErrChanged)
		return
	}
	if err := f.copy.Commit(); err != nil {
		f.fail(err)
		return
	}
	h := f.handler
	f.room.Commit()
	h.placed.Add(1)
	h.placedBytes.Add(f.size)
	f.entry.Publish(f.tier.Level())
	f.end(nil, false)
}

// fail throws the copy away, once. Readers go on at the source.
func (f *fill) fail(cause error) {
	f.mu.Lock()
	if f.cause != nil || isClosed(f.ended) {
		f.mu.Unlock()
		return
	}
	f.cause = cause
	f.mu.Unlock()
	f.copy.Abort()
	f.room.Return()
	h := f.handler
	stopped := h.ctx.Err() != nil
	if !stopped {
		h.failed.Add(1)
		h.log.Warn("copy failed", "path", f.name, "tier", f.tier.Name(), "err", cause)
	}
	if errors.Is(cause, drivers.ErrChanged) {
		h.names.Changed(f.entry)
	}
	f.end(cause, !stopped)
}

// abandon ends the fill because the handler stops.
func (f *fill) abandon() {
	<-f.started
	if f.err == nil {
		f.fail(context.Canceled)
	}
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
