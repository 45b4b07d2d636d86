package blob

import (
	"context"
	"io"
	"math"
	"sync"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// A file that fits into no tier is read from the store in every epoch. The kernel
// requests 128 KiB to 1 MiB at a time, and each request would cost a round trip.
// Sequential access is therefore prefetched into memory, in runs of chunks that
// grow with each run. Random access is not prefetched: each read is one request
// for exactly its range. A read at offset 0 fetches the first chunk, and so a file of
// at most one chunk is fetched whole.

const (
	chunkSize   = 1 << 20
	maxRun      = stride / chunkSize // chunks in a run, which is one request
	runsAhead   = 2                  // runs requested beyond the one that is being read
	maxChunks   = 256                // chunks in memory for all objects of a bucket
	maxWindow   = 64                 // chunks in memory for one object, for all its readers
	idleTimeout = 5 * time.Second    // an object that is not read for so long frees its chunks
)

// A chunk is an aligned range of an object that is in memory or being fetched.
type chunk struct {
	ready chan struct{} // closed when the following are set
	data  []byte        // valid if err is nil
	err   error

	// Guarded by window.mu.
	users    int   // readers that wait for it or copy from it, and the fetch that fills it
	consumed int64 // bytes that readers have copied
	evicted  bool  // from the window
}

// A readerState is the read-ahead state of one reader of an object.
type readerState struct {
	run  int64 // chunks in the last run; 0 if there was none
	last int64 // sequentialDetector.requested after the last read
}

// A window is the part of one object that is in memory. The zero value is the
// window of an object that has not been read.
type window struct {
	mu       sync.Mutex // guards the following
	chunks   map[int64]*chunk
	detector sequentialDetector
	held     int                // chunks whose memory is in use, including evicted ones
	ctx      context.Context    // of the fetches in flight
	cancel   context.CancelFunc // nil: no fetch is useful, and there are no chunks
	reads    int                // calls of readAhead in progress
	idle     *time.Timer
	closed   bool
}

// readAhead fills p from the window. It reports false if the access is not
// prefetched; the caller then requests p from the store.
func (o *object) readAhead(ctx context.Context, p []byte, off int64) (ok bool, err error) {
	o.window.addReads(1)
	defer o.window.addReads(-1)
	for n := 0; n < len(p); {
		pos := off + int64(n)
		i, begin := pos/chunkSize, pos%chunkSize
		part := p[n:min(int64(len(p)), int64(n)+chunkSize-begin)]
		c := o.acquireChunk(pos, int64(len(part)))
		if c == nil {
			return false, nil
		}
		select {
		case <-c.ready:
		case <-ctx.Done():
			o.releaseChunk(c, i, 0)
			return true, wrap(ctx, "read", o.name, ctx.Err())
		}
		if c.err == nil {
			copy(part, c.data[begin:])
		}
		o.releaseChunk(c, i, int64(len(part)))
		if c.err != nil {
			return true, c.err
		}
		n += len(part)
	}
	return true, nil
}

// addReads adds delta to the number of reads in progress.
func (w *window) addReads(delta int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads += delta
}

// acquireChunk returns the chunk that contains offset off, for a read of n bytes
// there. The caller must release it. If the access is sequential, acquireChunk
// also starts the runs that follow. It returns nil if the access is random and
// the chunk is not in the window, or if there is no memory for it.
func (o *object) acquireChunk(off, n int64) *chunk {
	w, i := &o.window, off/chunkSize
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	reader, sequential := w.detector.observe(off, n)
	c := w.chunks[i]
	if c == nil && (sequential || off == 0 || o.info.Size <= chunkSize) {
		o.startRun(reader, i)
		c = w.chunks[i]
	}
	if c == nil {
		return nil
	}
	c.users++
	if sequential {
		o.startFollowingRuns(reader, i)
	}
	o.resetIdleTimer()
	return c
}

// startFollowingRuns starts the runs that follow the one of chunk i, up to
// runsAhead of them. w.mu must be held.
func (o *object) startFollowingRuns(r *readerState, i int64) {
	w := &o.window
	end := i
	for w.chunks[end] != nil {
		end++
	}
	for end-i <= runsAhead*r.run {
		n := o.startRun(r, end)
		if n == 0 {
			return
		}
		end += n
	}
}

// startRun starts to fetch a run that begins with chunk i. It returns the number
// of chunks in the run, which is 0 if there is no memory or nothing to fetch.
// w.mu must be held.
func (o *object) startRun(r *readerState, i int64) int64 {
	w, b := &o.window, o.bucket
	r.run = max(1, 2*r.run) // before runLimit, which counts only readers that have a run
	r.run = min(r.run, maxRun, o.runLimit())
	first := i
	var run []*chunk
	for i < first+r.run && i*chunkSize < o.info.Size && w.chunks[i] == nil && o.makeRoom(i) && b.chunkSlots.TryAcquire(1) {
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
		b.activeWindows.Add(1)
	}
	ctx := w.ctx
	b.fetches.Go(func() {
		defer panics.Contain()
		o.fetchRun(ctx, first, run)
	})
	return int64(len(run))
}

// runLimit returns the largest number of chunks that one run may have. The objects
// that are being read share the bucket's memory, and the readers of an object
// share its window. w.mu must be held.
func (o *object) runLimit() int64 {
	var readers int64
	for _, r := range o.window.detector.active() {
		if r.run > 0 {
			readers++
		}
	}
	chunks := min(maxChunks/max(1, o.bucket.activeWindows.Load()), maxWindow/max(1, readers))
	return max(1, chunks/(1+runsAhead))
}

// makeRoom reports whether the window has room for chunk i. If the window is full,
// makeRoom evicts the unused chunk that will be read last, such as one that a
// reader left behind when it moved elsewhere. It keeps chunks that will be read
// before chunk i. w.mu must be held.
func (o *object) makeRoom(i int64) bool {
	w := &o.window
	if len(w.chunks) < maxWindow {
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
	o.evict(victim)
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

// evict removes chunk i from the window. w.mu must be held.
func (o *object) evict(i int64) {
	c := o.window.chunks[i]
	c.evicted = true
	delete(o.window.chunks, i)
	o.freeIfUnused(c)
}

// fetchRun fetches a run of chunks with one request.
func (o *object) fetchRun(ctx context.Context, first int64, run []*chunk) {
	off := first * chunkSize
	var s io.ReadCloser
	err := panics.Do(func() (err error) {
		s, err = o.Stream(ctx, off, min(int64(len(run))*chunkSize, o.info.Size-off))
		return err
	})
	if err == nil {
		defer s.Close()
	}
	for n, c := range run {
		if err == nil {
			size := o.chunkLen(first + int64(n))
			data := o.bucket.chunkBuffers.Get().(*[chunkSize]byte)[:size]
			c.data = data
			err = panics.Do(func() error {
				_, err := io.ReadFull(s, data)
				return err
			})
		}
		c.err = err
		close(c.ready)
		o.releaseChunk(c, first+int64(n), 0)
	}
}

// chunkLen returns the length of chunk i: chunkSize, except for the last one.
func (o *object) chunkLen(i int64) int64 { return min(chunkSize, o.info.Size-i*chunkSize) }

// releaseChunk ends one use of chunk i, whose user has copied n bytes of it. The
// chunk stays in the window until readers have copied as many bytes as it has.
func (o *object) releaseChunk(c *chunk, i, n int64) {
	w := &o.window
	w.mu.Lock()
	defer w.mu.Unlock()
	c.users--
	c.consumed += n
	if !c.evicted && (c.consumed >= o.chunkLen(i) || c.failed()) {
		c.evicted = true
		delete(w.chunks, i)
	}
	o.freeIfUnused(c)
}

// failed reports whether fetching the chunk has ended with an error.
func (c *chunk) failed() bool {
	select {
	case <-c.ready:
		return c.err != nil
	default:
		return false
	}
}

// freeIfUnused frees the memory of a chunk that is evicted and has no users. w.mu
// must be held.
func (o *object) freeIfUnused(c *chunk) {
	if !c.evicted || c.users > 0 {
		return
	}
	if c.data != nil {
		o.bucket.chunkBuffers.Put((*[chunkSize]byte)(c.data[:chunkSize]))
		c.data = nil
	}
	o.bucket.chunkSlots.Release(1)
	if o.window.held--; o.window.held == 0 {
		o.cancelFetches()
	}
}

// cancelFetches cancels the fetches in flight. The object no longer counts among
// those that share the bucket's memory. w.mu must be held.
func (o *object) cancelFetches() {
	w := &o.window
	if w.cancel == nil {
		return
	}
	w.cancel()
	w.cancel = nil
	o.bucket.activeWindows.Add(-1)
}

// resetIdleTimer restarts the idle time-out of the window. w.mu must be held.
func (o *object) resetIdleTimer() {
	w := &o.window
	if w.idle == nil {
		w.idle = time.AfterFunc(idleTimeout, func() {
			defer panics.Contain()
			o.emptyWindow(false)
		})
		return
	}
	w.idle.Reset(idleTimeout)
}

// emptyWindow evicts all chunks and cancels the fetches in flight. If closing is
// false and reads are in progress, it restarts the idle time-out instead: these
// reads wait for a slow store.
func (o *object) emptyWindow(closing bool) {
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
	for i := range w.chunks {
		o.evict(i)
	}
	w.detector = sequentialDetector{}
}
