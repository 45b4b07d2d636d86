package metadata

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// latency is the duration of one request to the buckets of these tests.
const latency = 100 * time.Millisecond

// A bucket is a drivertest.Bucket whose requests can fail and whose versions can be set.
type bucket struct {
	*drivertest.Bucket

	mu       sync.Mutex // guards the following
	fail     func(name string, page int) error
	versions map[string]string // by the last element of the name
}

// failWith makes the bucket call f before each page of a listing is returned, and before a
// Stat, with page -1. If f returns an error, the request fails with it.
func (b *bucket) failWith(f func(name string, page int) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = f
}

// setVersion sets the version of the objects whose last element is name.
func (b *bucket) setVersion(name, version string) {
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
	i.Nlink = 0 // an object store does not count links
	return i
}

func (b *bucket) failure(name string, page int) error {
	b.mu.Lock()
	fail := b.fail
	b.mu.Unlock()
	if fail == nil {
		return nil
	}
	return fail(name, page)
}

func (b *bucket) List(ctx context.Context, dir string, page func([]drivers.Info) error) error {
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
		return page(described)
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

// inBucket runs f in a bubble. The bucket has n files f0000, f0001 and so on in the folder d,
// and lists them in pages of the size page.
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

// dir returns the folder d. wantRequests counts from then on.
func (w *bucketWorld) dir(t *testing.T) *Entry {
	t.Helper()
	d := w.get(t, "d")
	w.before = w.bucket.Requests()
	return d
}

// wantRequests checks the number of requests since its last call.
func (w *bucketWorld) wantRequests(t *testing.T, lists, stats int64) {
	t.Helper()
	now := w.bucket.Requests()
	if got := now.Lists - w.before.Lists; got != lists {
		t.Errorf("%d pages were listed, want %d", got, lists)
	}
	if got := now.Stats - w.before.Stats; got != stats {
		t.Errorf("%d names were requested by Stat, want %d", got, stats)
	}
	w.before = now
}

// find looks up a name in a directory, and returns the entry and the duration.
func (w *bucketWorld) find(t *testing.T, dir *Entry, name string) (*Entry, time.Duration) {
	t.Helper()
	start := time.Now()
	e, err := w.Lookup(bg, dir, name)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return e, time.Since(start)
}

func (w *bucketWorld) wantMissing(t *testing.T, dir *Entry, name string) {
	t.Helper()
	if _, err := w.Lookup(bg, dir, name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: got %v, want %v", name, err, fs.ErrNotExist)
	}
}

// wantNames lists a directory and checks that it has n names.
func (w *bucketWorld) wantNames(t *testing.T, dir *Entry, n int) {
	t.Helper()
	if all, err := w.List(bg, dir); err != nil || len(all) != n {
		t.Errorf("got %d names, %v; want %d", len(all), err, n)
	}
}

// split returns the names of n files that have arrived in pages, and the others.
func (w *bucketWorld) split(d *Entry, n int) (arrived, missing []string) {
	for i := range n {
		if e, _, _ := d.dir.find(file(i)); e != nil {
			arrived = append(arrived, file(i))
		} else {
			missing = append(missing, file(i))
		}
	}
	return arrived, missing
}
