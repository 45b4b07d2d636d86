package metadata

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/tiers"
)

var bg = context.Background()

// A world is a name space with its source and two tiers, which are counted.
type world struct {
	*Container
	source *drivertest.Mem
	faults *drivertest.Faults // around the source
	tier   [3]*drivertest.Mem // by level
	down   [3]*drivertest.Faults
	levels *tiers.Hierarchy
}

func newWorld(t *testing.T, ttl time.Duration) *world {
	t.Helper()
	mem := drivertest.NewMem(0)
	faults := drivertest.NewFaults(mem)
	w := worldOf(t, faults, ttl)
	w.source, w.faults = mem, faults
	return w
}

// worldOf is a world whose source is a driver of another kind.
func worldOf(t *testing.T, source drivers.Driver, ttl time.Duration) *world {
	t.Helper()
	w := new(world)
	var configs []tiers.Config
	for l := 1; l < len(w.tier); l++ {
		w.tier[l] = drivertest.NewMem(0)
		w.down[l] = drivertest.NewFaults(w.tier[l])
		configs = append(configs, tiers.Config{Name: fmt.Sprint("tier", l), Store: w.down[l], Quota: tiers.Quota{Bytes: 1 << 30}})
	}
	log := slog.New(slog.DiscardHandler)
	var err error
	if w.levels, err = tiers.New(source, configs, tiers.Options{}, log); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(bg)
	var running sync.WaitGroup
	running.Go(func() { w.levels.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	w.levels.WaitScanned(bg)
	if w.Container, err = New(bg, w.levels, Options{TTL: ttl}, log); err != nil {
		t.Fatal(err)
	}
	return w
}

// inBubble runs f in a synctest bubble, where time passes when all wait.
func inBubble(t *testing.T, ttl time.Duration, f func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) { f(t, newWorld(t, ttl)) })
}

func (w *world) get(t *testing.T, name string) *Entry {
	t.Helper()
	e, err := w.Resolve(bg, name)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (w *world) list(t *testing.T, dir string) string {
	t.Helper()
	entries, err := w.List(bg, w.get(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	return names(entries)
}

func names(entries []*Entry) string {
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func wantAbsent(t *testing.T, w *world, name string) {
	t.Helper()
	if _, err := w.Resolve(bg, name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: got %v, want %v", name, err, fs.ErrNotExist)
	}
}

func TestNames(t *testing.T) {
	w := newWorld(t, time.Hour)
	deep := strings.Repeat("d/", 200) + "f"
	for _, name := range []string{"plain", "not\xffutf8\x80", strings.Repeat("n", 255), "späß", "a b\nc", deep} {
		want := w.source.Put(name, []byte("content"))
		e := w.get(t, name)
		if e.Path() != name {
			t.Errorf("path: got %q, want %q", e.Path(), name)
		}
		if got := e.Info(); got.Name != e.Name() || !got.SameVersion(want) {
			t.Errorf("%q: got %+v, want %+v", name, got, want)
		}
		if again := w.get(t, name); again != e || w.Get(e.ID()) != e {
			t.Errorf("%q: another entry the second time", name)
		}
	}
	for _, name := range []string{"..", "../plain", "plain/below", strings.Repeat("n", 256), "/", ""} {
		if e, err := w.Resolve(bg, name); err == nil && e != w.Root() {
			t.Errorf("%q: found %q", name, e.Path())
		}
	}
	if e := w.Root(); e.ID() != 1 || e.Parent() != e || e.Path() != "." || e.Name() != "." {
		t.Errorf("root: got %d %q %q", e.ID(), e.Path(), e.Name())
	}
}

func TestLookupIsBelievedForTTL(t *testing.T) {
	inBubble(t, 10*time.Second, func(t *testing.T, w *world) {
		w.source.Put("f", []byte("old"))
		e := w.get(t, "f")
		w.faults.Reset()
		w.source.Delete("f")
		time.Sleep(9 * time.Second)
		if got := w.get(t, "f"); got != e || w.faults.Count(drivertest.OpStat) != 0 {
			t.Errorf("asked the source again within the time")
		}
		time.Sleep(time.Second)
		wantAbsent(t, w, "f")
		if !e.Stale() {
			t.Error("the entry of a deleted file is not stale")
		}
	})
}

func TestListIsBelievedForTTL(t *testing.T) {
	inBubble(t, 10*time.Second, func(t *testing.T, w *world) {
		w.source.Put("b", nil)
		w.source.Put("a", nil)
		w.source.Mkdir("c")
		if got := w.list(t, "."); got != "a b c" {
			t.Errorf("list: got %s", got)
		}
		w.faults.Reset()
		w.source.Put("d", nil)
		w.source.Delete("a")
		wantAbsent(t, w, "d") // all names are known
		w.get(t, "a")
		if got := w.list(t, "."); got != "a b c" {
			t.Errorf("list within the time: got %s", got)
		}
		if n := w.faults.Count(drivertest.OpStat) + w.faults.Count(drivertest.OpReadDir); n != 0 {
			t.Errorf("asked the source %d times within the time", n)
		}
		time.Sleep(10 * time.Second)
		if got := w.list(t, "."); got != "b c d" {
			t.Errorf("list: got %s", got)
		}
		if _, err := w.List(bg, w.get(t, "b")); err != syscall.ENOTDIR {
			t.Errorf("list of a file: got %v", err)
		}
	})
}

func TestNoTTL(t *testing.T) {
	w := newWorld(t, 0)
	for i := range 5 {
		name := fmt.Sprint(i)
		wantAbsent(t, w, name)
		w.source.Put(name, nil)
		w.get(t, name)
		if got := len(w.list(t, ".")); got != 2*i+1 {
			t.Errorf("list: got %d bytes", got)
		}
	}
	w.source.Delete("0")
	wantAbsent(t, w, "0")
}

// A new version of a file is a new entry, and the old one is stale and keeps
// what it says.
func TestNewVersion(t *testing.T) {
	inBubble(t, time.Second, func(t *testing.T, w *world) {
		for name, change := range map[string]func(){
			"replaced":    func() { w.source.Put("d/f", []byte("new")) },
			"overwritten": func() { w.source.Overwrite("d/f", []byte("newer")) },
			"a link":      func() { w.source.Symlink("x", "d/f") },
			"re-created":  func() { w.source.Delete("d/f"); w.source.Put("d/f", []byte("n")) },
		} {
			for _, how := range []string{"lookup", "list", "refresh", "changed"} {
				w.source.Put("d/f", []byte("old content"))
				time.Sleep(time.Second)
				old := w.get(t, "d/f")
				if how == "list" {
					w.list(t, "d")
				}
				w.Hold(old)
				info := old.Info()
				change()
				time.Sleep(time.Second)
				switch how {
				case "list":
					w.list(t, "d")
				case "refresh":
					if err := w.Refresh(bg, old); err != nil {
						t.Error(err)
					}
				case "changed":
					w.Changed(old)
				}
				now := w.get(t, "d/f")
				if now == old || now.ID() == old.ID() || !old.Stale() || now.Stale() {
					t.Errorf("%s, %s: the old entry is still there", name, how)
				}
				if old.Info() != info || old.Claim() {
					t.Errorf("%s, %s: the old entry has changed", name, how)
				}
				if w.Get(old.ID()) != old {
					t.Errorf("%s, %s: the kernel's entry is gone", name, how)
				}
				w.Forget(old.ID(), 1)
				if w.Get(old.ID()) != nil {
					t.Errorf("%s, %s: the forgotten entry is still there", name, how)
				}
			}
		}
		if got := w.Len(); got != 3 {
			t.Errorf("entries: got %d, want 3", got)
		}
	})
}

func TestAttributesChange(t *testing.T) {
	inBubble(t, time.Second, func(t *testing.T, w *world) {
		w.source.Put("d/f", []byte("x"))
		for i, name := range []string{".", "d", "d/f"} {
			e := w.get(t, name)
			w.source.Chmod(name, 0o700)
			time.Sleep(time.Second)
			if i == 2 {
				w.list(t, "d")
			} else if err := w.Refresh(bg, e); err != nil {
				t.Error(err)
			}
			if got := e.Info().Mode & 0o777; got != 0o700 || w.get(t, name) != e || e.Stale() {
				t.Errorf("%s: got mode %o, stale %v", name, got, e.Stale())
			}
		}
	})
}

func TestFileBecomesDirectory(t *testing.T) {
	inBubble(t, time.Second, func(t *testing.T, w *world) {
		w.source.Put("d/e/f", []byte("x"))
		all := []*Entry{w.get(t, "d"), w.get(t, "d/e"), w.get(t, "d/e/f")}
		w.list(t, "d")
		w.source.Delete("d")
		w.source.Put("d", []byte("file"))
		time.Sleep(time.Second)
		if e := w.get(t, "d"); e.IsDir() || !e.IsRegular() {
			t.Error("still a directory")
		}
		for _, e := range all {
			if !e.Stale() {
				t.Errorf("%s is not stale", e.Path())
			}
		}
		w.source.Delete("d")
		w.source.Put("d/g", []byte("x"))
		time.Sleep(time.Second)
		w.get(t, "d/g")
		if _, err := w.Lookup(bg, all[0], "g"); err != syscall.ESTALE {
			t.Errorf("lookup in a directory that is gone: got %v, want ESTALE", err)
		}
		if _, err := w.List(bg, all[0]); err != syscall.ESTALE {
			t.Errorf("list of a directory that is gone: got %v, want ESTALE", err)
		}
		if got := w.Len(); got != 3 {
			t.Errorf("entries: got %d, want 3", got)
		}
	})
}

// While the source fails, what is known stays, and only that.
func TestSourceOutage(t *testing.T) {
	for name, break_ := range map[string]func(w *world){
		"error": func(w *world) { w.faults.Add(drivertest.Rule{Err: syscall.EIO}) },
		"emptied": func(w *world) { // as when it is not mounted any more
			w.source.Delete("d")
			w.faults.Add(drivertest.Rule{Op: drivertest.OpStat, Name: ".", Err: syscall.ESTALE})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, time.Second, func(t *testing.T, w *world) {
				w.source.Put("d/f", []byte("x"))
				w.source.Put("d/g", []byte("x"))
				w.source.Put("d2/f", []byte("x"))
				e := w.get(t, "d/f")
				w.list(t, ".")
				w.list(t, "d")
				w.get(t, "d2")
				break_(w)
				for range 3 {
					time.Sleep(time.Second)
					if got := w.get(t, "d/f"); got != e || e.Stale() {
						t.Error("a known file was forgotten")
					}
					if got := w.list(t, "d"); got != "f g" {
						t.Errorf("list: got %s", got)
					}
					if err := w.Refresh(bg, e); err != nil {
						t.Error(err)
					}
				}
				if name == "error" {
					if _, err := w.Resolve(bg, "d2/f"); !errors.Is(err, syscall.EIO) {
						t.Errorf("unknown file: got %v", err)
					}
					if _, err := w.List(bg, w.get(t, "d2")); !errors.Is(err, syscall.EIO) {
						t.Errorf("unknown directory: got %v", err)
					}
				}
			})
		})
	}
}

func TestWhatOnlyTheSourceKnows(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.source.Symlink("f", "link")
	w.source.Put("f", []byte("x"))
	w.source.Setxattr("f", "user.a", []byte("b"))
	link, f := w.get(t, "link"), w.get(t, "f")
	if got, err := w.Readlink(bg, link); got != "f" || err != nil || !link.IsSymlink() || link.Type() != syscall.S_IFLNK {
		t.Errorf("link: got %s, %v", got, err)
	}
	if got, err := w.Listxattr(bg, f); len(got) != 1 || got[0] != "user.a" || err != nil {
		t.Errorf("attributes: got %v, %v", got, err)
	}
	if got, err := w.Getxattr(bg, f, "user.a"); string(got) != "b" || err != nil {
		t.Errorf("attribute: got %s, %v", got, err)
	}
	if got, err := w.Statfs(bg); got.Total == 0 || err != nil {
		t.Errorf("size: got %+v, %v", got, err)
	}
}

func TestNoSource(t *testing.T) {
	source := drivertest.NewFaults(drivertest.NewMem(0))
	source.Add(drivertest.Rule{Err: syscall.EIO})
	h, err := tiers.New(source, nil, tiers.Options{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(bg, h, Options{}, slog.New(slog.DiscardHandler)); !errors.Is(err, syscall.EIO) {
		t.Errorf("got %v, want EIO", err)
	}
}

// Copies that the tiers hold are found, the fastest first, and believed if
// they are of the right version.
func TestLocate(t *testing.T) {
	for _, how := range []string{"lookup", "list"} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t, time.Hour)
			for _, c := range []struct {
				name       string
				held       []int // levels with the right version
				other      []int // and with another
				level      tiers.Level
				unverified bool
			}{
				{"none", nil, nil, 0, false},
				{"fast", []int{1}, nil, 1, false},
				{"slow", []int{2}, nil, 2, false},
				{"both", []int{1, 2}, nil, 1, false},
				{"outdated", nil, []int{1}, 0, true},
				{"mixed", []int{2}, []int{1}, 2, false},
			} {
				info := w.source.Put("d/"+c.name, []byte("content"))
				for _, l := range c.held {
					w.tier[l].PutAt("d/"+c.name, []byte("content"), info.Mtime)
				}
				for _, l := range c.other {
					w.tier[l].Put("d/"+c.name, []byte("content"))
				}
				if how == "list" {
					w.Changed(w.get(t, "d"))
					w.list(t, "d")
				}
				e := w.get(t, "d/"+c.name)
				if got := e.state.Load()&unverified != 0; e.Level() != c.level || got != c.unverified {
					t.Errorf("%s: got level %d, unverified %v; want %d, %v", c.name, e.Level(), got, c.level, c.unverified)
				}
			}
		})
	}
}

// Settle publishes a copy of the right version and removes others, after a
// lookup to which the tiers did not answer.
func TestSettle(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		right := w.source.Put("right", []byte("content"))
		w.tier[2].PutAt("right", []byte("content"), right.Mtime)
		w.source.Put("wrong", []byte("content"))
		w.tier[1].Put("wrong", []byte("other"))
		w.tier[2].Put("wrong", []byte("another one"))
		w.source.Put("none", []byte("content"))
		want := map[string]bool{"right": true, "wrong": false, "none": false}
		for l := 1; l <= 2; l++ {
			w.down[l].Add(drivertest.Rule{Op: drivertest.OpStat, Err: syscall.EIO})
		}
		for name := range want {
			if e := w.get(t, name); e.Level() != tiers.AtSource {
				t.Errorf("%s: level %d, though no tier answers", name, e.Level())
			}
		}
		for l := 1; l <= 2; l++ {
			w.down[l].Clear()
		}
		time.Sleep(time.Minute) // the tiers are found to be well again
		for name, want := range want {
			e := w.get(t, name)
			if !e.Claim() {
				t.Fatalf("%s: not claimed", name)
			}
			if got := settle(w.Container, e); got != want {
				t.Errorf("%s: got %v, want %v", name, got, want)
			}
			if want != (e.Level() == 2) || want == e.Claimed() {
				t.Errorf("%s: got level %d, claimed %v", name, e.Level(), e.Claimed())
			}
		}
		for l := 1; l <= 2; l++ {
			if _, err := w.tier[l].Stat(bg, "wrong"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("outdated copy on tier %d: got %v", l, err)
			}
		}
	})
}

// The kernel's entries are let go when they are stale and forgotten: a file
// that changes often does not fill the memory.
func TestForget(t *testing.T) {
	w := newWorld(t, 0)
	for i := range 10_000 {
		w.source.Put("f", []byte("x"))
		e := w.get(t, "f")
		if i%2 == 0 {
			w.Hold(e)
			w.Hold(e)
			defer w.Forget(e.ID(), 2)
		}
		if i%4 == 0 {
			w.Forget(e.ID(), 2)
			w.Hold(e)
			w.Hold(e)
		}
	}
	if got, want := w.Len(), 5002; got != want {
		t.Errorf("entries: got %d, want %d: the root, the last, and those that the kernel has", got, want)
	}
	t.Cleanup(func() {
		if got := w.Len(); got != 2 {
			t.Errorf("entries that are left: got %d, want 2", got)
		}
	})
}

func TestWalk(t *testing.T) {
	w := newWorld(t, time.Hour)
	for _, name := range []string{"b/c/d", "a", "b/a", "z"} {
		w.source.Put(name, []byte("x"))
	}
	w.source.Symlink("a", "l")
	var got []string
	walk := func(e *Entry) error { got = append(got, e.Path()); return nil }
	if err := w.Walk(bg, w.Root(), walk); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(got, " "), ". a b b/a b/c b/c/d l z"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if err := w.Walk(bg, w.Root(), func(e *Entry) error { return syscall.EINTR }); err != syscall.EINTR {
		t.Errorf("got %v, want what the function returned", err)
	}
	w.faults.Add(drivertest.Rule{Op: drivertest.OpReadDir, Err: syscall.EIO})
	w.source.Put("new/f", nil)
	w.Changed(w.get(t, "z"))
	if err := w.Walk(bg, w.get(t, "new"), walk); !errors.Is(err, syscall.EIO) {
		t.Errorf("got %v, want EIO", err)
	}
	// A directory that goes away meanwhile is left out.
	dir := w.get(t, "b")
	if err := w.Walk(bg, dir, func(*Entry) error { w.Changed(dir); return nil }); err != nil {
		t.Errorf("a directory that went away: got %v", err)
	}
}

// Of those who list at once one asks the source, and the others get the same.
// One that goes away in the meantime does not spoil it for them.
func TestConcurrentLists(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.source.Put("f", nil)
		w.faults.Add(drivertest.Rule{Op: drivertest.OpReadDir, Delay: time.Minute})
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := w.List(ctx, w.Root()); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		})
		synctest.Wait()
		for range 100 {
			wg.Go(func() {
				if entries, err := w.List(bg, w.Root()); err != nil || names(entries) != "f" {
					t.Errorf("got %s, %v", names(entries), err)
				}
			})
		}
		wg.Wait()
		if got := w.faults.Count(drivertest.OpReadDir); got != 2 {
			t.Errorf("listed %d times, want 2", got)
		}
	})
}

// All who look a name up at once get the same entry.
func TestConcurrentLookups(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.source.Put("f", []byte("x"))
		w.down[1].Add(drivertest.Rule{Op: drivertest.OpStat, Delay: time.Second})
		var found [100]*Entry
		var wg sync.WaitGroup
		for i := range found {
			wg.Go(func() { found[i], _ = w.Lookup(bg, w.Root(), "f") })
		}
		wg.Wait()
		for _, e := range found {
			if e == nil || e != found[0] || e.Stale() {
				t.Fatal("not the same entry for all")
			}
		}
		if got := w.Len(); got != 2 {
			t.Errorf("entries: got %d, want 2", got)
		}
	})
}

// A slow driver gives out listings of the source as they were before they were asked
// for, as storage does that takes long.
type slow struct {
	drivers.Driver
	listed chan struct{} // a listing has been made
	give   chan struct{} // and is given out
}

func (s slow) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	infos, err := s.Driver.ReadDir(ctx, dir)
	s.listed <- struct{}{}
	<-s.give
	return append(infos, infos...), err // some storage says names twice
}

// A lookup that was made while a listing took its time knows better.
func TestDirectoryChangesWhileItIsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := drivertest.NewMem(0)
		source := slow{mem, make(chan struct{}), make(chan struct{})}
		h, err := tiers.New(source, nil, tiers.Options{}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		c, err := New(bg, h, Options{TTL: time.Hour}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		mem.Put("same", nil)
		mem.Put("changed", []byte("old"))
		var entries []*Entry
		var wg sync.WaitGroup
		wg.Go(func() { entries, err = c.List(bg, c.Root()) })
		<-source.listed
		time.Sleep(time.Second)
		mem.Put("changed", []byte("new"))
		mem.Put("fresh", nil)
		var found []*Entry
		for _, name := range []string{"changed", "fresh", "same"} {
			e, err := c.Resolve(bg, name)
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, e)
		}
		close(source.give)
		wg.Wait()
		if err != nil || names(entries) != "changed fresh same" {
			t.Fatalf("got %s, %v", names(entries), err)
		}
		for i, e := range entries {
			if e != found[i] || e.Stale() {
				t.Errorf("%s: the listing has replaced what was found later", e.Name())
			}
		}
		if got := c.Len(); got != 4 {
			t.Errorf("entries: got %d, want 4", got)
		}
	})
}

// Everything at once, on names that come, go and change. Nothing leaks and
// nobody is told of a wrong name.
func TestRaces(t *testing.T) {
	w := newWorld(t, 0)
	var wg sync.WaitGroup
	var stop atomic.Bool
	name := func(rng *rand.Rand) string { return fmt.Sprintf("d%d/f%d", rng.IntN(3), rng.IntN(5)) }
	for i := range 2 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			for !stop.Load() {
				switch n := name(rng); rng.IntN(6) {
				case 0, 1:
					w.source.Put(n, make([]byte, rng.IntN(3)))
				case 2:
					info := w.source.Put(n, []byte("content"))
					w.tier[1].PutAt(n, []byte("content"), info.Mtime)
				case 3:
					w.source.Mkdir(n[:2])
					w.source.Put(n[:2], nil)
				default:
					w.source.Mkdir(n[:2])
				}
				time.Sleep(10 * time.Microsecond)
			}
		})
	}
	for i := range 6 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(2, uint64(i)))
			for !stop.Load() {
				n := name(rng)
				e, err := w.Resolve(bg, n)
				if err != nil {
					continue
				}
				w.Hold(e)
				if e.Path() != n || e.Info().Name != e.Name() {
					t.Errorf("%s: got %s", n, e.Path())
				}
				switch rng.IntN(6) {
				case 0:
					w.List(bg, e.Parent())
				case 1:
					w.Refresh(bg, e)
				case 2:
					w.Changed(e)
				case 3:
					if e.Claim() {
						if settle(w.Container, e); e.Claimed() {
							e.Publish(2)
						}
					}
				case 4:
					e.Demote(e.Level())
				default:
					w.Walk(bg, w.Root(), func(*Entry) error { return nil })
				}
				w.Forget(e.ID(), 1)
			}
		})
	}
	time.Sleep(time.Second)
	stop.Store(true)
	wg.Wait()
	reachable := 0
	if err := w.Walk(bg, w.Root(), func(e *Entry) error {
		reachable++
		if e.Stale() || w.Get(e.ID()) != e {
			t.Errorf("%s: stale %v, known %v", e.Path(), e.Stale(), w.Get(e.ID()) == e)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if got := w.Len(); got != reachable {
		t.Errorf("entries: got %d, want the %d that have a name", got, reachable)
	}
}

// What is known is believed for its time and no longer, whoever is told of it
// and when.
func TestLasts(t *testing.T) {
	inBubble(t, time.Minute, func(t *testing.T, w *world) {
		w.source.Put("f", []byte("content"))
		e := w.get(t, "f")
		for _, after := range []time.Duration{0, 20 * time.Second, 40 * time.Second} {
			if got, want := w.TTL(e), time.Minute-after; got > want || got < want-2*tick {
				t.Errorf("after %v: got %v, want %v", after, got, want)
			}
			time.Sleep(20 * time.Second)
		}
		if got := w.TTL(e); got != 0 {
			t.Errorf("in the end: got %v, want 0", got)
		}
	})
}

// A late answer of a file system is the last that it has said, whatever was asked
// meanwhile.
func TestLateAnswerOfFileSystem(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.source.Put("f", []byte("content"))
		at := w.now()
		time.Sleep(time.Second)
		e := w.get(t, "f")
		if got := w.forgetName(w.Root(), "f", at); got != nil || !e.Stale() {
			t.Errorf("got %v, stale %v", got, e.Stale())
		}
	})
}

// Bytes counts the regular files that are loaded, however they come and go.
func TestBytes(t *testing.T) {
	inBubble(t, time.Second, func(t *testing.T, w *world) {
		want := func(want int64) {
			t.Helper()
			if got := w.Bytes(); got != want {
				t.Errorf("got %d bytes, want %d", got, want)
			}
		}
		w.source.Put("d/a", make([]byte, 100))
		w.source.Put("d/b", make([]byte, 20))
		w.source.Symlink("a", "d/link")
		want(0)
		a := w.get(t, "d/a")
		want(100)
		w.list(t, "d")
		want(120)
		w.Hold(a)
		w.source.Put("d/a", make([]byte, 3))
		time.Sleep(time.Second)
		w.get(t, "d/a")
		want(123) // the kernel knows the old one
		w.Forget(a.ID(), 1)
		want(23)
		next := w.restarted(t)
		if got := next.Bytes(); got != 0 {
			t.Errorf("restored: got %d bytes before anything is looked at", got)
		}
		next.get(t, "d/a")
		if got := next.Bytes(); got != 23 {
			t.Errorf("restored: got %d bytes, want 23", got)
		}
		w.source.Delete("d")
		time.Sleep(time.Second)
		wantAbsent(t, w, "d")
		want(0)
	})
}
