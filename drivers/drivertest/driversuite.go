package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/milkweedfs/milkweed/drivers"
)

var driverTests = []namedTest{
	{"reads return what was written", suite.readsAsWritten, nil},
	{"a read past the end returns EOF", suite.endOfFile, nil},
	{"an empty file can be read", suite.emptyFile, nil},
	{"names may contain any bytes", suite.namesAreBytes, nil},
	{"directories may be deeply nested", suite.deepTree, nil},
	{"ReadDir and Stat agree", suite.readDirAgreesWithStat, nil},
	{"a large directory is listed completely", suite.largeDirectory, nil},
	{"an empty directory has no entries", suite.emptyDirectory, suite.hasMkdir},
	{"a missing name is ErrNotExist", suite.missing, nil},
	{"an invalid name is an error", suite.invalidNames, nil},
	{"a directory cannot be opened", suite.directoryIsNotOpened, nil},
	{"a symbolic link is described and not followed", suite.links, suite.hasSymlink},
	{"no element of a name is followed as a link", suite.linkInTheMiddle, suite.hasSymlink},
	{"the open of a special file fails without blocking", suite.special, suite.hasSpecial},
	{"an open file outlives its removal", suite.readableAfterRemove, nil},
	{"an open file keeps its version when it is replaced", suite.replaced, nil},
	{"a reader never sees a mixture of versions", suite.neverAMixture, nil},
	{"a read of a file changed in place is ErrChanged", suite.changedInPlace, suite.hasOverwrite},
	{"an Object supports concurrent reads", suite.concurrentReads, nil},
	{"a call with a done context fails", suite.contextDone, nil},
}

func (s suite) hasMkdir() bool { return s.Mkdir != nil }

func (s suite) hasSymlink() bool { return s.Symlink != nil }

func (s suite) hasSpecial() bool { return s.Special != nil }

func (s suite) hasOverwrite() bool { return s.Overwrite != nil }

func (s suite) readsAsWritten() {
	want := content(100_000, 1)
	s.Put("a/b/file", want)
	o := s.open("a/b/file")
	s.wantContent(o, want)
	p := make([]byte, 1000)
	n, err := o.ReadAt(ctx, p, 54_321)
	if n != len(p) || err != nil || !bytes.Equal(p, want[54_321:55_321]) {
		s.Errorf("ReadAt in the middle: %d, %v, or wrong bytes", n, err)
	}
	if n, err := o.ReadAt(ctx, nil, 5); n != 0 || err != nil {
		s.Errorf("ReadAt of nothing: %d, %v", n, err)
	}
	if _, err := o.ReadAt(ctx, p, -1); err == nil {
		s.Error("ReadAt at a negative offset succeeds, want an error")
	}
	if got, want := o.Info(), s.stat("a/b/file"); !got.SameVersion(want) || got.Name != "file" {
		s.Errorf("Info returns %+v, Stat returns %+v", got, want)
	}
}

func (s suite) endOfFile() {
	s.Put("file", content(1000, 1))
	o := s.open("file")
	for _, test := range []struct {
		off, size int64
		n         int
	}{{900, 100, 100}, {900, 101, 100}, {999, 2, 1}, {1000, 1, 0}, {5000, 10, 0}} {
		n, err := o.ReadAt(ctx, make([]byte, test.size), test.off)
		if n != test.n || n < int(test.size) && err != io.EOF || err != nil && err != io.EOF {
			s.Errorf("ReadAt of %d bytes at %d: %d, %v; want %d", test.size, test.off, n, err, test.n)
		}
	}
}

func (s suite) emptyFile() {
	s.Put("empty", nil)
	if info := s.stat("empty"); info.Size != 0 || info.Mode&syscall.S_IFMT != syscall.S_IFREG {
		s.Errorf("Stat: %+v", info)
	}
	s.wantFile("empty", nil)
}

// oddNames are valid names that a driver may handle wrongly.
var oddNames = []string{
	"caf\xe9", "\xff\xfe", "new\nline", "sp ace", "-rf", "*", "a\\b", "...", ".hidden", "日本語",
	strings.Repeat("n", 255), strings.Repeat("\xf0\x9f\xa6\x8b", 63) + "abc",
}

func (s suite) namesAreBytes() {
	names := slices.DeleteFunc(slices.Clone(oddNames), func(name string) bool {
		return !s.canHave(name) || !s.canHave("dir/"+name+"/file")
	})
	for i, name := range names {
		s.Put(name, content(10, byte(i)))
		s.Put("dir/"+name+"/file", content(20, byte(i)))
	}
	for i, name := range names {
		s.wantFile(name, content(10, byte(i)))
		s.wantFile("dir/"+name+"/file", content(20, byte(i)))
		if got := s.stat(name).Name; got != name {
			s.Errorf("Stat(%q) returns the name %q", name, got)
		}
	}
	if got, want := s.names("dir"), slices.Sorted(slices.Values(names)); !slices.Equal(got, want) {
		s.Errorf("ReadDir: got %q, want %q", got, want)
	}
}

func (s suite) deepTree() {
	depth := 200
	for depth > 10 && !s.canHave(strings.Repeat("directory/", depth)+"file") {
		depth--
	}
	dir := strings.TrimSuffix(strings.Repeat("directory/", depth), "/")
	s.Put(dir+"/file", content(10, 1))
	s.wantFile(dir+"/file", content(10, 1))
	if got := s.names(dir); !slices.Equal(got, []string{"file"}) {
		s.Errorf("ReadDir: got %q", got)
	}
}

func (s suite) readDirAgreesWithStat() {
	s.Put("dir/file", content(10, 1))
	s.Put("dir/sub/file", content(20, 1))
	if s.Symlink != nil {
		s.Symlink("nowhere", "dir/link")
	}
	if s.Special != nil {
		s.Special("dir/fifo")
	}
	infos, err := s.Driver.ReadDir(ctx, "dir")
	if err != nil {
		s.Fatal(err)
	}
	for _, got := range infos {
		want := s.stat("dir/" + got.Name)
		got.Atime = want.Atime // reading may change it
		if got != want {
			s.Errorf("ReadDir returns %+v, Stat returns %+v", got, want)
		}
	}
	if root := s.stat("."); root.Name != "." || root.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		s.Errorf("Stat of the root: %+v", root)
	}
	if got := s.names("."); !slices.Equal(got, []string{"dir"}) {
		s.Errorf("ReadDir of the root: %q", got)
	}
}

func (s suite) largeDirectory() {
	var want []string
	files := make(map[string][]byte)
	for i := range 500 {
		name := fmt.Sprintf("file-%04d", i)
		files["dir/"+name] = content(i%7, 1)
		want = append(want, name)
	}
	s.putMany(files)
	if got := s.names("dir"); !slices.Equal(got, want) {
		s.Errorf("ReadDir returns %d names, or wrong names; want %d", len(got), len(want))
	}
}

func (s suite) emptyDirectory() {
	s.Mkdir("empty")
	if got := s.names("empty"); len(got) != 0 {
		s.Errorf("ReadDir: %q", got)
	}
}

func (s suite) missing() {
	s.Put("file", content(10, 1))
	for _, name := range []string{"missing", "missing/file", "file/below"} {
		_, err := s.Driver.Open(ctx, name)
		s.wantError("Open of "+name, err, fs.ErrNotExist)
		_, err = s.Driver.Stat(ctx, name)
		s.wantError("Stat of "+name, err, fs.ErrNotExist)
	}
	_, err := s.Driver.ReadDir(ctx, "missing")
	s.wantError("ReadDir of missing", err, fs.ErrNotExist)
	if _, err := s.Driver.ReadDir(ctx, "file"); err == nil {
		s.Error("ReadDir of a file succeeds, want an error")
	}
}

func (s suite) invalidNames() {
	s.Put("dir/file", content(10, 1))
	for _, name := range []string{"", "/", "/dir/file", "dir/", "dir//file", "./dir", "dir/.", "..", "dir/../dir/file", "dir/file\x00"} {
		if _, err := s.Driver.Stat(ctx, name); err == nil {
			s.Errorf("Stat(%q) succeeds, want an error", name)
		}
		s.wantOpenFails(name)
		if _, err := s.Driver.ReadDir(ctx, name); err == nil {
			s.Errorf("ReadDir(%q) succeeds, want an error", name)
		}
	}
}

func (s suite) directoryIsNotOpened() {
	s.Put("dir/file", content(10, 1))
	s.wantOpenFails("dir")
	s.wantOpenFails(".")
}

func (s suite) links() {
	s.Put("file", content(10, 1))
	s.Symlink("file", "link")
	if info := s.stat("link"); info.Mode&syscall.S_IFMT != syscall.S_IFLNK || info.Size != 4 {
		s.Errorf("Stat: %+v", info)
	}
	s.wantOpenFails("link")
	d, ok := drivers.As[drivers.Readlinker](s.Driver)
	if !ok {
		return
	}
	got, err := d.Readlink(ctx, "link")
	if errors.Is(err, errors.ErrUnsupported) {
		return // a wrapper of a driver that is not a Readlinker
	}
	if got != "file" || err != nil {
		s.Errorf("Readlink: %q, %v", got, err)
	}
	if _, err := d.Readlink(ctx, "file"); err == nil {
		s.Error("Readlink of a file succeeds, want an error")
	}
	_, err = d.Readlink(ctx, "missing")
	s.wantError("Readlink of missing", err, fs.ErrNotExist)
}

func (s suite) linkInTheMiddle() {
	s.Put("dir/file", content(10, 1))
	s.Symlink("dir", "link")
	s.Symlink("/", "root")
	for _, name := range []string{"link/file", "root/etc/passwd"} {
		s.wantOpenFails(name)
		if _, err := s.Driver.Stat(ctx, name); err == nil {
			s.Errorf("Stat(%q) succeeds, want an error", name)
		}
	}
	for _, name := range []string{"link", "root/etc"} {
		if _, err := s.Driver.ReadDir(ctx, name); err == nil {
			s.Errorf("ReadDir(%q) succeeds, want an error", name)
		}
	}
}

func (s suite) special() {
	s.Special("dir/fifo")
	if info := s.stat("dir/fifo"); info.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		s.Errorf("Stat: %+v", info)
	}
	s.wantOpenFails("dir/fifo")
}

func (s suite) readableAfterRemove() {
	s.Put("file", content(100_000, 1))
	o := s.open("file")
	s.Remove("file")
	_, err := s.Driver.Open(ctx, "file")
	s.wantError("Open after removal", err, fs.ErrNotExist)
	s.wantOpenedVersion(o, content(100_000, 1))
}

func (s suite) replaced() {
	s.Put("file", content(100_000, 1))
	o := s.open("file")
	s.Put("file", content(100_000, 2))
	s.wantOpenedVersion(o, content(100_000, 1))
	s.wantFile("file", content(100_000, 2))
}

func (s suite) neverAMixture() {
	const size = 100_000
	s.Put("file", bytes.Repeat([]byte{0}, size))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 25 {
				s.readOneVersion(size)
			}
		})
	}
	for version := range 50 {
		s.Put("file", bytes.Repeat([]byte{byte(version)}, size))
	}
	wg.Wait()
}

// readOneVersion checks that a read of "file" returns one version. All bytes of a version are
// equal.
func (s suite) readOneVersion(size int) {
	o, err := s.Driver.Open(ctx, "file")
	if err != nil {
		s.Error(err)
		return
	}
	defer o.Close()
	got, err := io.ReadAll(reader(o))
	if errors.Is(err, drivers.ErrChanged) {
		return
	}
	if err != nil || len(got) != size || bytes.Count(got, got[:1]) != size {
		s.Errorf("read %d bytes, %v, or a mixture of versions; want %d bytes", len(got), err, size)
	}
}

func (s suite) changedInPlace() {
	for _, size := range []int{1000, 999, 1001, 0} { // the same size, truncated, extended, empty
		s.Put("file", content(1000, 1))
		o := s.open("file")
		s.wantContent(o, content(1000, 1))
		s.Overwrite("file", content(size, 2))
		n, err := o.ReadAt(ctx, make([]byte, 100), 0)
		if !errors.Is(err, drivers.ErrChanged) || n != 0 {
			s.Errorf("ReadAt after a change to %d bytes: %d, %v; want ErrChanged", size, n, err)
		}
		s.wantFile("file", content(size, 2))
	}
}

func (s suite) concurrentReads() {
	want := content(1<<20, 1)
	s.Put("file", want)
	o := s.open("file")
	var wg sync.WaitGroup
	for reader := range 8 {
		wg.Go(func() {
			p := make([]byte, 4096)
			for i := range 64 {
				off := int64((i*8+reader)*7919) % (1<<20 - 4096)
				n, err := o.ReadAt(ctx, p, off)
				if n != len(p) || err != nil || !bytes.Equal(p, want[off:off+4096]) {
					s.Errorf("ReadAt at %d: %d, %v, or wrong bytes", off, n, err)
				}
			}
		})
	}
	wg.Wait()
}

func (s suite) contextDone() {
	s.Put("file", content(10, 1))
	o := s.open("file")
	done, cancel := context.WithCancel(ctx)
	cancel()
	_, err := s.Driver.Open(done, "file")
	s.wantError("Open", err, context.Canceled)
	_, err = s.Driver.Stat(done, "file")
	s.wantError("Stat", err, context.Canceled)
	_, err = s.Driver.ReadDir(done, ".")
	s.wantError("ReadDir", err, context.Canceled)
	_, err = o.ReadAt(done, make([]byte, 10), 0)
	s.wantError("ReadAt", err, context.Canceled)
}
