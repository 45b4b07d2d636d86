package metadata

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// If a listing fails after some pages, their names and those that were cached before are
// served. Other names are errors until a listing succeeds.
func TestListingFails(t *testing.T) {
	inBucket(t, time.Minute, 30, 10, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		broken := func(_ string, page int) error {
			if page == 2 {
				return syscall.EIO
			}
			return nil
		}
		w.bucket.failWith(broken)
		if _, err := w.List(bg, d); !errors.Is(err, syscall.EIO) {
			t.Errorf("list: got %v, want EIO", err)
		}
		arrived, _ := w.split(d, 30)
		if len(arrived) != 20 {
			t.Errorf("%d names are cached, want 20", len(arrived))
		}
		w.wantRequests(t, 3, 0)
		for _, name := range arrived {
			w.find(t, d, name)
		}
		w.wantRequests(t, 0, 0)
		if _, err := w.Lookup(bg, d, "none"); !errors.Is(err, syscall.EIO) {
			t.Errorf("name that is not cached: got %v, want EIO", err)
		}
		w.wantRequests(t, 3, 0)

		w.bucket.failWith(nil)
		w.wantMissing(t, d, "none")
		all := w.list(t, "d")
		w.wantRequests(t, 3, 0)

		time.Sleep(time.Minute)
		e, _, _ := d.dir.find(arrived[0])
		w.bucket.failWith(func(string, int) error { return syscall.EIO })
		if got, _ := w.find(t, d, arrived[0]); got != e || e.Stale() {
			t.Error("a cached file was removed")
		}
		if _, err := w.Lookup(bg, d, "none"); !errors.Is(err, syscall.EIO) {
			t.Errorf("name that is not cached: got %v, want EIO", err)
		}
		if got, err := w.List(bg, d); err != nil || names(got) != all {
			t.Errorf("list: got %s, %v", names(got), err)
		}
		w.bucket.failWith(nil)
		w.source.Put("d/none", nil)
		w.get(t, "d/none")
	})
}

// A failed listing is logged, also if no goroutine waits for it.
func TestFailedListingIsLogged(t *testing.T) {
	inBucket(t, time.Minute, 30, 1, func(t *testing.T, w *bucketWorld) {
		var out bytes.Buffer
		w.log = slog.New(slog.NewTextHandler(&out, nil))
		d := w.dir(t)
		w.bucket.failWith(func(_ string, page int) error {
			if page == 20 {
				return syscall.EIO
			}
			return nil
		})
		w.wantMissing(t, d, "none")
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "path=d ") || !strings.Contains(got, syscall.EIO.Error()) {
			t.Errorf("logged %q", got)
		}
	})
}

// While the root of the source is missing, a missing name does not mean that the file was
// removed: cached files are served, and other names fail with ESTALE.
func TestBucketLost(t *testing.T) {
	inBucket(t, time.Minute, 3, 0, func(t *testing.T, w *bucketWorld) {
		e := w.get(t, "d/f0001")
		all := w.list(t, "d")
		lost := &fs.PathError{Op: "list", Path: "bucket", Err: fs.ErrNotExist}
		w.bucket.failWith(func(string, int) error { return lost })
		time.Sleep(time.Minute)
		if got := w.get(t, "d/f0001"); got != e || e.Stale() {
			t.Error("a cached file was removed")
		}
		if _, err := w.Lookup(bg, w.Root(), "none"); !errors.Is(err, syscall.ESTALE) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("name that is not cached: got %v, want ESTALE", err)
		}
		w.bucket.failWith(nil)
		time.Sleep(time.Minute)
		if got := w.list(t, "d"); got != all {
			t.Errorf("after the outage: got %s", got)
		}
	})
}

// hang makes requests take two minutes and fail.
func hang(string, int) error {
	time.Sleep(2 * time.Minute)
	return syscall.EHOSTUNREACH
}

// While the store is unreachable, cached metadata is still served. Each attempt to list the
// directory delays its callers for lookupTimeout at most.
func TestBucketOutage(t *testing.T) {
	inBucket(t, time.Hour, 20, 10, func(t *testing.T, w *bucketWorld) {
		var out bytes.Buffer
		w.log = slog.New(slog.NewTextHandler(&out, nil))
		d := w.dir(t)
		all := w.list(t, "d")
		e, _ := w.find(t, d, "f0000")
		time.Sleep(time.Hour)
		w.bucket.failWith(hang)
		start := time.Now()
		for time.Since(start) < 10*time.Minute {
			attempt := time.Now()
			for i := range 5 {
				if _, took := w.find(t, d, file(i)); took > lookupTimeout {
					t.Errorf("%s: took %v", file(i), took)
				}
				if got, err := w.List(bg, d); err != nil || names(got) != all {
					t.Errorf("list: got %s, %v", names(got), err)
				}
			}
			if took := time.Since(attempt); took > lookupTimeout {
				t.Errorf("all took %v, want no more than %v", took, lookupTimeout)
			}
			time.Sleep(5 * time.Second)
		}
		if e.Stale() || w.get(t, "d/f0000") != e {
			t.Error("a cached file was removed")
		}
		w.bucket.failWith(nil)
		w.source.Put("d/new", nil)
		time.Sleep(2*time.Minute + listingBackoff)
		if got := w.list(t, "d"); got != all+" new" {
			t.Errorf("after the outage: got %s", got)
		}
		w.Close() // so that nothing writes to the log
		if got := out.String(); !strings.Contains(got, "serving cached metadata") || !strings.Contains(got, errNoPage.Error()) {
			t.Errorf("logged %q", got)
		}
	})
}

// While the store is unreachable, an invalidated name delays a list of its directory for twice
// lookupTimeout at most: once for the Stat, once for the first page.
func TestOutageWithInvalidatedName(t *testing.T) {
	inBucket(t, time.Hour, 20, 10, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		w.list(t, "d")
		w.Changed(w.get(t, "d/f0001"))
		w.bucket.Latency = time.Hour
		start := time.Now()
		if all, err := w.List(bg, d); err != nil || len(all) != 19 || time.Since(start) > 2*lookupTimeout {
			t.Errorf("got %d names, %v after %v", len(all), err, time.Since(start))
		}
	})
}

// After a failed listing, the next one starts after listingBackoff. Until then, a name that is
// not cached is requested by Stat.
func TestListingBackoff(t *testing.T) {
	inBucket(t, time.Minute, 20, 10, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		w.list(t, "d")
		time.Sleep(time.Minute)
		w.dir(t)
		w.bucket.failWith(func(string, int) error { return syscall.EIO })
		w.find(t, d, "f0000")
		w.wantRequests(t, 1, 0)
		for i := range 20 {
			w.find(t, d, file(i))
			w.wantNames(t, d, 20)
		}
		if _, err := w.Lookup(bg, d, "none"); !errors.Is(err, syscall.EIO) {
			t.Errorf("name that is not cached: got %v, want EIO", err)
		}
		w.bucket.failWith(nil)
		w.wantMissing(t, d, "none")
		w.source.Put("d/none", nil)
		w.find(t, d, "none")
		w.wantRequests(t, 0, 3) // for d/none twice, and once for the root, which shows that the source is not gone
		time.Sleep(listingBackoff)
		w.source.Delete("d/f0000")
		w.wantMissing(t, d, "f0000")
		w.find(t, d, "none")
		w.wantRequests(t, 2, 0)
	})
}

// The back-off after a failed listing does not last longer than the TTL: a file that was
// replaced is seen when the TTL is over, whether or not a listing failed in between.
func TestListingBackoffIsBoundedByTTL(t *testing.T) {
	inBucket(t, time.Second, 20, 10, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		w.list(t, "d")
		time.Sleep(time.Second)
		w.bucket.failWith(func(string, int) error { return syscall.EIO })
		w.find(t, d, "f0000")
		w.bucket.failWith(nil)
		w.source.Put("d/f0000", []byte("another version"))
		time.Sleep(time.Second)
		if e, _ := w.find(t, w.dir(t), "f0000"); e.Size() != int64(len("another version")) {
			t.Errorf("after the TTL: got the version with %d bytes", e.Size())
		}
	})
}
