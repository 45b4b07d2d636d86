package metadata

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

// An object that was changed or removed costs one request. Names of the same listing cost
// none.
func TestChangedIsOneRequest(t *testing.T) {
	inBucket(t, time.Hour, 2100, 100, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		w.list(t, "d")
		w.wantRequests(t, 21, 0)
		changed, gone, back := w.get(t, "d/f0001"), w.get(t, "d/f0002"), w.get(t, "d/f0003")
		w.source.Put("d/f0001", []byte("other content"))
		w.source.Delete("d/f0002")
		for range 2 { // the second call has no effect
			w.Changed(changed)
			w.Changed(gone)
			w.Changed(back)
		}
		w.get(t, "d/f0004")
		w.wantMissing(t, d, "none")
		w.wantRequests(t, 0, 0)
		if e := w.get(t, "d/f0001"); e == changed || e.Size() != 13 {
			t.Errorf("changed file: got size %d, want 13", e.Size())
		}
		w.wantMissing(t, d, "f0002")
		if e := w.get(t, "d/f0003"); e == back || e.Stale() {
			t.Error("an unchanged file is still stale")
		}
		w.wantRequests(t, 0, 3)
		for range 2 {
			w.get(t, "d/f0001")
			w.wantMissing(t, d, "f0002")
			w.get(t, "d/f0003")
			w.wantNames(t, d, 2099)
		}
		w.wantRequests(t, 0, 0)
	})
}

// A list of a directory has all names. Invalidated names are requested first. If they are too
// many, or a request fails, the directory is listed again.
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
			if len(d.dir.invalidated) != 0 {
				t.Errorf("%s: %d names are still invalidated", c.what, len(d.dir.invalidated))
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

// A name that is invalidated while its directory is listed is not taken from a page that was
// requested before.
func TestChangedWhileListed(t *testing.T) {
	inBucket(t, time.Hour, 30, 1, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		var wg sync.WaitGroup
		wg.Go(func() { w.wantNames(t, d, 29) })
		time.Sleep(2 * time.Second)
		arrived, missing := w.split(d, 30)
		stated, invalidated, gone := w.get(t, "d/"+arrived[0]), w.get(t, "d/"+arrived[1]), w.get(t, "d/"+arrived[2])
		for _, e := range []*Entry{stated, invalidated} {
			w.source.Put(e.Path(), []byte("new"))
		}
		w.source.Delete(gone.Path())
		w.Changed(stated)
		w.Changed(invalidated)
		w.Changed(gone)
		now := w.get(t, stated.Path())
		w.wantMissing(t, d, gone.Name())
		early, _ := w.find(t, d, missing[0])
		wg.Wait()
		if now == stated || now.Size() != 3 || w.get(t, stated.Path()) != now {
			t.Error("the listing has replaced the entry of a lookup")
		}
		w.before = w.bucket.Requests() // the list has requested the invalidated names
		if e := w.get(t, invalidated.Path()); e == invalidated || e.Size() != 3 {
			t.Errorf("invalidated file: got size %d, want 3", e.Size())
		}
		w.wantMissing(t, d, gone.Name())
		if w.get(t, early.Path()) != early || early.Stale() {
			t.Error("the listing has replaced the entry of an earlier lookup")
		}
		w.wantRequests(t, 0, 0)
		if got := len(w.list(t, "d")); got != 29*6-1 {
			t.Errorf("got %d bytes of names", got)
		}
		if got := w.Len(); got != 31 {
			t.Errorf("entries: got %d, want 31: the root, d and 29 files", got)
		}
	})
}

// A lookup that waits for a listing does not report a name as missing that is invalidated in
// the meantime.
func TestChangedWhileLookupWaits(t *testing.T) {
	inBucket(t, time.Hour, 5, 1, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		var wg sync.WaitGroup
		wg.Go(func() { w.wantMissing(t, d, "none") })
		time.Sleep(latency * 5 / 2)
		arrived, _ := w.split(d, 5)
		old := w.get(t, "d/"+arrived[0])
		w.source.Put(old.Path(), []byte("new"))
		w.Changed(old)
		if e, took := w.find(t, d, old.Name()); e == old || e.Size() != 3 || took != latency*7/2 {
			t.Errorf("got size %d after %v", e.Size(), took)
		}
		w.wantRequests(t, 5, 1)
		wg.Wait()
	})
}

// A page that was requested before a name was invalidated does not validate the name.
func TestChangedWhilePageRequested(t *testing.T) {
	inBucket(t, time.Minute, 3, 3, func(t *testing.T, w *bucketWorld) {
		old := w.get(t, "d/f0001")
		time.Sleep(time.Minute)
		d := w.dir(t)
		w.bucket.failWith(func(_ string, page int) error {
			if page == 0 {
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
			t.Errorf("got size %d, want 3, that of the new version", e.Size())
		}
		w.wantRequests(t, 1, 1)
	})
}

// After a directory is listed again, no name is invalidated.
func TestListingValidatesNames(t *testing.T) {
	inBucket(t, time.Minute, 5, 5, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		w.list(t, "d")
		w.Changed(w.get(t, "d/f0001"))
		w.Changed(w.get(t, "d/f0002"))
		w.source.Delete("d/f0001")
		time.Sleep(time.Minute)
		w.dir(t)
		w.find(t, d, "f0002")
		w.wantMissing(t, d, "f0001")
		w.wantRequests(t, 1, 0)
	})
}

// A list has all names, also if many were invalidated while the directory was listed.
func TestListingIsComplete(t *testing.T) {
	inBucket(t, time.Hour, 30, 1, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		var wg sync.WaitGroup
		wg.Go(func() { w.wantNames(t, d, 30) })
		time.Sleep(2 * time.Second)
		arrived, _ := w.split(d, 30)
		for _, name := range arrived[:5] {
			e := w.get(t, "d/"+name)
			w.source.Put(e.Path(), []byte("new"))
			w.Changed(e)
		}
		wg.Wait()
		w.wantRequests(t, 60, 0)
	})
}

// If many names are invalidated, their directory is listed again.
func TestManyChanged(t *testing.T) {
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

// If many names are invalidated while their directory is listed, they are not requested one by
// one.
func TestManyChangedWhileListed(t *testing.T) {
	inBucket(t, time.Hour, 5, 1, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		var wg sync.WaitGroup
		wg.Go(func() { w.wantMissing(t, d, "none") })
		time.Sleep(latency * 5 / 2)
		arrived, _ := w.split(d, 5)
		for _, name := range arrived {
			e := w.get(t, "d/"+name)
			w.source.Put(e.Path(), []byte("new"))
			w.Changed(e)
		}
		wg.Wait()
		w.wantRequests(t, 5, 0)
		for _, name := range arrived {
			if e, _ := w.find(t, d, name); e.Size() != 3 {
				t.Errorf("%s: got size %d", name, e.Size())
			}
		}
		w.find(t, d, file(4))
		time.Sleep(time.Second)
		w.wantRequests(t, 5, 0)
	})
}
