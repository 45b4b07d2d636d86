package metadata

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/tiers"
)

// Concurrent lookups and lists share one listing of the directory, also lookups of missing
// names. It is cached for the TTL.
func TestLookupsShareListing(t *testing.T) {
	inBucket(t, time.Minute, 95, 20, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		for range 3 {
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() {
					e, err := w.Lookup(bg, d, file(i))
					switch {
					case i >= 95 && !errors.Is(err, fs.ErrNotExist):
						t.Errorf("%s: got %v", file(i), err)
					case i < 95 && (err != nil || e.Name() != file(i) || e.Size() != 7 || e.Info().Version == ""):
						t.Errorf("%s: got %v, %v", file(i), e, err)
					}
				})
				wg.Go(func() { w.wantNames(t, d, 95) })
			}
			wg.Wait()
			w.wantRequests(t, 5, 0)
			w.list(t, "d")
			w.get(t, "d/f0050")
			w.wantMissing(t, d, "g")
			w.wantRequests(t, 0, 0)
			time.Sleep(time.Minute)
			w.dir(t)
		}
		e := w.get(t, "d/f0007")
		time.Sleep(time.Minute)
		w.dir(t)
		w.source.Delete("d/f0008")
		w.source.Put("d/g", nil)
		if err := w.Refresh(bg, e); err != nil || e.Stale() {
			t.Errorf("refresh: got %v, stale %v", err, e.Stale())
		}
		w.get(t, "d/g")
		w.wantMissing(t, d, "f0008")
		w.wantRequests(t, 5, 0)
	})
}

// A lookup returns when the page with its name arrives. Later lookups return at once.
func TestLookupReturnsWithPage(t *testing.T) {
	inBucket(t, time.Minute, 8, 1, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		var took [8]time.Duration
		var wg sync.WaitGroup
		for i := range took {
			wg.Go(func() { _, took[i] = w.find(t, d, file(i)) })
		}
		wg.Wait()
		seen := make(map[time.Duration]bool)
		for _, d := range took {
			seen[d] = true
		}
		for i := range time.Duration(8) {
			if !seen[(i+1)*latency] {
				t.Errorf("got durations %v, want one for each page", took)
			}
		}
		for i := range 8 {
			if _, took := w.find(t, d, file(i)); took != 0 {
				t.Errorf("second lookup took %v, want 0", took)
			}
		}
		w.wantRequests(t, 8, 0)
	})
}

// A lookup waits for a long listing for lookupTimeout at most. The listing continues.
func TestLookupTimeout(t *testing.T) {
	inBucket(t, time.Hour, 100, 1, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			if all, err := w.List(bg, d); err != nil || len(all) != 100 || time.Since(start) != 100*latency {
				t.Errorf("got %d names after %v, %v", len(all), time.Since(start), err)
			}
		})
		wg.Go(func() { // only the end of the listing would show that this name is missing
			if _, err := w.Lookup(bg, d, "g"); !errors.Is(err, fs.ErrNotExist) || time.Since(start) != lookupTimeout+latency {
				t.Errorf("got %v after %v", err, time.Since(start))
			}
		})
		time.Sleep(5*time.Second + latency/2)
		arrived, missing := w.split(d, 100)
		if len(arrived) != 50 {
			t.Errorf("%d names have arrived, want 50", len(arrived))
		}
		if _, took := w.find(t, d, arrived[0]); took != 0 {
			t.Errorf("lookup of a name that has arrived took %v, want 0", took)
		}
		w.before.Stats++ // for the missing name
		w.before.Lists += 51
		w.wantRequests(t, 0, 0)
		late, took := w.find(t, d, missing[0])
		if took != latency {
			t.Errorf("lookup after lookupTimeout took %v, want the duration of one request", took)
		}
		w.wantRequests(t, 1, 1)
		wg.Wait()
		w.wantRequests(t, 48, 0)
		if got := w.get(t, "d/"+missing[0]); got != late || late.Stale() {
			t.Error("the listing has replaced the entry of a lookup")
		}
		w.wantMissing(t, d, "g")
		w.wantRequests(t, 0, 0)
	})
}

// A listing continues when the context of the caller that started it is done.
func TestListingOutlivesItsCaller(t *testing.T) {
	inBucket(t, time.Hour, 50, 10, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		for what, call := range map[string]func(ctx context.Context) error{
			"lookup": func(ctx context.Context) error { _, err := w.Lookup(ctx, d, "none"); return err },
			"list":   func(ctx context.Context) error { _, err := w.List(ctx, d); return err },
		} {
			ctx, cancel := context.WithTimeout(bg, latency/2)
			defer cancel()
			start := time.Now()
			if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != latency/2 {
				t.Errorf("%s: got %v after %v", what, err, time.Since(start))
			}
			time.Sleep(time.Second)
			w.get(t, "d/f0020")
			w.wantMissing(t, d, "none")
			w.wantRequests(t, 5, 0)
			time.Sleep(time.Hour)
			w.dir(t)
		}
	})
}

// Another version is another entry, also if size and mtime are equal.
func TestVersionChanges(t *testing.T) {
	inBucket(t, time.Minute, 3, 0, func(t *testing.T, w *bucketWorld) {
		w.bucket.setVersion("f0001", "one")
		old := w.get(t, "d/f0001")
		same := w.get(t, "d/f0002")
		w.Hold(old)
		w.bucket.setVersion("f0001", "two")
		for _, how := range []string{"list", "stat"} {
			time.Sleep(time.Minute)
			if how == "stat" {
				w.get(t, "d/f0001")
				w.bucket.setVersion("f0001", "three")
				old = w.get(t, "d/f0001")
				w.Changed(old)
			}
			now := w.get(t, "d/f0001")
			if now == old || !old.Stale() || now.Stale() || old.Info().Version == now.Info().Version {
				t.Errorf("%s: the name still has the old entry", how)
			}
			if a, b := old.Info(), now.Info(); a.Size != b.Size || !a.Mtime.Equal(b.Mtime) || a.Name != b.Name || a.Name != "f0001" {
				t.Errorf("%s: got %+v after %+v", how, b, a)
			}
		}
		if got := w.get(t, "d/f0001").Info().Version; got != "three" {
			t.Errorf("got version %q", got)
		}
		if got := w.get(t, "d/f0002"); got != same || same.Stale() {
			t.Error("the entry of an unchanged file was replaced")
		}
	})
}

// An entry without a version does not match a reply with one. An entry with a version matches
// a reply without one.
func TestVersionOmitted(t *testing.T) {
	inBucket(t, time.Minute, 1, 0, func(t *testing.T, w *bucketWorld) {
		last := (*Entry)(nil)
		for i, c := range []struct {
			version, want string
			same          bool
		}{{"", "", false}, {"", "", true}, {"one", "one", false}, {"", "one", true}, {"one", "one", true}, {"two", "two", false}} {
			w.bucket.setVersion("f0000", c.version)
			e := w.get(t, "d/f0000")
			if got := e.Info().Version; got != c.want || (e == last) != c.same {
				t.Errorf("%d, %q: got version %q, the same entry %v; want %q, %v", i, c.version, got, e == last, c.want, c.same)
			}
			if last != nil && last.Stale() == c.same {
				t.Errorf("%d: the earlier entry is stale: %v", i, last.Stale())
			}
			last = e
			time.Sleep(time.Minute)
		}
	})
}

// A copy has no Version. It is found by its size and mtime.
func TestCopiesOfVersions(t *testing.T) {
	inBucket(t, time.Minute, 3, 2, func(t *testing.T, w *bucketWorld) {
		for i, level := range []int{1, 2} {
			info, err := w.source.Stat(bg, "d/"+file(i))
			if err != nil {
				t.Fatal(err)
			}
			w.tier[level].PutAt("d/"+file(i), []byte("content"), info.Mtime)
		}
		w.tier[1].Put("d/"+file(2), []byte("content"))
		for range 2 {
			for i, want := range []tiers.Level{1, 2, 0} {
				if e := w.get(t, "d/"+file(i)); e.Level() != want || e.Info().Version == "" {
					t.Errorf("%s: got level %d, want %d", e.Path(), e.Level(), want)
				}
			}
			w.Changed(w.get(t, "d/f0001")) // the next lookup is a Stat
		}
	})
}

// A lookup during a slow request for a page has a later reply, which the page must not replace.
func TestBucketChangesWhileItIsListed(t *testing.T) {
	inBucket(t, time.Hour, 2, 2, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		w.bucket.failWith(func(_ string, page int) error {
			if page == 0 {
				time.Sleep(4 * time.Second)
			}
			return nil
		})
		var wg sync.WaitGroup
		wg.Go(func() { w.List(bg, d) })
		time.Sleep(time.Second)
		w.source.Put("d/f0000", []byte("new"))
		w.source.Put("d/fresh", nil)
		changed, _ := w.find(t, d, "f0000")
		fresh, _ := w.find(t, d, "fresh")
		same, _ := w.find(t, d, "f0001")
		wg.Wait()
		all, err := w.List(bg, d)
		if err != nil || names(all) != "f0000 f0001 fresh" {
			t.Fatalf("got %s, %v", names(all), err)
		}
		for i, e := range []*Entry{changed, same, fresh} {
			if all[i] != e || e.Stale() {
				t.Errorf("%s: the listing has replaced the entry of a later lookup", e.Name())
			}
		}
		w.wantRequests(t, 1, 3)
	})
}

// If a listing takes longer than the TTL, names of its pages are found without another.
func TestListingLongerThanTTL(t *testing.T) {
	inBucket(t, time.Second, 50, 1, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		var wg sync.WaitGroup
		wg.Go(func() { w.wantNames(t, d, 50) })
		time.Sleep(latency * 3 / 2)
		time.Sleep(time.Second)
		arrived, _ := w.split(d, 50)
		time.Sleep(3 * time.Second)
		for _, name := range arrived {
			if _, took := w.find(t, d, name); took != 0 {
				t.Errorf("lookup of %s took %v, want 0", name, took)
			}
		}
		wg.Wait()
		w.wantRequests(t, 50, 0)
	})
}

// A folder without objects does not exist, and neither does its name in the folder above. The
// root may be empty.
func TestDirectoryRemoved(t *testing.T) {
	inBucket(t, time.Hour, 3, 0, func(t *testing.T, w *bucketWorld) {
		w.source.Put("e", nil)
		d := w.dir(t)
		w.source.Delete("d")
		w.wantMissing(t, d, "f0000")
		if !d.Stale() {
			t.Error("the removed folder is not stale")
		}
		if _, err := w.List(bg, d); !errors.Is(err, syscall.ESTALE) {
			t.Errorf("list: got %v, want ESTALE", err)
		}
		w.before = w.bucket.Requests()
		wantMissing(t, w.world, "d")
		wantMissing(t, w.world, "d/f0000")
		w.wantRequests(t, 0, 1)
		if got := w.list(t, "."); got != "e" {
			t.Errorf("got %s", got)
		}
		w.source.Delete("e")
		time.Sleep(time.Hour)
		if got := w.list(t, "."); got != "" || w.Root().Stale() {
			t.Errorf("got %s", got)
		}
		wantMissing(t, w.world, "e")
		if got := w.Len(); got != 1 {
			t.Errorf("entries: got %d, want the root", got)
		}
	})
}

// Close cancels a listing and waits for it. After Close, none is started.
func TestCloseEndsListing(t *testing.T) {
	inBucket(t, time.Hour, 100, 1, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		var waiting sync.WaitGroup
		for range 10 {
			waiting.Go(func() {
				if _, err := w.List(bg, d); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v, want %v", err, context.Canceled)
				}
			})
		}
		time.Sleep(latency * 5 / 2)
		w.Close()
		if d.dir.inFlight != nil {
			t.Error("a listing is in flight after Close")
		}
		waiting.Wait()
		w.wantRequests(t, 3, 0)
		if _, err := w.Lookup(bg, d, "none"); !errors.Is(err, errClosed) {
			t.Errorf("got %v, want %v", err, errClosed)
		}
		w.wantRequests(t, 0, 0)
	})
}

// Without a TTL, each lookup lists the directory. Concurrent lookups share the listing.
func TestBucketNoTTL(t *testing.T) {
	inBucket(t, 0, 10, 5, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		for i := range 5 {
			w.find(t, d, "f0001")
			time.Sleep(time.Second) // until no listing is in flight
			w.source.Put(fmt.Sprint("d/", i), nil)
			w.find(t, d, fmt.Sprint(i))
			if got := len(strings.Fields(w.list(t, "d"))); got != 11+i {
				t.Errorf("got %d names", got)
			}
			w.Changed(w.get(t, "d/f0001"))
			time.Sleep(time.Second)
			w.source.Delete("d/f0001")
			w.wantMissing(t, d, "f0001")
			w.source.Put("d/f0001", nil)
		}
		var wg sync.WaitGroup
		w.before = w.bucket.Requests()
		for range 20 {
			wg.Go(func() { w.Lookup(bg, d, "f0002") })
		}
		wg.Wait()
		w.wantRequests(t, 3, 0)
	})
}

// A tier that does not respond delays lookups for its time-out at most.
func TestTierHangsWhileListed(t *testing.T) {
	inBucket(t, time.Hour, 10, 5, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		w.down[1].Add(drivertest.Rule{Op: drivertest.OpReadDir, Delay: 10 * time.Minute})
		if e, took := w.find(t, d, "f0001"); took > lookupTimeout+2*latency || e.Level() != tiers.AtSource {
			t.Errorf("took %v", took)
		}
		w.wantNames(t, d, 10)
		e, _ := w.find(t, d, "f0002")
		if !e.Unverified() {
			t.Error("the entry is not Unverified, though a tier did not respond")
		}
	})
}

// A bigBucket has one directory of n objects with versions of 32 bytes, which it generates
// when they are listed.
type bigBucket struct {
	drivers.Driver
	n    int
	last func() // called before the last page, unless nil
}

func (s bigBucket) List(_ context.Context, _ string, page func([]drivers.Info) error) error {
	for from := 0; from < s.n; from += pageSize {
		infos := make([]drivers.Info, min(pageSize, s.n-from))
		for i := range infos {
			infos[i] = drivers.Info{
				Name: fmt.Sprintf("img_%08d", from+i), Version: fmt.Sprintf("%032x", from+i),
				Mode: syscall.S_IFREG | 0o644, Nlink: 1, Size: 1, Mtime: time.Unix(int64(from), 0),
			}
		}
		if from+pageSize >= s.n && s.last != nil {
			s.last()
		}
		if err := page(infos); err != nil {
			return err
		}
	}
	return nil
}

// A large directory takes the memory of its entries, and little more while it is listed, for
// the first time or again.
func TestListingMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("measures memory")
	}
	const n, budget, inFlight = 200_000, 200, 24
	var before, most int64
	source := &bigBucket{Driver: drivertest.NewMem(0), n: n}
	source.last = func() { most = max(most, heap()) }
	log := slog.New(slog.DiscardHandler)
	h, err := tiers.New(source, nil, tiers.Options{}, log)
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(bg, h, Options{TTL: time.Hour}, log)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before = heap()
	var last []*Entry
	for range 2 {
		all, err := c.List(bg, c.Root())
		if err != nil || len(all) != n {
			t.Fatalf("got %d names, %v", len(all), err)
		}
		if last != nil && &last[0] != &all[0] {
			t.Error("List returned another slice, though nothing has changed")
		}
		last = all
		if got := (heap() - before) / n; got > budget {
			t.Errorf("an entry takes %d bytes, more than %d", got, budget)
		}
		if got := (most - before) / n; got > budget+inFlight {
			t.Errorf("an entry takes %d bytes while the directory is listed, more than %d", got, budget+inFlight)
		}
		d := c.Root().dir
		d.mu.Lock()
		d.listed = 0
		d.mu.Unlock()
	}
	if e := last[n/2]; e.Info().Version != fmt.Sprintf("%032x", n/2) || e.Name() != fmt.Sprintf("img_%08d", n/2) {
		t.Errorf("got %+v", e.Info())
	}
	runtime.KeepAlive(c)
}
