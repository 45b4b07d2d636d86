package metadata

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watch calls f for each stale name until the test ends.
func watch(t *testing.T, w *world, f func(dir *Entry, name string)) {
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for dir, name := range w.StaleNames(ctx) {
			f(dir, name)
		}
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
}

// told collects what a container tells.
func told(t *testing.T, w *world) func() string {
	var mu sync.Mutex
	var names []string
	watch(t, w, func(dir *Entry, name string) {
		mu.Lock()
		defer mu.Unlock()
		names = append(names, pathOf(dir, name))
	})
	return func() string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(names)
		defer func() { names = nil }()
		return strings.Join(names, " ")
	}
}

// Of an entry that the kernel knows, and of no other, it is told when its name
// has another entry or none.
func TestWatch(t *testing.T) {
	inBubble(t, time.Second, func(t *testing.T, w *world) {
		told := told(t, w)
		for _, name := range []string{"gone", "new", "same", "dir/below/f", "unknown"} {
			w.source.Put(name, []byte("x"))
			for e := w.get(t, name); name != "unknown" && e != w.Root(); e = e.Parent() {
				w.Hold(e)
			}
		}
		w.source.Delete("gone")
		w.source.Put("new", []byte("other"))
		w.source.Delete("dir")
		w.source.Delete("unknown")
		if got := told(); got != "" {
			t.Errorf("told of %s before the source was asked", got)
		}
		time.Sleep(time.Second)
		w.list(t, ".")
		if got := told(); got != "dir gone new" {
			t.Errorf("listed again: told of %q", got)
		}
		w.Hold(w.get(t, "new"))
		w.source.Put("new", []byte("yet another"))
		time.Sleep(time.Second)
		w.get(t, "new")
		if got := told(); got != "new" {
			t.Errorf("looked up again: told of %q", got)
		}
		w.Hold(w.get(t, "new"))
		w.Changed(w.get(t, "new"))
		if got := told(); got != "new" {
			t.Errorf("found changed: told of %q", got)
		}
		w.Forget(w.get(t, "same").ID(), 1)
		w.source.Delete("same")
		time.Sleep(time.Second)
		wantAbsent(t, w, "same")
		if got := told(); got != "" {
			t.Errorf("told of %s, which the kernel has forgotten", got)
		}
	})
}

// An entry that became stale between the finding and the holding is told.
func TestWatchHeldLate(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		told := told(t, w)
		w.source.Put("f", []byte("x"))
		e := w.get(t, "f")
		w.Changed(e)
		w.Hold(e)
		if got := told(); got != "f" {
			t.Errorf("told of %q, want f", got)
		}
	})
}

// Whoever is told may take its time: the container goes on, and what becomes
// stale meanwhile is told once.
func TestWatchIsSlow(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		calls := make(map[string]int)
		watch(t, w, func(dir *Entry, name string) {
			calls[name]++
			w.Resolve(bg, name)
			w.List(bg, dir)
			time.Sleep(time.Minute)
		})
		for i := range 10 {
			w.source.Put(fmt.Sprint(i), []byte("x"))
		}
		for i := range 30 {
			e := w.get(t, fmt.Sprint(i%10))
			w.Hold(e)
			w.Changed(e)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		for name, n := range calls {
			if n < 1 || n > 2 {
				t.Errorf("%s: told %d times, want 1, or 2 if it was told the first time", name, n)
			}
		}
		if len(calls) != 10 || len(w.stale.names) > 0 {
			t.Errorf("told of %d names, %d wait", len(calls), len(w.stale.names))
		}
	})
}

// What waits to be told is bounded.
func TestWatchIsBounded(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		calls := 0
		watch(t, w, func(*Entry, string) {
			if calls++; calls == 1 {
				time.Sleep(time.Minute)
			}
		})
		tell := func(i int) { w.stale.add(named(fmt.Sprint(i), w.Root())) }
		tell(0)
		synctest.Wait()
		for i := range maxStaleNames + 10 {
			tell(i)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if want := maxStaleNames + 1; calls != want {
			t.Errorf("told of %d names, want %d", calls, want)
		}
	})
}

func TestSiblings(t *testing.T) {
	inBubble(t, time.Second, func(t *testing.T, w *world) {
		for _, name := range []string{"d/c", "d/a", "d/e", "d/b"} {
			w.source.Put(name, []byte("x"))
		}
		b := w.get(t, "d/b")
		if i, listed := w.Index(b); listed {
			t.Errorf("not listed: got %d", i)
		}
		w.list(t, "d")
		time.Sleep(time.Second)
		for want, name := range []string{"d/a", "d/b", "d/c", "d/e"} {
			if got, listed := w.Index(w.get(t, name)); got != want || !listed {
				t.Errorf("%s: got %d, %v, want %d", name, got, listed, want)
			}
		}
		for _, c := range []struct {
			from, n int
			want    string
		}{
			{0, 2, "a b"}, {1, 2, "b c"}, {2, 10, "c e"}, {4, 1, ""}, {9, 1, ""}, {0, 0, ""}, {-1, 1, "a"}, {0, -1, ""},
		} {
			if got := names(w.Siblings(b, c.from, c.n)); got != c.want {
				t.Errorf("%d from %d: got %q, want %q", c.n, c.from, got, c.want)
			}
		}
		w.Changed(b)
		if _, listed := w.Index(b); listed {
			t.Error("a stale entry has a position")
		}
		if i, listed := w.Index(w.get(t, "d/c")); i != 1 || !listed {
			t.Errorf("after b has gone: got %d, %v, want 1", i, listed)
		}
		if _, listed := w.Index(w.Root()); listed || w.Siblings(w.Root(), 0, 1) != nil {
			t.Error("the root has siblings")
		}
	})
}
