package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A reader reads an object sequentially in blocks of 128 KiB.
type reader struct {
	t   *testing.T
	s   *store
	o   drivers.Object
	off int64 // of the next block
	p   []byte
}

func newReader(t *testing.T, s *store, o drivers.Object, off int64) *reader {
	return &reader{t: t, s: s, o: o, off: off, p: make([]byte, 128<<10)}
}

// read reads the next n bytes and compares them with those of the store.
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

// windowLen returns the number of chunks in the window of an object.
func windowLen(o drivers.Object) int {
	w := &o.(*object).window
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.chunks)
}

// Sequential reads are prefetched with long requests. Random access fetches little
// more than the requested blocks.
func TestReadAhead(t *testing.T) {
	const size = 40<<20 + 12345
	s := newStore(t, size)
	b := s.open(t, "")
	t.Run("sequential", func(t *testing.T) {
		o := b.object(t)
		s.gets.Store(0)
		before := b.Stats().Bytes
		p := make([]byte, 128<<10)
		for off := int64(0); off < size; off += int64(len(p)) {
			n, err := o.ReadAt(context.Background(), p, off)
			if err != nil && err != io.EOF || !bytes.Equal(p[:n], s.data[off:off+int64(n)]) || n < len(p) && off+int64(n) != size {
				t.Fatalf("read at %d: %d bytes, error %v, or wrong data", off, n, err)
			}
		}
		if got := s.gets.Load(); got > 10 {
			t.Errorf("got %d requests for %d bytes, want at most 10", got, size)
		}
		if got := b.Stats().Bytes - before; got != size {
			t.Errorf("fetched %d bytes, want %d", got, size)
		}
	})
	t.Run("random", func(t *testing.T) {
		o := b.object(t)
		before := b.Stats().Bytes
		r := rand.New(rand.NewPCG(1, 2))
		p := make([]byte, 4096)
		for range 200 {
			off := 4096 * r.Int64N(size/4096)
			n, err := o.ReadAt(context.Background(), p, off)
			if err != nil && err != io.EOF || !bytes.Equal(p[:n], s.data[off:off+int64(n)]) {
				t.Fatalf("read at %d: %d bytes, error %v, or wrong data", off, n, err)
			}
		}
		if got := b.Stats().Bytes - before; got > 20<<20 {
			t.Errorf("fetched %d bytes to read %d", got, 200*len(p))
		}
	})
	t.Run("concurrent", func(t *testing.T) {
		o := b.object(t)
		var readers sync.WaitGroup
		for i := range 8 {
			readers.Go(func() {
				r := rand.New(rand.NewPCG(3, uint64(i)))
				p := make([]byte, 300_000)
				off := r.Int64N(size)
				for range 150 {
					if r.IntN(20) == 0 {
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
	t.Run("errors", func(t *testing.T) {
		o := b.object(t)
		s.onGet(func(w http.ResponseWriter, r *http.Request) { fail(w, 403, "AccessDenied", "x") })
		p := make([]byte, 4096)
		if _, err := o.ReadAt(context.Background(), p, 0); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("got error %v", err)
		}
		s.reset()
		if _, err := o.ReadAt(context.Background(), p, 0); err != nil || !bytes.Equal(p, s.data[:4096]) {
			t.Errorf("after an error: got error %v, or wrong data", err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := o.ReadAt(ctx, p, 30<<20); !errors.Is(err, context.Canceled) {
			t.Errorf("with a cancelled context: got error %v", err)
		}
	})
	// After many readers there is still memory for another one.
	b.fetches.Wait()
	o := b.object(t)
	if _, err := o.ReadAt(context.Background(), make([]byte, 10), 0); err != nil {
		t.Error(err)
	}
	o.Close()
	b.fetches.Wait()
}

// Closing all objects frees the memory of their read-ahead.
func TestReadAheadFreesMemory(t *testing.T) {
	s := newStore(t, 20<<20)
	b := s.open(t, "")
	for range 30 {
		o, err := b.Open(context.Background(), "dir/object")
		if err != nil {
			t.Fatal(err)
		}
		p := make([]byte, 1<<20)
		for off := range int64(5) {
			if _, err := o.ReadAt(context.Background(), p, off<<20); err != nil {
				t.Fatal(err)
			}
		}
		o.Close()
	}
	b.fetches.Wait()
	if !b.chunkSlots.TryAcquire(maxChunks) {
		t.Error("chunks are still in use after all objects were closed")
	}
}

// Each of several sequential readers of one object gets its own read-ahead, and a
// chunk of one reader is not evicted for another one.
func TestReadAheadForConcurrentReaders(t *testing.T) {
	const size = 128 << 20
	s := newStore(t, size)
	b := s.open(t, "")
	for _, n := range []int64{4, 5, maxPositions} {
		each := size / n / chunkSize * chunkSize
		run := max(1, min(maxRun, maxWindow/n/(1+runsAhead)))
		maxGets := 2*each/(run*chunkSize) + 8 // per reader; its first runs are short
		check := func(t *testing.T, read func(readers []*reader, o drivers.Object)) {
			o := b.object(t)
			var readers []*reader
			for i := range n {
				readers = append(readers, newReader(t, s, o, i*each))
			}
			gets, fetched := s.gets.Load(), b.Stats().Bytes
			read(readers, o)
			b.fetches.Wait()
			gets, fetched = s.gets.Load()-gets, b.Stats().Bytes-fetched
			t.Logf("%d readers of %d MiB: %d requests, fetched %d MiB", n, each>>20, gets, fetched>>20)
			if gets > n*maxGets {
				t.Errorf("%d readers of %d MiB: %d requests, want at most %d", n, each>>20, gets, n*maxGets)
			}
			if want := int64(2*size + maxWindow*chunkSize); fetched > want {
				t.Errorf("%d readers of %d MiB: fetched %d MiB, want at most %d", n, each>>20, fetched>>20, want>>20)
			}
		}
		t.Run(fmt.Sprint(n, " in turn"), func(t *testing.T) {
			check(t, func(readers []*reader, o drivers.Object) {
				for range each / (128 << 10) {
					for _, r := range readers {
						r.read(128 << 10)
					}
					if held := windowLen(o); held > maxWindow {
						t.Fatalf("the window has %d chunks, want at most %d", held, maxWindow)
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
	s := newStore(t, size)
	b := s.open(t, "")
	o := b.object(t)
	// From the end, so that no reader finds chunks of another one.
	for i := range int64(maxPositions - 1) {
		newReader(t, s, o, size-(i+1)*(4<<20)).read(512 << 10)
	}
	newReader(t, s, o, 0).read(positionExpiry)
	s.gets.Store(0)
	newReader(t, s, o, positionExpiry).read(size/2 - positionExpiry)
	if got := s.gets.Load(); got > 10 {
		t.Errorf("got %d requests for %d sequential bytes, want at most 10", got, size/2-positionExpiry)
	}
}

// Objects that were read to their end do not take part of the memory from others.
func TestReadAheadAfterManyFiles(t *testing.T) {
	const size = 40 << 20
	s := newStore(t, size)
	b := s.open(t, "")
	small := make([]byte, 100_000)
	s.onGet(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "small") {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(small))
		}
	})
	for i := range 100 {
		o, err := b.OpenVersion(t.Context(), "small", b.file(item{key: fmt.Sprint("small", i), size: int64(len(small))}))
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		for range 2 { // the second read starts a new window
			if _, err := o.ReadAt(t.Context(), make([]byte, len(small)), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	b.fetches.Wait()
	if got := b.activeWindows.Load(); got != 0 {
		t.Errorf("%d windows are active, want none", got)
	}
	s.gets.Store(0)
	newReader(t, s, b.object(t), 0).read(size)
	if got := s.gets.Load(); got > 10 {
		t.Errorf("got %d requests for %d sequential bytes, want at most 10", got, size)
	}
	b.fetches.Wait()
	if got := b.activeWindows.Load(); got != 0 {
		t.Errorf("after the last read %d windows are active, want none", got)
	}
}
