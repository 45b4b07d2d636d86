package readahead

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/milkweedfs/milkweed/drivers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// poolSize is the size of the pools of the tests, in bytes.
const poolSize = 256 << 20

// bucket is the profile of a source that serves long requests best.
var bucket = drivers.Profile{Latency: drivers.LatencyRequest, Stride: 8 << 20}

// A source is an open file that counts.
type source struct {
	data    []byte
	reads   atomic.Int64
	fetched atomic.Int64 // bytes
	closed  atomic.Bool

	before func(ctx context.Context, off int64) error // called before each request; may be nil
}

func newSource(size int) *source {
	s := &source{data: make([]byte, size)}
	rand.NewChaCha8([32]byte{1}).Read(s.data)
	return s
}

func (s *source) Info() drivers.Info { return drivers.Info{Name: "x", Size: int64(len(s.data))} }

func (s *source) Close() error {
	s.closed.Store(true)
	return nil
}

func (s *source) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	r, err := s.Stream(ctx, off, min(int64(len(p)), int64(len(s.data))-off))
	if err != nil {
		return 0, err
	}
	n, err := io.ReadFull(r, p)
	if err == io.ErrUnexpectedEOF {
		err = io.EOF
	}
	return n, err
}

func (s *source) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.reads.Add(1)
	s.fetched.Add(n)
	if s.before != nil {
		if err := s.before(ctx, off); err != nil {
			return nil, err
		}
	}
	return io.NopCloser(bytes.NewReader(s.data[off : off+n])), nil
}

// A reader reads an object sequentially, in blocks of 128 KiB.
type reader struct {
	t   *testing.T
	s   *source
	o   drivers.Object
	off int64 // of the next block
	p   []byte
}

func newReader(t *testing.T, s *source, o drivers.Object, off int64) *reader {
	return &reader{t: t, s: s, o: o, off: off, p: make([]byte, 128<<10)}
}

// read reads the next n bytes and compares them with those of the source.
func (r *reader) read(n int64) {
	r.t.Helper()
	for end := r.off + n; r.off < end; {
		n, err := r.o.ReadAt(r.t.Context(), r.p[:min(int64(len(r.p)), end-r.off)], r.off)
		if err != nil || !bytes.Equal(r.p[:n], r.s.data[r.off:r.off+int64(n)]) {
			r.t.Errorf("read at %d: got error %v, or wrong data", r.off, err)
			return
		}
		r.off += int64(n)
	}
}

// inWindow returns the number of chunks in the window of an object.
func inWindow(o drivers.Object) int64 {
	w := &o.(*object).window
	w.mu.Lock()
	defer w.mu.Unlock()
	return int64(len(w.chunks))
}

// wrap returns an object with read-ahead, which the test closes at its end.
func wrap(t *testing.T, p *Pool, s *source) drivers.Object {
	o := p.Wrap(s)
	t.Cleanup(func() { o.Close() })
	return o
}

// each runs a test with both kinds of source.
func each(t *testing.T, f func(t *testing.T, profile drivers.Profile)) {
	t.Run("file system", func(t *testing.T) { f(t, drivers.Profile{}) })
	t.Run("bucket", func(t *testing.T) { f(t, bucket) })
}

// A sequential reader has what follows in flight before it requests it, and no byte is requested
// twice, whatever the size of its reads and wherever it begins.
func TestSequentialReads(t *testing.T) {
	const size = 40<<20 + 12345
	each(t, func(t *testing.T, profile drivers.Profile) {
		for _, begin := range []int64{0, 5<<20 + 4096} {
			for _, block := range []int{4096, 128 << 10, 300_000, 1 << 20} {
				s := newSource(size)
				o := wrap(t, NewPool(poolSize, profile), s)
				r := newReader(t, s, o, begin)
				r.p = make([]byte, block)
				for _, n := range []int64{4 << 20, 12 << 20} {
					r.read(n)
					ahead := func() int64 { return s.fetched.Load() - (r.off - begin) }
					for deadline := time.Now().Add(10 * time.Second); ahead() < n/4; time.Sleep(time.Millisecond) { // requests run on goroutines
						if time.Now().After(deadline) {
							t.Fatalf("blocks of %d from %d: %d bytes are requested ahead of %d", block, begin, ahead(), r.off)
						}
					}
				}
				r.read(size - r.off)
				if got := s.fetched.Load(); got != size-begin {
					t.Errorf("blocks of %d from %d: requested %d bytes of %d", block, begin, got, size-begin)
				}
				if got := s.reads.Load(); profile == bucket && begin == 0 && got > 10 {
					t.Errorf("blocks of %d: %d requests, want at most 10", block, got)
				}
			}
		}
	})
}

// Random access causes one request for each read, of exactly its range.
func TestRandomReads(t *testing.T) {
	const size = 64 << 20
	each(t, func(t *testing.T, profile drivers.Profile) {
		s := newSource(size)
		o := wrap(t, NewPool(poolSize, profile), s)
		r := rand.New(rand.NewPCG(1, 2))
		p := make([]byte, 1<<20)
		var want int64
		for i := range int64(200) {
			n := 4096 * (1 + r.Int64N(256))
			off := 4096 + 4096*r.Int64N((size-n)/4096-1)
			if _, err := o.ReadAt(t.Context(), p[:n], off); err != nil || !bytes.Equal(p[:n], s.data[off:off+n]) {
				t.Fatalf("read at %d: error %v, or wrong data", off, err)
			}
			want += n
			if profile != bucket && (s.reads.Load() != i+1 || s.fetched.Load() != want) {
				t.Fatalf("%d reads of %d bytes: %d requests for %d bytes", i+1, want, s.reads.Load(), s.fetched.Load())
			}
		}
		if got := s.fetched.Load(); got > want*5/4 {
			t.Errorf("requested %d bytes to read %d", got, want)
		}
	})
}

// A reader of a file system that reads samples, each sequentially, has at most as many bytes
// requested in vain as it reads, and none if its samples are small.
func TestSamples(t *testing.T) {
	const size = 256 << 20
	for _, tt := range []struct{ sample, most int64 }{{600 << 10, 600 << 10}, {2 << 20, 4 << 20}, {8 << 20, 16 << 20}} {
		s := newSource(size)
		o := wrap(t, NewPool(poolSize, drivers.Profile{}), s)
		const samples = 8
		for i := range int64(samples) {
			newReader(t, s, o, (i*5%samples)*(size/samples)).read(tt.sample)
		}
		if got := s.fetched.Load(); got > samples*tt.most {
			t.Errorf("samples of %d bytes: requested %d bytes each, want at most %d", tt.sample, got/samples, tt.most)
		}
	}
}

// Reads from anywhere, by several readers at once, return the right bytes.
func TestConcurrentReads(t *testing.T) {
	const size = 40<<20 + 12345
	each(t, func(t *testing.T, profile drivers.Profile) {
		s := newSource(size)
		o := wrap(t, NewPool(16<<20, profile), s)
		var readers sync.WaitGroup
		for i := range 8 {
			readers.Go(func() {
				r := rand.New(rand.NewPCG(3, uint64(i)))
				p := make([]byte, 300_000)
				off := r.Int64N(size)
				for range 300 {
					if r.IntN(40) == 0 {
						off = r.Int64N(size)
					}
					n, err := o.ReadAt(context.Background(), p[:1+r.IntN(len(p))], off)
					if err != nil && err != io.EOF || !bytes.Equal(p[:n], s.data[off:off+int64(n)]) {
						t.Errorf("read at %d: %d bytes, error %v, or wrong data", off, n, err)
						return
					}
					if off += int64(n); off >= size {
						off = 0
					}
				}
			})
		}
		readers.Wait()
	})
}

// Readers of one file that follow each other request no byte twice.
func TestReadersOfOneFile(t *testing.T) {
	const size = 64 << 20
	each(t, func(t *testing.T, profile drivers.Profile) {
		s := newSource(size)
		o := wrap(t, NewPool(poolSize, profile), s)
		// One thread reads the even blocks, the other one the odd blocks.
		p := make([]byte, 128<<10)
		newReader(t, s, o, 0).read(int64(len(p)))
		for off := int64(len(p)); off < size-int64(len(p)); off += 2 * int64(len(p)) {
			for _, at := range []int64{off + int64(len(p)), off} {
				if _, err := o.ReadAt(t.Context(), p, at); err != nil || !bytes.Equal(p, s.data[at:at+int64(len(p))]) {
					t.Fatalf("read at %d: error %v, or wrong data", at, err)
				}
			}
		}
		newReader(t, s, o, size-int64(len(p))).read(int64(len(p)))
		if got := s.fetched.Load(); got != size {
			t.Errorf("requested %d bytes of %d", got, size)
		}
	})
}

// A read of a whole file is one request, and takes no memory of the pool. A reader that reads a part of
// a small file first has all of it requested, and a read of the whole file shares that request.
func TestWholeFile(t *testing.T) {
	const size = 110_000
	synctest.Test(t, func(t *testing.T) {
		s := newSource(size)
		pool := NewPool(poolSize, bucket)
		o := wrap(t, pool, s)
		s.before = func(context.Context, int64) error {
			if got := pool.taken.Load(); got > 0 {
				t.Errorf("a read of the whole file takes %d chunks of memory", got)
			}
			return nil
		}
		for range 2 {
			newReader(t, s, o, 0).read(size)
		}
		if reads, fetched := s.reads.Load(), s.fetched.Load(); reads != 2 || fetched != 2*size {
			t.Errorf("2 reads of %d bytes: %d requests for %d bytes", size, reads, fetched)
		}

		s.reads.Store(0)
		hang := make(chan struct{})
		s.before = func(context.Context, int64) error {
			<-hang
			return nil
		}
		var readers sync.WaitGroup
		for _, n := range []int64{4096, size} {
			readers.Go(func() { newReader(t, s, o, 0).read(n) })
			synctest.Wait()
		}
		close(hang)
		readers.Wait()
		if got := s.reads.Load(); got != 1 {
			t.Errorf("a part of the file and all of it, at the same time: %d requests, want 1", got)
		}
	})
}

// A failed request fails the reads that need its bytes. Later reads make another attempt.
func TestFailedRequest(t *testing.T) {
	each(t, func(t *testing.T, profile drivers.Profile) {
		for _, want := range []error{drivers.ErrChanged, io.ErrNoProgress} {
			s := newSource(40 << 20)
			o := wrap(t, NewPool(poolSize, profile), s)
			newReader(t, s, o, 0).read(2 << 20)
			o.(*object).window.fetches.Wait()
			var failing atomic.Bool
			failing.Store(true)
			s.before = func(context.Context, int64) error {
				if failing.Load() {
					return want
				}
				return nil
			}
			p := make([]byte, 1<<20)
			var err error
			off := int64(2 << 20)
			for ; err == nil && off < 40<<20; off += 1 << 20 {
				_, err = o.ReadAt(t.Context(), p, off)
			}
			if !errors.Is(err, want) {
				t.Errorf("got error %v, want %v", err, want)
			}
			o.(*object).window.fetches.Wait()
			failing.Store(false)
			newReader(t, s, o, off-1<<20).read(1 << 20)
		}
	})
}

// The bytes before the end of a file that is short are read.
func TestShortFile(t *testing.T) {
	const size, end = 8 << 20, 5<<20 + 100
	s := newSource(size)
	o := wrap(t, NewPool(poolSize, drivers.Profile{}), &source{data: s.data, before: func(_ context.Context, off int64) error {
		if off+1<<20 > end {
			return drivers.ErrShort
		}
		return nil
	}})
	newReader(t, s, o, 0).read(5 << 20)
	if _, err := o.ReadAt(t.Context(), make([]byte, 128<<10), 5<<20); !errors.Is(err, drivers.ErrShort) {
		t.Errorf("got error %v", err)
	}
	o.(*object).window.fetches.Wait()
	if got := o.(*object).pool.taken.Load(); got > 0 {
		t.Errorf("%d chunks are in memory after the error", got)
	}
}

// A reader that is cancelled returns at once, and others get the bytes that it waited for. Closing
// the file ends the requests in flight, and frees their memory.
func TestCancelledReads(t *testing.T) {
	each(t, func(t *testing.T, profile drivers.Profile) {
		synctest.Test(t, func(t *testing.T) {
			s := newSource(40 << 20)
			pool := NewPool(poolSize, profile)
			o := pool.Wrap(s)
			newReader(t, s, o, 0).read(4 << 20)
			synctest.Wait()
			hang, requested := make(chan struct{}), make(chan int64, 100)
			s.before = func(ctx context.Context, off int64) error {
				requested <- off
				select {
				case <-hang:
					return nil
				case <-ctx.Done():
					return fmt.Errorf("%w: %w", drivers.ErrAbandoned, ctx.Err())
				}
			}
			var off int64
			for off = 4 << 20; len(requested) == 0; off += 128 << 10 {
				newReader(t, s, o, off).read(128 << 10)
				synctest.Wait()
			}
			off = <-requested
			ctx, cancel := context.WithCancel(t.Context())
			errs := make(chan error, 1)
			go func() {
				_, err := o.ReadAt(ctx, make([]byte, 4096), off)
				errs <- err
			}()
			synctest.Wait()
			cancel()
			if err := <-errs; !errors.Is(err, context.Canceled) || errors.Is(err, drivers.ErrAbandoned) {
				t.Errorf("got error %v", err)
			}
			before := s.fetched.Load()
			go newReader(t, s, o, off).read(4096)
			synctest.Wait()
			close(hang)
			synctest.Wait()
			if got := s.fetched.Load(); got != before {
				t.Errorf("after a reader was cancelled, %d bytes were requested again", got-before)
			}
			hang = make(chan struct{})
			newReader(t, s, o, off).read(128 << 10)
			o.Close()
			if !s.closed.Load() || pool.taken.Load() != 0 || pool.active.Load() != 0 {
				t.Errorf("after close: closed %v, %d chunks in memory", s.closed.Load(), pool.taken.Load())
			}
		})
	})
}

// Memory is bounded for one file and for all, and is free after all files are closed. A file for
// which there is no memory is read directly.
func TestMemoryIsBounded(t *testing.T) {
	each(t, func(t *testing.T, profile drivers.Profile) {
		const chunks = 32
		pool := NewPool(chunks*chunkSize, profile)
		var objects []drivers.Object
		for range 12 {
			s := newSource(16 << 20)
			o := pool.Wrap(s)
			objects = append(objects, o)
			newReader(t, s, o, 0).read(6 << 20)
			if got := inWindow(o); got > chunks/perObject {
				t.Errorf("%d chunks of one file are in memory", got)
			}
			if got := pool.taken.Load(); got > chunks {
				t.Errorf("%d chunks are in memory", got)
			}
		}
		for _, o := range objects {
			o.Close()
		}
		if taken, active := pool.taken.Load(), pool.active.Load(); taken != 0 || active != 0 {
			t.Errorf("after all files were closed, %d chunks of %d files are in memory", taken, active)
		}
	})
	s := newSource(16 << 20)
	if o := NewPool(0, bucket).Wrap(s); o != drivers.Object(s) {
		t.Errorf("without memory: got %T", o)
	}
}

// A file that is not read for idleTimeout has no memory.
func TestIdleFileFreesMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(16 << 20)
		pool := NewPool(poolSize, drivers.Profile{})
		o := wrap(t, pool, s)
		newReader(t, s, o, 0).read(4 << 20)
		synctest.Wait()
		if pool.taken.Load() == 0 {
			t.Error("nothing was read ahead")
		}
		time.Sleep(2 * idleTimeout)
		if got := pool.taken.Load(); got != 0 {
			t.Errorf("%d chunks are in memory", got)
		}
	})
}

// Each of several sequential readers of one object gets its own read-ahead, and a
// chunk of one reader is not evicted for another one.
func TestReadAheadForConcurrentReaders(t *testing.T) {
	const size = 128 << 20
	s := newSource(size)
	pool := NewPool(poolSize, bucket)
	for _, n := range []int64{4, 5, maxPositions} {
		each := size / n / chunkSize * chunkSize
		run := max(1, min(pool.maxRun(), pool.maxWindow()/n/(1+runsAhead)))
		maxGets := 2*each/(run*chunkSize) + 8 // per reader; its first runs are short
		check := func(t *testing.T, read func(readers []*reader, o drivers.Object)) {
			o := wrap(t, pool, s)
			var readers []*reader
			for i := range n {
				readers = append(readers, newReader(t, s, o, i*each))
			}
			gets, fetched := s.reads.Load(), s.fetched.Load()
			read(readers, o)
			o.(*object).window.fetches.Wait()
			gets, fetched = s.reads.Load()-gets, s.fetched.Load()-fetched
			if gets > n*maxGets {
				t.Errorf("%d readers of %d MiB: %d requests, want at most %d", n, each>>20, gets, n*maxGets)
			}
			if want := 2*size + pool.maxWindow()*chunkSize; fetched > want {
				t.Errorf("%d readers of %d MiB: fetched %d MiB, want at most %d", n, each>>20, fetched>>20, want>>20)
			}
		}
		t.Run(fmt.Sprint(n, " in turn"), func(t *testing.T) {
			check(t, func(readers []*reader, o drivers.Object) {
				for range each / (128 << 10) {
					for _, r := range readers {
						r.read(128 << 10)
					}
					if held := inWindow(o); held > pool.maxWindow() {
						t.Fatalf("the window has %d chunks, want at most %d", held, pool.maxWindow())
					}
				}
			})
		})
		t.Run(fmt.Sprint(n, " concurrently"), func(t *testing.T) {
			check(t, func(readers []*reader, _ drivers.Object) {
				var all sync.WaitGroup
				for _, r := range readers {
					all.Go(func() { r.read(each) })
				}
				all.Wait()
			})
		})
	}
}

// Positions that readers have left expire, and the remaining reader gets the whole
// window.
func TestReadAheadAfterReaderMoves(t *testing.T) {
	const size = 128 << 20
	s := newSource(size)
	o := wrap(t, NewPool(poolSize, bucket), s)
	// From the end, so that no reader finds chunks of another one.
	for i := range int64(maxPositions - 1) {
		newReader(t, s, o, size-(i+1)*(4<<20)).read(512 << 10)
	}
	newReader(t, s, o, 0).read(positionExpiry)
	s.reads.Store(0)
	newReader(t, s, o, positionExpiry).read(size/2 - positionExpiry)
	if got := s.reads.Load(); got > 10 {
		t.Errorf("got %d requests for %d sequential bytes, want at most 10", got, size/2-positionExpiry)
	}
}

// Objects that were read to their end do not take part of the memory from others.
func TestReadAheadAfterManyFiles(t *testing.T) {
	const size = 40 << 20
	pool := NewPool(poolSize, bucket)
	for range 100 {
		s := newSource(100_000)
		o := wrap(t, pool, s)
		for range 2 { // the second read starts a new window
			newReader(t, s, o, 0).read(100_000)
		}
		o.(*object).window.fetches.Wait()
	}
	if got := pool.active.Load(); got != 0 {
		t.Errorf("%d windows are active, want none", got)
	}
	s := newSource(size)
	o := wrap(t, pool, s)
	newReader(t, s, o, 0).read(size)
	if got := s.reads.Load(); got > 10 {
		t.Errorf("got %d requests for %d sequential bytes, want at most 10", got, size)
	}
	o.(*object).window.fetches.Wait()
	if got := pool.active.Load(); got != 0 {
		t.Errorf("after the last read %d windows are active, want none", got)
	}
}
