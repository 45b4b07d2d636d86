package metadata

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/tiers"
)

// If any one byte of a snapshot is wrong, or it is truncated anywhere, it is rejected, or its
// damaged directories are read from the source.
func TestSnapshotDamaged(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.fillVaried()
		want := tree(t, w.Container)
		path := filepath.Join(t.TempDir(), "snapshot")
		if err := saveSnapshot(w.Container, path, "src"); err != nil {
			t.Fatal(err)
		}
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		check := func(how string, i int, file []byte) {
			next := w.newProcess(t)
			defer next.Close()
			if i%2 == 0 {
				next.snapshotTTL = time.Minute
			}
			if err := os.WriteFile(path, file, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := openSnapshot(next.Container, path, "src"); err != nil && !strings.Contains(err.Error(), filepath.Base(path)) {
				t.Errorf("%s %d: got %v, want an error with the name of the file", how, i, err)
			} else if err == nil && how == "truncated at" {
				t.Errorf("truncated at %d: no error", i)
			}
			wantTree(t, tree(t, next.Container), want)
		}
		for i := range good {
			check("truncated at", i, good[:i])
			bad := bytes.Clone(good)
			bad[i] ^= 0x11
			check("wrong at", i, bad)
		}
	})
}

// A block with a valid encoding but an impossible content is damaged.
func TestSnapshotBlockInvalid(t *testing.T) {
	const now = wallTime(500)
	x := extent{off: 1000, low: 600}
	file := drivers.Info{Mode: syscall.S_IFREG | 0o644, Mtime: time.Unix(5, 0), Ctime: time.Unix(6, 0), Atime: time.Unix(7, 0)}
	dir := file
	dir.Mode = syscall.S_IFDIR
	name := func(s string, validated wallTime) snapshotEntry {
		return snapshotEntry{name: []byte(s), info: file, validated: validated}
	}
	below := func(blocks ...extent) (names []snapshotEntry) {
		for i, b := range blocks {
			names = append(names, snapshotEntry{name: []byte{'a' + byte(i)}, info: dir, below: b})
		}
		return names
	}
	b := func(off, size int64) extent { return extent{off: off, size: size} }
	for what, c := range map[string]struct {
		listed wallTime
		names  []snapshotEntry
		ok     bool
	}{
		"empty":              {0, nil, true},
		"valid":              {500, []snapshotEntry{name("a", 1), name("b", 500)}, true},
		"directories":        {500, below(b(600, 100), extent{}, b(700, 50), b(900, 100)), true},
		"listed in future":   {501, nil, false},
		"listed before 1970": {-1, nil, false},
		"future":             {0, []snapshotEntry{name("a", 501)}, false},
		"before 1970":        {0, []snapshotEntry{name("a", -1)}, false},
		"duplicate":          {0, []snapshotEntry{name("a", 1), name("a", 1)}, false},
		"not sorted":         {0, []snapshotEntry{name("b", 1), name("a", 1)}, false},
		"no name":            {0, []snapshotEntry{name("", 1)}, false},
		"dot":                {0, []snapshotEntry{name(".", 1)}, false},
		"dots":               {0, []snapshotEntry{name("..", 1)}, false},
		"slash":              {0, []snapshotEntry{name("a/b", 1)}, false},
		"nul":                {0, []snapshotEntry{name("a\x00", 1)}, false},
		"own block":          {0, below(b(1000, 100)), false},
		"a later block":      {0, below(b(950, 100)), false},
		"an earlier block":   {0, below(b(500, 100)), false},
		"partly earlier":     {0, below(b(599, 100)), false},
		"shared":             {0, below(b(600, 100), b(600, 100)), false},
		"overlapping":        {0, below(b(600, 100), b(699, 100)), false},
		"not in order":       {0, below(b(700, 100), b(600, 100)), false},
		"past the end":       {0, below(b(1<<62, 1<<62)), false},
		"overflow":           {0, below(b(1<<63-1, 1<<63-1), b(600, 100)), false},
		"shorter than sum":   {0, below(b(900, 1)), false},
		"empty, with offset": {0, below(b(900, 0)), false},
	} {
		var out bytes.Buffer
		s := &snapshotWriter{w: bufio.NewWriter(&out), wall: 1 << 40}
		w := s.beginBlock(c.listed, stamp{}, len(c.names))
		for _, n := range c.names {
			w.add(n)
		}
		s.w.Flush()
		if _, err := decodeBlock(out.Bytes(), x, now); (err == nil) != c.ok {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

// folder returns the entry of a directory in a constructed snapshot.
func folder(name string, below extent) snapshotEntry {
	return snapshotEntry{name: []byte(name), info: drivers.Info{Mode: syscall.S_IFDIR | 0o755}, validated: wallNow(), below: below}
}

// construct returns a snapshot with the blocks that the function blocks writes by calling
// dir. blocks returns the block of the root.
func construct(blocks func(dir func(...snapshotEntry) extent) extent) []byte {
	var out bytes.Buffer
	s := &snapshotWriter{w: bufio.NewWriter(&out), wall: wallNow()}
	s.head(head{source: "src"})
	s.tail(blocks(func(names ...snapshotEntry) extent {
		w := s.beginBlock(s.wall, stamp{}, len(names))
		for _, n := range names {
			w.add(n)
		}
		return w.end()
	}))
	s.w.Flush()
	return out.Bytes()
}

// diamonds returns a snapshot of n directories. Each contains the next one twice, so that
// there are 2^n paths to the last one.
func diamonds(n int) []byte {
	return construct(func(dir func(...snapshotEntry) extent) extent {
		var b extent
		for range n {
			b = dir(folder("a", b), folder("b", b))
		}
		return b
	})
}

// chain returns a snapshot of n directories, each inside the one before.
func chain(n int) []byte {
	return construct(func(dir func(...snapshotEntry) extent) extent {
		var b extent
		for range n {
			b = dir(folder("d", b))
		}
		return b
	})
}

// openFile starts another container with a snapshot.
func (w *world) openFile(t testing.TB, file []byte) *world {
	t.Helper()
	path := filepath.Join(t.TempDir(), "snapshot")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	next := w.newProcess(t)
	if err := openSnapshot(next.Container, path, "src"); err != nil {
		t.Fatal(err)
	}
	return next
}

// A meter counts the bytes that are read.
type meter struct {
	r io.ReaderAt
	n int
}

func (m *meter) ReadAt(b []byte, off int64) (int, error) {
	m.n += len(b)
	return m.r.ReadAt(b, off)
}

// paths returns all paths below a directory. It ignores errors: a directory of a constructed
// snapshot does not exist at the source.
func paths(c *Container, dir *Entry) (all []string) {
	entries, _ := c.List(bg, dir)
	for _, e := range entries {
		all = append(all, e.Path())
		if e.IsDir() {
			all = append(all, paths(c, e)...)
		}
	}
	return all
}

// wantBounded saves and walks a container that was started with a snapshot, and checks that
// neither reads or writes more than the size of the snapshot. It returns the paths.
func wantBounded(t testing.TB, c *Container, file []byte) (found []string) {
	t.Helper()
	m := &meter{r: c.snapshot.r}
	c.snapshot.r = m
	var out bytes.Buffer
	if err := c.writeSnapshot(&out, "src"); err != nil {
		t.Fatal(err)
	}
	if m.n > len(file) || out.Len() > len(file) {
		t.Errorf("to save a snapshot of %d bytes, %d were read and %d written", len(file), m.n, out.Len())
	}
	m.n = 0
	found = paths(c, c.Root())
	if m.n > len(file) {
		t.Errorf("to walk a snapshot of %d bytes, %d were read", len(file), m.n)
	}
	return found
}

// If directories could share a block, a snapshot of a kilobyte could contain a million
// directories. Blocks that are shared are rejected.
func TestSnapshotBlockShared(t *testing.T) {
	for what, c := range map[string]struct {
		file func() []byte
		want int // number of names; 1 is that of the source, if the root is rejected
	}{
		"twice in a directory": {func() []byte { return diamonds(20) }, 1},
		"by cousins": {func() []byte {
			return construct(func(dir func(...snapshotEntry) extent) extent {
				x := dir(folder("x", extent{}))
				a := dir(folder("x", x))
				return dir(folder("a", a), folder("b", dir(folder("x", x))))
			})
		}, 4}, // a, a/x, a/x/x and b
		"by an uncle": {func() []byte {
			return construct(func(dir func(...snapshotEntry) extent) extent {
				x := dir(folder("x", extent{}))
				return dir(folder("a", dir(folder("x", x))), folder("b", x))
			})
		}, 1},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, time.Hour, func(t *testing.T, w *world) {
				w.source.Put("f", nil)
				file := c.file()
				next := w.openFile(t, file)
				if got := len(wantBounded(t, next.Container, file)); got != c.want {
					t.Errorf("got %d names, want %d", got, c.want)
				}
			})
		})
	}
}

// Whichever blocks the directories of a snapshot refer to, at most the size of the snapshot
// is read.
func TestSnapshotBlocksAnywhere(t *testing.T) {
	if testing.Short() {
		t.Skip("cuts a snapshot everywhere")
	}
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		rng := rand.New(rand.NewPCG(1, 2))
		found := 0
		for range 300 {
			file := construct(func(dir func(...snapshotEntry) extent) extent {
				blocks := []extent{{}}
				for range 2 + rng.IntN(6) {
					var names []snapshotEntry
					for i := range rng.IntN(4) {
						b := blocks[len(blocks)-1-rng.IntN(min(len(blocks), 3))]
						names = append(names, folder(string(rune('a'+i)), b))
					}
					blocks = append(blocks, dir(names...))
				}
				return blocks[len(blocks)-1]
			})
			next := w.openFile(t, file)
			found = max(found, len(wantBounded(t, next.Container, file)))
			next.Close()
		}
		if found < 5 {
			t.Errorf("no snapshot had more than %d valid names", found)
		}
	})
}

// Directories below maxDepth are read from the source.
func TestSnapshotDeep(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		for _, c := range []struct{ deep, want int }{{maxDepth, maxDepth}, {100_000, maxDepth}} {
			file := chain(c.deep)
			next := w.openFile(t, file)
			if got := len(wantBounded(t, next.Container, file)); got != c.want {
				t.Errorf("%d levels: got %d names, want %d", c.deep, got, c.want)
			}
		}
	})
}

// A directory that is not readable does not affect others, also if they are saved again
// before they are loaded.
func TestSnapshotSavedAgainWithoutDamaged(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		for _, name := range []string{"a/f", "b/c/f", "b/d/f", "e/f"} {
			w.source.Put(name, nil)
		}
		want := tree(t, w.Container)
		next := w.restart(t)
		root, err := next.snapshot.read(next.snapshot.root)
		if err != nil {
			t.Fatal(err)
		}
		for n := range root.all() {
			if string(n.name) == "b" {
				next.snapshot.r = hole{next.snapshot.r, n.below.off}
			}
		}
		last := next.restart(t)
		before := w.requests()
		wantTree(t, tree(t, last.Container), want)
		if got := w.requests() - before; got != 3 {
			t.Errorf("%d requests to the source, want 3: for b, c and d", got)
		}
	})
}

// A hole is a reader that fails at one offset.
type hole struct {
	io.ReaderAt
	off int64
}

func (h hole) ReadAt(b []byte, off int64) (int, error) {
	if off == h.off {
		return 0, syscall.EIO
	}
	return h.ReaderAt.ReadAt(b, off)
}

// A block that is too large is rejected before memory is allocated for it.
func TestSnapshotBlockTooLarge(t *testing.T) {
	m := new(meter)
	s := &Snapshot{r: m}
	if _, err := s.read(extent{off: 100, size: 1 << 50}); !errors.Is(err, errDamaged) || m.n > 0 {
		t.Errorf("got %v, want errDamaged; %d bytes were read", err, m.n)
	}
}

func TestSnapshotRejected(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.fillVaried()
		path := filepath.Join(t.TempDir(), "snapshot")
		if err := saveSnapshot(w.Container, path, "src"); err != nil {
			t.Fatal(err)
		}
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := openSnapshot(w.newProcess(t).Container, path, "other"); err == nil || !strings.Contains(err.Error(), "source") {
			t.Errorf("another source: got %v", err)
		}
		if err := openSnapshot(w.newProcess(t).Container, path+"x", "src"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("no file: got %v", err)
		}
		tail := len(good) - int(tailSize)
		later := bytes.Clone(good)
		binary.LittleEndian.PutUint64(later[tail+len(tailMagic)+16:], uint64(wallNow()+2))
		binary.LittleEndian.PutUint32(later[len(later)-4:], crc32.Checksum(later[tail:len(later)-4], castagnoli))
		version := bytes.Clone(good)
		version[len(headMagic)]++
		for what, file := range map[string][]byte{"in the future": later, "version": version, ErrForeign.Error(): []byte("something else")} {
			if err := os.WriteFile(path, file, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := openSnapshot(w.newProcess(t).Container, path, "src"); err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("got %v, want an error that contains %q", err, what)
			}
		}
	})
}

// Any block is rejected, or is equal after it is decoded and encoded again.
func FuzzSnapshotBlock(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte("\x02\x02\x03\x04\x05\x06\x01\x01a\x02v7\xa4\x83\x02\x01\x00\x00\x00\x05\x02\x03\x04\x05\x06\x07\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		const now = 1 << 40
		x := extent{off: 1 << 20, low: 1 << 10}
		c, err := decodeBlock(b, x, now)
		if err != nil {
			return
		}
		var out bytes.Buffer
		s := &snapshotWriter{w: bufio.NewWriter(&out), wall: now}
		w := s.beginBlock(c.listed, c.stamp, c.n)
		var names []snapshotEntry
		end := x.low
		for n := range c.all() {
			if n.below.size > 0 {
				if n.below.low != end || n.below.off < end {
					t.Fatalf("%+v begins before %d", n.below, end)
				}
				end = n.below.off + n.below.size
			}
			names = append(names, n)
			w.add(n)
		}
		if end > x.off {
			t.Fatalf("the blocks below end at %d, after %d", end, x.off)
		}
		s.w.Flush()
		again, err := decodeBlock(out.Bytes(), x, now)
		if err != nil || again.listed != c.listed || again.stamp != c.stamp || again.n != c.n {
			t.Fatalf("encoded again: got %v", err)
		}
		i := 0
		for n := range again.all() {
			if want := names[i]; string(n.name) != string(want.name) || string(n.version) != string(want.version) || n.info != want.info || n.validated != want.validated || n.below != want.below {
				t.Fatalf("got %+v, want %+v", n, want)
			}
			i++
		}
	})
}

// Any snapshot is rejected, or all names in it are valid.
func FuzzSnapshot(f *testing.F) {
	h, err := tiers.New(drivertest.NewMem(0), nil, tiers.Options{}, slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	container := func(t testing.TB) *Container {
		c, err := New(bg, h, Options{TTL: time.Hour}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := container(f)
	c.merge(bg, c.Root(), drivers.Info{Name: "f", Mode: syscall.S_IFREG}, c.now())
	var file bytes.Buffer
	if err := c.writeSnapshot(&file, "src"); err != nil {
		f.Fatal(err)
	}
	f.Add(file.Bytes())
	f.Add(diamonds(4))
	f.Add(chain(4))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "snapshot")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		c := container(t)
		if openSnapshot(c, path, "src") == nil {
			defer c.Close()
			for _, name := range wantBounded(t, c, b) {
				if !drivers.ValidName(name) {
					t.Errorf("name %q", name)
				}
			}
		}
	})
}
