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
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// newProcess returns a world with another container for the same source and tiers.
func (w *world) newProcess(t testing.TB) *world {
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

// saveSnapshot saves a snapshot to the file at path.
func saveSnapshot(c *Container, path, source string) error {
	folder, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close()
	return c.SaveSnapshot(bg, folder, filepath.Base(path), source)
}

// openSnapshot makes a new container start with the snapshot at path.
func openSnapshot(c *Container, path, source string) error {
	folder, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close()
	s, err := OpenSnapshot(folder, filepath.Base(path), source)
	if err == nil {
		c.useSnapshot(s)
	}
	return err
}

// restart saves a snapshot and starts another container with it.
func (w *world) restart(t testing.TB) *world {
	t.Helper()
	path := filepath.Join(t.TempDir(), "snapshot")
	if err := saveSnapshot(w.Container, path, "src"); err != nil {
		t.Fatal(err)
	}
	next := w.newProcess(t)
	if err := openSnapshot(next.Container, path, "src"); err != nil {
		t.Fatal(err)
	}
	return next
}

// tree returns the attributes of all entries by path, except those of the root, which New
// requests.
func tree(t testing.TB, c *Container) map[string]drivers.Info {
	t.Helper()
	all := make(map[string]drivers.Info)
	err := c.Walk(bg, []*Entry{c.Root()}, func(e *Entry, err error) error {
		if e != c.Root() && err == nil {
			all[e.Path()] = e.Info()
		}
		return err
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

// requests returns the number of requests for names to the source.
func (w *world) requests() int64 {
	s := w.levels.Source().Stats()
	return s.Stats + s.ReadDirs
}

// fillVaried creates files with unusual names and attributes.
func (w *world) fillVaried() {
	for i, name := range []string{"plain", "d/not\xffutf8\x80", "d/" + strings.Repeat("n", 255), "d/e/späß", "d/a b\nc", "z/1", "z/2"} {
		mtime := time.Unix(int64(i-2)*1e9, int64(i)*111111111) // some before 1970
		w.source.PutAt(name, make([]byte, i), mtime)
		w.source.Chmod(name, uint32(0o400+i))
	}
	w.source.PutAt("sparse", make([]byte, 10_000), time.Unix(1e9, 0))
	w.source.SetHoles("sparse", drivers.Hole{Start: 512, End: 8192})
	w.source.Mkdir("empty")
	w.source.Symlink("plain", "link")
	w.source.Special("pipe", syscall.S_IFIFO)
}

// Another container has all names and attributes of the snapshot without a request to the
// source. The levels are those of the copies that the tiers hold now.
func TestSnapshot(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.fillVaried()
		want := tree(t, w.Container)
		next := w.restart(t)
		info := want["z/2"]
		w.tier[2].PutAt("z/2", make([]byte, info.Size), info.Mtime)
		before := w.requests()
		wantTree(t, tree(t, next.Container), want)
		wantMissing(t, next, "d/absent")
		if e := next.get(t, "z/2"); e.Level() != 2 || next.Get(e.ID()) != e || e.Stale() {
			t.Errorf("z/2: got level %d", e.Level())
		}
		if got := w.requests() - before; got != 1 {
			t.Errorf("%d requests to the source, want 1, of the name that is not in a listing", got)
		}
		if got := next.Len(); got != len(want)+1 {
			t.Errorf("entries: got %d, want %d", got, len(want)+1)
		}
	})
}

// A snapshot of 100,000 names is complete.
func TestSnapshotHundredThousandNames(t *testing.T) {
	if testing.Short() {
		t.Skip("has a hundred thousand names")
	}
	const dirs, files = 100, 1000
	w := newWorld(t, time.Hour)
	for i := range dirs {
		for j := range files {
			w.source.Put(fmt.Sprintf("d%02d/f%03d", i, j), nil)
		}
	}
	want := tree(t, w.Container)
	next := w.restart(t)
	if got := next.Len(); got != 1 {
		t.Errorf("%d entries are loaded before the first lookup", got)
	}
	before := w.requests()
	next.get(t, "d07/f123")
	if got, want := next.Len(), 1+dirs+files; got != want {
		t.Errorf("%d entries are loaded after a lookup, want %d", got, want)
	}
	wantTree(t, tree(t, next.Container), want)
	if got := w.requests() - before; got != 0 {
		t.Errorf("%d requests to the source, want 0", got)
	}
}

// The TTL continues over a restart.
func TestSnapshotTTL(t *testing.T) {
	inBubble(t, 10*time.Second, func(t *testing.T, w *world) {
		w.source.Put("d/f", nil)
		tree(t, w.Container)
		time.Sleep(4 * time.Second)
		next := w.restart(t)
		time.Sleep(4 * time.Second)
		w.source.Put("d/g", nil)
		if got := next.list(t, "d"); got != "f" {
			t.Errorf("within the TTL: got %s, want f", got)
		}
		if got := next.TTL(next.get(t, "d/f")); got > 2*time.Second || got < time.Second {
			t.Errorf("TTL: got %v, want 2 s", got)
		}
		time.Sleep(2 * time.Second)
		if got := next.list(t, "d"); got != "f g" {
			t.Errorf("after the TTL: got %s, want f g", got)
		}
	})
}

// The TTL continues over several restarts, also that of directories that are never loaded.
func TestSnapshotSavedOften(t *testing.T) {
	inBubble(t, time.Minute, func(t *testing.T, w *world) {
		w.fillVaried()
		want := tree(t, w.Container)
		requests := w.requests()
		for range 4 {
			time.Sleep(10 * time.Second)
			w = w.restart(t)
			w.get(t, "d/e") // loads some directories
			requests++      // by New
		}
		wantTree(t, tree(t, w.Container), want)
		if got := w.requests(); got != requests {
			t.Errorf("%d requests to the source, want 0", got-requests)
		}
		time.Sleep(21 * time.Second)
		w.source.Put("z/3", nil)
		if got := w.list(t, "z"); got != "1 2 3" {
			t.Errorf("after the TTL: got %s, want 1 2 3", got)
		}
	})
}

// The snapshot of a directory that was not listed has the names that were looked up. Others
// are requested from the source.
func TestSnapshotOfLookups(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.source.Put("d/f", nil)
		w.source.Put("d/g", nil)
		w.get(t, "d/f")
		next := w.restart(t)
		before := w.requests()
		next.get(t, "d/f")
		if got := w.requests() - before; got != 0 {
			t.Errorf("%d requests to the source, want 0", got)
		}
		next.get(t, "d/g")
		wantMissing(t, next, "d/h")
		if got := next.list(t, "d"); got != "f g" {
			t.Errorf("got %s, want f g", got)
		}
	})
}

// While the source fails, the names of a snapshot are served also after their TTL.
func TestSnapshotSurvivesOutage(t *testing.T) {
	inBubble(t, time.Minute, func(t *testing.T, w *world) {
		w.fillVaried()
		want := tree(t, w.Container)
		next := w.restart(t)
		time.Sleep(time.Hour)
		w.faults.Add(drivertest.Rule{Err: syscall.EIO})
		wantTree(t, tree(t, next.Container), want)
	})
}

// A file that is not a snapshot is never replaced.
func TestSnapshotKeepsForeignFiles(t *testing.T) {
	w := newWorld(t, time.Hour)
	dir := t.TempDir()
	path := filepath.Join(dir, "snapshot")
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
		if err := saveSnapshot(w.Container, path, "src"); !errors.Is(err, ErrForeign) {
			t.Errorf("%s: got %v", what, err)
		}
		if err := openSnapshot(w.Container, path, "src"); !errors.Is(err, ErrForeign) {
			t.Errorf("%s: opened: got %v", what, err)
		}
		if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) || after.Size() != before.Size() {
			t.Errorf("%s: the file was changed", what)
		}
		if files, _ := os.ReadDir(dir); len(files) != 1 {
			t.Errorf("%s: temporary files remain", what)
		}
		os.Remove(path)
	}
	if err := saveSnapshot(w.Container, filepath.Join(dir, "none", "snapshot"), "src"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing folder: got %v", err)
	}
}

// A limited writer fails after n bytes, like a full disk.
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

// If SaveSnapshot is interrupted, the earlier snapshot remains. The next SaveSnapshot removes
// the temporary file, and no other file.
func TestSnapshotInterrupted(t *testing.T) {
	if testing.Short() {
		t.Skip("cuts a snapshot everywhere")
	}
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.fillVaried()
		want := tree(t, w.Container)
		dir := t.TempDir()
		path := filepath.Join(dir, "snapshot")
		if err := saveSnapshot(w.Container, path, "src"); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("got mode %v, %v", info.Mode(), err)
		}
		for n := range int(info.Size()) {
			var written bytes.Buffer
			if err := w.writeSnapshot(&limited{&written, n}, "src"); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("disk full after %d bytes: got %v, want ENOSPC", n, err)
			}
			if err := os.WriteFile(fmt.Sprintf("%s.%d.unfinished", path, n), written.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		next := w.newProcess(t)
		if err := openSnapshot(next.Container, path, "src"); err != nil {
			t.Fatal(err)
		}
		wantTree(t, tree(t, next.Container), want)
		other := path + ".letter.unfinished"
		if err := os.WriteFile(other, []byte("a letter to a friend, in a file"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := saveSnapshot(w.Container, path, "src"); err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(dir)
		if want := 2 + len(headMagic); len(files) != want || err != nil { // files shorter than the magic are kept
			t.Errorf("%d files remain, want %d", len(files), want)
		}
		if _, err := os.Stat(other); err != nil {
			t.Error(err)
		}
	})
}

// Names are looked up, listed, invalidated and saved while the snapshot is loaded.
func TestSnapshotRaces(t *testing.T) {
	w := newWorld(t, time.Hour)
	for i := range 300 {
		w.source.Put(fmt.Sprintf("d%d/e%d/f%d", i%3, i%5, i), []byte("x"))
	}
	want := tree(t, w.Container)
	path := filepath.Join(t.TempDir(), "snapshot")
	for round := range uint64(10) {
		if err := saveSnapshot(w.Container, path, "src"); err != nil {
			t.Fatal(err)
		}
		next := w.newProcess(t)
		if err := openSnapshot(next.Container, path, "src"); err != nil {
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
						continue // the directory was invalidated in the meantime
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
			if err := saveSnapshot(next.Container, path, "src"); err != nil {
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

// BenchmarkSnapshot saves a directory of a million files, and lists it in a container that
// was started with the snapshot.
func BenchmarkSnapshot(b *testing.B) {
	n := drivertest.Size(1_000_000, 1000)
	source := flat{drivertest.NewMem(0), n}
	path := filepath.Join(b.TempDir(), "snapshot")
	c := newContainer(b, source)
	list := func(c *Container) {
		if entries, err := c.List(bg, c.Root()); err != nil || len(entries) != n {
			b.Fatalf("got %d names, %v", len(entries), err)
		}
	}
	list(c)
	allocated := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.TotalAlloc
	}
	var saved, opened, listed time.Duration
	var heap uint64
	for b.Loop() {
		before, start := allocated(), time.Now()
		if err := saveSnapshot(c, path, "src"); err != nil {
			b.Fatal(err)
		}
		saved += time.Since(start)
		heap += allocated() - before
		next := newContainer(b, source)
		start = time.Now()
		if err := openSnapshot(next, path, "src"); err != nil {
			b.Fatal(err)
		}
		opened += time.Since(start)
		start = time.Now()
		list(next)
		listed += time.Since(start)
		next.Close()
	}
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	ms := func(d time.Duration) float64 { return d.Seconds() * 1e3 / float64(b.N) }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ms(saved), "save-ms")
	b.ReportMetric(float64(heap)/float64(b.N)/1e6, "save-MB-allocated")
	b.ReportMetric(ms(opened), "open-ms")
	b.ReportMetric(ms(listed), "list-ms")
	b.ReportMetric(float64(info.Size())/float64(n), "B/name")
}

func writeFile(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
