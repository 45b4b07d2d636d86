package metadata

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// failAttributes makes every request for the attributes of a name fail.
func (w *world) failAttributes(name string) {
	for _, op := range []drivertest.Op{drivertest.OpEntry, drivertest.OpStat} {
		w.faults.Add(drivertest.Rule{Op: op, Name: name, Err: syscall.EIO})
	}
}

// A name whose attributes the source does not return fails alone: it is listed, and lookups of it
// return the error of the source. When the source returns the attributes, the next lookup does.
func TestOneNameFails(t *testing.T) {
	w := newWorld(t, time.Hour)
	for _, name := range []string{"d/a", "d/b", "d/c"} {
		w.source.Put(name, []byte("x"))
	}
	w.failAttributes("d/b")
	for range 2 {
		if got, want := w.list(t, "d"), "a b c"; got != want {
			t.Fatalf("listed %q, want %q", got, want)
		}
		if info := w.get(t, "d/a").Info(); info.Size != 1 {
			t.Errorf("the name beside it: got %+v", info)
		}
		if _, err := w.Resolve(bg, "d/b"); !errors.Is(err, syscall.EIO) {
			t.Errorf("lookup: got %v, want EIO", err)
		}
	}
	w.faults.Clear()
	if e := w.get(t, "d/b"); e.Unknown() || e.Size() != 1 || !e.Claim() {
		t.Errorf("after the source has recovered: got %+v", e.Info())
	}
	if got, want := w.list(t, "d"), "a b c"; got != want {
		t.Errorf("listed %q, want %q", got, want)
	}
}

// Attributes that are cached stay in use when a later listing does not return them.
func TestKnownNameFails(t *testing.T) {
	inBubble(t, time.Minute, func(t *testing.T, w *world) {
		w.source.Put("f", []byte("x"))
		old := w.get(t, "f")
		w.failAttributes("f")
		time.Sleep(time.Hour)
		if got := w.list(t, "."); got != "f" {
			t.Errorf("listed %q", got)
		}
		if e := w.get(t, "f"); e != old {
			t.Errorf("got another entry: %+v", e.Info())
		}
	})
}

// A name that fails is removed from the listing when the source does not have it any more.
func TestFailedNameIsRemoved(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.source.Put("f", []byte("x"))
	w.failAttributes("f")
	w.list(t, ".")
	w.faults.Clear()
	w.source.Remove(bg, "f")
	wantMissing(t, w, "f")
	if got := w.list(t, "."); got != "" {
		t.Errorf("listed %q", got)
	}
}

// Revalidate reports a name that it could not compare.
func TestRevalidateReportsFailedName(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		collect(t, w)
		w.source.Put("a", []byte("x"))
		w.source.Put("b", []byte("x"))
		w.list(t, ".")
		w.failAttributes("b")
		if found, unchanged := w.revalidate(t, "."); found != "failed b" || unchanged != 1 {
			t.Errorf("got %q, and %d names that are unchanged", found, unchanged)
		}
	})
}

// A snapshot does not contain a name without attributes, so that it is requested again.
func TestSnapshotOfFailedName(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.source.Put("a", []byte("x"))
	w.source.Put("b", []byte("x"))
	w.failAttributes("b")
	w.list(t, ".")
	path := filepath.Join(t.TempDir(), "snapshot")
	if err := saveSnapshot(w.Container, path, "source"); err != nil {
		t.Fatal(err)
	}
	w.faults.Clear()
	c := w.newProcess(t).Container
	if err := openSnapshot(c, path, "source"); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, c); len(got) != 2 || got["b"].Size != 1 {
		t.Errorf("got %+v", got)
	}
}

// Walk goes on after a name and a directory that fail.
func TestWalkGoesOn(t *testing.T) {
	w := newWorld(t, time.Hour)
	for _, name := range []string{"a/x", "b/x", "c", "d"} {
		w.source.Put(name, []byte("x"))
	}
	w.failAttributes("c")
	w.faults.Add(drivertest.Rule{Op: drivertest.OpReadDir, Name: "a", Err: syscall.EACCES})
	var seen []string
	errs := make(map[string]error)
	err := w.Walk(bg, []*Entry{w.Root()}, func(e *Entry, err error) error {
		if err == nil {
			seen = append(seen, e.Path())
		} else {
			errs[e.Path()] = err
		}
		return nil
	})
	slices.Sort(seen)
	if got, want := strings.Join(seen, " "), ". a b b/x d"; err != nil || got != want {
		t.Errorf("got %s and error %v, want %s", got, err, want)
	}
	if len(errs) != 2 || !errors.Is(errs["a"], syscall.EACCES) || !errors.Is(errs["c"], syscall.EIO) {
		t.Errorf("errors: %v", errs)
	}
}

// A lookup that examines the tiers during a listing without the attributes returns the attributes.
func TestLookupDuringFailedListing(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.source.Put("f", []byte("x"))
		w.down[1].Add(drivertest.Rule{Op: drivertest.OpStat, Name: "f", Hang: true})
		w.faults.Add(drivertest.Rule{Op: drivertest.OpEntry, Err: syscall.EIO})
		found := make(chan *Entry, 1)
		go func() {
			e, err := w.Lookup(bg, w.Root(), "f")
			if err != nil {
				t.Error(err)
			}
			found <- e
		}()
		synctest.Wait()
		w.list(t, ".")
		w.down[1].Release()
		if e := <-found; e.Unknown() || e.Size() != 1 {
			t.Errorf("got %+v", e.Info())
		}
	})
}
