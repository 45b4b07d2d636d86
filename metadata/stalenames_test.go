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

// consume calls f for each stale name until the test ends.
func consume(t *testing.T, w *world, f func(dir *Entry, name string)) {
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

// collect collects the stale names. The function that it returns returns those since its
// last call.
func collect(t *testing.T, w *world) func() string {
	var mu sync.Mutex
	var names []string
	consume(t, w, func(dir *Entry, name string) {
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

// StaleNames yields the name of an entry that the kernel knows, and of no other, when the
// name has another entry or none.
func TestStaleNames(t *testing.T) {
	inBubble(t, time.Second, func(t *testing.T, w *world) {
		stale := collect(t, w)
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
		if got := stale(); got != "" {
			t.Errorf("got %s before a request to the source, want none", got)
		}
		time.Sleep(time.Second)
		w.list(t, ".")
		if got := stale(); got != "dir gone new" {
			t.Errorf("listed again: got %q", got)
		}
		w.Hold(w.get(t, "new"))
		w.source.Put("new", []byte("yet another"))
		time.Sleep(time.Second)
		w.get(t, "new")
		if got := stale(); got != "new" {
			t.Errorf("looked up again: got %q", got)
		}
		w.Hold(w.get(t, "new"))
		w.Changed(w.get(t, "new"))
		if got := stale(); got != "new" {
			t.Errorf("changed: got %q", got)
		}
		w.Forget(w.get(t, "same").ID(), 1)
		w.source.Delete("same")
		time.Sleep(time.Second)
		wantMissing(t, w, "same")
		if got := stale(); got != "" {
			t.Errorf("got %s, which the kernel has forgotten", got)
		}
	})
}

// StaleNames yields an entry that became stale between Lookup and Hold.
func TestStaleNamesHeldLate(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		stale := collect(t, w)
		w.source.Put("f", []byte("x"))
		e := w.get(t, "f")
		w.Changed(e)
		w.Hold(e)
		if got := stale(); got != "f" {
			t.Errorf("got %q, want f", got)
		}
	})
}

// A slow consumer of StaleNames does not block the container. A name that becomes stale
// several times in the meantime is yielded once.
func TestStaleNamesSlowConsumer(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		calls := make(map[string]int)
		consume(t, w, func(dir *Entry, name string) {
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
				t.Errorf("%s: yielded %d times, want 1, or 2 for the first name", name, n)
			}
		}
		if len(calls) != 10 || len(w.stale.names) > 0 {
			t.Errorf("%d names were yielded, %d wait; want 10, 0", len(calls), len(w.stale.names))
		}
	})
}

// The number of names that wait to be yielded is bounded.
func TestStaleNamesBounded(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		calls := 0
		consume(t, w, func(*Entry, string) {
			if calls++; calls == 1 {
				time.Sleep(time.Minute)
			}
		})
		add := func(i int) { w.stale.add(named(fmt.Sprint(i), w.Root())) }
		add(0)
		synctest.Wait()
		for i := range maxStaleNames + 10 {
			add(i)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if want := maxStaleNames + 1; calls != want {
			t.Errorf("%d names were yielded, want %d", calls, want)
		}
	})
}
