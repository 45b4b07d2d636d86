package metadata

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// revalidate returns the findings of Revalidate, such as "added d/f", except those about names
// that are unchanged, and the number of names that were.
func (w *world) revalidate(t *testing.T, paths ...string) (found string, unchanged int) {
	t.Helper()
	var all []string
	err := w.Revalidate(bg, paths, func(f Finding) {
		switch {
		case f.Err != nil:
			all = append(all, "failed "+f.Path)
		case f.Change == Unchanged:
			unchanged += f.Names
		default:
			all = append(all, f.Change.String()+" "+f.Path)
		}
	})
	if err != nil {
		t.Errorf("Revalidate %q: %v", paths, err)
	}
	slices.Sort(all)
	return strings.Join(all, ", "), unchanged
}

// Revalidate finds each change below the path, within the TTL, and Outdated has yielded exactly
// what changed when it returns.
func TestRevalidate(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		outdated := collect(t, w)
		for _, name := range []string{"d/gone", "d/new", "d/same", "d/mode", "e/below/f", "e/same", "g/x", "looked/up", "looked/other"} {
			w.source.Put(name, []byte("x"))
		}
		for _, dir := range []string{".", "d", "e", "e/below", "g"} {
			entries, err := w.List(bg, w.get(t, dir))
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				w.Hold(e)
			}
		}
		w.Hold(w.get(t, "looked/up"))
		if _, err := w.Lookup(bg, w.get(t, "looked"), "later"); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		w.HoldMissing(w.get(t, "looked"), "later", time.Now())
		if got, n := w.revalidate(t, "."); got != "" || n != 13 {
			t.Errorf("before the changes: got %q, %d names; want none, 13", got, n)
		}
		if got, want := outdated(), "attributes of ."; got != want { // the container is older than its names
			t.Errorf("before the changes: got %q, want %q", got, want)
		}

		w.source.Delete("d/gone")
		w.source.Put("d/new", []byte("other"))
		w.source.Put("d/added", []byte("x"))
		w.source.Chmod("d/mode", 0o400)
		w.source.Delete("e/below")
		w.source.Put("g/x/y", []byte("x")) // a directory in place of a file
		w.source.Put("looked/up", []byte("other"))
		w.source.Put("looked/later", []byte("x"))
		w.source.Put("looked/unknown", []byte("x"))
		got, _ := w.revalidate(t, ".")
		want := "added d/added, added looked/later, removed d/gone, removed e/below, replaced d/new, replaced g/x, replaced looked/up"
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		want = "attributes of d/mode d/gone d/new e/below g/x listing of d listing of e listing of g listing of looked looked/later looked/up"
		if got := outdated(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		w.get(t, "looked/later")
		w.get(t, "d/added")
		wantMissing(t, w, "d/gone")
		if got, n := w.revalidate(t, "."); got != "" || n != 12 || outdated() != "" {
			t.Errorf("again: got %q, %d names; want none, 12", got, n)
		}
	})
}

// A path may be a file, a new one or a removed one; names elsewhere are not requested.
func TestRevalidatePath(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		collect(t, w)
		w.source.Put("d/f", []byte("x"))
		w.source.Put("d/g", []byte("x"))
		w.source.Put("e/f", []byte("x"))
		w.list(t, ".")
		w.list(t, "d")
		w.list(t, "e")
		w.source.Put("d/f", []byte("other"))
		w.source.Put("d/g", []byte("other"))
		w.source.Put("d/new", []byte("x"))
		w.faults.Reset()
		if got, _ := w.revalidate(t, "d/f"); got != "replaced d/f" {
			t.Errorf("got %q", got)
		}
		if got, want := w.faults.Count(drivertest.OpStat)+w.faults.Count(drivertest.OpReadDir), int64(3); got != want { // the root, d and d/f
			t.Errorf("got %d requests, want %d", got, want)
		}
		if got, _ := w.revalidate(t, "d/new"); got != "added d/new" {
			t.Errorf("got %q", got)
		}
		w.source.Delete("d/new")
		if got, _ := w.revalidate(t, "d/new", "e"); got != "removed d/new" {
			t.Errorf("got %q", got)
		}
		if err := w.Revalidate(bg, []string{"d/new"}, func(Finding) {}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a name that never was: got %v, want %v", err, fs.ErrNotExist)
		}
		if err := w.Revalidate(bg, []string{"d/f/x"}, func(Finding) {}); !errors.Is(err, syscall.ENOTDIR) {
			t.Errorf("below a file: got %v, want %v", err, syscall.ENOTDIR)
		}
	})
}

// After a request that fails, the other names are validated. A failure changes nothing.
func TestRevalidateGoesOn(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		collect(t, w)
		for i := range 5 {
			w.source.Put(fmt.Sprintf("d%d/f", i), []byte("x"))
			w.source.Put(fmt.Sprintf("d%d/e/f", i), []byte("x"))
		}
		w.list(t, ".")
		for i := range 5 {
			w.list(t, fmt.Sprintf("d%d", i))
			w.list(t, fmt.Sprintf("d%d/e", i))
			w.source.Put(fmt.Sprintf("d%d/f", i), []byte("other"))
			w.source.Put(fmt.Sprintf("d%d/e/f", i), []byte("other"))
		}
		w.faults.Add(drivertest.Rule{Op: drivertest.OpReadDir, Name: "d2", Err: syscall.EIO})
		want := "failed d2"
		for _, name := range strings.Fields("d0/e/f d0/f d1/e/f d1/f d2/e/f d3/e/f d3/f d4/e/f d4/f") {
			want += ", replaced " + name
		}
		if got, _ := w.revalidate(t, "."); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		w.faults.Clear()
		if got, _ := w.revalidate(t, "."); got != "replaced d2/f" {
			t.Errorf("got %s, want replaced d2/f", got)
		}
	})
}

// At most maxRequests requests are in flight, and Revalidate returns when ctx is done.
func TestRevalidateIsBounded(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		collect(t, w)
		for i := range 100 {
			w.source.Put(fmt.Sprintf("d%d/f", i), []byte("x"))
			w.list(t, fmt.Sprintf("d%d", i))
		}
		w.faults.Add(drivertest.Rule{Op: drivertest.OpReadDir, Hang: true})
		ctx, cancel := context.WithTimeout(bg, time.Minute)
		defer cancel()
		if err := w.Revalidate(ctx, []string{"."}, func(Finding) {}); err != context.DeadlineExceeded {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
		if got := w.faults.Hung(); got < 1 || got > maxRequests {
			t.Errorf("%d requests in flight, want 1 to %d", got, maxRequests)
		}
		w.faults.Clear()
	})
}

// Names change, are looked up and are listed while they are validated.
func TestRevalidateConcurrently(t *testing.T) {
	w := newWorld(t, time.Millisecond)
	consume(t, w, func(Outdated) {})
	var running sync.WaitGroup
	end := time.Now().Add(time.Second)
	loop := func(f func(name string)) {
		running.Go(func() {
			for i := 0; time.Now().Before(end); i++ {
				f(fmt.Sprintf("d%d/f%d", i%3, i%50))
			}
		})
	}
	loop(func(name string) { w.source.Put(name, []byte(name)) })
	loop(func(name string) { w.Resolve(bg, name) })
	loop(func(name string) {
		if e, err := w.Resolve(bg, name); err == nil {
			w.Hold(e)
			w.List(bg, e.Parent())
			w.Forget(e.ID(), 1)
		}
	})
	for range 2 {
		loop(func(string) { w.Revalidate(bg, []string{"."}, func(Finding) {}) })
	}
	running.Wait()
	w.revalidate(t, ".")
	for i := range 3 {
		for j := range 50 {
			name := fmt.Sprintf("d%d/f%d", i, j)
			if info, err := w.source.Stat(bg, name); err == nil && !info.Mtime.Equal(w.get(t, name).Info().Mtime) {
				t.Errorf("%s is not the version of the source", name)
			}
		}
	}
}

// Names in the metadata snapshot that were not loaded yet are requested from the source after it.
func TestRevalidateForgetsSnapshot(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.source.Put("d/f", []byte("x"))
	w.list(t, ".")
	w.list(t, "d")
	w = w.restart(t)
	consume(t, w, func(Outdated) {})
	w.source.Put("d/f", []byte("other"))
	w.revalidate(t, ".")
	if got, want := w.get(t, "d/f").Size(), int64(5); got != want {
		t.Errorf("size: got %d, want %d", got, want)
	}
}

// The cached directories of a bucket are listed again, and single paths requested by Stat.
func TestRevalidateBucket(t *testing.T) {
	inBucket(t, time.Hour, 95, 20, func(t *testing.T, w *bucketWorld) {
		outdated := collect(t, w.world)
		d := w.dir(t)
		w.wantNames(t, d, 95)
		for _, name := range []string{"f0003", "f0004", "f0005"} {
			e, _ := w.find(t, d, name)
			w.Hold(e)
		}
		w.HoldMissing(d, "new", time.Now())
		w.wantRequests(t, 5, 0)
		w.source.Delete("d/f0003")
		w.source.Put("d/f0004", []byte("other"))
		w.source.Put("d/new", nil)
		w.source.Put("e/f", nil)
		if got, want := first(w.revalidate(t, ".")), "added d/new, added e, removed d/f0003, replaced d/f0004"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		w.wantRequests(t, 6, 0) // the root and d
		if got, want := outdated(), "d/f0003 d/f0004 d/new listing of ."; got != want {
			t.Errorf("outdated: got %s, want %s", got, want)
		}
		w.find(t, d, "new")
		w.wantMissing(t, d, "f0003")
		w.wantNames(t, d, 95)
		w.wantRequests(t, 0, 0)
		w.source.Put("d/f0005", []byte("other"))
		if got, want := first(w.revalidate(t, "d/f0005")), "replaced d/f0005"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		w.wantRequests(t, 0, 2)
	})
}

func first(found string, _ int) string { return found }
