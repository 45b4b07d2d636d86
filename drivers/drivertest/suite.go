// Package drivertest is the contract of package drivers as a test, and what
// the tests of other packages put in the place of storage: Mem, which keeps
// files in memory, Bucket, which is read as an object store is, and Faults,
// which makes another driver fail, hang and count.
package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A Subject is an empty driver to be tested, and the hands that change what it
// reads behind its back. A hand that is nil is one that this kind of storage
// cannot have: there is no test of what needs it. Put and Remove are always
// there. Hands make the directories that a name needs, and fail the test if they
// cannot do what they are told.
type Subject struct {
	Driver drivers.Driver

	Put       func(name string, data []byte) // makes a file, in place of any other, in one step
	PutMany   func(files map[string][]byte)  // makes many in the time of few; nil puts one after the other
	Remove    func(name string)              // removes a file
	Overwrite func(name string, data []byte) // changes a file, so that the driver can no longer read what it was
	Mkdir     func(name string)              // makes a directory
	Symlink   func(target, name string)      // makes a symbolic link
	Special   func(name string)              // makes a FIFO
	Setxattr  func(name, attr, value string) // sets an attribute; it may skip the test

	// Names tells whether a file can have a name; nil is any that is valid.
	Names func(name string) bool
}

// Folder is a Subject whose driver reads the folder root of the operating
// system.
func Folder(t *testing.T, driver drivers.Driver, root string) Subject {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string) string {
		path := filepath.Join(root, name)
		must(os.MkdirAll(filepath.Dir(path), 0o700))
		return path
	}
	return Subject{
		Driver: driver,
		Put: func(name string, data []byte) {
			f, err := os.CreateTemp(root, "put")
			must(err)
			_, err = f.Write(data)
			must(err)
			must(f.Close())
			must(os.Rename(f.Name(), at(name)))
		},
		Remove: func(name string) { must(os.Remove(at(name))) },
		Overwrite: func(name string, data []byte) {
			// Two changes within a tick of the kernel's clock can have one time.
			time.Sleep(20 * time.Millisecond)
			must(os.WriteFile(at(name), data, 0o600))
		},
		Mkdir:   func(name string) { must(os.MkdirAll(at(name), 0o700)) },
		Symlink: func(target, name string) { must(os.Symlink(target, at(name))) },
		Special: func(name string) { must(syscall.Mkfifo(at(name), 0o600)) },
		Setxattr: func(name, attr, value string) {
			err := syscall.Setxattr(at(name), attr, []byte(value), 0)
			if errors.Is(err, syscall.ENOTSUP) {
				t.Skipf("the file system of %s has no extended attributes", root)
			}
			must(err)
		},
	}
}

// Subject is m with the hands to change it.
func (m *Mem) Subject() Subject {
	return Subject{
		Driver:    m,
		Put:       func(name string, data []byte) { m.Put(name, data) },
		Remove:    m.Delete,
		Overwrite: m.Overwrite,
		Mkdir:     m.Mkdir,
		Symlink:   m.Symlink,
		Special:   func(name string) { m.Special(name, syscall.S_IFIFO) },
		Setxattr:  func(name, attr, value string) { m.Setxattr(name, attr, []byte(value)) },
	}
}

// Run tests that what open returns keeps the contract of a drivers.Driver, and
// of each further interface that it, or what it opens, has. It calls open for
// each of its tests.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	subject := open(t)
	for _, test := range allTests {
		if test.needs != nil && !test.needs(suite{T: t, Subject: subject}) {
			continue
		}
		t.Run(strings.ReplaceAll(test.name, " ", "_"), func(t *testing.T) {
			test.run(suite{T: t, Subject: open(t)})
		})
	}
}

// A namedTest is a sentence of the contract.
type namedTest struct {
	name  string
	run   func(s suite)
	needs func(s suite) bool // whether there is such a thing to test; nil is yes
}

var allTests = slices.Concat(driverTests, optionalTests, listerTests, streamerTests, storeTests)

var driverTests = []namedTest{
	{"a file reads as it was written", suite.readsAsWritten, nil},
	{"a read past the end is EOF", suite.endOfFile, nil},
	{"an empty file is a file", suite.emptyFile, nil},
	{"names are bytes", suite.namesAreBytes, nil},
	{"trees may be deep", suite.deepTree, nil},
	{"a directory lists what Stat describes", suite.listsWhatStatDescribes, nil},
	{"a large directory is whole", suite.largeDirectory, nil},
	{"an empty directory is empty", suite.emptyDirectory, suite.hasMkdir},
	{"what is missing matches ErrNotExist", suite.missing, nil},
	{"a name that is none is an error", suite.invalidNames, nil},
	{"a directory is not opened", suite.directoryIsNotOpened, nil},
	{"a link is shown and not followed", suite.links, suite.hasSymlink},
	{"no element of a name is followed", suite.linkInTheMiddle, suite.hasSymlink},
	{"a special file is refused at once", suite.special, suite.hasSpecial},
	{"an open file outlives its name", suite.readableAfterRemove, nil},
	{"a replaced file stays what was opened", suite.replaced, nil},
	{"a reader never sees a mixture", suite.neverAMixture, nil},
	{"a file changed in place is ErrChanged", suite.changedInPlace, suite.hasOverwrite},
	{"readers share an Object", suite.concurrentReads, nil},
	{"a context that is done is obeyed", suite.contextDone, nil},
}

var optionalTests = []namedTest{
	{"attributes of users are shown", suite.xattrs, suite.isXattrer},
	{"the size of the storage adds up", suite.statfs, isA[drivers.Statfser]},
}

var storeTests = []namedTest{
	{"a copy is whole or absent", suite.commitIsAtomic, isA[drivers.Store]},
	{"a copy has the size and time of its source", suite.copyHasSizeAndTime, isA[drivers.Store]},
	{"a copy without the right size is refused", suite.wrongSize, isA[drivers.Store]},
	{"an aborted copy leaves nothing", suite.abort, isA[drivers.Store]},
	{"Close throws away what was not committed", suite.closeAborts, isA[drivers.Store]},
	{"a Writer reads what it wrote", suite.readBack, isA[drivers.Store]},
	{"a copy replaces an earlier one", suite.replacesCopy, isA[drivers.Store]},
	{"an empty copy is a copy", suite.emptyCopy, isA[drivers.Store]},
	{"a copy may have any name", suite.anyName, isA[drivers.Store]},
	{"a name may be longer than PATH_MAX", suite.longName, isA[drivers.Store]},
	{"a folder takes the place of a file", suite.folderForFile, isA[drivers.Store]},
	{"a file takes the place of an empty folder", suite.fileForFolder, isA[drivers.Store]},
	{"Remove removes one copy", suite.remove, isA[drivers.Store]},
	{"copies are made side by side", suite.concurrentCopies, isA[drivers.Store]},
	{"a Store that works says so", suite.probe, suite.isStoreAndProber},
}

func (s suite) hasMkdir() bool         { return s.Mkdir != nil }
func (s suite) hasSymlink() bool       { return s.Symlink != nil }
func (s suite) hasSpecial() bool       { return s.Special != nil }
func (s suite) hasOverwrite() bool     { return s.Overwrite != nil }
func (s suite) isXattrer() bool        { return isA[drivers.Xattrer](s) && s.Setxattr != nil }
func (s suite) isStoreAndProber() bool { return isA[drivers.Store](s) && isA[drivers.Prober](s) }

// isA reports whether the driver has an optional interface.
func isA[T any](s suite) bool {
	_, ok := drivers.As[T](s.Driver)
	return ok
}

// A suite is one test of one subject.
type suite struct {
	*testing.T
	Subject
}

var ctx = context.Background()

// content is n bytes that differ from those of another seed.
func content(n int, seed byte) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i>>8)*31 + byte(i) + seed
	}
	return data
}

// putMany makes files, in the fastest way that there is.
func (s suite) putMany(files map[string][]byte) {
	s.Helper()
	if s.PutMany != nil {
		s.PutMany(files)
		return
	}
	for name, data := range files {
		s.Put(name, data)
	}
}

// can reports whether a file can have a name.
func (s suite) can(name string) bool { return s.Names == nil || s.Names(name) }

func (s suite) open(name string) drivers.Object {
	s.Helper()
	o, err := s.Driver.Open(ctx, name)
	if err != nil {
		s.Fatalf("Open(%q): %v", name, err)
	}
	s.Cleanup(func() {
		if err := o.Close(); err != nil {
			s.Errorf("Close of %q: %v", name, err)
		}
	})
	return o
}

func (s suite) stat(name string) drivers.Info {
	s.Helper()
	info, err := s.Driver.Stat(ctx, name)
	if err != nil {
		s.Fatalf("Stat(%q): %v", name, err)
	}
	return info
}

// names returns what is in dir, in order.
func (s suite) names(dir string) []string {
	s.Helper()
	infos, err := s.Driver.ReadDir(ctx, dir)
	if err != nil {
		s.Fatalf("ReadDir(%q): %v", dir, err)
	}
	var names []string
	for _, info := range infos {
		names = append(names, info.Name)
	}
	slices.Sort(names)
	return names
}

// wantContent reads o, with its last read reaching past the end.
func (s suite) wantContent(o drivers.Object, want []byte) {
	s.Helper()
	got, err := io.ReadAll(reader(o))
	if err != nil {
		s.Errorf("read: %v", err)
	} else if !bytes.Equal(got, want) {
		s.Errorf("read %d bytes that are not the %d wanted", len(got), len(want))
	}
}

// reader reads o from its start.
func reader(o drivers.Object) io.Reader {
	return io.NewSectionReader(readerAt{o}, 0, o.Info().Size+1)
}

type readerAt struct{ drivers.Object }

func (r readerAt) ReadAt(p []byte, off int64) (int, error) { return r.Object.ReadAt(ctx, p, off) }

func (s suite) wantFile(name string, want []byte) {
	s.Helper()
	s.wantContent(s.open(name), want)
}

func (s suite) wantIs(what string, err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Errorf("%s: got error %v, want one that matches %v", what, err, want)
	}
}

// wantRefused opens name, which must fail soon.
func (s suite) wantRefused(name string) {
	s.Helper()
	done := make(chan error, 1)
	go func() {
		o, err := s.Driver.Open(ctx, name)
		if err == nil {
			o.Close()
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil {
			s.Errorf("Open(%q) succeeds", name)
		}
	case <-time.After(10 * time.Second):
		s.Fatalf("Open(%q) hangs", name)
	}
}

func (s suite) readsAsWritten() {
	want := content(100_000, 1)
	s.Put("a/b/file", want)
	o := s.open("a/b/file")
	s.wantContent(o, want)
	p := make([]byte, 1000)
	n, err := o.ReadAt(ctx, p, 54_321)
	if n != len(p) || err != nil || !bytes.Equal(p, want[54_321:55_321]) {
		s.Errorf("ReadAt in the middle: %d, %v, or other bytes", n, err)
	}
	if n, err := o.ReadAt(ctx, nil, 5); n != 0 || err != nil {
		s.Errorf("ReadAt of nothing: %d, %v", n, err)
	}
	if _, err := o.ReadAt(ctx, p, -1); err == nil {
		s.Error("ReadAt before the start succeeds")
	}
	if got, want := o.Info(), s.stat("a/b/file"); !got.SameVersion(want) || got.Name != "file" {
		s.Errorf("Info is %+v, and Stat %+v", got, want)
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
			s.Errorf("ReadAt of %d at %d: %d, %v", test.size, test.off, n, err)
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

// oddNames are names of files that are not as usual.
var oddNames = []string{
	"caf\xe9", "\xff\xfe", "new\nline", "sp ace", "-rf", "*", "a\\b", "...", ".hidden", "日本語",
	strings.Repeat("n", 255), strings.Repeat("\xf0\x9f\xa6\x8b", 63) + "abc",
}

func (s suite) namesAreBytes() {
	names := slices.DeleteFunc(slices.Clone(oddNames), func(name string) bool {
		return !s.can(name) || !s.can("dir/"+name+"/file")
	})
	for i, name := range names {
		s.Put(name, content(10, byte(i)))
		s.Put("dir/"+name+"/file", content(20, byte(i)))
	}
	for i, name := range names {
		s.wantFile(name, content(10, byte(i)))
		s.wantFile("dir/"+name+"/file", content(20, byte(i)))
		if got := s.stat(name).Name; got != name {
			s.Errorf("Stat(%q) is named %q", name, got)
		}
	}
	if got, want := s.names("dir"), slices.Sorted(slices.Values(names)); !slices.Equal(got, want) {
		s.Errorf("ReadDir: got %q, want %q", got, want)
	}
}

func (s suite) deepTree() {
	depth := 200
	for depth > 10 && !s.can(strings.Repeat("directory/", depth)+"file") {
		depth--
	}
	dir := strings.TrimSuffix(strings.Repeat("directory/", depth), "/")
	s.Put(dir+"/file", content(10, 1))
	s.wantFile(dir+"/file", content(10, 1))
	if got := s.names(dir); !slices.Equal(got, []string{"file"}) {
		s.Errorf("ReadDir: got %q", got)
	}
}

func (s suite) listsWhatStatDescribes() {
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
			s.Errorf("ReadDir says %+v, and Stat %+v", got, want)
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
		s.Errorf("ReadDir returns %d names, or others than the %d wanted", len(got), len(want))
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
		s.wantIs("Open of "+name, err, fs.ErrNotExist)
		_, err = s.Driver.Stat(ctx, name)
		s.wantIs("Stat of "+name, err, fs.ErrNotExist)
	}
	_, err := s.Driver.ReadDir(ctx, "missing")
	s.wantIs("ReadDir of missing", err, fs.ErrNotExist)
	if _, err := s.Driver.ReadDir(ctx, "file"); err == nil {
		s.Error("ReadDir of a file succeeds")
	}
}

func (s suite) invalidNames() {
	s.Put("dir/file", content(10, 1))
	for _, name := range []string{"", "/", "/dir/file", "dir/", "dir//file", "./dir", "dir/.", "..", "dir/../dir/file", "dir/file\x00"} {
		if _, err := s.Driver.Stat(ctx, name); err == nil {
			s.Errorf("Stat(%q) succeeds", name)
		}
		s.wantRefused(name)
		if _, err := s.Driver.ReadDir(ctx, name); err == nil {
			s.Errorf("ReadDir(%q) succeeds", name)
		}
	}
}

func (s suite) directoryIsNotOpened() {
	s.Put("dir/file", content(10, 1))
	s.wantRefused("dir")
	s.wantRefused(".")
}

func (s suite) links() {
	s.Put("file", content(10, 1))
	s.Symlink("file", "link")
	if info := s.stat("link"); info.Mode&syscall.S_IFMT != syscall.S_IFLNK || info.Size != 4 {
		s.Errorf("Stat: %+v", info)
	}
	s.wantRefused("link")
	d, ok := drivers.As[drivers.Readlinker](s.Driver)
	if !ok {
		return
	}
	got, err := d.Readlink(ctx, "link")
	if errors.Is(err, errors.ErrUnsupported) {
		return // a wrapper of what is no Readlinker
	}
	if got != "file" || err != nil {
		s.Errorf("Readlink: %q, %v", got, err)
	}
	if _, err := d.Readlink(ctx, "file"); err == nil {
		s.Error("Readlink of a file succeeds")
	}
	_, err = d.Readlink(ctx, "missing")
	s.wantIs("Readlink of missing", err, fs.ErrNotExist)
}

func (s suite) linkInTheMiddle() {
	s.Put("dir/file", content(10, 1))
	s.Symlink("dir", "link")
	s.Symlink("/", "root")
	for _, name := range []string{"link/file", "root/etc/passwd"} {
		s.wantRefused(name)
		if _, err := s.Driver.Stat(ctx, name); err == nil {
			s.Errorf("Stat(%q) succeeds", name)
		}
	}
	for _, name := range []string{"link", "root/etc"} {
		if _, err := s.Driver.ReadDir(ctx, name); err == nil {
			s.Errorf("ReadDir(%q) succeeds", name)
		}
	}
}

func (s suite) special() {
	s.Special("dir/fifo")
	if info := s.stat("dir/fifo"); info.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		s.Errorf("Stat: %+v", info)
	}
	s.wantRefused("dir/fifo")
}

func (s suite) readableAfterRemove() {
	s.Put("file", content(100_000, 1))
	o := s.open("file")
	s.Remove("file")
	_, err := s.Driver.Open(ctx, "file")
	s.wantIs("Open after removal", err, fs.ErrNotExist)
	s.wantVersion(o, content(100_000, 1))
}

// wantVersion reads what was opened, all of it, unless that is gone.
func (s suite) wantVersion(o drivers.Object, want []byte) {
	s.Helper()
	got, err := io.ReadAll(reader(o))
	if err != nil && !errors.Is(err, drivers.ErrChanged) || err == nil && !bytes.Equal(got, want) {
		s.Errorf("read: %v, or other bytes than were opened", err)
	}
}

func (s suite) replaced() {
	s.Put("file", content(100_000, 1))
	o := s.open("file")
	s.Put("file", content(100_000, 2))
	s.wantVersion(o, content(100_000, 1))
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

// readOneVersion reads a file that has only equal bytes in each version.
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
		s.Errorf("read %d bytes of several versions, or %v", len(got), err)
	}
}

func (s suite) changedInPlace() {
	for _, size := range []int{1000, 999, 1001, 0} { // of the same size, cut, grown, emptied
		s.Put("file", content(1000, 1))
		o := s.open("file")
		s.wantContent(o, content(1000, 1))
		s.Overwrite("file", content(size, 2))
		n, err := o.ReadAt(ctx, make([]byte, 100), 0)
		if !errors.Is(err, drivers.ErrChanged) || n != 0 {
			s.Errorf("ReadAt after a change to %d bytes: %d, %v", size, n, err)
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
					s.Errorf("ReadAt at %d: %d, %v, or other bytes", off, n, err)
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
	s.wantIs("Open", err, context.Canceled)
	_, err = s.Driver.Stat(done, "file")
	s.wantIs("Stat", err, context.Canceled)
	_, err = s.Driver.ReadDir(done, ".")
	s.wantIs("ReadDir", err, context.Canceled)
	_, err = o.ReadAt(done, make([]byte, 10), 0)
	s.wantIs("ReadAt", err, context.Canceled)
}

func (s suite) xattrs() {
	d := as[drivers.Xattrer](s)
	s.Put("file", content(10, 1))
	if got, err := d.Listxattr(ctx, "file"); len(got) != 0 || err != nil {
		s.Errorf("Listxattr of none: %q, %v", got, err)
	}
	_, err := d.Getxattr(ctx, "file", "user.colour")
	s.wantIs("Getxattr of none", err, syscall.ENODATA)
	s.Setxattr("file", "user.colour", "orange")
	s.Setxattr("file", "user.empty", "")
	got, err := d.Listxattr(ctx, "file")
	slices.Sort(got)
	if !slices.Equal(got, []string{"user.colour", "user.empty"}) || err != nil {
		s.Errorf("Listxattr: %q, %v", got, err)
	}
	if got, err := d.Getxattr(ctx, "file", "user.colour"); string(got) != "orange" || err != nil {
		s.Errorf("Getxattr: %q, %v", got, err)
	}
	if got, err := d.Getxattr(ctx, "file", "user.empty"); len(got) != 0 || err != nil {
		s.Errorf("Getxattr of an empty one: %q, %v", got, err)
	}
	_, err = d.Getxattr(ctx, "file", "security.selinux")
	s.wantIs("Getxattr of one that is not a user's", err, syscall.ENODATA)
	_, err = d.Listxattr(ctx, "missing")
	s.wantIs("Listxattr of missing", err, fs.ErrNotExist)
}

func (s suite) statfs() {
	got, err := as[drivers.Statfser](s).Statfs(ctx)
	if err != nil || got.Total <= 0 || got.Free > got.Total || got.Available > got.Free {
		s.Errorf("Statfs: %+v, %v", got, err)
	}
}
