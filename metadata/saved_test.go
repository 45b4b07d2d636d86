package metadata

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// again makes another container for the world's source, as the next process
// would.
func (w *world) again(t testing.TB) *world {
	t.Helper()
	c, err := New(bg, w.levels, Options{TTL: w.ttl}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	next := *w
	next.Container = c
	t.Cleanup(func() { c.Close() })
	return &next
}

// restarted saves the names and restores them to another container.
func (w *world) restarted(t testing.TB) *world {
	t.Helper()
	path := filepath.Join(t.TempDir(), "names")
	if err := w.SaveSnapshot(path, "src"); err != nil {
		t.Fatal(err)
	}
	next := w.again(t)
	if err := next.restore(path, "src"); err != nil {
		t.Fatal(err)
	}
	return next
}

// tree returns all that a container says of its names, but for the root, which
// New asks for.
func tree(t testing.TB, c *Container) map[string]drivers.Info {
	t.Helper()
	all := make(map[string]drivers.Info)
	err := c.Walk(bg, c.Root(), func(e *Entry) error {
		if e != c.Root() {
			all[e.Path()] = e.Info()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func wantTree(t testing.TB, got, want map[string]drivers.Info) {
	t.Helper()
	for name, info := range want {
		if got[name] != info {
			t.Errorf("%q: got %+v, want %+v", name, got[name], info)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %d names, want %d", len(got), len(want))
	}
}

// asked returns how often the source has been asked for names.
func (w *world) asked() int64 {
	s := w.levels.Source().Stats()
	return s.Stats + s.ReadDirs
}

// odd fills a world with what names and attributes can be.
func (w *world) odd() {
	for i, name := range []string{"plain", "d/not\xffutf8\x80", "d/" + strings.Repeat("n", 255), "d/e/späß", "d/a b\nc", "z/1", "z/2"} {
		at := time.Unix(int64(i-2)*1e9, int64(i)*111111111) // some before 1970
		w.source.PutAt(name, make([]byte, i), at)
		w.source.Chmod(name, uint32(0o400+i))
	}
	w.source.Mkdir("empty")
	w.source.Symlink("plain", "link")
	w.source.Special("pipe", syscall.S_IFIFO)
}

// What was saved is known again, with all its attributes and without asking
// the source; levels are what the tiers hold now.
func TestSavedNames(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.odd()
		want := tree(t, w.Container)
		next := w.restarted(t)
		info := want["z/2"]
		w.tier[2].PutAt("z/2", make([]byte, info.Size), info.Mtime)
		before := w.asked()
		wantTree(t, tree(t, next.Container), want)
		wantAbsent(t, next, "d/absent")
		if e := next.get(t, "z/2"); e.Level() != 2 || next.Get(e.ID()) != e || e.Stale() {
			t.Errorf("z/2: got level %d", e.Level())
		}
		if got := w.asked() - before; got != 0 {
			t.Errorf("asked the source %d times", got)
		}
		if got := next.Len(); got != len(want)+1 {
			t.Errorf("entries: got %d, want %d", got, len(want)+1)
		}
	})
}

func TestSavedHundredThousandNames(t *testing.T) {
	const dirs, files = 100, 1000
	w := newWorld(t, time.Hour)
	for i := range dirs {
		for j := range files {
			w.source.Put(fmt.Sprintf("d%02d/f%03d", i, j), nil)
		}
	}
	want := tree(t, w.Container)
	next := w.restarted(t)
	if got := next.Len(); got != 1 {
		t.Errorf("%d entries are loaded before one is wanted", got)
	}
	before := w.asked()
	next.get(t, "d07/f123")
	if got, want := next.Len(), 1+dirs+files; got != want {
		t.Errorf("after a lookup %d entries are loaded, want %d", got, want)
	}
	wantTree(t, tree(t, next.Container), want)
	if got := w.asked() - before; got != 0 {
		t.Errorf("asked the source %d times", got)
	}
}

// What was saved is believed for as long as if there had been no restart.
func TestSavedIsBelievedForTTL(t *testing.T) {
	inBubble(t, 10*time.Second, func(t *testing.T, w *world) {
		w.source.Put("d/f", nil)
		tree(t, w.Container)
		time.Sleep(4 * time.Second)
		next := w.restarted(t)
		time.Sleep(4 * time.Second)
		w.source.Put("d/g", nil)
		if got := next.list(t, "d"); got != "f" {
			t.Errorf("within the time: got %s, want f", got)
		}
		if got := next.TTL(next.get(t, "d/f")); got > 2*time.Second || got < time.Second {
			t.Errorf("believed for %v more, want 2 s", got)
		}
		time.Sleep(2 * time.Second)
		if got := next.list(t, "d"); got != "f g" {
			t.Errorf("after the time: got %s, want f g", got)
		}
	})
}

// Restarts do not make what is known younger, also of what nobody looks at.
func TestSavedOften(t *testing.T) {
	inBubble(t, time.Minute, func(t *testing.T, w *world) {
		w.odd()
		want := tree(t, w.Container)
		asked := w.asked()
		for range 4 {
			time.Sleep(10 * time.Second)
			w = w.restarted(t)
			w.get(t, "d/e") // loads some, and not all
			asked++         // by New
		}
		wantTree(t, tree(t, w.Container), want)
		if got := w.asked(); got != asked {
			t.Errorf("asked the source %d times", got-asked)
		}
		time.Sleep(21 * time.Second)
		w.source.Put("z/3", nil)
		if got := w.list(t, "z"); got != "1 2 3" {
			t.Errorf("after the time: got %s", got)
		}
	})
}

// Of a directory that was not listed the names are saved that were looked up,
// and others are asked for.
func TestSavedLookups(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.source.Put("d/f", nil)
		w.source.Put("d/g", nil)
		w.get(t, "d/f")
		next := w.restarted(t)
		before := w.asked()
		next.get(t, "d/f")
		if got := w.asked() - before; got != 0 {
			t.Errorf("asked the source %d times", got)
		}
		next.get(t, "d/g")
		wantAbsent(t, next, "d/h")
		if got := next.list(t, "d"); got != "f g" {
			t.Errorf("got %s, want f g", got)
		}
	})
}

// While the source is away, what was saved is served after its time too.
func TestSavedSurvivesAnOutage(t *testing.T) {
	inBubble(t, time.Minute, func(t *testing.T, w *world) {
		w.odd()
		want := tree(t, w.Container)
		next := w.restarted(t)
		time.Sleep(time.Hour)
		w.faults.Add(drivertest.Rule{Err: syscall.EIO})
		wantTree(t, tree(t, next.Container), want)
	})
}

// What is not a saved name space is never overwritten.
func TestSaveLeavesOthersAlone(t *testing.T) {
	w := newWorld(t, time.Hour)
	dir := t.TempDir()
	path := filepath.Join(dir, "names")
	for what, make := range map[string]func() error{
		"text":      func() error { return os.WriteFile(path, []byte("a letter to a friend, in a file"), 0o644) },
		"empty":     func() error { return os.WriteFile(path, nil, 0o644) },
		"directory": func() error { return os.Mkdir(path, 0o755) },
		"pipe":      func() error { return syscall.Mkfifo(path, 0o600) },
		"link":      func() error { return os.Symlink("elsewhere", path) },
	} {
		if err := make(); err != nil {
			t.Fatal(err)
		}
		before, _ := os.Lstat(path)
		if err := w.SaveSnapshot(path, "src"); !errors.Is(err, ErrForeign) {
			t.Errorf("%s: got %v", what, err)
		}
		if err := w.restore(path, "src"); !errors.Is(err, ErrForeign) {
			t.Errorf("%s: restored: got %v", what, err)
		}
		if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) || after.Size() != before.Size() {
			t.Errorf("%s: was changed", what)
		}
		if files, _ := os.ReadDir(dir); len(files) != 1 {
			t.Errorf("%s: files are left behind", what)
		}
		os.Remove(path)
	}
	if err := w.SaveSnapshot(filepath.Join(dir, "none", "names"), "src"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such folder: got %v", err)
	}
}

// A limited writer fails when so many bytes were written, as a full disk does.
type limited struct {
	w io.Writer
	n int
}

func (l *limited) Write(b []byte) (int, error) {
	n, err := l.w.Write(b[:min(len(b), l.n)])
	if l.n -= n; err == nil && n < len(b) {
		err = syscall.ENOSPC
	}
	return n, err
}

// When a save does not come to an end, the earlier file stays, and what is left
// is removed by the next save; nothing else is.
func TestSaveIsCutShort(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.odd()
		want := tree(t, w.Container)
		dir := t.TempDir()
		path := filepath.Join(dir, "names")
		if err := w.SaveSnapshot(path, "src"); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("got mode %v, %v", info.Mode(), err)
		}
		for n := range int(info.Size()) {
			var part bytes.Buffer
			if err := w.write(&limited{&part, n}, "src"); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("disk full after %d bytes: got %v", n, err)
			}
			if err := os.WriteFile(fmt.Sprintf("%s.%d.unfinished", path, n), part.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		next := w.again(t)
		if err := next.restore(path, "src"); err != nil {
			t.Fatal(err)
		}
		wantTree(t, tree(t, next.Container), want)
		other := path + ".letter.unfinished"
		if err := os.WriteFile(other, []byte("a letter to a friend, in a file"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := w.SaveSnapshot(path, "src"); err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(dir)
		if want := 2 + len(headMagic); len(files) != want || err != nil { // those that are shorter than the magic are anybody's
			t.Errorf("%d files are left, want %d", len(files), want)
		}
		if _, err := os.Stat(other); err != nil {
			t.Error(err)
		}
	})
}

// Names are looked up, listed, dropped and saved while they are being loaded.
func TestSavedRaces(t *testing.T) {
	w := newWorld(t, time.Hour)
	for i := range 300 {
		w.source.Put(fmt.Sprintf("d%d/e%d/f%d", i%3, i%5, i), []byte("x"))
	}
	want := tree(t, w.Container)
	path := filepath.Join(t.TempDir(), "names")
	for round := range uint64(10) {
		if err := w.SaveSnapshot(path, "src"); err != nil {
			t.Fatal(err)
		}
		next := w.again(t)
		if err := next.restore(path, "src"); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range uint64(6) {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(round, i))
				for range 100 {
					n := rng.IntN(300)
					e, err := next.Resolve(bg, fmt.Sprintf("d%d/e%d/f%d", n%3, n%5, n))
					if errors.Is(err, syscall.ESTALE) {
						continue // its directory was dropped meanwhile
					}
					if err != nil {
						t.Error(err)
						return
					}
					next.List(bg, e.Parent())
					if i == 0 && n%50 == 0 {
						next.Changed(e.Parent())
					}
				}
			})
		}
		wg.Go(func() {
			if err := next.SaveSnapshot(path, "src"); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		wantTree(t, tree(t, next.Container), want)
		if got := next.Len(); got != len(want)+1 {
			t.Errorf("entries: got %d, want %d", got, len(want)+1)
		}
		w = next
	}
}

// BenchmarkSaved saves the names of a directory of a million files, and lists
// them in a container to which they are restored.
func BenchmarkSaved(b *testing.B) {
	const n = 1_000_000
	source := flat{drivertest.NewMem(0), n}
	path := filepath.Join(b.TempDir(), "names")
	c := newContainer(b, source)
	list := func(c *Container) {
		if entries, err := c.List(bg, c.Root()); err != nil || len(entries) != n {
			b.Fatalf("got %d names, %v", len(entries), err)
		}
	}
	list(c)
	var saved, restored, listed time.Duration
	for b.Loop() {
		start := time.Now()
		if err := c.SaveSnapshot(path, "src"); err != nil {
			b.Fatal(err)
		}
		saved += time.Since(start)
		next := newContainer(b, source)
		start = time.Now()
		if err := next.restore(path, "src"); err != nil {
			b.Fatal(err)
		}
		restored += time.Since(start)
		start = time.Now()
		list(next)
		listed += time.Since(start)
		if err := next.Close(); err != nil {
			b.Fatal(err)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	ms := func(d time.Duration) float64 { return d.Seconds() * 1e3 / float64(b.N) }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ms(saved), "save-ms")
	b.ReportMetric(ms(restored), "restore-ms")
	b.ReportMetric(ms(listed), "list-ms")
	b.ReportMetric(float64(info.Size())/n, "B/name")
}

func writeFile(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
