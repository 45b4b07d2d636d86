package readahead

import (
	"context"
	"io"
	"math"
	"sync"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// idleTimeout is how long an object keeps its chunks without a read.
const idleTimeout = 5 * time.Second

// A chunk is an aligned range of an object, or the end of one, that is in memory or being fetched.
type chunk struct {
	off   int64         // of data in the object
	size  int64         // of data
	ready chan struct{} // closed when the following are set
	data  []byte        // valid if err is nil
	err   error

	// Guarded by window.mu.
	users    int   // readers that wait for it or copy from it, and the fetch that fills it
	consumed int64 // bytes that readers have copied
	evicted  bool  // from the window
}

// index returns the number of the chunk.
func (c *chunk) index() int64 { return c.off / chunkSize }

// failed reports whether fetching the chunk has ended with an error.
func (c *chunk) failed() bool {
	select {
	case <-c.ready:
		return c.err != nil
	default:
		return false
	}
}

// A readerState is the read-ahead state of one reader of an object.
type readerState struct {
	read int64 // bytes
	run  int64 // chunks in the last run; 0 if there was none
	last int64 // sequentialDetector.requested after the last read
}

// A window is the part of one object that is in memory. The zero value is the
// window of an object that has not been read.
type window struct {
	fetches sync.WaitGroup // goroutines

	mu       sync.Mutex       // guards the following
	chunks   map[int64]*chunk // by number
	detector sequentialDetector
	held     int                // chunks whose memory is in use, including evicted ones
	ctx      context.Context    // of the fetches in flight
	cancel   context.CancelFunc // nil: no fetch is useful, and there are no chunks
	reads    int                // calls of ReadAt in progress
	idle     *time.Timer
	closed   bool
}

// begin begins a read. It reports whether no other is in progress, and nothing is in the window. The
// caller calls end.
func (w *window) begin() (first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads++
	return w.reads == 1 && len(w.chunks) == 0
}

// end ends a read.
func (w *window) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads--
}

// advance records a read of n bytes at offset off, and starts the runs that it makes useful.
func (o *object) advance(off, n int64) {
	w := &o.window
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	r, sequential := w.detector.observe(off, n)
	r.read += n
	eager := o.pool.eager()
	if !eager && r.read < chunkSize {
		sequential = false
	}
	// Most files are read from their beginning, and a small one is fetched whole.
	if sequential || eager && (off == 0 || o.size <= chunkSize) {
		o.startRuns(r, off, n, sequential)
	}
	if len(w.chunks) > 0 {
		o.resetIdleTimer()
	}
}

// startRuns starts the run that begins with a read of n bytes at offset off, if that is not in the
// window, and, if following, up to runsAhead runs after it. w.mu must be held.
func (o *object) startRuns(r *readerState, off, n int64, following bool) {
	w, i := &o.window, off/chunkSize
	if w.chunks[i] == nil && o.startRun(r, off, o.pool.maxRun()) == 0 || !following {
		return
	}
	end := i
	for w.chunks[end] != nil {
		end++
	}
	for end-i <= runsAhead*r.run {
		most := o.pool.maxRun()
		if !o.pool.eager() {
			most = min(most, (off+n+r.read)/chunkSize-end)
		}
		started := o.startRun(r, end*chunkSize, most)
		if started == 0 {
			return
		}
		end += started
	}
}

// find returns what offset off is read from, and how many of n bytes: a chunk, which the caller
// releases, or the source, if the chunk is nil.
func (o *object) find(off, n int64) (*chunk, int64) {
	w := &o.window
	w.mu.Lock()
	defer w.mu.Unlock()
	i := off / chunkSize
	if c := w.chunks[i]; c != nil && off >= c.off {
		c.users++
		return c, min(n, c.off+c.size-off)
	}
	for ; i*chunkSize < off+n; i++ {
		if c := w.chunks[i]; c != nil && c.off > off {
			return nil, min(n, c.off-off)
		}
	}
	return nil, n
}

// startRun starts to fetch a run of at most a number of chunks that begins at offset off. It
// returns the number of chunks in the run, which is 0 if there is no memory or nothing to fetch.
// w.mu must be held.
func (o *object) startRun(r *readerState, off, most int64) int64 {
	if most < 1 {
		return 0
	}
	w, p := &o.window, o.pool
	r.run = max(1, 2*r.run) // before runLimit, which counts only readers that have a run
	r.run = min(r.run, p.maxRun(), o.runLimit())
	var run []*chunk
	for i := off / chunkSize; int64(len(run)) < min(r.run, most) && off < o.size && w.chunks[i] == nil && o.makeRoom(i) && p.take(); i++ {
		end := min((i+1)*chunkSize, o.size)
		c := &chunk{off: off, size: end - off, ready: make(chan struct{}), users: 1}
		run = append(run, c)
		if w.chunks == nil {
			w.chunks = make(map[int64]*chunk)
		}
		w.chunks[i] = c
		w.held++
		off = end
	}
	if len(run) == 0 {
		return 0
	}
	if w.cancel == nil {
		w.ctx, w.cancel = context.WithCancel(context.Background())
		p.active.Add(1)
	}
	o.fetchRun(w.ctx, run)
	return int64(len(run))
}

// runLimit returns the largest number of chunks for which there is memory in one run. The objects
// that are being read share the pool, and the readers of an object share its window. w.mu must be
// held.
func (o *object) runLimit() int64 {
	var readers int64
	for _, r := range o.window.detector.active() {
		if r.run > 0 {
			readers++
		}
	}
	p := o.pool
	chunks := min(p.chunks/max(1, p.active.Load()), p.maxWindow()/max(1, readers))
	return max(1, chunks/(1+runsAhead))
}

// makeRoom reports whether the window has room for chunk i. If the window is full,
// makeRoom evicts the unused chunk that will be read last, such as one that a
// reader left behind when it moved elsewhere. It keeps chunks that will be read
// before chunk i. w.mu must be held.
func (o *object) makeRoom(i int64) bool {
	w := &o.window
	if int64(len(w.chunks)) < max(1, o.pool.maxWindow()) {
		return true
	}
	victim, furthest := int64(-1), w.distance(i)
	for j, c := range w.chunks {
		if d := w.distance(j); c.users == 0 && d > furthest {
			victim, furthest = j, d
		}
	}
	if victim < 0 {
		return false
	}
	o.evict(w.chunks[victim])
	return true
}

// distance returns the number of chunks between chunk i and the nearest reader that
// will reach it, or math.MaxInt64 if there is no such reader. w.mu must be held.
func (w *window) distance(i int64) int64 {
	nearest := int64(math.MaxInt64)
	for end, r := range w.detector.active() {
		// The chunk before end may be needed by a read that another has overtaken.
		if ahead := i - end/chunkSize; r.run > 0 && ahead >= -1 {
			nearest = min(nearest, max(0, ahead))
		}
	}
	return nearest
}

// evict removes a chunk from the window. w.mu must be held.
func (o *object) evict(c *chunk) {
	c.evicted = true
	delete(o.window.chunks, c.index())
	o.freeIfUnused(c)
}

// fetchRun fetches the chunks of a run: with one request from a source that serves long requests
// best, and otherwise in parallel.
func (o *object) fetchRun(ctx context.Context, run []*chunk) {
	w := &o.window
	if o.stream != nil {
		w.fetches.Go(func() {
			defer panics.Contain()
			o.fetchStream(ctx, run)
		})
		return
	}
	for _, c := range run {
		w.fetches.Go(func() {
			defer panics.Contain()
			o.fill(c, func(p []byte) error {
				n, err := o.Object.ReadAt(ctx, p, c.off)
				if n == len(p) {
					return nil
				}
				return err
			})
		})
	}
}

// fetchStream fetches the chunks of a run with one request.
func (o *object) fetchStream(ctx context.Context, run []*chunk) {
	var (
		s    io.ReadCloser
		last = run[len(run)-1]
	)
	err := panics.Do(func() (err error) {
		s, err = o.stream.Stream(ctx, run[0].off, last.off+last.size-run[0].off)
		return err
	})
	if err == nil {
		defer s.Close()
	}
	for _, c := range run {
		o.fill(c, func(p []byte) error {
			if err == nil {
				_, err = io.ReadFull(s, p)
			}
			return err
		})
	}
}

// fill lets read fill the memory of a chunk, and ends the use of the fetch.
func (o *object) fill(c *chunk, read func(p []byte) error) {
	data := o.pool.buffers.Get().(*[chunkSize]byte)[:c.size]
	if c.err = panics.Do(func() error { return read(data) }); c.err == nil {
		c.data = data
	} // after an error the source may still write to data
	close(c.ready)
	o.release(c, 0)
}

// release ends one use of a chunk, whose user has copied n bytes of it. The
// chunk stays in the window until readers have copied as many bytes as it has.
func (o *object) release(c *chunk, n int64) {
	w := &o.window
	w.mu.Lock()
	defer w.mu.Unlock()
	c.users--
	c.consumed += n
	if !c.evicted && (c.consumed >= c.size || c.failed()) {
		c.evicted = true
		delete(w.chunks, c.index())
	}
	o.freeIfUnused(c)
}

// freeIfUnused frees the memory of a chunk that is evicted and has no users. w.mu
// must be held.
func (o *object) freeIfUnused(c *chunk) {
	if !c.evicted || c.users > 0 {
		return
	}
	if c.data != nil {
		o.pool.buffers.Put((*[chunkSize]byte)(c.data[:chunkSize]))
		c.data = nil
	}
	o.pool.taken.Add(-1)
	if o.window.held--; o.window.held == 0 {
		o.cancelFetches()
	}
}

// cancelFetches cancels the fetches in flight. The object no longer counts among
// those that share the pool. w.mu must be held.
func (o *object) cancelFetches() {
	w := &o.window
	if w.cancel == nil {
		return
	}
	w.cancel()
	w.cancel = nil
	o.pool.active.Add(-1)
}

// resetIdleTimer restarts the idle time-out of the window. w.mu must be held.
func (o *object) resetIdleTimer() {
	w := &o.window
	if w.idle == nil {
		w.idle = time.AfterFunc(idleTimeout, func() {
			defer panics.Contain()
			o.empty(false)
		})
		return
	}
	w.idle.Reset(idleTimeout)
}

// empty evicts all chunks and cancels the fetches in flight. If closing is
// false and reads are in progress, it restarts the idle time-out instead: these
// reads wait for a slow source.
func (o *object) empty(closing bool) {
	w := &o.window
	w.mu.Lock()
	defer w.mu.Unlock()
	if !closing && w.reads > 0 {
		w.idle.Reset(idleTimeout)
		return
	}
	w.closed = w.closed || closing
	if w.idle != nil {
		w.idle.Stop()
	}
	o.cancelFetches()
	for _, c := range w.chunks {
		o.evict(c)
	}
	w.detector = sequentialDetector{}
}

var _ drivers.Object = (*object)(nil)
