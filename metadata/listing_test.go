package metadata

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/tiers"
)

// latency is how long the buckets of these tests take for a request.
const latency = 100 * time.Millisecond

// A bucket is one whose listings can fail, and whose versions can be set.
type bucket struct {
	*drivertest.Bucket

	mu       sync.Mutex // guards the following
	fail     func(dir string, part int) error
	versions map[string]string // by the last element of the name
}

// failing has f asked before each part of a listing is given out, and before a
// Stat, which is part -1.
func (b *bucket) failing(f func(dir string, part int) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = f
}

// call has what has a name be of a version.
func (b *bucket) call(name, version string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.versions == nil {
		b.versions = make(map[string]string)
	}
	b.versions[name] = version
}

func (b *bucket) describe(i drivers.Info) drivers.Info {
	b.mu.Lock()
	defer b.mu.Unlock()
	if v, ok := b.versions[i.Name]; ok {
		i.Version = v
	}
	i.Nlink = 0 // an object store has no links
	return i
}

func (b *bucket) failure(dir string, part int) error {
	b.mu.Lock()
	fail := b.fail
	b.mu.Unlock()
	if fail == nil {
		return nil
	}
	return fail(dir, part)
}

func (b *bucket) List(ctx context.Context, dir string, part func([]drivers.Info) error) error {
	n := 0
	return b.Bucket.List(ctx, dir, func(infos []drivers.Info) error {
		if err := b.failure(dir, n); err != nil {
			return err
		}
		n++
		described := make([]drivers.Info, len(infos))
		for i := range infos {
			described[i] = b.describe(infos[i])
		}
		return part(described)
	})
}

func (b *bucket) Stat(ctx context.Context, name string) (drivers.Info, error) {
	if err := b.failure(name, -1); err != nil {
		return drivers.Info{}, err
	}
	i, err := b.Bucket.Stat(ctx, name)
	return b.describe(i), err
}

// A bucketWorld is a world with a bucket as its source.
type bucketWorld struct {
	*world
	bucket *bucket
	before drivertest.BucketRequests
}

// inBucket runs f in a bubble, with n files f0000 and so on in the folder d of a
// bucket, of which so many make a part of a listing.
func inBucket(t *testing.T, ttl time.Duration, n, page int, f func(t *testing.T, w *bucketWorld)) {
	synctest.Test(t, func(t *testing.T) {
		b := &bucket{Bucket: &drivertest.Bucket{Mem: drivertest.NewMem(0), Latency: latency, Page: page}}
		for i := range n {
			b.Put("d/"+file(i), []byte("content"))
		}
		w := &bucketWorld{world: worldOf(t, b, ttl), bucket: b}
		w.source = b.Mem
		t.Cleanup(func() { w.Close() })
		f(t, w)
	})
}

func file(i int) string { return fmt.Sprintf("f%04d", i) }

// dir returns the folder d, and forgets that it was asked for.
func (w *bucketWorld) dir(t *testing.T) *Entry {
	t.Helper()
	d := w.get(t, "d")
	w.before = w.bucket.Requests()
	return d
}

// wantRequests compares what was asked since the last time.
func (w *bucketWorld) wantRequests(t *testing.T, lists, stats int64) {
	t.Helper()
	now := w.bucket.Requests()
	if got := now.Lists - w.before.Lists; got != lists {
		t.Errorf("listed %d parts, want %d", got, lists)
	}
	if got := now.Stats - w.before.Stats; got != stats {
		t.Errorf("asked for %d names, want %d", got, stats)
	}
	w.before = now
}

// find looks a name up in a directory, and returns how long that took.
func (w *bucketWorld) find(t *testing.T, dir *Entry, name string) (*Entry, time.Duration) {
	t.Helper()
	start := time.Now()
	e, err := w.Lookup(bg, dir, name)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return e, time.Since(start)
}

func (w *bucketWorld) wantGone(t *testing.T, dir *Entry, name string) {
	t.Helper()
	if _, err := w.Lookup(bg, dir, name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: got %v, want %v", name, err, fs.ErrNotExist)
	}
}

// wantNames lists a directory, which is to have so many names.
func (w *bucketWorld) wantNames(t *testing.T, dir *Entry, n int) {
	t.Helper()
	if all, err := w.List(bg, dir); err != nil || len(all) != n {
		t.Errorf("got %d names, %v; want %d", len(all), err, n)
	}
}

// Names are found in one listing of their directory, which all share who want
// one, and those that are not there are too, until the time is over.
func TestNamesAreListed(t *testing.T) {
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
			w.wantGone(t, d, "g")
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
		w.wantGone(t, d, "f0008")
		w.wantRequests(t, 5, 0)
	})
}

// A name is found when the part has come that has it, by who waits for it and by
// who comes later.
func TestNamesAreFoundAsTheyArrive(t *testing.T) {
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
				t.Errorf("got %v, want one for each part", took)
			}
		}
		for i := range 8 {
			if _, took := w.find(t, d, file(i)); took != 0 {
				t.Errorf("found again: took %v", took)
			}
		}
		w.wantRequests(t, 8, 0)
	})
}

// split returns the names that have come of a listing, and those that have not.
func (w *bucketWorld) split(d *Entry, n int) (come, missing []string) {
	for i := range n {
		if e, _, _ := d.dir.find(file(i)); e != nil {
			come = append(come, file(i))
		} else {
			missing = append(missing, file(i))
		}
	}
	return come, missing
}

// A lookup does not wait for the end of a long listing, which goes on for all.
func TestPatience(t *testing.T) {
	inBucket(t, time.Hour, 100, 1, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			if all, err := w.List(bg, d); err != nil || len(all) != 100 || time.Since(start) != 100*latency {
				t.Errorf("got %d names after %v, %v", len(all), time.Since(start), err)
			}
		})
		wg.Go(func() { // not there: nothing of the listing could tell
			if _, err := w.Lookup(bg, d, "g"); !errors.Is(err, fs.ErrNotExist) || time.Since(start) != patience+latency {
				t.Errorf("got %v after %v", err, time.Since(start))
			}
		})
		time.Sleep(5*time.Second + latency/2)
		come, missing := w.split(d, 100)
		if len(come) != 50 {
			t.Errorf("%d names have come, want 50", len(come))
		}
		if _, took := w.find(t, d, come[0]); took != 0 {
			t.Errorf("a name that has come took %v", took)
		}
		w.before.Stats++ // for the name that is not there
		w.before.Lists += 51
		w.wantRequests(t, 0, 0)
		late, took := w.find(t, d, missing[0])
		if took != latency {
			t.Errorf("after the time: took %v, want no more than a request", took)
		}
		w.wantRequests(t, 1, 1)
		wg.Wait()
		w.wantRequests(t, 48, 0)
		if got := w.get(t, "d/"+missing[0]); got != late || late.Stale() {
			t.Error("the listing has replaced what was looked up")
		}
		w.wantGone(t, d, "g")
		w.wantRequests(t, 0, 0)
	})
}

// A listing does not end with the one who began it.
func TestListingOutlivesItsCaller(t *testing.T) {
	inBucket(t, time.Hour, 50, 10, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		for what, ask := range map[string]func(ctx context.Context) error{
			"lookup": func(ctx context.Context) error { _, err := w.Lookup(ctx, d, "none"); return err },
			"list":   func(ctx context.Context) error { _, err := w.List(ctx, d); return err },
		} {
			ctx, cancel := context.WithTimeout(bg, latency/2)
			defer cancel()
			start := time.Now()
			if err := ask(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != latency/2 {
				t.Errorf("%s: got %v after %v", what, err, time.Since(start))
			}
			time.Sleep(time.Second)
			w.get(t, "d/f0020")
			w.wantGone(t, d, "none")
			w.wantRequests(t, 5, 0)
			time.Sleep(time.Hour)
			w.dir(t)
		}
	})
}

// Of a listing that fails midway what has come is there, and what was known
// before; the rest is an error, until it works again.
func TestListingFails(t *testing.T) {
	inBucket(t, time.Minute, 30, 10, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		broken := func(_ string, part int) error {
			if part == 2 {
				return syscall.EIO
			}
			return nil
		}
		w.bucket.failing(broken)
		if _, err := w.List(bg, d); !errors.Is(err, syscall.EIO) {
			t.Errorf("list: got %v, want EIO", err)
		}
		come, _ := w.split(d, 30)
		if len(come) != 20 {
			t.Errorf("%d names are known, want 20", len(come))
		}
		w.wantRequests(t, 3, 0)
		for _, name := range come {
			w.find(t, d, name)
		}
		w.wantRequests(t, 0, 0)
		if _, err := w.Lookup(bg, d, "none"); !errors.Is(err, syscall.EIO) {
			t.Errorf("unknown: got %v, want EIO", err)
		}
		w.wantRequests(t, 3, 0)

		w.bucket.failing(nil)
		w.wantGone(t, d, "none")
		all := w.list(t, "d")
		w.wantRequests(t, 3, 0)

		time.Sleep(time.Minute)
		e, _, _ := d.dir.find(come[0])
		w.bucket.failing(func(string, int) error { return syscall.EIO })
		if got, _ := w.find(t, d, come[0]); got != e || e.Stale() {
			t.Error("a known file was forgotten")
		}
		if _, err := w.Lookup(bg, d, "none"); !errors.Is(err, syscall.EIO) {
			t.Errorf("unknown: got %v, want EIO", err)
		}
		if got, err := w.List(bg, d); err != nil || names(got) != all {
			t.Errorf("list: got %s, %v", names(got), err)
		}
		w.bucket.failing(nil)
		w.source.Put("d/none", nil)
		w.get(t, "d/none")
	})
}

// A failure of the source is logged, also when nobody waits for the listing.
func TestFailedListingIsLogged(t *testing.T) {
	inBucket(t, time.Minute, 30, 1, func(t *testing.T, w *bucketWorld) {
		var out bytes.Buffer
		w.log = slog.New(slog.NewTextHandler(&out, nil))
		d := w.dir(t)
		w.bucket.failing(func(_ string, part int) error {
			if part == 20 {
				return syscall.EIO
			}
			return nil
		})
		w.wantGone(t, d, "none")
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "path=d ") || !strings.Contains(got, syscall.EIO.Error()) {
			t.Errorf("logged %q", got)
		}
	})
}

// Another version is another entry, though size and time are the same.
func TestVersionChanges(t *testing.T) {
	inBucket(t, time.Minute, 3, 0, func(t *testing.T, w *bucketWorld) {
		w.bucket.call("f0001", "one")
		old := w.get(t, "d/f0001")
		same := w.get(t, "d/f0002")
		w.Hold(old)
		w.bucket.call("f0001", "two")
		for _, how := range []string{"listed", "asked for"} {
			time.Sleep(time.Minute)
			if how == "asked for" {
				w.get(t, "d/f0001")
				w.bucket.call("f0001", "three")
				old = w.get(t, "d/f0001")
				w.Changed(old)
			}
			now := w.get(t, "d/f0001")
			if now == old || !old.Stale() || now.Stale() || old.Info().Version == now.Info().Version {
				t.Errorf("%s: the old entry is still there", how)
			}
			if a, b := old.Info(), now.Info(); a.Size != b.Size || !a.Mtime.Equal(b.Mtime) || a.Name != b.Name || a.Name != "f0001" {
				t.Errorf("%s: got %+v after %+v", how, b, a)
			}
		}
		if got := w.get(t, "d/f0001").Info().Version; got != "three" {
			t.Errorf("got version %q", got)
		}
		if got := w.get(t, "d/f0002"); got != same || same.Stale() {
			t.Error("another file has changed too")
		}
	})
}

// What has a version is not what had none. What has none is still what had one.
func TestVersionIsLeftOut(t *testing.T) {
	inBucket(t, time.Minute, 1, 0, func(t *testing.T, w *bucketWorld) {
		last := (*Entry)(nil)
		for i, c := range []struct {
			version, want string
			same          bool
		}{{"", "", false}, {"", "", true}, {"one", "one", false}, {"", "one", true}, {"one", "one", true}, {"two", "two", false}} {
			w.bucket.call("f0000", c.version)
			e := w.get(t, "d/f0000")
			if got := e.Info().Version; got != c.want || (e == last) != c.same {
				t.Errorf("%d, %q: got version %q, the same entry %v; want %q, %v", i, c.version, got, e == last, c.want, c.same)
			}
			if last != nil && last.Stale() == c.same {
				t.Errorf("%d: the one before is stale: %v", i, last.Stale())
			}
			last = e
			time.Sleep(time.Minute)
		}
	})
}

// A copy has no version. It is found by its size and time.
func TestCopiesOfVersions(t *testing.T) {
	inBucket(t, time.Minute, 3, 2, func(t *testing.T, w *bucketWorld) {
		for i, held := range []int{1, 2} {
			info, err := w.source.Stat(bg, "d/"+file(i))
			if err != nil {
				t.Fatal(err)
			}
			w.tier[held].PutAt("d/"+file(i), []byte("content"), info.Mtime)
		}
		w.tier[1].Put("d/"+file(2), []byte("content"))
		for range 2 {
			for i, want := range []tiers.Level{1, 2, 0} {
				if e := w.get(t, "d/"+file(i)); e.Level() != want || e.Info().Version == "" {
					t.Errorf("%s: got level %d, want %d", e.Path(), e.Level(), want)
				}
			}
			w.Changed(w.get(t, "d/f0001")) // and ask for the one
		}
	})
}

// What a tier holds of a name may be newer than the listing, and of an outdated
// version all the same.
func TestPlacedAndChangedWhileListed(t *testing.T) {
	inBucket(t, time.Minute, 30, 1, func(t *testing.T, w *bucketWorld) {
		w.list(t, "d")
		old := w.get(t, "d/"+file(29))
		mtime := old.Info().Mtime
		time.Sleep(2 * time.Minute)
		w.source.Put(old.Path(), []byte("new"))
		var wg sync.WaitGroup
		wg.Go(func() { w.list(t, "d") })
		time.Sleep(time.Second) // the tiers have been asked, and the part has not come
		w.tier[1].PutAt(old.Path(), []byte("content"), mtime)
		old.Claim()
		old.Publish(1)
		wg.Wait()
		now := w.get(t, old.Path())
		if !old.Stale() || !now.Claim() || settle(w.Container, now) {
			t.Fatal("the new version is not to be copied")
		}
		if _, err := w.tier[1].Stat(bg, now.Path()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the outdated copy: got %v, want %v", err, fs.ErrNotExist)
		}
		if now.Unverified() {
			t.Error("it is looked for again")
		}
	})
}

// An object that has changed or gone costs one request, and none for those that
// were listed with it.
func TestChangedAsksForOne(t *testing.T) {
	inBucket(t, time.Hour, 2100, 100, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		w.list(t, "d")
		w.wantRequests(t, 21, 0)
		changed, gone, back := w.get(t, "d/f0001"), w.get(t, "d/f0002"), w.get(t, "d/f0003")
		w.source.Put("d/f0001", []byte("other content"))
		w.source.Delete("d/f0002")
		for range 2 { // to say it again makes no difference
			w.Changed(changed)
			w.Changed(gone)
			w.Changed(back)
		}
		w.get(t, "d/f0004")
		w.wantGone(t, d, "none")
		w.wantRequests(t, 0, 0)
		if e := w.get(t, "d/f0001"); e == changed || e.Size() != 13 {
			t.Errorf("got size %d of the changed one", e.Size())
		}
		w.wantGone(t, d, "f0002")
		if e := w.get(t, "d/f0003"); e == back || e.Stale() {
			t.Error("what was the same after all is still stale")
		}
		w.wantRequests(t, 0, 3)
		for range 2 {
			w.get(t, "d/f0001")
			w.wantGone(t, d, "f0002")
			w.get(t, "d/f0003")
			w.wantNames(t, d, 2099)
		}
		w.wantRequests(t, 0, 0)
	})
}

// Who lists a directory gets all names, and those that are in doubt are asked for
// first, or listed again if they are many or the source does not answer.
func TestListAfterChanged(t *testing.T) {
	inBucket(t, time.Hour, 50, 10, func(t *testing.T, w *bucketWorld) {
		for _, c := range []struct {
			what         string
			changed      int
			lists, stats int64
		}{{"one", 1, 0, 1}, {"two", 2, 5, 0}} {
			d := w.dir(t)
			w.list(t, "d")
			w.before = w.bucket.Requests()
			for i := range c.changed {
				e := w.get(t, "d/"+file(i))
				w.source.Put(e.Path(), []byte("new"))
				w.Changed(e)
			}
			all, err := w.List(bg, d)
			if err != nil || len(all) != 50 {
				t.Errorf("%s: got %d names, %v", c.what, len(all), err)
			}
			w.wantRequests(t, c.lists, c.stats)
			if len(d.dir.doubts) != 0 {
				t.Errorf("%s: %d names are still in doubt", c.what, len(d.dir.doubts))
			}
		}
		d := w.dir(t)
		w.Changed(w.get(t, "d/f0000"))
		ctx, cancel := context.WithTimeout(bg, latency/2)
		defer cancel()
		if _, err := w.List(ctx, d); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		w.wantRequests(t, 0, 1)
		w.list(t, "d")
		w.wantRequests(t, 0, 1)
	})
}

// What is found changed while its directory is being listed is not what the
// listing has brought.
func TestChangedWhileListed(t *testing.T) {
	inBucket(t, time.Hour, 30, 1, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		var wg sync.WaitGroup
		wg.Go(func() { w.wantNames(t, d, 29) })
		time.Sleep(2 * time.Second)
		come, missing := w.split(d, 30)
		asked, doubted, gone := w.get(t, "d/"+come[0]), w.get(t, "d/"+come[1]), w.get(t, "d/"+come[2])
		for _, e := range []*Entry{asked, doubted} {
			w.source.Put(e.Path(), []byte("new"))
		}
		w.source.Delete(gone.Path())
		w.Changed(asked)
		w.Changed(doubted)
		w.Changed(gone)
		now := w.get(t, asked.Path())
		w.wantGone(t, d, gone.Name())
		early, _ := w.find(t, d, missing[0])
		wg.Wait()
		if now == asked || now.Size() != 3 || w.get(t, asked.Path()) != now {
			t.Error("the listing has replaced what was looked up")
		}
		w.before = w.bucket.Requests() // also for what is doubted, by who lists
		if e := w.get(t, doubted.Path()); e == doubted || e.Size() != 3 {
			t.Errorf("got size %d of what was not looked up meanwhile", e.Size())
		}
		w.wantGone(t, d, gone.Name())
		if w.get(t, early.Path()) != early || early.Stale() {
			t.Error("the listing has replaced what was found before it")
		}
		w.wantRequests(t, 0, 0)
		if got := len(w.list(t, "d")); got != 29*6-1 {
			t.Errorf("got %d bytes of names", got)
		}
		if got := w.Len(); got != 31 {
			t.Errorf("entries: got %d, want 31: the root, d and what is in it", got)
		}
	})
}

// Who waits for a listing is not told that a name is missing which was found
// changed meanwhile.
func TestChangedWhileWaitedFor(t *testing.T) {
	inBucket(t, time.Hour, 5, 1, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		var wg sync.WaitGroup
		wg.Go(func() { w.wantGone(t, d, "none") })
		time.Sleep(latency * 5 / 2)
		come, _ := w.split(d, 5)
		old := w.get(t, "d/"+come[0])
		w.source.Put(old.Path(), []byte("new"))
		w.Changed(old)
		if e, took := w.find(t, d, old.Name()); e == old || e.Size() != 3 || took != latency*7/2 {
			t.Errorf("got size %d after %v", e.Size(), took)
		}
		w.wantRequests(t, 5, 1)
		wg.Wait()
	})
}

// A part that was asked for before a name was in doubt does not settle it.
func TestDoubtWhileAPartIsAskedFor(t *testing.T) {
	inBucket(t, time.Minute, 3, 3, func(t *testing.T, w *bucketWorld) {
		old := w.get(t, "d/f0001")
		time.Sleep(time.Minute)
		d := w.dir(t)
		w.bucket.failing(func(_ string, part int) error {
			if part == 0 {
				time.Sleep(5 * latency)
			}
			return nil
		})
		var wg sync.WaitGroup
		wg.Go(func() { w.find(t, d, "f0000") })
		time.Sleep(3 * latency)
		w.source.Put("d/f0001", []byte("new"))
		w.Changed(old)
		wg.Wait()
		if e, _ := w.find(t, d, "f0001"); e.Size() != 3 {
			t.Errorf("got size %d, want that of the new one", e.Size())
		}
		w.wantRequests(t, 1, 1)
	})
}

// When a directory is listed again no name of it is in doubt any more.
func TestListingEndsDoubt(t *testing.T) {
	inBucket(t, time.Minute, 5, 5, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		w.list(t, "d")
		w.Changed(w.get(t, "d/f0001"))
		w.Changed(w.get(t, "d/f0002"))
		w.source.Delete("d/f0001")
		time.Sleep(time.Minute)
		w.dir(t)
		w.find(t, d, "f0002")
		w.wantGone(t, d, "f0001")
		w.wantRequests(t, 1, 0)
	})
}

// A lookup that was made while a part took its time knows better.
func TestBucketChangesWhileItIsListed(t *testing.T) {
	inBucket(t, time.Hour, 2, 2, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		w.bucket.failing(func(_ string, part int) error {
			if part == 0 {
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
				t.Errorf("%s: the listing has replaced what was found later", e.Name())
			}
		}
		w.wantRequests(t, 1, 3)
	})
}

// While a listing takes longer than it is believed, what has come of it is found.
func TestListingIsLong(t *testing.T) {
	inBucket(t, time.Second, 50, 1, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		var wg sync.WaitGroup
		wg.Go(func() { w.wantNames(t, d, 50) })
		time.Sleep(latency * 3 / 2)
		time.Sleep(time.Second)
		come, _ := w.split(d, 50)
		time.Sleep(3 * time.Second)
		for _, name := range come {
			if _, took := w.find(t, d, name); took != 0 {
				t.Errorf("%s took %v", name, took)
			}
		}
		wg.Wait()
		w.wantRequests(t, 50, 0)
	})
}

// A folder of which no object is left is not there, in the folder above too. The
// root may be empty.
func TestDirectoryVanishes(t *testing.T) {
	inBucket(t, time.Hour, 3, 0, func(t *testing.T, w *bucketWorld) {
		w.source.Put("e", nil)
		d := w.dir(t)
		w.source.Delete("d")
		w.wantGone(t, d, "f0000")
		if !d.Stale() {
			t.Error("it is not stale")
		}
		if _, err := w.List(bg, d); !errors.Is(err, syscall.ESTALE) {
			t.Errorf("list: got %v, want ESTALE", err)
		}
		w.before = w.bucket.Requests()
		wantAbsent(t, w.world, "d")
		wantAbsent(t, w.world, "d/f0000")
		w.wantRequests(t, 0, 1)
		if got := w.list(t, "."); got != "e" {
			t.Errorf("got %s", got)
		}
		w.source.Delete("e")
		time.Sleep(time.Hour)
		if got := w.list(t, "."); got != "" || w.Root().Stale() {
			t.Errorf("got %s", got)
		}
		wantAbsent(t, w.world, "e")
		if got := w.Len(); got != 1 {
			t.Errorf("entries: got %d, want the root", got)
		}
	})
}

// While the source has no root, that something is not there says nothing of it.
func TestBucketIsLost(t *testing.T) {
	inBucket(t, time.Minute, 3, 0, func(t *testing.T, w *bucketWorld) {
		e := w.get(t, "d/f0001")
		all := w.list(t, "d")
		lost := &fs.PathError{Op: "list", Path: "bucket", Err: fs.ErrNotExist}
		w.bucket.failing(func(string, int) error { return lost })
		time.Sleep(time.Minute)
		if got := w.get(t, "d/f0001"); got != e || e.Stale() {
			t.Error("a known file was forgotten")
		}
		if _, err := w.Lookup(bg, w.Root(), "none"); !errors.Is(err, syscall.ESTALE) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("unknown: got %v, want ESTALE", err)
		}
		w.bucket.failing(nil)
		time.Sleep(time.Minute)
		if got := w.list(t, "d"); got != all {
			t.Errorf("when it is back: got %s", got)
		}
	})
}

// What was saved and is fresh is known without a request, with its versions.
func TestSavedNamesOfBucket(t *testing.T) {
	inBucket(t, time.Hour, 50, 10, func(t *testing.T, w *bucketWorld) {
		w.bucket.call("f0007", strings.Repeat("v", 300))
		w.source.Mkdir("empty")
		want := tree(t, w.Container)
		if got := want["d/f0007"].Version; len(got) != 300 {
			t.Errorf("got version %q", got)
		}
		for range 2 { // the second time what was saved is copied
			next := w.restarted(t)
			w.before = w.bucket.Requests()
			w.world = next.restarted(t)
			w.wantRequests(t, 0, 1) // for the root, by New
		}
		next := w
		next.get(t, "d/f0007")
		next.wantGone(t, next.get(t, "d"), "none")
		wantTree(t, tree(t, next.Container), want)
		next.wantRequests(t, 0, 0)
		time.Sleep(time.Hour)
		wantTree(t, tree(t, next.Container), want)
		next.wantRequests(t, 7, 0)
		if next.get(t, "d/f0007").Stale() {
			t.Error("what is the same is another entry")
		}
	})
}

// A name that was in doubt when names were saved is not believed missing.
func TestSavedInDoubt(t *testing.T) {
	inBucket(t, time.Hour, 50, 10, func(t *testing.T, w *bucketWorld) {
		w.dir(t)
		w.list(t, "d")
		w.Changed(w.get(t, "d/f0001"))
		next := w.restarted(t)
		w.before = w.bucket.Requests()
		next.get(t, "d/f0002")
		w.wantRequests(t, 0, 0)
		next.get(t, "d/f0001")
	})
}

// A file of the format that had no versions is not used, and replaced.
func TestSavedWithoutVersions(t *testing.T) {
	inBucket(t, time.Hour, 3, 0, func(t *testing.T, w *bucketWorld) {
		want := tree(t, w.Container)
		var out bytes.Buffer
		if err := w.write(&out, "src"); err != nil {
			t.Fatal(err)
		}
		old := out.Bytes()
		old[len(headMagic)] = 1
		path := filepath.Join(t.TempDir(), "names")
		writeFile(t, path, old)
		next := w.again(t)
		if err := next.restore(path, "src"); err == nil || errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "version 1") {
			t.Errorf("got %v, want an error that says that it is of version 1", err)
		}
		wantTree(t, tree(t, next.Container), want)
		if err := next.SaveSnapshot(path, "src"); err != nil {
			t.Fatal(err)
		}
		last := w.again(t)
		if err := last.restore(path, "src"); err != nil {
			t.Fatal(err)
		}
		before := w.bucket.Requests()
		wantTree(t, tree(t, last.Container), want)
		if got := w.bucket.Requests(); got != before {
			t.Errorf("asked %+v after %+v", got, before)
		}
	})
}

// Close ends a listing, waits for it, and begins none.
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
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if d.dir.flight != nil {
			t.Error("it goes on")
		}
		waiting.Wait()
		w.wantRequests(t, 3, 0)
		if _, err := w.Lookup(bg, d, "none"); !errors.Is(err, errClosed) {
			t.Errorf("got %v, want %v", err, errClosed)
		}
		w.wantRequests(t, 0, 0)
	})
}

// When nothing is believed, everything is listed each time, and nothing twice at
// once.
func TestBucketNoTTL(t *testing.T) {
	inBucket(t, 0, 10, 5, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		for i := range 5 {
			w.find(t, d, "f0001")
			time.Sleep(time.Second) // a listing that is under way answers for all
			w.source.Put(fmt.Sprint("d/", i), nil)
			w.find(t, d, fmt.Sprint(i))
			if got := len(strings.Fields(w.list(t, "d"))); got != 11+i {
				t.Errorf("got %d names", got)
			}
			w.Changed(w.get(t, "d/f0001"))
			time.Sleep(time.Second)
			w.source.Delete("d/f0001")
			w.wantGone(t, d, "f0001")
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

// A tier that does not answer does not keep names from being found.
func TestTierHangsWhileListed(t *testing.T) {
	inBucket(t, time.Hour, 10, 5, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		w.down[1].Add(drivertest.Rule{Op: drivertest.OpReadDir, Delay: 10 * time.Minute})
		if e, took := w.find(t, d, "f0001"); took > patience+2*latency || e.Level() != tiers.AtSource {
			t.Errorf("took %v", took)
		}
		w.wantNames(t, d, 10)
		e, _ := w.find(t, d, "f0002")
		if e.state.Load()&unverified == 0 {
			t.Error("nobody will ask the tier again")
		}
	})
}

// Everything at once, on a bucket in which objects come, go and change.
func TestBucketRaces(t *testing.T) {
	b := &bucket{Bucket: &drivertest.Bucket{Mem: drivertest.NewMem(0), Latency: 100 * time.Microsecond, Page: 2}}
	for i := range 3 {
		b.Mkdir(fmt.Sprint("d", i))
	}
	w := &bucketWorld{world: worldOf(t, b, 0), bucket: b}
	w.source = b.Mem
	w.ttl = tick // names are found in all ways
	var wg sync.WaitGroup
	var stop atomic.Bool
	name := func(rng *rand.Rand) string { return fmt.Sprintf("d%d/f%d", rng.IntN(3), rng.IntN(7)) }
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(1, 0))
		for !stop.Load() {
			n := name(rng)
			switch rng.IntN(5) {
			case 0:
				b.Mkdir(n[:2])
				b.Put(n[:2], nil)
			case 1:
				b.failing(func(string, int) error { return syscall.EIO })
				time.Sleep(time.Millisecond)
				b.failing(nil)
			case 2:
				b.call(n[3:], fmt.Sprint(rng.IntN(3)))
			default:
				b.Put(n, make([]byte, rng.IntN(3)))
			}
			time.Sleep(100 * time.Microsecond)
		}
	})
	for i := range 6 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(2, uint64(i)))
			for !stop.Load() {
				n := name(rng)
				ctx, cancel := context.WithTimeout(bg, time.Duration(rng.IntN(20))*time.Millisecond)
				e, err := w.Resolve(ctx, n)
				if err == nil {
					w.Hold(e)
					if e.Path() != n || e.Info().Name != e.Name() {
						t.Errorf("%s: got %s", n, e.Path())
					}
					switch rng.IntN(6) {
					case 0:
						w.List(ctx, e.Parent())
					case 1, 2:
						w.Changed(e)
					case 3:
						w.Refresh(ctx, e)
					case 4:
						w.Changed(e.Parent())
					}
					w.Forget(e.ID(), 1)
				}
				cancel()
			}
		})
	}
	time.Sleep(time.Second)
	stop.Store(true)
	wg.Wait()
	b.failing(nil)
	time.Sleep(2 * tick)
	reachable := 0
	var check func(e *Entry)
	check = func(e *Entry) {
		reachable++
		if e.Stale() || w.Get(e.ID()) != e {
			t.Errorf("%s: stale %v, known %v", e.Path(), e.Stale(), w.Get(e.ID()) == e)
		}
		if !e.IsDir() {
			return
		}
		e.dir.mu.Lock()
		e.dir.failed = 0 // as if respite were over
		e.dir.mu.Unlock()
		below, err := w.List(bg, e)
		if err != nil {
			t.Fatal(err)
		}
		infos, err := b.Mem.ReadDir(bg, e.Path())
		if err != nil || len(infos) != len(below) {
			t.Errorf("%s: got %d names, want %d, %v", e.Path(), len(below), len(infos), err)
		}
		for _, e := range below {
			check(e)
		}
	}
	check(w.Root())
	if got := w.Len(); got != reachable {
		t.Errorf("entries: got %d, want the %d that have a name", got, reachable)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// hang has the store take two minutes to say that it cannot.
func hang(string, int) error {
	time.Sleep(2 * time.Minute)
	return syscall.EHOSTUNREACH
}

// While the store does not answer, what is known goes on being served: it costs
// patience at most, once for each attempt to list the directory.
func TestOutageOfBucket(t *testing.T) {
	inBucket(t, time.Hour, 20, 10, func(t *testing.T, w *bucketWorld) {
		var out bytes.Buffer
		w.log = slog.New(slog.NewTextHandler(&out, nil))
		d := w.dir(t)
		all := w.list(t, "d")
		e, _ := w.find(t, d, "f0000")
		time.Sleep(time.Hour)
		w.bucket.failing(hang)
		start := time.Now()
		for time.Since(start) < 10*time.Minute {
			attempt := time.Now()
			for i := range 5 {
				if _, took := w.find(t, d, file(i)); took > patience {
					t.Errorf("%s: took %v", file(i), took)
				}
				if got, err := w.List(bg, d); err != nil || names(got) != all {
					t.Errorf("list: got %s, %v", names(got), err)
				}
			}
			if took := time.Since(attempt); took > patience {
				t.Errorf("all took %v, want no more than %v", took, patience)
			}
			time.Sleep(5 * time.Second)
		}
		if e.Stale() || w.get(t, "d/f0000") != e {
			t.Error("a known file was forgotten")
		}
		w.bucket.failing(nil)
		w.source.Put("d/new", nil)
		time.Sleep(2*time.Minute + respite)
		if got := w.list(t, "d"); got != all+" new" {
			t.Errorf("when it is back: got %s", got)
		}
		if err := w.Close(); err != nil { // what logs has ended
			t.Fatal(err)
		}
		if got := out.String(); !strings.Contains(got, "going on with what is known") || !strings.Contains(got, errSilent.Error()) {
			t.Errorf("logged %q", got)
		}
	})
}

// A name in doubt does not keep who lists its directory waiting while the store
// does not answer.
func TestOutageInDoubt(t *testing.T) {
	inBucket(t, time.Hour, 20, 10, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		w.list(t, "d")
		w.Changed(w.get(t, "d/f0001"))
		w.bucket.Latency = time.Hour
		start := time.Now()
		if all, err := w.List(bg, d); err != nil || len(all) != 19 || time.Since(start) > 2*patience {
			t.Errorf("got %d names, %v after %v", len(all), err, time.Since(start))
		}
	})
}

// After a listing has failed the next begins when respite is over. A name that is
// not known is asked for meanwhile.
func TestRespite(t *testing.T) {
	inBucket(t, time.Minute, 20, 10, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		w.list(t, "d")
		time.Sleep(time.Minute)
		w.dir(t)
		w.bucket.failing(func(string, int) error { return syscall.EIO })
		w.find(t, d, "f0000")
		w.wantRequests(t, 1, 0)
		for i := range 20 {
			w.find(t, d, file(i))
			w.wantNames(t, d, 20)
		}
		if _, err := w.Lookup(bg, d, "none"); !errors.Is(err, syscall.EIO) {
			t.Errorf("unknown: got %v, want EIO", err)
		}
		w.bucket.failing(nil)
		w.wantGone(t, d, "none")
		w.source.Put("d/none", nil)
		w.find(t, d, "none")
		w.wantRequests(t, 0, 3) // of these one for the root: none was not there
		time.Sleep(respite)
		w.source.Delete("d/f0000")
		w.wantGone(t, d, "f0000")
		w.find(t, d, "none")
		w.wantRequests(t, 2, 0)
	})
}

// Who lists a directory is not told less names than there are, though many were
// found changed while it was listed.
func TestListingLacksNothing(t *testing.T) {
	inBucket(t, time.Hour, 30, 1, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		var wg sync.WaitGroup
		wg.Go(func() { w.wantNames(t, d, 30) })
		time.Sleep(2 * time.Second)
		come, _ := w.split(d, 30)
		for _, name := range come[:5] {
			e := w.get(t, "d/"+name)
			w.source.Put(e.Path(), []byte("new"))
			w.Changed(e)
		}
		wg.Wait()
		w.wantRequests(t, 60, 0)
	})
}

// When many names have changed their directory is listed again for all of them.
func TestManyChangedListAgain(t *testing.T) {
	inBucket(t, time.Hour, 50, 10, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		w.list(t, "d")
		w.before = w.bucket.Requests()
		for i := range 20 {
			e := w.get(t, "d/"+file(i))
			w.source.Put(e.Path(), []byte("new"))
			w.Changed(e)
		}
		for i := range 20 {
			if e, _ := w.find(t, d, file(i)); e.Size() != 3 {
				t.Errorf("%s: got size %d", file(i), e.Size())
			}
		}
		w.wantRequests(t, 5, 0)
	})
}

// Nor are they asked for one by one when they have changed while it was listed.
func TestManyChangedWhileListed(t *testing.T) {
	inBucket(t, time.Hour, 5, 1, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		var wg sync.WaitGroup
		wg.Go(func() { w.wantGone(t, d, "none") })
		time.Sleep(latency * 5 / 2)
		come, _ := w.split(d, 5)
		for _, name := range come {
			e := w.get(t, "d/"+name)
			w.source.Put(e.Path(), []byte("new"))
			w.Changed(e)
		}
		wg.Wait()
		w.wantRequests(t, 5, 0)
		for _, name := range come {
			if e, _ := w.find(t, d, name); e.Size() != 3 {
				t.Errorf("%s: got size %d", name, e.Size())
			}
		}
		w.find(t, d, file(4))
		time.Sleep(time.Second)
		w.wantRequests(t, 5, 0)
	})
}

// A lateBucket has answers to a Stat in the folder d on their way for a while, and
// lists one name at a time as it then is.
type lateBucket struct {
	*drivertest.Bucket
	late time.Duration
}

func (b *lateBucket) Stat(ctx context.Context, name string) (drivers.Info, error) {
	i, err := b.Bucket.Stat(ctx, name)
	if strings.HasPrefix(name, "d/") {
		time.Sleep(b.late)
	}
	return i, err
}

func (b *lateBucket) List(ctx context.Context, dir string, part func([]drivers.Info) error) error {
	if dir != "d" {
		return b.Bucket.List(ctx, dir, part)
	}
	for i := range 30 {
		time.Sleep(latency)
		info, err := b.Mem.Stat(ctx, "d/"+file(i))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := part([]drivers.Info{info}); err != nil {
			return err
		}
	}
	return nil
}

// An answer that comes late, that a name is not there, does not take away what a
// part of a listing has brought that was asked for later.
func TestLateAbsence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &lateBucket{&drivertest.Bucket{Mem: drivertest.NewMem(0), Latency: latency}, 600 * time.Millisecond}
		for i := range 30 {
			if i != 25 {
				b.Put("d/"+file(i), []byte("content"))
			}
		}
		w := worldOf(t, b, time.Hour)
		defer w.Close()
		d := w.get(t, "d")
		var wg sync.WaitGroup
		find := func() {
			if e, err := w.Lookup(bg, d, file(25)); err != nil || e.Name() != file(25) || e.Stale() {
				t.Errorf("got %v", err)
			}
		}
		wg.Go(func() {
			if _, err := w.List(bg, d); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(2050 * time.Millisecond)
		wg.Go(find) // before it was made, and has it when the answer is there
		time.Sleep(200 * time.Millisecond)
		b.Put("d/"+file(25), []byte("content"))
		wg.Wait()
		for range 3 {
			find()
			time.Sleep(15 * time.Minute)
		}
	})
}

// Nor does a late answer bring back a version that a later listing has superseded.
func TestLateVersion(t *testing.T) {
	inBucket(t, time.Hour, 5, 5, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		w.list(t, "d")
		at := w.now()
		old, err := w.bucket.Stat(bg, "d/f0001")
		if err != nil {
			t.Fatal(err)
		}
		old.Name = "f0001"
		time.Sleep(time.Hour)
		w.source.Put("d/f0001", []byte("newer"))
		w.list(t, "d")
		now := w.get(t, "d/f0001")
		before := w.Len()
		w.down[1].Add(drivertest.Rule{Op: drivertest.OpStat, Delay: time.Second})
		var wg sync.WaitGroup
		wg.Go(func() { // while the tiers are asked, the source says more
			if e, err := w.merge(bg, d, old, w.now()); err != nil || e != now {
				t.Errorf("got %v, %v", e, err)
			}
		})
		time.Sleep(time.Second / 2)
		now.checked.Store(w.now())
		wg.Wait()
		if e, err := w.merge(bg, d, old, at); err != nil || e != now || now.Stale() || now.Size() != 5 {
			t.Errorf("got %v, %v; the newer one is stale: %v", e, err, now.Stale())
		}
		if e := w.forgetName(d, "f0001", at); e != now || now.Stale() || w.get(t, "d/f0001") != now {
			t.Errorf("got %v; the newer one is stale: %v", e, now.Stale())
		}
		if got := w.Len(); got != before {
			t.Errorf("entries: got %d, want %d", got, before)
		}
		time.Sleep(time.Second)
		if e := w.forgetName(d, "f0001", w.now()); e != nil || !now.Stale() {
			t.Error("what is not there by the last answer is still known")
		}
	})
}

// A shelf is one directory of n objects with versions of 32 bytes, which it makes
// up as they are listed.
type shelf struct {
	drivers.Driver
	n    int
	last func() // called when all but the last part has come
}

func (s shelf) List(_ context.Context, _ string, part func([]drivers.Info) error) error {
	for from := 0; from < s.n; from += partSize {
		infos := make([]drivers.Info, min(partSize, s.n-from))
		for i := range infos {
			infos[i] = drivers.Info{
				Name: fmt.Sprintf("img_%08d", from+i), Version: fmt.Sprintf("%032x", from+i),
				Mode: syscall.S_IFREG | 0o644, Nlink: 1, Size: 1, Mtime: time.Unix(int64(from), 0),
			}
		}
		if from+partSize >= s.n && s.last != nil {
			s.last()
		}
		if err := part(infos); err != nil {
			return err
		}
	}
	return nil
}

// Of a large directory there is in memory what the entries take, and while it is
// being listed, for the first time or again, little more.
func TestListingMemory(t *testing.T) {
	const n, budget, inFlight = 200_000, 200, 24
	var before, most int64
	source := &shelf{Driver: drivertest.NewMem(0), n: n}
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
			t.Error("another listing though nothing has changed")
		}
		last = all
		if got := (heap() - before) / n; got > budget {
			t.Errorf("an entry takes %d bytes, more than %d", got, budget)
		}
		if got := (most - before) / n; got > budget+inFlight {
			t.Errorf("while it is listed an entry takes %d bytes, more than %d", got, budget+inFlight)
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
