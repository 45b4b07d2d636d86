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

// A file with any one byte wrong, or cut off anywhere, is refused, or those of
// its directories are asked for that it does not have.
func TestSavedFileIsDamaged(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.odd()
		want := tree(t, w.Container)
		path := filepath.Join(t.TempDir(), "names")
		if err := w.SaveSnapshot(path, "src"); err != nil {
			t.Fatal(err)
		}
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		check := func(how string, i int, file []byte) {
			next := w.again(t)
			defer next.Close()
			if err := os.WriteFile(path, file, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := next.restore(path, "src"); err != nil && !strings.Contains(err.Error(), path) {
				t.Errorf("%s %d: got %v, which does not name the file", how, i, err)
			} else if err == nil && how == "cut at" {
				t.Errorf("cut at %d: not noticed", i)
			}
			wantTree(t, tree(t, next.Container), want)
		}
		for i := range good {
			check("cut at", i, good[:i])
			bad := bytes.Clone(good)
			bad[i] ^= 0x11
			check("wrong at", i, bad)
		}
	})
}

// A block that is well formed but cannot be is damaged.
func TestSavedBlockCannotBe(t *testing.T) {
	const now = moment(500)
	at := block{off: 1000, low: 600}
	file := drivers.Info{Mode: syscall.S_IFREG | 0o644, Mtime: time.Unix(5, 0), Ctime: time.Unix(6, 0), Atime: time.Unix(7, 0)}
	dir := file
	dir.Mode = syscall.S_IFDIR
	name := func(s string, asked moment) savedName { return savedName{name: []byte(s), info: file, asked: asked} }
	below := func(blocks ...block) (names []savedName) {
		for i, b := range blocks {
			names = append(names, savedName{name: []byte{'a' + byte(i)}, info: dir, below: b})
		}
		return names
	}
	b := func(off, size int64) block { return block{off: off, size: size} }
	for what, c := range map[string]struct {
		listed moment
		names  []savedName
		ok     bool
	}{
		"empty":                {0, nil, true},
		"right":                {500, []savedName{name("a", 1), name("b", 500)}, true},
		"directories":          {500, below(b(600, 100), block{}, b(700, 50), b(900, 100)), true},
		"listed later":         {501, nil, false},
		"listed before 1970":   {-1, nil, false},
		"asked later":          {0, []savedName{name("a", 501)}, false},
		"asked before 1970":    {0, []savedName{name("a", -1)}, false},
		"twice":                {0, []savedName{name("a", 1), name("a", 1)}, false},
		"not sorted":           {0, []savedName{name("b", 1), name("a", 1)}, false},
		"no name":              {0, []savedName{name("", 1)}, false},
		"dot":                  {0, []savedName{name(".", 1)}, false},
		"dots":                 {0, []savedName{name("..", 1)}, false},
		"slash":                {0, []savedName{name("a/b", 1)}, false},
		"nul":                  {0, []savedName{name("a\x00", 1)}, false},
		"itself":               {0, below(b(1000, 100)), false},
		"a later one":          {0, below(b(950, 100)), false},
		"an earlier one":       {0, below(b(500, 100)), false},
		"partly earlier":       {0, below(b(599, 100)), false},
		"shared":               {0, below(b(600, 100), b(600, 100)), false},
		"overlapping":          {0, below(b(600, 100), b(699, 100)), false},
		"not in order":         {0, below(b(700, 100), b(600, 100)), false},
		"far away":             {0, below(b(1<<62, 1<<62)), false},
		"beyond all":           {0, below(b(1<<63-1, 1<<63-1), b(600, 100)), false},
		"shorter than its sum": {0, below(b(900, 1)), false},
		"nothing somewhere":    {0, below(b(900, 0)), false},
	} {
		var out bytes.Buffer
		s := &saver{w: bufio.NewWriter(&out), at: 1 << 40}
		w := s.begin(c.listed, len(c.names))
		for _, n := range c.names {
			w.add(n)
		}
		s.w.Flush()
		if _, err := decode(out.Bytes(), at, now); (err == nil) != c.ok {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

// folder is a directory in a file that is made up.
func folder(name string, below block) savedName {
	return savedName{name: []byte(name), info: drivers.Info{Mode: syscall.S_IFDIR | 0o755}, asked: thisMoment(), below: below}
}

// madeUp makes a file of what blocks writes, which returns the root's.
func madeUp(blocks func(dir func(...savedName) block) block) []byte {
	var out bytes.Buffer
	s := &saver{w: bufio.NewWriter(&out), at: thisMoment()}
	s.head("src")
	s.tail(blocks(func(names ...savedName) block {
		w := s.begin(s.at, len(names))
		for _, n := range names {
			w.add(n)
		}
		return w.end()
	}))
	s.w.Flush()
	return out.Bytes()
}

// diamonds makes a file of directories that each have the same one below them
// twice, so that there are two to the power of n ways to the last.
func diamonds(n int) []byte {
	return madeUp(func(dir func(...savedName) block) block {
		var b block
		for range n {
			b = dir(folder("a", b), folder("b", b))
		}
		return b
	})
}

// chain makes a file of n directories, each in the one before.
func chain(n int) []byte {
	return madeUp(func(dir func(...savedName) block) block {
		var b block
		for range n {
			b = dir(folder("d", b))
		}
		return b
	})
}

// restoreFrom restores a file to another container.
func (w *world) restoreFrom(t testing.TB, file []byte) *world {
	t.Helper()
	path := filepath.Join(t.TempDir(), "names")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	next := w.again(t)
	if err := next.restore(path, "src"); err != nil {
		t.Fatal(err)
	}
	return next
}

// A meter counts what is read.
type meter struct {
	r io.ReaderAt
	n int
}

func (m *meter) ReadAt(b []byte, off int64) (int, error) {
	m.n += len(b)
	return m.r.ReadAt(b, off)
}

// paths returns all below a directory that can be listed, which what is made up
// cannot if it is not in the file.
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

// wantCheap saves and walks a container to which a file was restored, and
// returns what it finds: to do so reads and writes no more than the file.
func wantCheap(t testing.TB, c *Container, file []byte) (found []string) {
	t.Helper()
	m := &meter{r: c.saved.r}
	c.saved.r = m
	var out bytes.Buffer
	if err := c.write(&out, "src"); err != nil {
		t.Fatal(err)
	}
	if m.n > len(file) || out.Len() > len(file) {
		t.Errorf("to save %d bytes again %d were read, %d written", len(file), m.n, out.Len())
	}
	m.n = 0
	found = paths(c, c.Root())
	if m.n > len(file) {
		t.Errorf("to walk the names of %d bytes %d were read", len(file), m.n)
	}
	return found
}

// Directories that share a block would be as many as there are ways to it: a
// file of a kilobyte would hold a million. They are not believed.
func TestSavedBlockIsShared(t *testing.T) {
	for what, c := range map[string]struct {
		file func() []byte
		want int // names; where the root is not believed, the one of the source
	}{
		"twice in a directory": {func() []byte { return diamonds(20) }, 1},
		"by cousins": {func() []byte {
			return madeUp(func(dir func(...savedName) block) block {
				x := dir(folder("x", block{}))
				a := dir(folder("x", x))
				return dir(folder("a", a), folder("b", dir(folder("x", x))))
			})
		}, 4}, // a, a/x, a/x/x and b
		"by an uncle": {func() []byte {
			return madeUp(func(dir func(...savedName) block) block {
				x := dir(folder("x", block{}))
				return dir(folder("a", dir(folder("x", x))), folder("b", x))
			})
		}, 1},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, time.Hour, func(t *testing.T, w *world) {
				w.source.Put("f", nil)
				file := c.file()
				next := w.restoreFrom(t, file)
				if got := len(wantCheap(t, next.Container, file)); got != c.want {
					t.Errorf("got %d names, want %d", got, c.want)
				}
			})
		})
	}
}

// Whichever blocks the directories of a file are said to have, no more is read
// than the file.
func TestSavedBlocksAnywhere(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		rng := rand.New(rand.NewPCG(1, 2))
		found := 0
		for range 300 {
			file := madeUp(func(dir func(...savedName) block) block {
				blocks := []block{{}}
				for range 2 + rng.IntN(6) {
					var names []savedName
					for i := range rng.IntN(4) {
						b := blocks[len(blocks)-1-rng.IntN(min(len(blocks), 3))]
						names = append(names, folder(string(rune('a'+i)), b))
					}
					blocks = append(blocks, dir(names...))
				}
				return blocks[len(blocks)-1]
			})
			next := w.restoreFrom(t, file)
			found = max(found, len(wantCheap(t, next.Container, file)))
			next.Close()
		}
		if found < 5 {
			t.Errorf("no file had more than %d names that are believed", found)
		}
	})
}

// Directories that are too deep for a path are asked for.
func TestSavedNamesAreDeep(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		for _, c := range []struct{ deep, want int }{{maxDepth, maxDepth}, {100_000, maxDepth}} {
			file := chain(c.deep)
			next := w.restoreFrom(t, file)
			if got := len(wantCheap(t, next.Container, file)); got != c.want {
				t.Errorf("of %d levels: got %d, want %d", c.deep, got, c.want)
			}
		}
	})
}

// A directory that cannot be read leaves the others as they were, also when
// they are saved again before anybody looks.
func TestSavedAgainWithoutTheDamaged(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		for _, name := range []string{"a/f", "b/c/f", "b/d/f", "e/f"} {
			w.source.Put(name, nil)
		}
		want := tree(t, w.Container)
		next := w.restarted(t)
		root, err := next.saved.read(next.saved.root)
		if err != nil {
			t.Fatal(err)
		}
		for n := range root.all() {
			if string(n.name) == "b" {
				next.saved.r = hole{next.saved.r, n.below.off}
			}
		}
		last := next.restarted(t)
		before := w.asked()
		wantTree(t, tree(t, last.Container), want)
		if got := w.asked() - before; got != 3 {
			t.Errorf("asked the source %d times, want 3: for b, c and d", got)
		}
	})
}

// A hole is where nothing can be read.
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

// A block that is too large is refused before there is room made for it.
func TestSavedBlockIsTooLarge(t *testing.T) {
	m := new(meter)
	s := &savedNames{r: m}
	if _, err := s.read(block{off: 100, size: 1 << 50}); !errors.Is(err, errDamaged) || m.n > 0 {
		t.Errorf("got %v, and %d bytes were read", err, m.n)
	}
}

func TestRestoreRefuses(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.odd()
		path := filepath.Join(t.TempDir(), "names")
		if err := w.SaveSnapshot(path, "src"); err != nil {
			t.Fatal(err)
		}
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.again(t).restore(path, "other"); err == nil || !strings.Contains(err.Error(), "source") {
			t.Errorf("another source: got %v", err)
		}
		if err := w.again(t).restore(path+"x", "src"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("no file: got %v", err)
		}
		tail := len(good) - int(tailSize)
		later := bytes.Clone(good)
		binary.LittleEndian.PutUint64(later[tail+len(tailMagic)+16:], uint64(thisMoment()+2))
		binary.LittleEndian.PutUint32(later[len(later)-4:], crc32.Checksum(later[tail:len(later)-4], castagnoli))
		version := bytes.Clone(good)
		version[len(headMagic)]++
		for what, file := range map[string][]byte{"yet to come": later, "version": version, ErrForeign.Error(): []byte("something else")} {
			if err := os.WriteFile(path, file, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := w.again(t).restore(path, "src"); err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("got %v, want an error that says %q", err, what)
			}
		}
	})
}

// Whatever a block holds, it is refused, or what it says is saved again as it
// is.
func FuzzSavedBlock(f *testing.F) {
	f.Add([]byte{0, 0})
	f.Add([]byte("\x02\x01\x01a\x02v7\xa4\x83\x02\x01\x00\x00\x00\x05\x02\x03\x04\x05\x06\x07\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		const now = 1 << 40
		at := block{off: 1 << 20, low: 1 << 10}
		c, err := decode(b, at, now)
		if err != nil {
			return
		}
		var out bytes.Buffer
		s := &saver{w: bufio.NewWriter(&out), at: now}
		w := s.begin(c.listed, c.n)
		var names []savedName
		end := at.low
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
		if end > at.off {
			t.Fatalf("what is below ends at %d, after %d", end, at.off)
		}
		s.w.Flush()
		again, err := decode(out.Bytes(), at, now)
		if err != nil || again.listed != c.listed || again.n != c.n {
			t.Fatalf("saved again: got %v", err)
		}
		i := 0
		for n := range again.all() {
			if want := names[i]; string(n.name) != string(want.name) || string(n.version) != string(want.version) || n.info != want.info || n.asked != want.asked || n.below != want.below {
				t.Fatalf("got %+v, want %+v", n, want)
			}
			i++
		}
	})
}

// Whatever a file holds, it is refused, or there are names in it that can be.
func FuzzSavedFile(f *testing.F) {
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
	if err := c.write(&file, "src"); err != nil {
		f.Fatal(err)
	}
	f.Add(file.Bytes())
	f.Add(diamonds(4))
	f.Add(chain(4))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "names")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		c := container(t)
		if c.restore(path, "src") == nil {
			defer c.Close()
			for _, name := range wantCheap(t, c, b) {
				if !drivers.ValidName(name) {
					t.Errorf("name %q", name)
				}
			}
		}
	})
}
