package metadata

import (
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// remount starts another container with a snapshot of w, as a mount with a consistency window does.
func (w *world) remount(t *testing.T) *world {
	t.Helper()
	next := w.restart(t)
	next.snapshotTTL, next.racy = window, w.racy
	return next
}

// inRestart runs f with a world whose source has d/f and e/f, which were listed a week ago.
func inRestart(t *testing.T, f func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		mem := drivertest.NewMem(0)
		mem.Put("d/f", []byte("old"))
		mem.Put("d/g", []byte("old"))
		mem.Put("e/f", []byte("old"))
		time.Sleep(time.Minute)
		w := worldWithFaults(t, mem, drivertest.NewFaults(mem), time.Hour)
		w.racy = time.Second
		tree(t, w.Container)
		time.Sleep(7 * 24 * time.Hour)
		f(t, w)
	})
}

// use looks up a name, as the kernel does, and returns its entry.
func (w *world) use(t *testing.T, name string) *Entry {
	t.Helper()
	e := w.get(t, name)
	w.Hold(e)
	e.Use()
	return e
}

// wantOps fails the test if the source got other numbers of requests since the last call.
func (w *world) wantOps(t *testing.T, stats, readDirs int64) {
	t.Helper()
	if s, r := w.faults.Count(drivertest.OpStat), w.faults.Count(drivertest.OpReadDir); s != stats || r != readDirs {
		t.Errorf("%d stats and %d listings, want %d and %d", s, r, stats, readDirs)
	}
	w.faults.Reset()
}

// After a restart, however long the TTLs have expired, 1,000 files in 10 directories cost one
// request for each directory, also if the directories are listed.
func TestRestartCostsOneStatPerDirectory(t *testing.T) {
	inRestart(t, func(t *testing.T, w *world) {
		for i := range 1000 {
			w.source.Put(fmt.Sprintf("d%d/f%03d", i%10, i), []byte("x"))
		}
		time.Sleep(2 * time.Hour)
		w = w.newProcess(t)
		want := tree(t, w.Container)
		for range 2 { // the second time, blocks that were not loaded are copied
			time.Sleep(24 * time.Hour)
			w = w.remount(t)
		}
		w.faults.Reset()
		for i := range 1000 {
			w.get(t, fmt.Sprintf("d%d/f%03d", i%10, i))
		}
		for i := range 10 {
			w.list(t, fmt.Sprintf("d%d", i))
		}
		w.wantOps(t, 10, 0)
		wantTree(t, tree(t, w.Container), want)
		w.wantOps(t, 2, 0) // d and e
	})
}

// What has changed in a directory since the snapshot was made is seen at once, unless it is a file
// that was rewritten in place.
func TestRestartSeesChanges(t *testing.T) {
	for what, c := range map[string]struct {
		change func(w *world)
		check  func(t *testing.T, w *world)
	}{
		"a new file": {
			func(w *world) { w.source.Put("d/new", []byte("x")) },
			func(t *testing.T, w *world) {
				w.get(t, "d/new")
				if got, want := w.list(t, "d"), "f g new"; got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			},
		},
		"a removed file": {
			func(w *world) { w.source.Delete("d/f") },
			func(t *testing.T, w *world) { wantMissing(t, w, "d/f") },
		},
		"a replaced file": {
			func(w *world) { w.source.Put("d/f", []byte("newer")) },
			func(t *testing.T, w *world) {
				if got := w.get(t, "d/f").Size(); got != 5 {
					t.Errorf("got %d bytes, want 5", got)
				}
			},
		},
		"a removed directory": {
			func(w *world) { w.source.Delete("d") },
			func(t *testing.T, w *world) {
				wantMissing(t, w, "d/f")
			},
		},
		"a directory that is a file now": {
			func(w *world) { w.source.Delete("d"); w.source.Put("d", []byte("x")) },
			func(t *testing.T, w *world) {
				if !w.get(t, "d").IsRegular() {
					t.Error("it is no file")
				}
			},
		},
	} {
		t.Run(what, func(t *testing.T) {
			inRestart(t, func(t *testing.T, w *world) {
				c.change(w)
				next := w.remount(t)
				c.check(t, next)
				next.faults.Reset()
				next.get(t, "e/f")
				next.wantOps(t, 1, 0) // e itself is unchanged
			})
		})
	}
}

// A directory that was removed while the kernel has its name is found to be gone when a name in it
// is needed.
func TestRestartOfRemovedDirectoryInUse(t *testing.T) {
	inRestart(t, func(t *testing.T, w *world) {
		w = w.remount(t)
		d := w.use(t, "d")
		time.Sleep(window)
		w.source.Delete("d")
		if _, err := w.Lookup(bg, d, "f"); err == nil {
			t.Error("a name in a removed directory was found")
		}
		if !d.Stale() {
			t.Error("the directory is not stale")
		}
	})
}

// The times of a directory that were read within the racy window prove nothing: its files are
// requested.
func TestRestartWithRacyDirectory(t *testing.T) {
	inRestart(t, func(t *testing.T, w *world) {
		w.source.Put("d/new", []byte("x"))
		tree(t, w.Container)
		time.Sleep(time.Minute)
		next := w.remount(t)
		next.faults.Reset()
		next.get(t, "d/f")
		next.wantOps(t, 2, 0) // d and f
		next.get(t, "e/f")
		next.wantOps(t, 1, 0)
	})
}

// A file that was rewritten in place between two mounts is shown as it was for at most the
// consistency window, which begins when its directory is first used: without the sweep, its next
// use requests it.
func TestRestartRewrittenInPlace(t *testing.T) {
	inRestart(t, func(t *testing.T, w *world) {
		w.source.Overwrite("d/f", []byte("newer"))
		next := w.remount(t)
		time.Sleep(3 * time.Hour)
		old := next.use(t, "d/f")
		if old.Size() != 3 {
			t.Errorf("got %d bytes, want the 3 of the snapshot", old.Size())
		}
		if got := next.TTL(old); got > window || got < window-tick {
			t.Errorf("the kernel caches the file for %v, want %v", got, window)
		}
		time.Sleep(window)
		if got := next.get(t, "d/f").Size(); got != 5 {
			t.Errorf("after the window: got %d bytes, want 5", got)
		}
	})
}

// The sweep sees that file first, and tells the kernel.
func TestRestartIsSwept(t *testing.T) {
	inRestart(t, func(t *testing.T, w *world) {
		w.source.Overwrite("d/f", []byte("newer"))
		next := w.remount(t)
		next.sweepUntilEnd(t)
		outdated := collect(t, next)
		time.Sleep(10 * window)
		next.use(t, "d/f")
		next.use(t, "e/f")
		time.Sleep(window * 3 / 4)
		if got, want := outdated(), "d/f"; got != want {
			t.Errorf("outdated: got %q, want %q", got, want)
		}
		next.faults.Reset()
		next.get(t, "e/f")
		next.wantOps(t, 0, 0)
		if got, most := next.Sweeps().OldestSeconds, int64(2*window/time.Second); got > most {
			t.Errorf("the oldest validation is %d s ago, want at most %d: the time without a mount does not count", got, most)
		}
	})
}

// The sweep does not request the directories in a changed directory, because none of them is in use.
func TestRestartSweepsWhatIsInUse(t *testing.T) {
	inRestart(t, func(t *testing.T, w *world) {
		for i := range 100 {
			w.source.Put(fmt.Sprintf("dir%d/f", i), []byte("x"))
		}
		time.Sleep(time.Minute)
		w = w.newProcess(t)
		tree(t, w.Container)
		w.source.Put("new", []byte("x"))
		time.Sleep(time.Minute)
		next := w.remount(t)
		next.sweepUntilEnd(t)
		next.use(t, "d/f")
		time.Sleep(2 * window)
		if got := next.Sweeps().Stats; got > 20 {
			t.Errorf("the sweep has made %d requests, for the root, d and d/f", got)
		}
	})
}

// While the source fails, the names of the snapshot are served, and afterwards compared.
func TestRestartDuringOutage(t *testing.T) {
	inRestart(t, func(t *testing.T, w *world) {
		w.source.Put("d/new", []byte("x"))
		next := w.remount(t)
		time.Sleep(2 * time.Hour)
		next.faults.Add(drivertest.Rule{Err: syscall.EIO})
		if got, want := next.list(t, "d"), "f g"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		next.get(t, "d/f")
		next.faults.Clear()
		time.Sleep(time.Hour)
		if got, want := next.list(t, "d"), "f g new"; got != want {
			t.Errorf("after the outage: got %s, want %s", got, want)
		}
	})
}

// A snapshot on a disk that hangs delays the first use of a directory once. Then the names are read
// from the source.
func TestRestartWithHungSnapshot(t *testing.T) {
	inRestart(t, func(t *testing.T, w *world) {
		next := w.remount(t)
		next.get(t, "d") // loads the root
		heal := make(chan struct{})
		defer close(heal)
		next.snapshot.r = hung{heal}
		start := time.Now()
		next.get(t, "d/f")
		next.get(t, "e/f")
		if got := time.Since(start); got != readTimeout {
			t.Errorf("it took %v, want %v", got, readTimeout)
		}
	})
}

// A hung reader blocks until heal is closed.
type hung struct{ heal chan struct{} }

func (h hung) ReadAt([]byte, int64) (int, error) { <-h.heal; return 0, syscall.EIO }

// A file that another snapshot shows otherwise is announced, so that the saved one is removed before a
// crash makes it the next mount's. What the times of a directory reveal is not.
func TestOvertaken(t *testing.T) {
	inRestart(t, func(t *testing.T, w *world) {
		next := w.remount(t)
		next.sweepUntilEnd(t)
		overtaken := func() bool {
			select {
			case <-next.Overtaken():
				return true
			default:
				return false
			}
		}
		for _, c := range []struct {
			what   string
			change func()
			want   bool
		}{
			{"nothing", func() {}, false},
			{"new", func() { w.source.Put("e/new", []byte("x")) }, false},
			{"removed", func() { w.source.Delete("d/g") }, false},
			{"rewritten", func() { w.source.Overwrite("d/f", []byte("newer")) }, true},
			{"mode", func() { w.source.Chmod("d/f", 0o600) }, true},
			{"changed, as an open has found", func() { next.Changed(next.get(t, "d/f")) }, true},
			{"mode of a directory", func() { w.source.Chmod("d", 0o700) }, false},
		} {
			next.use(t, "d/f")
			next.use(t, "e/f")
			c.change()
			time.Sleep(2 * window)
			next.use(t, "d/f")
			tree(t, next.Container)
			if got := overtaken(); got != c.want {
				t.Errorf("%s: got %v, want %v", c.what, got, c.want)
			}
		}
	})
}

// Only what would make another snapshot counts as a change.
func TestChanges(t *testing.T) {
	inRestart(t, func(t *testing.T, w *world) {
		next := w.remount(t)
		next.sweepUntilEnd(t)
		tree(t, next.Container)
		next.use(t, "d/f")
		time.Sleep(3 * window)
		if got := next.Changes(); got != 0 {
			t.Errorf("%d changes after the use of an unchanged dataset, want 0", got)
		}
		for what, change := range map[string]func(){
			"new":       func() { w.source.Put("e/new", []byte("x")) },
			"removed":   func() { w.source.Delete("d/g") },
			"rewritten": func() { w.source.Overwrite("d/f", []byte("newer")) },
			"mode":      func() { w.source.Chmod("d/f", 0o600) },
		} {
			next.use(t, "d/f")
			before := next.Changes()
			change()
			time.Sleep(window)
			if got := next.Changes(); got == before {
				t.Errorf("%s: no change is counted", what)
			}
		}
	})
}
