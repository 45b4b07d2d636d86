package blob

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A reader reads one part of an object in order.
type reader struct {
	t   *testing.T
	s   *store
	o   drivers.Object
	off int64 // of what is next
	p   []byte
}

func newReader(t *testing.T, s *store, o drivers.Object, off int64) *reader {
	return &reader{t: t, s: s, o: o, off: off, p: make([]byte, 128<<10)}
}

// read reads the next n bytes.
func (r *reader) read(n int64) {
	r.t.Helper()
	for end := r.off + n; r.off < end; {
		n, err := r.o.ReadAt(r.t.Context(), r.p[:min(int64(len(r.p)), end-r.off)], r.off)
		if err != nil || !bytes.Equal(r.p[:n], r.s.data[r.off:r.off+int64(n)]) {
			r.t.Errorf("at %d: %v, or other bytes", r.off, err)
			return
		}
		r.off += int64(n)
	}
}

// chunksHeld returns how many chunks an object has in its window.
func chunksHeld(o drivers.Object) int {
	w := &o.(*object).window
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.chunks)
}

// Several who read one object in order, each at a place of its own, are each read
// ahead for, and what was brought for one is not thrown away for another.
func TestReadAheadForSeveral(t *testing.T) {
	const size = 128 << 20
	s := newStore(t, size)
	b := s.open(t, "")
	for _, n := range []int64{4, 5, maxReaders} {
		each := size / n / chunkSize * chunkSize
		run := max(1, min(maxRun, maxWindow/n/(1+runsAhead)))
		few := 2*each/(run*chunkSize) + 8 // requests of one reader, who begins with short ones
		check := func(t *testing.T, read func(readers []*reader, o drivers.Object)) {
			o := b.object(t)
			var readers []*reader
			for i := range n {
				readers = append(readers, newReader(t, s, o, i*each))
			}
			gets, came := s.gets.Load(), b.Stats().Bytes
			read(readers, o)
			b.streams.Wait()
			gets, came = s.gets.Load()-gets, b.Stats().Bytes-came
			t.Logf("%d readers of %d MiB took %d requests, and %d MiB came", n, each>>20, gets, came>>20)
			if gets > n*few {
				t.Errorf("%d readers of %d MiB took %d requests, want at most %d", n, each>>20, gets, n*few)
			}
			if want := int64(2*size + maxWindow*chunkSize); came > want {
				t.Errorf("%d readers of %d MiB had %d MiB come, want at most %d", n, each>>20, came>>20, want>>20)
			}
		}
		t.Run(fmt.Sprint(n, " in turn"), func(t *testing.T) {
			check(t, func(readers []*reader, o drivers.Object) {
				for range each / (128 << 10) {
					for _, r := range readers {
						r.read(128 << 10)
					}
					if held := chunksHeld(o); held > maxWindow {
						t.Fatalf("%d chunks are held", held)
					}
				}
			})
		})
		t.Run(fmt.Sprint(n, " at once"), func(t *testing.T) {
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

// Places that a reader has left are not taken for readers, in time.
func TestReadAheadForOneWhoMoves(t *testing.T) {
	const size = 128 << 20
	s := newStore(t, size)
	b := s.open(t, "")
	o := b.object(t)
	for i := range int64(maxReaders - 1) { // the last place first: no reader finds what was brought for another
		newReader(t, s, o, size-(i+1)*(4<<20)).read(512 << 10)
	}
	newReader(t, s, o, 0).read(absence)
	s.gets.Store(0)
	newReader(t, s, o, absence).read(size/2 - absence)
	if got := s.gets.Load(); got > 10 {
		t.Errorf("%d requests for %d bytes in order", got, size/2-absence)
	}
}

// What has been read to its end is not a reader with whom others share.
func TestReadAheadAfterMany(t *testing.T) {
	const size = 40 << 20
	s := newStore(t, size)
	b := s.open(t, "")
	small := make([]byte, 100_000)
	s.answer(func(w http.ResponseWriter, r *http.Request) {
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
		for range 2 { // the second time begins again what has ended
			if _, err := o.ReadAt(t.Context(), make([]byte, len(small)), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	b.streams.Wait()
	if got := b.windows.Load(); got != 0 {
		t.Errorf("%d objects count as those that hold chunks", got)
	}
	s.gets.Store(0)
	newReader(t, s, b.object(t), 0).read(size)
	if got := s.gets.Load(); got > 10 {
		t.Errorf("%d requests for %d bytes in order", got, size)
	}
	b.streams.Wait()
	if got := b.windows.Load(); got != 0 {
		t.Errorf("after all has been read %d objects count as those that hold chunks", got)
	}
}
