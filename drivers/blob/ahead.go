package blob

import (
	"context"
	"io"
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
	maxReaders = 4                  // whose places in one object are kept
	maxChunks  = 256                // held by all objects of a bucket together
	maxWindow  = 64                 // held by one object, which is more than one reader has
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
}

// A window is what is in memory of one object. The zero value is that of an
// object that has not been read.
type window struct {
	mu      sync.Mutex // guards the following
	chunks  map[int64]*chunk
	places  []place            // of readers, the latest last
	ctx     context.Context    // of the streams under way
	cancel  context.CancelFunc // nil: there are none, and no chunks
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
	if len(w.chunks) >= maxWindow {
		o.shed()
	}
	// Many objects that are read at once share what there is.
	share := max(1, maxChunks/((1+runsAhead)*max(1, b.windows.Load())))
	p.run = min(max(1, 2*p.run), maxRun, share)
	first := i
	var run []*chunk
	for i < first+p.run && i*chunkSize < o.info.Size && w.chunks[i] == nil && b.chunks.TryAcquire(1) {
		c := &chunk{ready: make(chan struct{}), users: 1}
		run = append(run, c)
		if w.chunks == nil {
			w.chunks = make(map[int64]*chunk)
		}
		w.chunks[i] = c
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

// shed lets go of what a reader that has gone elsewhere has left; w.mu must be
// held.
func (o *object) shed() {
	for i, c := range o.window.chunks {
		if c.users == 0 {
			c.gone = true
			delete(o.window.chunks, i)
			o.free(c)
		}
	}
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
	if w.cancel != nil {
		w.cancel()
		w.cancel = nil
		o.bucket.windows.Add(-1)
	}
	for i, c := range w.chunks {
		c.gone = true
		delete(w.chunks, i)
		o.free(c)
	}
	w.places = nil
}
