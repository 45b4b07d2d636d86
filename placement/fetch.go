package placement

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// errFailed is the error of a read from a fill or a copy that has failed. It matches
// drivers.ErrRetry. No error of the source matches errFailed.
var errFailed = fmt.Errorf("copy has failed: %w", drivers.ErrRetry)

// ReadAt reads from the file, and fetches what is absent. An error that does not
// match errFailed is the source's or ctx's. After an error that also matches
// drivers.ErrAbandoned the buffer is lost.
func (f *fill) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off >= f.size {
		return 0, io.EOF
	}
	want := p[:min(int64(len(p)), f.size-off)]
	end := off + int64(len(want))
	ahead := f.asked(off, int64(len(want)))
	for n := 0; n < len(want); {
		pos := off + int64(n)
		piece := want[n:min(len(want), n+int(blockSize-pos%blockSize))]
		if err := f.readBlock(ctx, piece, pos, end, ahead); err != nil {
			return n, err
		}
		n += len(piece)
	}
	if len(want) < len(p) {
		return len(want), io.EOF
	}
	return len(want), nil
}

// A reach is which units are fetched for a reader that lacks one of them.
type reach struct {
	from, to int // that one request may serve
	needed   int // the end of those that are fetched at once, in as many requests as that takes
}

// readBlock reads p, which lies within one block: from the copy, or from flights of the
// block. The reader also needs what follows, up to the offset end, and is expected to read up to the offset
// ahead. Where there is no flight, readBlock starts one. What it fetches ends where something is present, and:
//
//   - of a lazy fill, and for a random-access reader of a fill that isPartial, with the unit of ahead. All of it
//     is fetched at once, also behind what is present; or up to end, if off is in flight.
//   - of another fill that isPartial, with the block or, if ahead is not in it, with the range.
//   - of any other fill, with the range or, for a random-access reader, with the block of end. It begins with
//     the block.
func (f *fill) readBlock(ctx context.Context, p []byte, off, end, ahead int64) error {
	if f.blocks.complete.Load() {
		return f.readCopy(p, off)
	}
	b := int(off / blockSize)
	sequential, partial := f.blocks.follow(b), f.isPartial()
	r := reach{b * unitsOfBlock, f.blocks.len(), units(off + int64(len(p)))}
	if partial {
		r.from = int(off / unitSize)
	}
	switch blockEnd := int64(b+1) * blockSize; {
	case f.isLazy(), partial && !sequential:
		r.to, r.needed = units(ahead), units(ahead)
	case partial && ahead < blockEnd:
		r.to = units(blockEnd)
	case !sequential:
		r.to = blocks(end) * unitsOfBlock
	}
	f.queue.touch(f)
	for len(p) > 0 {
		n, err := f.readUnits(ctx, p, off, end, r)
		if err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// readUnits does for the beginning of p what readBlock does, and returns how many bytes that is.
func (f *fill) readUnits(ctx context.Context, p []byte, off, end int64, r reach) (int, error) {
	u, last := int(off/unitSize), off+int64(len(p))
	for {
		fl, taken, err := f.blocks.lookup(u, r.from, r.to)
		if err != nil {
			return 0, errFailed
		}
		if fl == nil {
			p = p[:min(last, int64(f.blocks.presentTo(u, units(last)))*unitSize)-off]
			return len(p), f.readCopy(p, off)
		}
		f.fetchDemand(taken)
		needed := r.needed
		if taken == nil {
			needed = min(needed, units(end))
		}
		f.fetchAll(fl.to, needed)
		p := p[:min(last, int64(fl.to)*unitSize)-off]
		if done, err := f.readFlight(ctx, fl, p, off); done || err != nil {
			return len(p), err
		}
		if fl.err != nil && taken != nil {
			if errors.Is(fl.err, errFailed) {
				return 0, errFailed // without ErrAbandoned: p was not given to anyone
			}
			return 0, fl.err
		}
	}
}

// fetchAll fetches the units from from to to for a reader, in as many requests as that takes.
func (f *fill) fetchAll(from, to int) {
	for from < to {
		taken := f.blocks.takeFrom(from, to)
		if taken == nil {
			return
		}
		f.fetchDemand(taken)
		from = taken[len(taken)-1].to
	}
}

// readFlight waits for a flight and reads p from memory. If the flight lands before that,
// readFlight reports false, and fl.err may be read.
func (f *fill) readFlight(ctx context.Context, fl *flight, p []byte, off int64) (bool, error) {
	w := f.gate.demand()
	err := f.await(ctx, fl)
	w.done()
	if err != nil {
		return false, err
	}
	if fl.readAt(p, off) {
		return true, nil
	}
	return false, waitFor(ctx, fl.landed) // landed already, or soon: the copy is being discarded
}

// readCopy reads p from units that are present.
func (f *fill) readCopy(p []byte, off int64) error {
	if n, err := f.copy.ReadAt(p, off); n < len(p) {
		f.unreadable.Store(f.blocks.complete.Load())
		f.failCopy(err)
		return fmt.Errorf("%w: %w", errFailed, err)
	}
	return nil
}

// fetchDemand fetches what was taken for a reader, on a goroutine of its own, which outlives a reader
// that gives up. It fails the fill if the gate is stuck. The caller holds a reference.
func (f *fill) fetchDemand(taken []*flight) {
	if len(taken) == 0 {
		return
	}
	h, g := f.handler, f.gate
	for _, fl := range taken {
		fl.demanded.Store(true)
	}
	f.refs.Acquire()
	h.wg.Go(func() {
		defer panics.Contain()
		buf, err := g.demands.get(h.ctx, g.reads.atBound())
		if err != nil {
			f.drop(taken, err)
			return
		}
		w := g.reads.watch(g.demands.replace)
		err = f.fetch(h.ctx, taken, buf, w)
		if stalled := w.end(); !stalled { // otherwise buf was replaced
			g.demands.put(buf, errors.Is(err, drivers.ErrAbandoned))
		}
	})
}

// drop fails the fill, and ends flights without fetching anything. It releases a reference of the
// caller.
func (f *fill) drop(taken []*flight, cause error) {
	defer f.release()
	f.fail(cause)
	for _, fl := range taken {
		f.blocks.land(fl, errFailed)
	}
}

// fetchNext fetches what is absent next for a worker, which has taken f from the queue. It
// removes f from the queue if there is nothing. After an error that matches drivers.ErrAbandoned,
// buf must not be used again.
func (f *fill) fetchNext(ctx context.Context, buf []byte, w *watch) error {
	w.opens = !isClosed(f.started)
	f.begin()
	if f.err != nil || !f.refs.Acquire() {
		f.queue.remove(f)
		return nil
	}
	taken := f.blocks.takeNext()
	if taken == nil {
		f.release()
		f.queue.remove(f)
		return nil
	}
	return f.fetch(ctx, taken, buf, w)
}

// fetch makes flights that follow each other, by way of buf. It releases a reference
// of the caller. An error fails the fill, and ends the flights that have not landed. An error
// that does not match errFailed is the source's. w observes the fetch. The wait for the disk is not
// part of what the controller observes.
func (f *fill) fetch(ctx context.Context, taken []*flight, buf []byte, w *watch) error {
	defer f.release()
	_, size := f.blocks.span(taken...)
	in := f.newInflow(ctx, size)
	var (
		last bool
		err  error
	)
	for _, fl := range taken {
		if err == nil {
			err = f.makeFlight(in, fl, buf)
		}
		last = f.blocks.land(fl, err)
		w.progress()
	}
	in.close()
	if err == nil && !w.isStalled() {
		f.gate.control.Observe(request{w.start, time.Now(), size, w.opens, !drivers.IsBackground(ctx)})
	}
	if last {
		f.commitLater(ctx)
	}
	return err
}

// makeFlight does for one flight what fetch does, except that it does not land the flight.
func (f *fill) makeFlight(in *inflow, fl *flight, buf []byte) error {
	ofSource, err := f.transfer(in, fl, buf)
	if err != nil {
		if ofSource {
			final := isFinal(err)
			if err = f.handler.names.Failed(f.handler.ctx, f.entry, err); final {
				f.refused.Store(&err)
			}
			f.fail(err)
		} else {
			f.failCopy(err)
			err = fmt.Errorf("%w: %w", errFailed, err)
		}
	}
	return err
}

// transfer moves the bytes of a flight from the source to the copy. It reports whether an error is the
// source's.
func (f *fill) transfer(in *inflow, fl *flight, buf []byte) (ofSource bool, err error) {
	defer panics.Catch(&err)
	off, size := f.blocks.span(fl)
	buf = buf[:size]
	began := time.Now()
	err = in.read(buf, off)
	if err == io.EOF {
		err = fmt.Errorf("%s: %w", f.name, drivers.ErrChanged) // shorter than it was
	}
	if err != nil {
		// A short file is read to its end at the source.
		return in.ctx.Err() == nil && !errors.Is(err, drivers.ErrShort), err
	}
	fl.timing = in.timing(began)
	hashed := false
	if f.pinned != nil {
		if hashed, err = f.pinned.arrived(f, fl.from/unitsOfBlock, buf); err != nil {
			return !f.foreign, err
		}
	}
	fl.arrive(buf)
	defer fl.unset()
	err = f.write(buf, off)
	if err == nil && f.pinned != nil {
		err = f.pinned.wrote(f, fl.from/unitsOfBlock, hashed)
	}
	return false, err
}

// An inflow reads the bytes of flights that follow each other from the source.
type inflow struct {
	fill   *fill
	ctx    context.Context // when it is done, an error is not the source's
	size   int64           // how many bytes are read
	stream io.ReadCloser   // the request, if the source is a Streamer; nil before the first flight

	requested time.Time // when stream was requested
	answered  time.Time // when its first bytes had arrived
}

// timing returns the timing of the flight that read has just read, where read was called at the
// time began.
func (in *inflow) timing(began time.Time) timing {
	if in.stream != nil {
		return timing{in.requested, in.answered}
	}
	return timing{began, began.Add(in.fill.handler.levels.Source().BaseLatency())}
}

// newInflow makes an inflow, which the caller closes. A stream, and a read from the peers, ends when
// the fill fails. A ReadAt of the source does not: it could only be abandoned, and the buffer with
// it.
func (f *fill) newInflow(ctx context.Context, size int64) *inflow {
	in := &inflow{fill: f, ctx: ctx, size: size}
	if f.stream != nil || f.foreign {
		in.ctx = f.ctx
		if drivers.IsBackground(ctx) {
			in.ctx = drivers.Background(f.ctx)
		}
	}
	if f.foreign {
		in.ctx = context.WithValue(in.ctx, fillKey{}, f)
	}
	return in
}

// read fills p with the bytes of the next flight, which begin at off. The error is io.EOF if the file ends
// before.
func (in *inflow) read(p []byte, off int64) error {
	f := in.fill
	if f.stream == nil {
		_, err := f.source.ReadAt(in.ctx, p, off)
		return err
	}
	if in.stream == nil {
		in.requested = time.Now()
		stream, err := f.stream.Stream(in.ctx, off, in.size)
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
		if in.answered.IsZero() {
			in.answered = time.Now()
		}
		if n += m; n < len(p) && err != nil {
			return err
		}
	}
	return nil
}

// close closes the stream, if there is one.
func (in *inflow) close() {
	if in.stream != nil {
		in.stream.Close()
	}
}
