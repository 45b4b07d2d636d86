package metadata

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A lateBucket delays the replies to a Stat in the folder d, and lists one name per page, with
// the attributes at the time of the page.
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

func (b *lateBucket) List(ctx context.Context, dir string, page func([]drivers.Info) error) error {
	if dir != "d" {
		return b.Bucket.List(ctx, dir, page)
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
		if err := page([]drivers.Info{info}); err != nil {
			return err
		}
	}
	return nil
}

// A late reply that a name is missing does not remove the name if a page that was requested
// later contains it.
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
		wg.Go(find) // its request comes before the file is created, its reply after
		time.Sleep(200 * time.Millisecond)
		b.Put("d/"+file(25), []byte("content"))
		wg.Wait()
		for range 3 {
			find()
			time.Sleep(15 * time.Minute)
		}
	})
}

// A late reply with an old version does not replace the version of a later listing.
func TestLateVersion(t *testing.T) {
	inBucket(t, time.Hour, 5, 5, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		w.list(t, "d")
		requested := w.now()
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
		wg.Go(func() { // a later reply arrives while the tiers are examined
			if e, err := w.merge(bg, d, old, w.now()); err != nil || e != now {
				t.Errorf("got %v, %v", e, err)
			}
		})
		time.Sleep(time.Second / 2)
		now.validated.Store(w.now())
		wg.Wait()
		if e, err := w.merge(bg, d, old, requested); err != nil || e != now || now.Stale() || now.Size() != 5 {
			t.Errorf("got %v, %v; the newer entry is stale: %v", e, err, now.Stale())
		}
		if e := w.removeName(d, "f0001", requested); e != now || now.Stale() || w.get(t, "d/f0001") != now {
			t.Errorf("got %v; the newer entry is stale: %v", e, now.Stale())
		}
		if got := w.Len(); got != before {
			t.Errorf("entries: got %d, want %d", got, before)
		}
		time.Sleep(time.Second)
		if e := w.removeName(d, "f0001", w.now()); e != nil || !now.Stale() {
			t.Error("a name that is missing by the last reply is still cached")
		}
	})
}
