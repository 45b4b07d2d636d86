package metadata

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

const window = time.Minute

// swept runs f while the container is swept, in a synctest bubble.
func swept(t *testing.T, f func(t *testing.T, w *world)) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.sweepUntilEnd(t)
		f(t, w)
	})
}

// sweepUntilEnd sweeps the container until the test ends.
func (w *world) sweepUntilEnd(t *testing.T) {
	ctx, stop := context.WithCancel(bg)
	var running sync.WaitGroup
	running.Go(func() { w.Sweep(ctx, window) })
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
}

// sent returns the number of requests to the source since the last call.
func (w *world) sent() int64 {
	defer w.faults.Reset()
	return w.faults.Count(drivertest.OpStat) + w.faults.Count(drivertest.OpReadDir)
}

// hold lists a directory and makes the kernel know its entries.
func (w *world) hold(t *testing.T, dir string) {
	t.Helper()
	entries, err := w.List(bg, w.get(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		w.Hold(e)
	}
}

// The sweep sees every change of a name that is in use within the window, at any time of the
// pass, and nothing else is outdated.
func TestSweepWindow(t *testing.T) {
	changes := []struct {
		name   string
		change func(w *world)
		want   string
	}{
		{"added", func(w *world) { w.source.Put("d/new", []byte("x")) }, "listing of d"},
		{"missing before", func(w *world) { w.source.Put("d/missing", []byte("x")) }, "d/missing listing of d"},
		{"missing before, directory never listed", func(w *world) { w.source.Put("looked/missing", []byte("x")) }, "listing of looked looked/missing"},
		{"removed", func(w *world) { w.source.Delete("d/f") }, "d/f listing of d"},
		{"replaced", func(w *world) { w.source.Put("d/f", []byte("other")) }, "d/f listing of d"},
		{"replaced, directory never listed", func(w *world) { w.source.Put("looked/up", []byte("other")) }, "listing of looked looked/up"},
		{"rewritten", func(w *world) { w.source.Overwrite("d/f", []byte("other")) }, "d/f listing of d"},
		{"mode", func(w *world) { w.source.Chmod("d/f", 0o400) }, "attributes of d/f"},
		{"directory removed", func(w *world) { w.source.Delete("e") }, "e listing of ."},
		{"unknown", func(w *world) { w.source.Put("never/looked/at", []byte("x")) }, "listing of never"},
	}
	for _, c := range changes {
		for _, after := range []time.Duration{0, 7 * time.Second, 31 * time.Second, 10 * time.Minute} {
			t.Run(fmt.Sprint(c.name, " after ", after), func(t *testing.T) {
				swept(t, func(t *testing.T, w *world) {
					outdated := collect(t, w)
					for i := range 100 {
						w.source.Put(fmt.Sprintf("other%d/f", i%10), []byte("x"))
					}
					for _, name := range []string{"d/f", "d/g", "e/f", "looked/up", "never/f"} {
						w.source.Put(name, []byte("x"))
					}
					if err := w.refreshRoot(bg); err != nil { // the container is older than its names
						t.Fatal(err)
					}
					w.list(t, "e")
					for _, dir := range []string{".", "d", "never"} {
						w.hold(t, dir)
					}
					w.Hold(w.get(t, "looked/up"))
					for _, dir := range []string{"d", "looked"} {
						wantMissing(t, w, dir+"/missing")
						w.HoldMissing(w.get(t, dir), "missing", time.Now())
					}
					time.Sleep(after)
					outdated()
					c.change(w)
					time.Sleep(window)
					if got := outdated(); got != c.want {
						t.Errorf("got %q, want %q", got, c.want)
					}
					if oldest := w.Sweeps().OldestSeconds; oldest > int64(window.Seconds()) {
						t.Errorf("a name was validated after %d s", oldest)
					}
				})
			})
		}
	}
}

// Nothing is outdated, and nothing is listed again, while nothing changes.
func TestSweepOfUnchanged(t *testing.T) {
	swept(t, func(t *testing.T, w *world) {
		outdated := collect(t, w)
		for i := range 100 {
			w.source.Put(fmt.Sprintf("d%d/f%d", i%10, i), []byte("x"))
		}
		time.Sleep(time.Minute) // the times of the directories are older than the listings
		w.hold(t, ".")
		for i := range 10 {
			w.hold(t, fmt.Sprintf("d%d", i))
		}
		outdated()
		time.Sleep(window)
		w.sent()
		time.Sleep(10 * window)
		if got := outdated(); got != "" {
			t.Errorf("outdated: %s", got)
		}
		if got := w.faults.Count(drivertest.OpReadDir); got != 0 {
			t.Errorf("%d directories were listed, want 0", got)
		}
		if got, names := w.sent(), int64(111); got < 10*names || got > 20*names {
			t.Errorf("%d requests in ten windows for %d names, want one to two for each name and window", got, names)
		}
	})
}

// The requests per second are bounded, and files in use come first.
func TestSweepIsBounded(t *testing.T) {
	swept(t, func(t *testing.T, w *world) {
		outdated := collect(t, w)
		const files = 50_000
		for i := range files {
			w.source.Put(fmt.Sprintf("d%d/f%d", i%10, i), []byte("x"))
		}
		for i := range 10 {
			w.hold(t, fmt.Sprintf("d%d", i))
		}
		time.Sleep(2 * window)
		w.sent()
		for range 20 {
			for i := range 100 {
				w.get(t, fmt.Sprintf("d%d/f%d", i%10, i)).Use()
			}
			time.Sleep(window)
			if got, most := w.sent(), int64(window.Seconds()*sweepRate)+1; got > most {
				t.Errorf("%d requests in a window, want at most %d", got, most)
			}
		}
		outdated()
		w.source.Overwrite("d7/f77", []byte("other"))
		w.get(t, "d7/f77").Use()
		time.Sleep(window)
		if got, want := outdated(), "d7/f77"; got != want {
			t.Errorf("a file in use was rewritten: got %q, want %q", got, want)
		}
	})
}

// A slow source is used for at most a share of the time, by one request at a time, and a failing
// one gets few requests.
func TestSweepOfSlowSource(t *testing.T) {
	swept(t, func(t *testing.T, w *world) {
		collect(t, w)
		for i := range 1000 {
			w.source.Put(fmt.Sprintf("d/f%d", i), []byte("x"))
		}
		w.hold(t, "d")
		slow := w.faults.Add(drivertest.Rule{Op: drivertest.OpStat, Delay: 2 * time.Second})
		time.Sleep(window)
		w.sent()
		time.Sleep(10 * window)
		if got, most := w.sent(), int64(10*window/(2*time.Second*sweepShare))+1; got > most || got < most/2 {
			t.Errorf("%d requests of 2 s in %v, want about %d", got, 10*window, most)
		}
		slow()
		w.faults.Add(drivertest.Rule{Op: drivertest.OpStat, Err: syscall.EIO})
		time.Sleep(window)
		w.sent()
		time.Sleep(window)
		if got, most := w.sent(), int64(3*sweepFailing); got > most || got == 0 {
			t.Errorf("%d requests to a failing source in a window, want 1 to %d", got, most)
		}
		if w.Sweeps().Errors == 0 {
			t.Error("no error was counted")
		}
		w.faults.Clear()
		w.source.Overwrite("d/f7", []byte("other"))
		time.Sleep(window)
		if got := w.get(t, "d/f7").Size(); got != 5 {
			t.Errorf("after the failure: got size %d, want 5", got)
		}
	})
}

// While requests for some names or for a listing hang, changes of other names are seen within the
// window. The requests that hang are bounded. When the source answers, all names are compared again.
func TestSweepOfHungSource(t *testing.T) {
	swept(t, func(t *testing.T, w *world) {
		defer w.faults.Clear()
		collect(t, w)
		for i := range 200 {
			w.source.Put(fmt.Sprintf("d/f%03d", i), []byte("x"))
			w.source.Put(fmt.Sprintf("hung/f%03d", i), []byte("x"))
		}
		w.hold(t, "d")
		w.hold(t, "hung")
		time.Sleep(window)

		w.faults.Add(drivertest.Rule{Op: drivertest.OpStat, Name: "d/f007", Hang: true})
		w.faults.Add(drivertest.Rule{Op: drivertest.OpReadDir, Name: "hung", Hang: true})
		w.source.Put("hung/new", []byte("x"))
		time.Sleep(2 * window)
		w.source.Overwrite("d/f100", []byte("other"))
		time.Sleep(window)
		if got := w.get(t, "d/f100").Size(); got != 5 {
			t.Errorf("while one name hangs: got size %d of another, want 5", got)
		}
		if got := w.faults.Hung(); got != 2 {
			t.Errorf("%d requests hang, want 2", got)
		}

		w.faults.Add(drivertest.Rule{Op: drivertest.OpStat, Match: func(name string) bool { return strings.HasPrefix(name, "hung/") }, Hang: true})
		time.Sleep(20 * window)
		if got := w.faults.Hung(); got > maxHanging || got < 20 {
			t.Errorf("%d requests hang, want at most %d", got, maxHanging)
		}
		w.faults.Clear()
		time.Sleep(2 * window)
		w.source.Overwrite("hung/f100", []byte("other"))
		time.Sleep(window)
		if got := w.get(t, "hung/f100").Size(); got != 5 {
			t.Errorf("after the hang: got size %d, want 5", got)
		}
	})
}

// A name that nobody has cached is not validated.
func TestSweepOfNothing(t *testing.T) {
	swept(t, func(t *testing.T, w *world) {
		for i := range 100 {
			w.source.Put(fmt.Sprintf("d/f%d", i), []byte("x"))
		}
		w.list(t, "d") // the kernel knows none of the files
		time.Sleep(2 * window)
		w.sent()
		time.Sleep(window)
		if got := w.sent(); got > 4 { // the root and d
			t.Errorf("got %d requests in a window, want at most 4", got)
		}
	})
}

// Names come and go while the container is swept as fast as possible.
func TestSweepConcurrently(t *testing.T) {
	w := newWorld(t, time.Hour)
	consume(t, w, func(Outdated) {})
	ctx, stop := context.WithTimeout(bg, time.Second)
	defer stop()
	var running sync.WaitGroup
	running.Go(func() { w.Sweep(ctx, 30*time.Millisecond) })
	for n := range 3 {
		running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				name := fmt.Sprintf("d%d/f%d", i%3, i%50)
				if n == 0 {
					w.source.Put(name, []byte(name))
				} else if e, err := w.Resolve(bg, name); err == nil {
					e.Use()
					w.Hold(e)
					w.List(bg, e.Parent())
					w.Forget(e.ID(), 1)
				} else if e, err := w.Resolve(bg, fmt.Sprintf("d%d", i%3)); err == nil {
					w.HoldMissing(e, fmt.Sprintf("f%d", i%50), time.Now())
				}
			}
		})
	}
	running.Wait()
}

// A bucket is swept by listings of the cached directories.
func TestSweepOfBucket(t *testing.T) {
	inBucket(t, time.Hour, 95, 20, func(t *testing.T, w *bucketWorld) {
		d := w.dir(t)
		w.wantNames(t, d, 95)
		w.Hold(w.get(t, "d/f0007"))
		w.sweepUntilEnd(t)
		outdated := collect(t, w.world)
		time.Sleep(window)
		before := w.bucket.Requests()
		time.Sleep(10 * window)
		now := w.bucket.Requests()
		if got := now.Lists - before.Lists; now.Stats != before.Stats || got < 10*6 || got > 20*6 {
			t.Errorf("in ten windows: got %d pages and %d Stats, want 60 to 120 and 0", got, now.Stats-before.Stats)
		}
		w.source.Put("d/f0007", []byte("other"))
		w.source.Put("d/new", nil)
		time.Sleep(window)
		if got, want := outdated(), "d/f0007"; got != want {
			t.Errorf("outdated: got %q, want %q", got, want)
		}
		w.find(t, d, "new")
	})
}

// The sweep sees what has changed since a directory in the metadata snapshot was listed, also if
// the snapshot has later attributes of the directory.
func TestSweepAfterSnapshot(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.source.Put("d/f", []byte("x"))
		w.source.Put("e/f", []byte("x"))
		if err := w.refreshRoot(bg); err != nil { // the container is older than its names
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		w.list(t, ".")
		w.list(t, "d")
		w.list(t, "e")
		time.Sleep(time.Minute)
		w.source.Put("d/new", []byte("x"))
		if _, _, err := w.revalidateName(bg, w.Root(), "d"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		w = w.restart(t)
		w.list(t, "e")
		if got := w.list(t, "d"); got != "f" {
			t.Errorf("in the snapshot: %q", got)
		}
		w.faults.Reset()
		ctx, stop := context.WithTimeout(bg, window)
		defer stop()
		w.Sweep(ctx, window)
		if got, want := w.list(t, "d"), "f new"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if got := w.faults.Count(drivertest.OpReadDir); got != 1 {
			t.Errorf("%d directories were listed, want 1: e and the root are unchanged", got)
		}
	})
}

// A directory that changes again within the racy window is listed again, although its times are
// the same.
func TestSweepOfCoarseTimes(t *testing.T) {
	const granularity = 10 * time.Second
	for racy, want := range map[time.Duration]string{granularity / 2: "", granularity: "listing of d"} {
		inBubble(t, time.Hour, func(t *testing.T, w *world) {
			w.racy, w.source.Granularity = racy, granularity
			w.sweepUntilEnd(t)
			outdated := collect(t, w)
			time.Sleep(time.Until(time.Now().Truncate(granularity).Add(granularity)))
			w.source.Put("d/listed", nil)
			if err := w.refreshRoot(bg); err != nil { // the container is older than its names
				t.Fatal(err)
			}
			time.Sleep(7 * time.Second)
			w.hold(t, ".")
			w.hold(t, "d")
			outdated()
			time.Sleep(time.Second)
			w.source.Put("d/unlisted", nil)
			time.Sleep(window)
			if got := outdated(); got != want {
				t.Errorf("racy window %v: got %q, want %q", racy, got, want)
			}
		})
	}
}
