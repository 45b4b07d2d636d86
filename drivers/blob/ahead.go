package blob

import (
	"context"
	"io"
	"math"
	"slices"
	"sync"
	"time"
)

// A file that no tier has room for is read from the store in each epoch, as the
// kernel asks for it: 128 KiB to 1 MiB at a time, each of which would wait for an
// answer. So what is read in order is asked for ahead, in runs of chunks that
// grow with each run, and handed out from memory; what is read here and there is
// asked for as it is. A small file comes whole.

const (
	chunkSize  = 1 << 20
	maxRun     = stride / chunkSize // chunks in a run: one request
	runsAhead  = 2                  // runs asked for beyond the one that is being read
	maxReaders = 16                 // whose places in one object are kept
	maxChunks  = 256                // held by all objects of a bucket together
	maxWindow  = 64                 // held by one object, for all who read it
	windowIdle = 5 * time.Second    // an object that is not read for so long gives its chunks back
)

// A chunk is a part of an object in memory, or on its way there.
type chunk struct {
	ready chan struct{} // closed when the following are set
	data  []byte        // nil if err is set
	err   error

	// Guarded by window.mu.
	users int   // readers that wait for it or copy from it, and the stream that brings it
	taken int64 // bytes that readers have had
	gone  bool  // from the window
}

// A place is where somebody reads an object, as far as can be told: readers have
// no names.
type place struct {
	end  int64 // of what was wanted, the furthest
	hits int   // how often somebody wanted what begins there
	run  int64 // chunks in the last run; 0: there was none
	last int64 // window.wanted when somebody was here
}

// A window is what is in memory of one object. The zero value is that of an
// object that has not been read.
type window struct {
	mu      sync.Mutex // guards the following
	chunks  map[int64]*chunk
	places  []place            // of readers, the latest last
	wanted  int64              // bytes, by all readers so far
	held    int                // chunks whose memory is not given back yet, also of those that have gone
	ctx     context.Context    // of the streams under way
	cancel  context.CancelFunc // nil: there are none that are of use, and no chunks
	readers int                // who are in readAhead
	idle    *time.Timer
	closed  bool
}

// readAhead reads what p wants from the window, as far as it should, and
// reports false where the caller is to ask the store.
func (o *object) readAhead(ctx context.Context, p []byte, off int64) (ok bool, err error) {
	o.window.enter(1)
	defer o.window.enter(-1)
	for n := 0; n < len(p); {
		at := off + int64(n)
		part := p[n:min(int64(len(p)), int64(n)+chunkSize-at%chunkSize)]
		c := o.chunk(at, int64(len(part)))
		if c == nil {
			return false, nil
		}
		select {
		case <-c.ready:
		case <-ctx.Done():
			o.leave(c, at/chunkSize, 0)
			return true, wrap(ctx, "read", o.name, ctx.Err())
		}
		if c.err == nil {
			copy(part, c.data[at%chunkSize:])
		}
		o.leave(c, at/chunkSize, int64(len(part)))
		if c.err != nil {
			return true, c.err
		}
		n += len(part)
	}
	return true, nil
}

// enter counts a reader who comes, or goes.
func (w *window) enter(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.readers += n
}

// chunk returns the chunk that holds what is at off, for the caller to leave. It
// begins runs of chunks if the object is read in order. It returns nil if it is
// not, or if there is no room in memory.
func (o *object) chunk(off, n int64) *chunk {
	w, i := &o.window, off/chunkSize
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	at := w.place(off, n)
	ordered := at.hits >= enoughHits
	c := w.chunks[i]
	if c == nil && (ordered || off == 0 || o.info.Size <= chunkSize) {
		o.begin(at, i)
		c = w.chunks[i]
	}
	if c == nil {
		return nil
	}
	c.users++
	if ordered {
		o.extend(at, i)
	}
	o.rest()
	return c
}

// enoughHits is how often somebody must have wanted what begins where the last read
// ended, for what comes after to be brought too.
const enoughHits = 2

// place returns the place of whoever wants n bytes from off, after taking notice of
// that. Of several reads at once, one may overtake another. w.mu must be held.
func (w *window) place(off, n int64) *place {
	at := slices.IndexFunc(w.places, func(p place) bool { return off == p.end })
	hit := at >= 0
	if !hit {
		at = slices.IndexFunc(w.places, func(p place) bool { return max(off-p.end, p.end-off) <= chunkSize })
	}
	var p place
	switch {
	case at >= 0:
		p = w.places[at]
		w.places = slices.Delete(w.places, at, at+1)
	case len(w.places) == maxReaders:
		w.places = slices.Delete(w.places, 0, 1)
	}
	if hit {
		p.hits++
	}
	p.end = max(p.end, off+n)
	w.wanted += n
	p.last = w.wanted
	w.places = append(w.places, p)
	return &w.places[len(w.places)-1]
}

// extend begins the runs that are to follow the one of chunk i, for whoever reads
// at p; w.mu must be held.
func (o *object) extend(p *place, i int64) {
	w := &o.window
	end := i
	for w.chunks[end] != nil {
		end++
	}
	for end-i <= runsAhead*p.run {
		n := o.begin(p, end)
		if n == 0 {
			return
		}
		end += n
	}
}

// begin begins a run with chunk i, for whoever reads at p, and returns how many
// chunks it has, which may be none; w.mu must be held.
func (o *object) begin(p *place, i int64) int64 {
	w, b := &o.window, o.bucket
	p.run = max(1, 2*p.run) // whoever has a run counts in share
	p.run = min(p.run, maxRun, o.share())
	first := i
	var run []*chunk
	for i < first+p.run && i*chunkSize < o.info.Size && w.chunks[i] == nil && o.makeRoom(i) && b.chunks.TryAcquire(1) {
		c := &chunk{ready: make(chan struct{}), users: 1}
		run = append(run, c)
		if w.chunks == nil {
			w.chunks = make(map[int64]*chunk)
		}
		w.chunks[i] = c
		w.held++
		i++
	}
	if len(run) == 0 {
		return 0
	}
	if w.cancel == nil {
		w.ctx, w.cancel = context.WithCancel(context.Background())
		b.windows.Add(1)
	}
	ctx := w.ctx
	b.streams.Go(func() { o.bring(ctx, first, run) })
	return int64(len(run))
}

// share returns how many chunks a run may have: many objects that are read at once
// share what there is, and so do many who read one object. w.mu must be held.
func (o *object) share() int64 {
	w := &o.window
	var readers int64
	for _, p := range w.places {
		if w.isRead(p) {
			readers++
		}
	}
	chunks := min(maxChunks/max(1, o.bucket.windows.Load()), maxWindow/max(1, readers))
	return max(1, chunks/(1+runsAhead))
}

// absence is how much may be wanted elsewhere in an object, in bytes, before nobody
// is thought to be at a place any more. When maxReaders read in turn, each is away
// for half of it at most.
const absence = 2 * maxReaders * chunkSize

// isRead reports whether somebody reads at p for whom chunks are brought; w.mu must
// be held.
func (w *window) isRead(p place) bool { return p.run > 0 && w.wanted-p.last < absence }

// makeRoom reports whether the window has room for chunk i. If it is full, what goes
// is the chunk that will be wanted last, such as those that a reader who went elsewhere
// has left. What will be wanted before chunk i stays. w.mu must be held.
func (o *object) makeRoom(i int64) bool {
	w := &o.window
	if len(w.chunks) < maxWindow {
		return true
	}
	last, furthest := int64(-1), w.distance(i)
	for j, c := range w.chunks {
		if d := w.distance(j); c.users == 0 && d > furthest {
			last, furthest = j, d
		}
	}
	if last < 0 {
		return false
	}
	o.drop(last)
	return true
}

// distance returns how many chunks whoever will be the first to want chunk i has yet
// to read before it; w.mu must be held.
func (w *window) distance(i int64) int64 {
	d := int64(math.MaxInt64) // nobody will
	for _, p := range w.places {
		if ahead := i - p.end/chunkSize; w.isRead(p) && ahead >= -1 { // which a read that was overtaken may want
			d = min(d, max(0, ahead))
		}
	}
	return d
}

// drop takes chunk i from the window; w.mu must be held.
func (o *object) drop(i int64) {
	c := o.window.chunks[i]
	c.gone = true
	delete(o.window.chunks, i)
	o.free(c)
}

// bring brings a run of chunks, by one request.
func (o *object) bring(ctx context.Context, first int64, run []*chunk) {
	off := first * chunkSize
	s, err := o.Stream(ctx, off, min(int64(len(run))*chunkSize, o.info.Size-off))
	if err == nil {
		defer s.Close()
	}
	for n, c := range run {
		if err == nil {
			data := o.bucket.buffers.Get().(*[chunkSize]byte)[:min(chunkSize, o.info.Size-off-int64(n)*chunkSize)]
			c.data = data
			_, err = io.ReadFull(s, data)
		}
		c.err = err
		close(c.ready)
		o.leave(c, first+int64(n), 0)
	}
}

// leave says that chunk i is not needed any more by one user, who has had n bytes
// of it. It stays in the window until all of it has been had.
func (o *object) leave(c *chunk, i, n int64) {
	w := &o.window
	w.mu.Lock()
	defer w.mu.Unlock()
	c.users--
	c.taken += n
	size := min(chunkSize, o.info.Size-i*chunkSize)
	if !c.gone && (c.taken >= size || isReady(c) && c.err != nil) {
		c.gone = true
		delete(w.chunks, i)
	}
	o.free(c)
}

func isReady(c *chunk) bool {
	select {
	case <-c.ready:
		return true
	default:
		return false
	}
}

// free gives back the memory of a chunk that has gone from the window and that
// nobody uses; w.mu must be held.
func (o *object) free(c *chunk) {
	if !c.gone || c.users > 0 {
		return
	}
	if c.data != nil {
		o.bucket.buffers.Put((*[chunkSize]byte)(c.data[:chunkSize]))
		c.data = nil
	}
	o.bucket.chunks.Release(1)
	if o.window.held--; o.window.held == 0 {
		o.end()
	}
}

// end ends what is under way, after which the object does not count among those that
// share what there is; w.mu must be held.
func (o *object) end() {
	w := &o.window
	if w.cancel == nil {
		return
	}
	w.cancel()
	w.cancel = nil
	o.bucket.windows.Add(-1)
}

// rest puts off the end of the window; w.mu must be held.
func (o *object) rest() {
	w := &o.window
	if w.idle == nil {
		w.idle = time.AfterFunc(windowIdle, func() { o.empty(false) })
		return
	}
	w.idle.Reset(windowIdle)
}

// empty gives all chunks back, and ends what is under way.
func (o *object) empty(closed bool) {
	w := &o.window
	w.mu.Lock()
	defer w.mu.Unlock()
	if !closed && w.readers > 0 { // who wait for a store that is slow
		w.idle.Reset(windowIdle)
		return
	}
	w.closed = w.closed || closed
	if w.idle != nil {
		w.idle.Stop()
	}
	o.end()
	for i := range w.chunks {
		o.drop(i)
	}
	w.places = nil
}
