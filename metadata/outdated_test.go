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

// String returns the path of an outdated name, "attributes of" and the path of an entry, or "listing
// of" and the path of a directory.
func (o Outdated) String() string {
	switch {
	case o.Name != "":
		return pathOf(o.Entry, o.Name)
	case o.Content:
		return "listing of " + o.Entry.Path()
	}
	return "attributes of " + o.Entry.Path()
}

// consume calls f for each outdated part until the test ends.
func consume(t *testing.T, w *world, f func(Outdated)) {
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for o := range w.Outdated(ctx) {
			f(o)
		}
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
}

// collect collects the outdated parts. The function that it returns returns those since its
// last call.
func collect(t *testing.T, w *world) func() string {
	var mu sync.Mutex
	var names []string
	consume(t, w, func(o Outdated) {
		mu.Lock()
		defer mu.Unlock()
		names = append(names, o.String())
	})
	return func() string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(names)
		names = slices.DeleteFunc(slices.Compact(names), func(s string) bool { // they come together or one after the other
			dir, ok := strings.CutPrefix(s, "attributes of ")
			return ok && slices.Contains(names, "listing of "+dir)
		})
		defer func() { names = nil }()
		return strings.Join(names, " ")
	}
}

// Outdated yields the name of an entry that the kernel knows, and of no other, when the
// name has another entry or none.
func TestOutdated(t *testing.T) {
	inBubble(t, time.Second, func(t *testing.T, w *world) {
		outdated := collect(t, w)
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
		if got := outdated(); got != "" {
			t.Errorf("got %s before a request to the source, want none", got)
		}
		time.Sleep(time.Second)
		w.list(t, ".")
		if got := outdated(); got != "dir gone new" {
			t.Errorf("listed again: got %q", got)
		}
		w.Hold(w.get(t, "new"))
		w.source.Put("new", []byte("yet another"))
		time.Sleep(time.Second)
		w.get(t, "new")
		if got := outdated(); got != "new" {
			t.Errorf("looked up again: got %q", got)
		}
		w.Hold(w.get(t, "new"))
		w.Changed(w.get(t, "new"))
		if got := outdated(); got != "new" {
			t.Errorf("changed: got %q", got)
		}
		w.Forget(w.get(t, "same").ID(), 1)
		w.source.Delete("same")
		time.Sleep(time.Second)
		wantMissing(t, w, "same")
		if got := outdated(); got != "" {
			t.Errorf("got %s, which the kernel has forgotten", got)
		}
	})
}

// Outdated yields an entry that became stale between Lookup and Hold.
func TestOutdatedHeldLate(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		outdated := collect(t, w)
		w.source.Put("f", []byte("x"))
		e := w.get(t, "f")
		w.Changed(e)
		w.Hold(e)
		if got := outdated(); got != "f" {
			t.Errorf("got %q, want f", got)
		}
	})
}

// A slow consumer of Outdated does not block the container. A name that becomes stale
// several times in the meantime is yielded once.
func TestOutdatedSlowConsumer(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		calls := make(map[string]int)
		consume(t, w, func(o Outdated) {
			calls[o.Name]++
			w.Resolve(bg, o.Name)
			w.List(bg, o.Entry)
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
		if len(calls) != 10 || len(w.outdated.parts) > 0 {
			t.Errorf("%d names were yielded, %d wait; want 10, 0", len(calls), len(w.outdated.parts))
		}
	})
}

// No name is lost, however many wait to be yielded.
func TestOutdatedMany(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		const many = 100_000
		calls := 0
		consume(t, w, func(Outdated) {
			if calls++; calls == 1 {
				time.Sleep(time.Minute)
			}
		})
		add := func(i int) { w.outdated.addName(named(fmt.Sprint(i), w.Root())) }
		add(0)
		synctest.Wait()
		for i := range many {
			add(i)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if want := many + 1; calls != want {
			t.Errorf("%d names were yielded, want %d", calls, want)
		}
	})
}

// Outdated yields an entry that the kernel knows when its attributes have changed, except for the
// access time.
func TestOutdatedAttributes(t *testing.T) {
	inBubble(t, time.Second, func(t *testing.T, w *world) {
		outdated := collect(t, w)
		w.source.Put("f", []byte("x"))
		w.source.Put("unknown", []byte("x"))
		w.Hold(w.get(t, "f"))
		w.list(t, ".")
		time.Sleep(time.Second)
		w.list(t, ".")
		if got := outdated(); got != "" {
			t.Errorf("unchanged: got %q, want none", got)
		}
		w.source.Chmod("f", 0o600)
		w.source.Chmod("unknown", 0o600)
		time.Sleep(time.Second)
		w.list(t, ".")
		if got, want := outdated(), "attributes of f"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// Outdated yields a name that the kernel has cached as missing when it exists, and no other new
// name.
func TestOutdatedMissing(t *testing.T) {
	inBubble(t, time.Second, func(t *testing.T, w *world) {
		outdated := collect(t, w)
		wantMissing(t, w, "f")
		if !w.HoldMissing(w.Root(), "f", time.Now()) {
			t.Error("HoldMissing of a missing name: false")
		}
		w.source.Put("f", []byte("x"))
		w.source.Put("g", []byte("x"))
		w.get(t, "f")
		w.get(t, "g")
		if got, want := outdated(), "f"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if w.HoldMissing(w.Root(), "f", time.Now()) {
			t.Error("HoldMissing of a name that exists: true")
		}
		for i := range maxMissing + 1 { // too many to remember each
			w.HoldMissing(w.Root(), fmt.Sprint("missing", i), time.Now())
		}
		w.source.Put("missing7", []byte("x"))
		w.get(t, "missing7")
		if got, want := outdated(), "missing7"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// WaitNotified returns after the last part was yielded and the caller of Outdated has dealt with
// it.
func TestWaitNotified(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		notified := 0
		consume(t, w, func(Outdated) {
			time.Sleep(time.Minute)
			notified++
		})
		if err := w.WaitNotified(bg); err != nil || notified != 0 {
			t.Errorf("nothing is outdated: got %v", err)
		}
		for i := range 5 {
			w.outdated.addName(named(fmt.Sprint(i), w.Root()))
			if i == 1 {
				synctest.Wait() // the others are in a second batch
			}
		}
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		if err := w.WaitNotified(ctx); err != context.DeadlineExceeded {
			t.Errorf("while the kernel hangs: got %v, want %v", err, context.DeadlineExceeded)
		}
		if err := w.WaitNotified(bg); err != nil || notified != 5 {
			t.Errorf("got %v after %d of 5 notifications", err, notified)
		}
	})
}
