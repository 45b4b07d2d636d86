package posix

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// linkInfo are the attributes of the source file of a link, whose content is "data".
var linkInfo = drivers.Info{Size: 4, Mode: 0o100640, UID: 7, Nlink: 2, Mtime: time.Unix(2e9, 7), Ctime: time.Unix(3e9, 8)}

func addLink(t *testing.T, s *Store, from, to string) {
	t.Helper()
	if err := s.Link(ctx, from, to, linkInfo); err != nil {
		t.Fatal(err)
	}
}

// names returns the number of names that share the storage of a copy.
func names(t *testing.T, s *Store, name string) uint32 {
	t.Helper()
	info, err := s.Stat(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	return info.Names
}

// A link is a copy with the attributes that it was made with. Each name stays when another one is
// removed, and so it is after the store was opened again.
func TestLink(t *testing.T) {
	for _, first := range []string{"v1/f", "v2/d/g"} {
		s := openIn(t, t.TempDir())
		addCopy(t, s, "v1/f", "data")
		addLink(t, s, "v1/f", "v2/d/g")
		addLink(t, s, "v2/d/g", "v3") // a link of a link
		check := func(when string, count uint32, present ...string) {
			t.Helper()
			for _, name := range present {
				o := openCopyOf(t, s, name)
				got := make([]byte, 4)
				if _, err := o.ReadAt(ctx, got, 0); err != nil || string(got) != "data" {
					t.Errorf("%s: %s has %q, %v", when, name, got, err)
				}
				info := o.Info()
				if isLink := name != "v1/f"; isLink != (info.Mtime.Equal(linkInfo.Mtime) && info.UID == 7 && info.Mode == linkInfo.Mode && info.Ctime.Equal(linkInfo.Ctime)) {
					t.Errorf("%s: %s has %+v", when, name, info)
				}
				if n := names(t, s, name); n != count || info.Names != count {
					t.Errorf("%s: %s has %d names, and %d open; want %d", when, name, n, info.Names, count)
				}
			}
		}
		other := map[string]string{"v1/f": "v2/d/g", "v2/d/g": "v1/f"}[first]
		check("linked", 3, "v1/f", "v2/d/g", "v3")
		s = reopened(t, s)
		check("reopened", 3, "v1/f", "v2/d/g", "v3")
		if err := s.Restamp(ctx, "v3", drivers.Info{Mode: linkInfo.Mode, UID: 7, Nlink: 9, Ctime: linkInfo.Ctime}); err != nil {
			t.Error(err)
		}
		if err := s.Remove(ctx, first); err != nil {
			t.Error(err)
		}
		check("after a removal", 2, other, "v3")
		s = reopened(t, s)
		check("reopened after a removal", 2, other, "v3")
		if infos, err := s.Sweep(ctx, "."); err != nil || len(infos) != 3 {
			t.Errorf("the sweep found %+v, %v", infos, err)
		}
		if _, err := s.Stat(ctx, first); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a removed name: %v", err)
		}
		if err := errors.Join(s.Remove(ctx, other), s.Remove(ctx, "v3")); err != nil {
			t.Error(err)
		}
		addCopy(t, s, "v1/f", "data") // probably with the same inode number
		s = reopened(t, s)
		check("made again", 1, "v1/f")
		if left := s.tree.Load().records.links; len(left) != 0 {
			t.Errorf("records of links are left: %v", left)
		}
	}
}

// Links survive the rewriting of the log.
func TestLinksInRewrittenLog(t *testing.T) {
	s := openIn(t, t.TempDir())
	for i := range 10 {
		addCopy(t, s, fmt.Sprint("keep", i), "data")
		addLink(t, s, fmt.Sprint("keep", i), fmt.Sprint("link", i))
	}
	if err := s.Remove(ctx, "keep3"); err != nil {
		t.Fatal(err)
	}
	waste(t, s)
	for range 2 {
		s = reopened(t, s)
		for i := range 10 {
			if has(t, s, fmt.Sprint("keep", i)) != (i != 3) || !has(t, s, fmt.Sprint("link", i)) {
				t.Errorf("pair %d is not complete", i)
			}
		}
	}
	if log, err := os.Stat(filepath.Join(s.Path(), recordsName)); err != nil || log.Size() > 1<<14 {
		t.Errorf("the log was not rewritten: %v, %v", log.Size(), err)
	}
}

// A link that is removed, or made again, while it is opened is there or missing, and not damaged.
func TestLinkThatComesAndGoes(t *testing.T) {
	s := openIn(t, t.TempDir())
	addCopy(t, s, "f", "data")
	var done atomic.Bool
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			for !done.Load() {
				o, err := s.Open(ctx, "link")
				if err == nil {
					err = o.Close()
				}
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("open: %v", err)
				}
				if _, err := s.Stat(ctx, "link"); err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("stat: %v", err)
				}
			}
		})
	}
	for range 2000 {
		addLink(t, s, "f", "link")
		if err := s.Remove(ctx, "link"); err != nil {
			t.Error(err)
		}
	}
	done.Store(true)
	readers.Wait()
}

// A link is refused if there is no valid copy, or one of another size. It replaces an earlier copy.
func TestLinkFails(t *testing.T) {
	s := openIn(t, t.TempDir())
	addCopy(t, s, "f", "data")
	addCopy(t, s, "old", "older")
	addCopy(t, s, "damaged", "data")
	if err := os.WriteFile(copyPath(s, "damaged"), []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	for from, want := range map[string]error{"missing": fs.ErrNotExist, "damaged": drivers.ErrCorrupt, "old": unix.EINVAL, "../f": unix.EINVAL} {
		if err := s.Link(ctx, from, "new", linkInfo); !errors.Is(err, want) {
			t.Errorf("link from %s: %v, want %v", from, err, want)
		}
	}
	if _, err := s.Stat(ctx, "new"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after failures: %v", err)
	}
	addLink(t, s, "f", "old")
	if n := names(t, s, "old"); n != 2 {
		t.Errorf("the link that replaced a copy has %d names", n)
	}
	addLink(t, s, "f", "old")
	if n := names(t, s, "f"); n != 2 {
		t.Errorf("after the same link again: %d names", n)
	}
}

// infoIn describes a name of d.
func infoIn(t *testing.T, d *Dir, name string) drivers.Info {
	t.Helper()
	info, err := d.Stat(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// haveSame reports whether d knows that two names have the same content.
func haveSame(t *testing.T, d *Dir, a, b string) bool {
	t.Helper()
	return d.HaveSameContent(ctx, [2]string{a, b}, [2]drivers.Info{infoIn(t, d, a), infoIn(t, d, b)})
}

// Two names have the same content if they are hard links of one file.
func TestHaveSameContent(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("data"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(dir, name), time.Unix(1e9, 0), time.Unix(1e9, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "c")); err != nil {
		t.Fatal(err)
	}
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if !haveSame(t, d, "a", "c") || haveSame(t, d, "a", "b") || haveSame(t, d, ".", ".") {
		t.Error("hard links are not the same, or others are")
	}
}

// Two images that were made from folders with the same names have files with the same inode numbers,
// sizes and times. They are not the same.
func TestSameInodeOnAnotherDevice(t *testing.T) {
	drivertest.Need(t, "root", "mkfs.ext4", "losetup")
	dir := t.TempDir()
	t.Cleanup(func() {
		for _, v := range []string{"v1", "v2"} {
			unix.Unmount(filepath.Join(dir, "source", v), unix.MNT_DETACH)
		}
	})
	run(t, "sh", "-ec", `cd "$1"; mkdir content source source/v1 source/v2
		printf content-1 >content/f; ln content/f content/g
		mkfs.ext4 -q -d content v1.img 2M
		sed s/content-1/content-2/ v1.img >v2.img
		for v in v1 v2; do mount -o ro,loop $v.img source/$v; done
		cat source/v1/f source/v2/f`, "sh", dir)
	d, err := OpenDir(filepath.Join(dir, "source"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if a, b := infoIn(t, d, "v1/f"), infoIn(t, d, "v2/f"); a.Inode != b.Inode || !a.SameVersion(b) || !a.Ctime.Equal(b.Ctime) {
		t.Fatalf("the images differ in more than the content: %+v and %+v", a, b)
	}
	if haveSame(t, d, "v1/f", "v2/f") || haveSame(t, d, "v1/f", "v2/g") {
		t.Error("files of two file systems are taken for one")
	}
	if !haveSame(t, d, "v1/f", "v1/g") {
		t.Error("hard links are not the same")
	}
}
