package metadata

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/tiers"
)

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
			t.Errorf("%q: the second lookup returned another entry", name)
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

func TestLookupIsCachedForTTL(t *testing.T) {
	inBubble(t, 10*time.Second, func(t *testing.T, w *world) {
		w.source.Put("f", []byte("old"))
		e := w.get(t, "f")
		w.faults.Reset()
		w.source.Delete("f")
		time.Sleep(9 * time.Second)
		if got := w.get(t, "f"); got != e || w.faults.Count(drivertest.OpStat) != 0 {
			t.Errorf("the source was requested again within the TTL")
		}
		time.Sleep(time.Second)
		wantMissing(t, w, "f")
		if !e.Stale() {
			t.Error("the entry of a deleted file is not stale")
		}
	})
}

// While the source fails, a cached listing answers for the names that it does not have, and nobody caches that.
func TestListingCountsInAnOutage(t *testing.T) {
	inBubble(t, 10*time.Second, func(t *testing.T, w *world) {
		w.source.Put("a", nil)
		w.list(t, ".")
		w.faults.Reset()
		w.faults.Add(drivertest.Rule{Err: syscall.EIO})
		for range 10 {
			if _, err := w.Lookup(bg, w.Root(), "missing"); err != ErrUnconfirmed {
				t.Errorf("got %v, want %v", err, ErrUnconfirmed)
			}
		}
		if n := w.faults.Count(drivertest.OpStat); n != 10 {
			t.Errorf("%d requests, want 10", n)
		}
		time.Sleep(10 * time.Second)
		if _, err := w.Lookup(bg, w.Root(), "missing"); !errors.Is(err, syscall.EIO) {
			t.Errorf("after the TTL of the listing: got %v, want EIO", err)
		}
	})
}

func TestListIsCachedForTTL(t *testing.T) {
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
		wantMissing(t, w, "e")
		w.get(t, "a")
		if got := w.list(t, "."); got != "a b c" {
			t.Errorf("list within the TTL: got %s", got)
		}
		if n := w.faults.Count(drivertest.OpStat) + w.faults.Count(drivertest.OpReadDir); n != 2 {
			t.Errorf("%d requests to the source within the TTL, want 2, of the missing name and of the root after the listing", n)
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
		wantMissing(t, w, name)
		w.source.Put(name, nil)
		w.get(t, name)
		if got := len(w.list(t, ".")); got != 2*i+1 {
			t.Errorf("list: got %d bytes", got)
		}
	}
	w.source.Delete("0")
	wantMissing(t, w, "0")
}

// A new version of a file is a new entry. The old entry is stale and keeps its attributes.
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
					t.Errorf("%s, %s: the name still has the old entry", name, how)
				}
				if old.Info() != info || old.Claim() {
					t.Errorf("%s, %s: the old entry has changed", name, how)
				}
				if w.Get(old.ID()) != old {
					t.Errorf("%s, %s: the entry was freed before the kernel forgot it", name, how)
				}
				w.Forget(old.ID(), 1)
				if w.Get(old.ID()) != nil {
					t.Errorf("%s, %s: the entry was not freed when the kernel forgot it", name, how)
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
			t.Errorf("lookup in a removed directory: got %v, want ESTALE", err)
		}
		if _, err := w.List(bg, all[0]); err != syscall.ESTALE {
			t.Errorf("list of a removed directory: got %v, want ESTALE", err)
		}
		if got := w.Len(); got != 3 {
			t.Errorf("entries: got %d, want 3", got)
		}
	})
}

// While the source fails, cached names are served, and no others.
func TestSourceOutage(t *testing.T) {
	for name, break_ := range map[string]func(w *world){
		"error": func(w *world) { w.faults.Add(drivertest.Rule{Err: syscall.EIO}) },
		"emptied": func(w *world) { // as after an unmount of the source
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
						t.Error("a cached file was removed")
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
						t.Errorf("file that is not cached: got %v", err)
					}
					if _, err := w.List(bg, w.get(t, "d2")); !errors.Is(err, syscall.EIO) {
						t.Errorf("directory that is not cached: got %v", err)
					}
				}
			})
		})
	}
}

func TestSourceAttributes(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.source.Symlink("f", "link")
	w.source.Put("f", []byte("x"))
	w.source.Setxattr("f", "user.a", []byte("b"))
	link, f := w.get(t, "link"), w.get(t, "f")
	if got, err := w.Readlink(bg, link); got != "f" || err != nil || !link.IsSymlink() || link.Type() != syscall.S_IFLNK {
		t.Errorf("link: got %s, %v", got, err)
	}
	if got, err := w.Listxattr(bg, f); string(got) != "user.a\x00" || err != nil {
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

// The level is that of the fastest copy of the right version.
func TestLocate(t *testing.T) {
	for _, how := range []string{"lookup", "list"} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t, time.Hour)
			for _, c := range []struct {
				name       string
				right      []int // levels with a copy of the right version
				other      []int // levels with a copy of another version
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
				for _, l := range c.right {
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
				if got := e.Unverified(); e.Level() != c.level || got != c.unverified {
					t.Errorf("%s: got level %d, unverified %v; want %d, %v", c.name, e.Level(), got, c.level, c.unverified)
				}
			}
		})
	}
}

// While the tiers do not respond, entries are Unverified, because a tier may hold a copy.
// Verified ends that, and so does Publish.
func TestUnverified(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		right := w.source.Put("right", []byte("content"))
		w.tier[2].PutAt("right", []byte("content"), right.Mtime)
		w.source.Put("wrong", []byte("content"))
		w.tier[1].Put("wrong", []byte("other"))
		w.tier[2].Put("wrong", []byte("another one"))
		w.source.Put("none", []byte("content"))
		for l := 1; l <= 2; l++ {
			w.down[l].Add(drivertest.Rule{Op: drivertest.OpStat, Err: syscall.EIO})
		}
		for _, name := range []string{"right", "wrong", "none"} {
			e := w.get(t, name)
			if e.Level() != tiers.AtSource || !e.Unverified() {
				t.Errorf("%s: got level %d, unverified %v; want the source, true", name, e.Level(), e.Unverified())
			}
			if !e.Claim() || !e.Unverified() {
				t.Fatalf("%s: got claimed %v, unverified %v; want true, true", name, e.Claimed(), e.Unverified())
			}
			if name == "right" {
				e.Publish(2)
				if e.Level() != 2 || e.Claimed() || e.Unverified() {
					t.Errorf("%s: got level %d, claimed %v, unverified %v", name, e.Level(), e.Claimed(), e.Unverified())
				}
				continue
			}
			e.Verified()
			if e.Level() != tiers.AtSource || !e.Claimed() || e.Unverified() {
				t.Errorf("%s: got level %d, claimed %v, unverified %v", name, e.Level(), e.Claimed(), e.Unverified())
			}
			e.Release()
		}
	})
}

// Entries are freed when they are stale and the kernel has forgotten them, so that a file
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
		t.Errorf("entries: got %d, want %d: the root, the last one, and those that the kernel knows", got, want)
	}
	t.Cleanup(func() {
		if got := w.Len(); got != 2 {
			t.Errorf("entries at the end: got %d, want 2", got)
		}
	})
}

// TTL returns the rest of the time for which the attributes are cached.
func TestTTL(t *testing.T) {
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
			t.Errorf("after the TTL: got %v, want 0", got)
		}
	})
}

// The reply of a file system describes the state at the time of the reply. A late reply
// therefore replaces an earlier one, also if its request was made before.
func TestLateReplyOfFileSystem(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.source.Put("f", []byte("content"))
		requested := w.now()
		time.Sleep(time.Second)
		e := w.get(t, "f")
		if got := w.removeName(w.Root(), "f", requested); got != nil || !e.Stale() {
			t.Errorf("got %v, stale %v", got, e.Stale())
		}
	})
}

// Bytes is the total size of the regular files that are loaded, at any time.
func TestBytes(t *testing.T) {
	inBubble(t, time.Second, func(t *testing.T, w *world) {
		want := func(bytes int64) {
			t.Helper()
			if got := w.Bytes(); got != bytes {
				t.Errorf("got %d bytes, want %d", got, bytes)
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
		want(123) // the kernel has not forgotten the old one
		w.Forget(a.ID(), 1)
		want(23)
		next := w.restart(t)
		if got := next.Bytes(); got != 0 {
			t.Errorf("restarted: got %d bytes before the first lookup", got)
		}
		next.get(t, "d/a")
		if got := next.Bytes(); got != 23 {
			t.Errorf("restarted: got %d bytes, want 23", got)
		}
		w.source.Delete("d")
		time.Sleep(time.Second)
		wantMissing(t, w, "d")
		want(0)
	})
}
