package metadata

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// inNamerBubble is inBubble with a source that lists names without attributes, and n files in the
// directory d. The request for the attributes of each takes 2 ms. The counts of operations are
// those after the directory was looked up.
func inNamerBubble(t *testing.T, n int, f func(t *testing.T, w *world, names []string)) {
	synctest.Test(t, func(t *testing.T) {
		w := newNamerWorld(t, time.Hour)
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("d/%04d", i))
			w.source.Put(names[i], []byte("x"))
		}
		w.get(t, "d")
		for _, op := range []drivertest.Op{drivertest.OpStat, drivertest.OpEntry} {
			w.faults.Add(drivertest.Rule{Op: op, Delay: 2 * time.Millisecond})
		}
		w.faults.Reset()
		f(t, w, names)
	})
}

// wantRequests fails the test unless so many listings and attributes of names were requested since
// the last call.
func (w *world) wantRequests(t *testing.T, lists, most int64) {
	t.Helper()
	got := w.faults.Count(drivertest.OpStat) + w.faults.Count(drivertest.OpEntry)
	if got > most || w.faults.Count(drivertest.OpReadDir) != lists {
		t.Errorf("%d listings and the attributes of %d names were requested, want %d and at most %d",
			w.faults.Count(drivertest.OpReadDir), got, lists, most)
	}
	w.faults.Reset()
}

// A listing costs one request. The entries have types, and keep their IDs when they get their
// attributes.
func TestListingRequestsNoAttributes(t *testing.T) {
	w := newNamerWorld(t, time.Hour)
	for i := range 100 {
		w.source.Put(fmt.Sprintf("f%03d", i), []byte("content"))
	}
	w.source.Put("sub/f", []byte("x"))
	w.faults.Reset()
	entries, err := w.List(bg, w.Root())
	if err != nil || len(entries) != 101 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	w.wantRequests(t, 1, 0)
	for _, e := range entries {
		if !e.Unknown() || e.IsDir() != (e.Name() == "sub") || e.IsRegular() == e.IsDir() {
			t.Fatalf("listed: got %+v", e.Info())
		}
	}
	for _, e := range entries {
		now := w.get(t, e.Name())
		if now != e || e.Unknown() || !e.IsDir() && e.Size() != 7 {
			t.Fatalf("looked up: got %+v", now.Info())
		}
	}
	if bytes := w.Bytes(); bytes != 700 {
		t.Errorf("the files have %d bytes together, want 700", bytes)
	}
	if got, want := w.list(t, "sub"), "f"; got != want {
		t.Errorf("listed %q, want %q", got, want)
	}
	listing, _ := w.Listing(bg, w.Root())
	if again, _ := w.Listing(bg, w.Root()); again.Version != listing.Version {
		t.Error("the attributes have changed the listing")
	}
}

// A localNamer is a local source.
type localNamer struct{ drivertest.Namer }

func (localNamer) Profile() drivers.Profile { return drivers.Profile{Local: true} }

// A listing of a local source has attributes.
func TestLocalListing(t *testing.T) {
	mem := drivertest.NewMem(0)
	mem.Put("f", []byte("x"))
	w := worldOf(t, localNamer{drivertest.NewNamer(mem)}, time.Hour)
	if entries, err := w.List(bg, w.Root()); err != nil || len(entries) != 1 || entries[0].Unknown() {
		t.Errorf("got %v, %v", entries, err)
	}
	if got := w.levels.Source().Stats().Stats; got != 1 {
		t.Errorf("%d requests for attributes, want that for the root", got)
	}
}

// A program that looks up every n-th name has no others requested, also if it does so with several threads,
// and one that goes on with all names has these requested.
func TestEveryNthLookup(t *testing.T) {
	for _, n := range []int{1, 2, 5, 8, 16} {
		inNamerBubble(t, 1600, func(t *testing.T, w *world, names []string) {
			w.list(t, "d")
			w.wantRequests(t, 1, 0)
			start := time.Now()
			order := []int{0, 2, 1, 3}
			if n > 8 { // the distance would be too large
				order = []int{0, 1, 2, 3}
			}
			for i := n - 1; i+4*n < len(names); i += 4 * n {
				for _, next := range order {
					w.get(t, names[i+next*n])
				}
			}
			looked := 1600 / n
			if got, most := time.Since(start), time.Duration(looked)*2*time.Millisecond/3; got > most {
				t.Errorf("1 of %d: took %v, want at most %v", n, got, most)
			}
			w.wantRequests(t, 0, int64(looked+4*n)) // of which some were passed
			for _, name := range names {
				w.get(t, name)
			}
			w.wantRequests(t, 0, int64(1600-looked+batchSize))
		})
	}
}

// While every n-th name is requested, the others are looked up at once.
func TestLookupBetweenNthNames(t *testing.T) {
	inNamerBubble(t, 1600, func(t *testing.T, w *world, names []string) {
		w.list(t, "d")
		for i := range 4 {
			w.get(t, names[8*i])
		}
		remove := w.faults.Add(drivertest.Rule{Op: drivertest.OpEntry, Hang: true, Match: func(name string) bool { return name != names[101] }})
		var batch sync.WaitGroup
		batch.Go(func() { w.get(t, names[32]) })
		synctest.Wait()
		start := time.Now()
		w.get(t, names[101])
		if got := time.Since(start); got > 10*time.Millisecond {
			t.Errorf("the lookup took %v", got)
		}
		remove()
		w.faults.Release()
		batch.Wait()
	})
}

// A lookup that has found an Unknown name begins no batch if the attributes of that name and of those after
// it have arrived meanwhile.
func TestBatchComesTooLate(t *testing.T) {
	w := newNamerWorld(t, time.Hour)
	for i := range 3 {
		w.source.Put(fmt.Sprint("d/", i), []byte("x"))
	}
	w.list(t, "d")
	d := w.get(t, "d")
	last, _, _ := d.dir.find("2")
	if !last.Unknown() {
		t.Fatal("the listing has attributes")
	}
	w.get(t, "d/2") // another lookup
	d.dir.ahead.credit = batchSize
	if now, err := w.lookupUnknown(bg, d, last); err != nil || now != last {
		t.Errorf("got %v, %v", now, err)
	}
	if d.dir.ahead.credit != batchSize {
		t.Error("a batch was begun")
	}
}

// Names that are looked up in their order are requested ahead, each once and several at a time.
func TestLookupsInOrder(t *testing.T) {
	inNamerBubble(t, 640, func(t *testing.T, w *world, names []string) {
		w.list(t, "d")
		w.wantRequests(t, 1, 0)
		start := time.Now()
		for _, name := range names {
			w.get(t, name)
		}
		if got, most := time.Since(start), 640*2*time.Millisecond/10; got > most {
			t.Errorf("took %v, want at most %v", got, most)
		}
		w.wantRequests(t, 0, 640)
		for _, name := range names {
			w.get(t, name)
		}
		w.wantRequests(t, 0, 0)
	})
}

// Names that are looked up in no order cause one request each, and few others.
func TestLookupsInNoOrder(t *testing.T) {
	inNamerBubble(t, 1000, func(t *testing.T, w *world, names []string) {
		w.list(t, "d")
		w.faults.Reset()
		order := rand.New(rand.NewPCG(1, 1)).Perm(len(names))
		for _, i := range order[:500] {
			w.get(t, names[i])
		}
		w.wantRequests(t, 0, 500+batchSize)
	})
}

// A name whose request hangs is listed, and its neighbours have attributes. A lookup of that name
// can be interrupted.
func TestOneNameHangs(t *testing.T) {
	inNamerBubble(t, 200, func(t *testing.T, w *world, names []string) {
		for _, op := range []drivertest.Op{drivertest.OpStat, drivertest.OpEntry} {
			w.faults.Add(drivertest.Rule{Op: op, Name: names[100], Hang: true})
		}
		defer w.faults.Clear()
		if got := strings.Fields(w.list(t, "d")); len(got) != 200 {
			t.Fatalf("listed %d names", len(got))
		}
		start := time.Now()
		for i, name := range names {
			if i != 100 {
				w.get(t, name)
			}
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("its neighbours took %v", took)
		}
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		if _, err := w.Resolve(ctx, names[100]); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the name that hangs: got error %v", err)
		}
		if got := w.faults.Hung(); got > 4 {
			t.Errorf("%d requests hang", got)
		}
		w.faults.Clear()
		w.get(t, names[100])
	})
}

// Walk goes on after a name whose request hangs, and reports it. Requests that hang take a bounded
// number of goroutines, however many names there are.
func TestWalkOfHungNames(t *testing.T) {
	inNamerBubble(t, 2000, func(t *testing.T, w *world, names []string) {
		hang := func(name string) {
			for _, op := range []drivertest.Op{drivertest.OpStat, drivertest.OpEntry} {
				w.faults.Add(drivertest.Rule{Op: op, Name: name, Hang: true})
			}
		}
		defer w.faults.Clear()
		hang(names[7])
		var failed []string
		found := 0
		err := w.Walk(bg, []*Entry{w.get(t, "d")}, func(e *Entry, err error) error {
			if err != nil {
				failed = append(failed, e.Path())
			}
			found++
			return nil
		})
		if err != nil || found != 2001 || len(failed) != 1 || failed[0] != names[7] {
			t.Errorf("found %d entries, of which %q failed; error %v", found, failed, err)
		}

		w.faults.Clear()
		w.Changed(w.get(t, "d"))
		d := w.get(t, "d")
		hang("d/*")
		failed = nil
		err = w.Walk(bg, []*Entry{d}, func(e *Entry, err error) error {
			if err != nil {
				failed = append(failed, e.Path())
			}
			return nil
		})
		if err != nil || len(failed) != 2000 {
			t.Errorf("%d names failed; error %v", len(failed), err)
		}
		if got := w.faults.Hung(); got > 16+maxUnanswered+maxVisits {
			t.Errorf("%d requests hang", got)
		}
	})
}

// Walk can be interrupted while the source hangs.
func TestWalkIsInterrupted(t *testing.T) {
	inNamerBubble(t, 10, func(t *testing.T, w *world, _ []string) {
		for _, ops := range [][]drivertest.Op{{drivertest.OpReadDir}, {drivertest.OpStat, drivertest.OpEntry}} {
			for _, op := range ops {
				w.faults.Add(drivertest.Rule{Op: op, Hang: true})
			}
			ctx, cancel := context.WithTimeout(bg, time.Second)
			err := w.Walk(ctx, []*Entry{w.Root()}, func(*Entry, error) error { return nil })
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s hangs: got error %v", ops[0], err)
			}
			cancel()
			w.faults.Clear()
		}
	})
}

// Walk requests each name once, several at a time, in parallel with a program that looks them up.
func TestWalkSharesRequests(t *testing.T) {
	inNamerBubble(t, 640, func(t *testing.T, w *world, names []string) {
		start := time.Now()
		found := 0
		var lookups sync.WaitGroup
		lookups.Go(func() {
			for _, name := range names {
				w.get(t, name)
			}
		})
		err := w.Walk(bg, []*Entry{w.get(t, "d")}, func(e *Entry, err error) error {
			if err != nil || e.Unknown() {
				t.Errorf("%s: %v", e.Path(), err)
			}
			found++
			return nil
		})
		lookups.Wait()
		if err != nil || found != 641 {
			t.Errorf("found %d entries, %v", found, err)
		}
		if got, most := time.Since(start), 640*2*time.Millisecond/10; got > most {
			t.Errorf("took %v, want at most %v", got, most)
		}
		w.wantRequests(t, 1, 640+4) // a name may be looked up at the moment when its batch begins
	})
}

// Walk lists directories in parallel.
func TestWalkListsInParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newNamerWorld(t, time.Hour)
		for i := range 400 {
			w.source.Put(fmt.Sprintf("d%03d/f", i), []byte("x"))
		}
		for _, op := range []drivertest.Op{drivertest.OpReadDir, drivertest.OpEntry} {
			w.faults.Add(drivertest.Rule{Op: op, Delay: 2 * time.Millisecond})
		}
		start := time.Now()
		if err := w.Walk(bg, []*Entry{w.Root()}, func(*Entry, error) error { return nil }); err != nil {
			t.Error(err)
		}
		if got, most := time.Since(start), 400*4*time.Millisecond/5; got > most {
			t.Errorf("took %v, want at most %v", got, most)
		}
	})
}

// The following names of a listing get their attributes if the ones before them were looked up, and
// otherwise not.
func TestComplete(t *testing.T) {
	inNamerBubble(t, 600, func(t *testing.T, w *world, names []string) {
		d := w.get(t, "d")
		entries, _ := w.List(bg, d)
		w.faults.Reset()
		w.Complete(bg, d, entries[:200])
		w.Complete(bg, d, entries[200:400])
		w.wantRequests(t, 0, 0)
		for _, name := range names[:200] {
			w.get(t, name)
		}
		w.Complete(bg, d, entries[200:400])
		w.Complete(bg, d, entries[400:])
		for _, e := range entries {
			if e.Unknown() {
				t.Fatalf("%s has no attributes", e.Name())
			}
		}
		w.wantRequests(t, 0, 600)
	})
}

// An entry that gets its attributes has the level of the copy that a tier holds of its version. One
// with another copy is Unverified.
func TestCopiesOfListedNames(t *testing.T) {
	w := newNamerWorld(t, time.Hour)
	for i := range 200 {
		name := fmt.Sprintf("d/%03d", i)
		w.source.Put(name, []byte("x"))
		if i%2 == 0 {
			w.copyTo(t, 1+i/2%2, name)
		}
	}
	w.tier[1].Put("d/101", []byte("outdated"))
	w.list(t, "d")
	for i := range 200 {
		e := w.get(t, fmt.Sprintf("d/%03d", i))
		want := 0
		if i%2 == 0 {
			want = 1 + i/2%2
		}
		if int(e.Level()) != want || e.Unverified() != (i == 101) {
			t.Errorf("%s: level %d, unverified %v", e.Path(), e.Level(), e.Unverified())
		}
	}
}

// copyTo puts a copy of a file of the source on a tier.
func (w *world) copyTo(t *testing.T, level int, name string) {
	t.Helper()
	info, err := w.source.Stat(bg, name)
	if err != nil {
		t.Fatal(err)
	}
	c, err := w.tier[level].Create(bg, name, info)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.WriteAt([]byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if err := c.Commit(); err != nil {
		t.Fatal(err)
	}
}

// A name whose type changes between the listing and the request for its attributes gets another
// entry, and one that is removed is missing.
func TestListedNameChanges(t *testing.T) {
	w := newNamerWorld(t, time.Hour)
	for _, name := range []string{"a", "b", "c"} {
		w.source.Put(name, []byte("x"))
	}
	entries, _ := w.List(bg, w.Root())
	w.source.Remove(bg, "a")
	w.source.Put("a/below", []byte("x"))
	w.source.Remove(bg, "b")
	if e := w.get(t, "a"); !e.IsDir() || e == entries[0] || !entries[0].Stale() {
		t.Errorf("got %+v", e.Info())
	}
	wantMissing(t, w, "b")
	if got, want := w.list(t, "."), "a c"; got != want {
		t.Errorf("listed %q, want %q", got, want)
	}
}

// When a directory is listed again, the attributes that are cached are compared with the source,
// and no others are requested.
func TestListedAgain(t *testing.T) {
	inNamerBubble(t, 100, func(t *testing.T, w *world, names []string) {
		w.list(t, "d")
		old := w.get(t, names[7])
		w.get(t, names[50])
		w.source.Put(names[7], []byte("other"))
		w.source.Put("d/new", []byte("x"))
		time.Sleep(2 * time.Hour)
		w.get(t, "d")
		w.faults.Reset()
		if got := strings.Fields(w.list(t, "d")); len(got) != 101 {
			t.Errorf("listed %d names", len(got))
		}
		w.wantRequests(t, 1, 2)
		if !old.Stale() || w.get(t, names[7]).Size() != 5 {
			t.Error("a replaced file is not noticed")
		}
		w.wantRequests(t, 0, 0)
	})
}

// Lookups, listings, walks and refreshes of a directory may be concurrent, with files that change.
func TestAttributesAtOnce(t *testing.T) {
	w := newNamerWorld(t, time.Millisecond)
	name := func(i int) string { return fmt.Sprintf("d/%03d", i) }
	for i := range 300 {
		w.source.Put(name(i), []byte("x"))
	}
	collect(t, w)
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := range 300 {
				switch e, err := w.Resolve(bg, name((i*(worker+1))%300)); {
				case err != nil && !errors.Is(err, syscall.ESTALE):
					t.Error(err)
				case err == nil && (e.Unknown() || e.Size() == 0):
					t.Errorf("got %+v", e.Info())
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 100 {
			w.source.Put(name(i*3), []byte(fmt.Sprint(i)))
			w.list(t, "d")
		}
	})
	wg.Go(func() {
		for range 20 {
			if err := w.Revalidate(bg, []string{"."}, func(Finding) {}); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Go(func() {
		for range 20 {
			w.Walk(bg, []*Entry{w.Root()}, func(e *Entry, err error) error {
				if err == nil && e.Unknown() {
					t.Errorf("%s is Unknown", e.Path())
				}
				return nil
			})
		}
	})
	wg.Wait()
	unknown := 0
	entries, _ := w.List(bg, w.get(t, "d"))
	for _, e := range entries {
		if e.Unknown() {
			unknown++
		}
	}
	if got := w.get(t, "d").dir.ahead.unknown.Load(); int(got) != unknown {
		t.Errorf("%d entries are counted as Unknown, want %d", got, unknown)
	}
	var bytes int64
	w.Walk(bg, []*Entry{w.Root()}, func(e *Entry, _ error) error {
		if e.IsRegular() && !e.Unknown() {
			bytes += e.Size()
		}
		return nil
	})
	if got := w.Bytes(); got != bytes {
		t.Errorf("the files have %d bytes together, want %d", got, bytes)
	}
}
