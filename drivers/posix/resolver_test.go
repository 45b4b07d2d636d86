package posix

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// openResolving returns a Dir that reads root as if it were on a remote file system.
func openResolving(t *testing.T, root string) *Dir {
	t.Helper()
	d := openDir(t, root)
	if r := d.root.Load(); r.names == nil {
		r.names = newResolver(r.fd)
	}
	return d
}

func TestResolvingDir(t *testing.T) {
	wantNoLeak(t)
	drivertest.Run(t, func(t *testing.T) drivertest.Subject {
		root := t.TempDir()
		return drivertest.Folder(t, openResolving(t, root), root)
	})
}

// A resolving is a folder that is read by a resolving Dir.
type resolving struct {
	*Dir
	t    *testing.T
	root string
}

func (r *resolving) resolver() *resolver { return r.Dir.root.Load().names }

func newResolving(t *testing.T) *resolving {
	root := t.TempDir()
	return &resolving{openResolving(t, root), t, root}
}

func (r *resolving) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// put writes a file whose content and size tell it from others.
func (r *resolving) put(name, content string) {
	r.t.Helper()
	path := filepath.Join(r.root, name)
	r.check(os.MkdirAll(filepath.Dir(path), 0o755))
	r.check(os.WriteFile(path, []byte(content), 0o644))
}

func (r *resolving) rename(from, to string) {
	r.t.Helper()
	r.check(os.Rename(filepath.Join(r.root, from), filepath.Join(r.root, to)))
}

// wantSize fails the test unless Stat returns the size, or for -1 that the name is missing.
func (r *resolving) wantSize(name string, want int64) {
	r.t.Helper()
	info, err := r.Stat(ctx, name)
	switch {
	case want < 0 && !errors.Is(err, fs.ErrNotExist):
		r.t.Errorf("%s: got %+v, %v; want it to be missing", name, info, err)
	case want >= 0 && (err != nil || info.Size != want):
		r.t.Errorf("%s: got size %d, %v; want %d", name, info.Size, err, want)
	}
}

// wantContent fails the test unless Open opens the file with a content.
func (r *resolving) wantContent(name, want string) {
	r.t.Helper()
	o, err := r.Open(ctx, name)
	if err != nil {
		r.t.Errorf("%s: %v", name, err)
		return
	}
	defer o.Close()
	got := make([]byte, o.Info().Size)
	if _, err := o.ReadAt(ctx, got, 0); err != nil || string(got) != want {
		r.t.Errorf("%s: got %q, %v; want %q", name, got, err, want)
	}
}

// describe requests the attributes of the directories on the path of a name.
func (r *resolving) describe(name string) {
	r.t.Helper()
	for i, c := range name {
		if c == '/' {
			r.Stat(ctx, name[:i])
		}
	}
}

// A program that requests the attributes of each directory on the path sees every change of them at
// once.
func TestChangedDirectories(t *testing.T) {
	for name, test := range map[string]struct {
		change func(r *resolving)
		want   int64
	}{
		"replaced":             {func(r *resolving) { r.rename("a/b", "old"); r.put("a/b/f", "second") }, 6},
		"parent is replaced":   {func(r *resolving) { r.rename("a", "old"); r.put("a/b/f", "second") }, 6},
		"renamed":              {func(r *resolving) { r.rename("a/b", "a/c") }, -1},
		"parent is renamed":    {func(r *resolving) { r.rename("a", "c") }, -1},
		"removed":              {func(r *resolving) { r.check(os.RemoveAll(r.root + "/a/b")) }, -1},
		"removed and made":     {func(r *resolving) { r.check(os.RemoveAll(r.root + "/a/b")); r.put("a/b/f", "second") }, 6},
		"replaced by a file":   {func(r *resolving) { r.rename("a/b", "old"); r.put("a/b", "file") }, -1},
		"replaced by a parent": {func(r *resolving) { r.rename("a", "old"); r.rename("old/b", "a"); r.put("a/b/f", "second") }, 6},
	} {
		t.Run(name, func(t *testing.T) {
			r := newResolving(t)
			r.put("a/b/f", "first")
			r.describe("a/b/f")
			r.wantSize("a/b/f", 5)
			test.change(r)
			r.describe("a/b/f")
			r.wantSize("a/b/f", test.want)
		})
	}
}

// A directory that was renamed or replaced is used for a second under its name, if nothing requests
// its attributes.
func TestChangedDirectoryIsUsedForASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newResolving(t)
		r.put("a/b/f", "first")
		r.put("a/b/g", "first")
		r.wantSize("a/b/f", 5)
		time.Sleep(keepFor / 2)
		r.wantSize("a/b/g", 5) // no new second begins
		r.rename("a", "old")
		r.put("a/b/f", "second")
		time.Sleep(keepFor/2 - 1)
		r.wantSize("a/b/f", 5)
		time.Sleep(time.Nanosecond)
		r.wantSize("a/b/f", 6)
	})
}

// A name that is missing in a directory that was replaced is found in the new one, and one below a
// directory that became a symbolic link is missing.
func TestMissingNameIsResolvedAgain(t *testing.T) {
	r := newResolving(t)
	r.put("a/b/f", "first")
	r.wantSize("a/b/f", 5)
	r.wantSize("a/b/g", -1)
	r.rename("a", "old")
	r.put("a/b/g", "second")
	r.wantSize("a/b/g", 6)
	r.put("a/b/h", "third")
	r.wantContent("a/b/h", "third")

	r.rename("a", "older")
	r.wantSize("a/b/missing", -1)
	r.wantSize("a/b/g", -1)
	r.check(os.Symlink("older", r.root+"/a"))
	if _, err := r.Stat(ctx, "a/b/g"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("below a symbolic link: %v", err)
	}
}

// A listing is that of the directory which the name has now, and so are the attributes of the names
// in it.
func TestListingOfReplacedDirectory(t *testing.T) {
	r := newResolving(t)
	r.put("a/b/f", "first")
	r.wantSize("a/b/f", 5)
	r.rename("a/b", "old")
	r.put("a/b/f", "second")
	r.put("a/b/g", "second")
	names, err := r.Names(ctx, "a/b")
	if err != nil || len(names) != 2 {
		t.Errorf("got %+v, %v", names, err)
	}
	infos, err := r.StatNames(ctx, "a/b", []string{"f", "g", "h"})
	if err != nil || infos[0].Size != 6 || infos[1].Size != 6 || !errors.Is(infos[2].Err, fs.ErrNotExist) {
		t.Errorf("got %+v, %v", infos, err)
	}
}

// An open after Stat opens what Stat has described, for a second and once. A file that was removed
// is not opened.
func TestOpenAfterStat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newResolving(t)
		for _, name := range []string{"f", "d/f"} {
			r.put(name, "first")
			r.put("new", "second")
			r.wantSize(name, 5)
			r.rename(name, "old")
			r.rename("new", name)
			r.wantContent(name, "first")
			r.wantContent(name, "second")

			r.put("new", "third")
			r.wantSize(name, 6)
			r.rename("new", name) // removes the file
			r.wantContent(name, "third")

			r.wantSize(name, 5)
			r.put(name, "in place")
			r.wantContent(name, "in place")

			r.wantSize(name, 8)
			r.rename(name, "old")
			r.put(name, "late")
			time.Sleep(keepFor)
			r.wantContent(name, "late")

			r.wantSize(name, 4)
			r.check(os.Remove(filepath.Join(r.root, name)))
			if _, err := r.Open(ctx, name); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s was removed: %v", name, err)
			}
		}
		r.describe("d/f") // the second of the file begins later than that of its directory
		time.Sleep(keepFor * 3 / 4)
		r.put("d/f", "first")
		r.wantSize("d/f", 5)
		time.Sleep(keepFor / 2)
		r.rename("d/f", "old")
		r.wantContent("d/f", "first")
	})
}

// Without /proc, an open after Stat resolves the name again.
func TestOpenWithoutProc(t *testing.T) {
	r := newResolving(t)
	procFDs = "/nonexistent"
	defer func() { procFDs = "/proc/self/fd" }()
	r.put("d/f", "first")
	r.wantSize("d/f", 5)
	r.rename("d/f", "old")
	r.put("d/f", "second")
	r.wantContent("d/f", "second")
}

// Special files are not kept, and opening one does not block.
func TestSpecialFilesAreNotKept(t *testing.T) {
	r := newResolving(t)
	r.check(unix.Mkfifo(r.root+"/fifo", 0o644))
	r.check(os.Symlink("fifo", r.root+"/link"))
	for name, want := range map[string]unix.Errno{"fifo": unix.ENXIO, "link": unix.ELOOP} {
		if _, err := r.Stat(ctx, name); err != nil {
			t.Error(err)
		}
		if _, err := r.Open(ctx, name); !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := len(r.resolver().names); got != 0 {
		t.Errorf("%d descriptors are kept", got)
	}
}

// descriptorsIn returns the descriptors of this process that are open below a folder, with their paths.
func descriptorsIn(t *testing.T, folder string) map[int]string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[int]string)
	for _, e := range entries {
		path, err := os.Readlink("/proc/self/fd/" + e.Name()) // it may be closed by now
		if fd, bad := strconv.Atoi(e.Name()); err == nil && bad == nil && strings.HasPrefix(path, folder+"/") {
			found[fd] = path
		}
	}
	return found
}

// Descriptors are kept for a second, their number is bounded, and Close closes them.
func TestKeptDescriptorsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newResolving(t)
		r.resolver().max = 20
		for i := range 100 {
			r.put(fmt.Sprintf("d%d/e/f%d", i%10, i), "content")
		}
		statAll := func() {
			for i := range 100 {
				r.wantSize(fmt.Sprintf("d%d/e/f%d", i%10, i), 7)
			}
		}
		statAll()
		if got := len(descriptorsIn(t, r.root)); got == 0 || got > 20 {
			t.Errorf("%d descriptors are kept, want 1 to 20", got)
		}
		time.Sleep(keepFor)
		synctest.Wait()
		if got := descriptorsIn(t, r.root); len(got) > 0 {
			t.Errorf("after a second, descriptors are kept: %v", got)
		}
		statAll()
		r.resolver().close()
		statAll() // calls that were abandoned may return later
		if got := descriptorsIn(t, r.root); len(got) > 0 {
			t.Errorf("after Close, descriptors are kept: %v", got)
		}
	})
}

// An operation that finds no descriptor left closes those that are kept.
func TestKeptDescriptorsAreNotNeeded(t *testing.T) {
	r := newResolving(t)
	for i := range 40 {
		r.put(fmt.Sprintf("d/f%d", i), "content")
		r.wantSize(fmt.Sprintf("d/f%d", i), 7)
	}
	var limit unix.Rlimit
	r.check(unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	r.check(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}))
	_, err := r.Stat(ctx, "d/f0")
	r.check(unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("without descriptors: %v", err)
	}
	if got := descriptorsIn(t, r.root); len(got) > 0 {
		t.Errorf("descriptors are kept: %v", got)
	}
}

// While directories and files are replaced, each file that is found is one that had the name.
func TestResolvingConcurrently(t *testing.T) {
	if testing.Short() {
		t.Skip("has many readers for long")
	}
	wantNoLeak(t)
	r := newResolving(t)
	r.resolver().max = 8
	for i := range 4 {
		r.put(fmt.Sprintf("a/b%d/f", i), "content")
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	for i := range 8 {
		readers.Go(func() {
			for n := i; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				name := fmt.Sprintf("a/b%d/f", n%4)
				if n%3 == 0 {
					r.describe(name)
				}
				info, err := r.Stat(ctx, name)
				if err == nil && info.Size != 7 {
					t.Errorf("%s has size %d", name, info.Size)
				}
				var o drivers.Object
				if err == nil {
					if o, err = r.Open(ctx, name); err == nil {
						r.checkContent(o)
						o.Close()
					}
				}
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Error(err)
				}
			}
		})
	}
	for i := range 300 {
		r.put("new/f", "content")
		b := fmt.Sprintf("a/b%d", i%4)
		r.rename(b, "old")
		r.rename("new", b)
		r.check(os.RemoveAll(r.root + "/old"))
		if i%10 == 0 {
			r.rename("a", "c")
			r.rename("c", "a")
		}
	}
	close(done)
	readers.Wait()
}

// TestOpenMovedDirectory opens a directory that is moved out of its parent and back. It is there
// or missing: EXDEV, by which openat2 reports the race, is no answer to a program.
func TestOpenMovedDirectory(t *testing.T) {
	if testing.Short() {
		t.Skip("has many readers for long")
	}
	root := t.TempDir()
	inside, outside := root+"/parent/dir", root+"/dir"
	if err := os.MkdirAll(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	parent, err := unix.Open(root+"/parent", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(parent)

	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 50_000 {
			if err := errors.Join(os.Rename(inside, outside), os.Rename(outside, inside)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for {
		select {
		case <-done:
			return
		default:
		}
		fd, err := openat2(parent, "dir", unix.O_PATH|unix.O_DIRECTORY)
		switch err {
		case nil:
			unix.Close(fd)
		case unix.ENOENT:
		default:
			t.Fatal(err)
		}
	}
}

func (r *resolving) checkContent(o drivers.Object) {
	got := make([]byte, 7)
	if _, err := o.ReadAt(ctx, got, 0); err != nil || string(got) != "content" {
		r.t.Errorf("got %q, %v", got, err)
	}
}
