package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/blob/blobtest"
)

// One request in four fails, with faults of every kind, for each kind of server. All
// reads succeed with the right data.
func TestReadsWithFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers of every kind")
	}
	setReadRetries(t, retryPolicy{firstBackoff: time.Millisecond, maxBackoff: 20 * time.Millisecond, timeout: time.Minute})
	blobtest.Each(t, func(t *testing.T, server *blobtest.Server) {
		server.Setenv(t)
		const bucket = "faulty"
		server.MakeBucket(t, bucket)
		sizes := []int{1, 1000, 100_000, 1<<20 + 1, 5<<20 + 12345, 17<<20 + 3}
		contents := make(map[string][]byte)
		for i, size := range sizes {
			name := fmt.Sprintf("dir-%d/object", i)
			contents[name] = random(size, byte(i))
			server.Put(t, bucket, "prefix/"+name, contents[name])
		}
		proxy := blobtest.NewProxy(t, server.URL, blobtest.Plan{Seed: 7, Faults: map[blobtest.Fault]float64{
			blobtest.Reset: .04, blobtest.ResetBody: .05, blobtest.Truncated: .05, blobtest.Unavailable: .03, blobtest.RetryAfter: .01,
			blobtest.TooMany: .02, blobtest.ShortLength: .03, blobtest.Late: .02, blobtest.Slow: .01,
		}, RetryAfter: time.Second, Lateness: 50 * time.Millisecond, SlowRate: 4 << 20})
		for _, query := range []string{"", "&hedge=20ms"} {
			b := openURL(t, server.BucketURL(bucket, "prefix", proxy.URL)+query)
			var readers sync.WaitGroup
			for reader := range 4 {
				readers.Go(func() {
					for i := range sizes {
						name := fmt.Sprintf("dir-%d/object", (i+reader)%len(sizes))
						if err := readBack(t, b, name, contents[name], reader%2 == 0); err != nil {
							t.Error(err)
						}
					}
				})
			}
			readers.Wait()
			if st := b.Stats(); st.Retries == 0 || st.Throttled == 0 || query != "" && st.Hedges == 0 {
				t.Errorf("Stats: got %+v", st)
			}
		}
		if faults := proxy.Stats().Faults; len(faults) < 7 {
			t.Errorf("only these faults occurred: %v", faults)
		}
	})
}

// setReadRetries replaces readRetries until the test ends.
func setReadRetries(t testing.TB, p retryPolicy) {
	old := readRetries
	readRetries = p
	t.Cleanup(func() { readRetries = old })
}

// random returns n pseudo-random bytes.
func random(n int, seed byte) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(p)
	return p
}

// readBack reads a file and compares it with want. It reads streams of one stride, or
// blocks of 256 KiB as the kernel does.
func readBack(t *testing.T, b *Bucket, name string, want []byte, streams bool) error {
	o, err := b.Open(t.Context(), name)
	if err != nil {
		return err
	}
	defer o.Close()
	for off, n := int64(0), int64(0); off < int64(len(want)); off += n {
		var got []byte
		if streams {
			n = min(stride, int64(len(want))-off)
			s, err := o.(drivers.Streamer).Stream(t.Context(), off, n)
			if err != nil {
				return err
			}
			got, err = io.ReadAll(s)
			s.Close()
			if err != nil {
				return err
			}
		} else {
			n = min(256<<10, int64(len(want))-off)
			got = make([]byte, n)
			if _, err := o.ReadAt(t.Context(), got, off); err != nil {
				return err
			}
		}
		if !bytes.Equal(got, want[off:off+n]) {
			return fmt.Errorf("%s: wrong data at offset %d", name, off)
		}
	}
	return nil
}

// The errors of each vendor's library match the documented errors, and a version that
// was overwritten or removed is ErrChanged.
func TestVendorsErrors(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers of every kind")
	}
	setReadRetries(t, retryPolicy{firstBackoff: time.Millisecond, maxBackoff: 5 * time.Millisecond, timeout: 100 * time.Millisecond})
	setPauses(t, time.Millisecond, 0)
	blobtest.Each(t, func(t *testing.T, server *blobtest.Server) {
		server.Setenv(t)
		server.MakeBucket(t, "errors")
		server.Put(t, "errors", "object", random(1000, 1))
		proxy := blobtest.NewProxy(t, server.URL, blobtest.Plan{})
		b := openURL(t, server.BucketURL("errors", "", proxy.URL))
		o, err := b.Open(t.Context(), "object")
		if err != nil {
			t.Fatal(err)
		}
		for fault, want := range map[blobtest.Fault]error{
			blobtest.Forbidden: syscall.EACCES, blobtest.NotFound: drivers.ErrChanged, blobtest.Precondition: drivers.ErrChanged,
			blobtest.StaleETag: drivers.ErrChanged, blobtest.Unavailable: syscall.EIO, blobtest.TooMany: syscall.EIO, blobtest.Reset: syscall.EIO,
		} {
			proxy.SetPlan(blobtest.Plan{Faults: map[blobtest.Fault]float64{fault: 1}})
			if _, err := readAll(o); !errors.Is(err, want) {
				t.Errorf("%s: got error %v, want %v", fault, err, want)
			}
			_, err := b.ReadDir(t.Context(), ".")
			if fault != blobtest.StaleETag && (err == nil || errors.Is(err, drivers.ErrChanged)) {
				t.Errorf("%s of a listing request: got error %v", fault, err)
			}
		}
		proxy.SetPlan(blobtest.Plan{})
		server.Put(t, "errors", "object", random(1000, 2))
		if _, err := readAll(o); !errors.Is(err, drivers.ErrChanged) {
			t.Errorf("overwritten: got error %v", err)
		}
		server.Remove(t, "errors", "object")
		if _, err := readAll(o); !errors.Is(err, drivers.ErrChanged) {
			t.Errorf("removed: got error %v", err)
		}
	})
}

// A read returns when its context is cancelled, although the store does not respond,
// and the request is cancelled at the store too.
func TestContextCancelsRequest(t *testing.T) {
	s := newStore(t, 1<<20)
	for _, query := range []string{"", "&hedge=5ms"} {
		b := s.open(t, query)
		b.stallTimeout = time.Hour
		o := b.object(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var ended atomic.Int64
		s.onGet(func(w http.ResponseWriter, r *http.Request) {
			cancel()
			hang(w, r)
			ended.Add(1)
		})
		if _, err := o.ReadAt(ctx, make([]byte, 100), 500_000); !errors.Is(err, context.Canceled) {
			t.Errorf("got error %v", err)
		}
		for ended.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		s.reset()
	}
}
