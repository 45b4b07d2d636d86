package drivertest

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

var storeTests = []namedTest{
	{"a commit is atomic", suite.commitIsAtomic, isA[drivers.Store]},
	{"a copy has the size and time given to Create", suite.copyHasSizeAndTime, isA[drivers.Store]},
	{"a commit of the wrong size fails", suite.wrongSize, isA[drivers.Store]},
	{"a part of a unit cannot be written", suite.partOfUnit, isA[drivers.Store]},
	{"an aborted copy leaves nothing behind", suite.abort, isA[drivers.Store]},
	{"Close discards an uncommitted copy", suite.closeAborts, isA[drivers.Store]},
	{"a Writer reads back what was written", suite.readBack, isA[drivers.Store]},
	{"a copy replaces an earlier one", suite.replacesCopy, isA[drivers.Store]},
	{"a copy may be empty", suite.emptyCopy, isA[drivers.Store]},
	{"a copy may have any valid name", suite.anyName, isA[drivers.Store]},
	{"a name may be longer than PATH_MAX", suite.longName, isA[drivers.Store]},
	{"a folder replaces a file", suite.folderForFile, isA[drivers.Store]},
	{"a file replaces an empty folder", suite.fileForFolder, isA[drivers.Store]},
	{"Remove removes one copy", suite.remove, isA[drivers.Store]},
	{"copies may be written concurrently", suite.concurrentCopies, isA[drivers.Store]},
	{"Probe succeeds on a working Store", suite.probe, suite.isStoreAndProber},
	{"ProbeCopy reads copies", suite.probeCopy, isA[drivers.CopyProber]},
}

func (s suite) isStoreAndProber() bool { return isA[drivers.Store](s) && isA[drivers.Prober](s) }

// mtime is the modification time of copies. A file system that stores only seconds or
// microseconds would change it.
var mtime = time.Unix(1234567890, 987654321)

// twoBlocks is the size of a copy of two blocks.
const twoBlocks = drivers.ChecksumBlock + 1000

func (s suite) store() drivers.Store { return as[drivers.Store](s) }

// create begins a copy and closes its Writer at the end of the test.
func (s suite) create(name string, size int) drivers.Writer {
	s.Helper()
	w, err := s.store().Create(ctx, name, drivers.Info{Size: int64(size), Mtime: mtime})
	if err != nil {
		s.Fatalf("Create(%q): %v", name, err)
	}
	s.closeAtEnd(name, w)
	return w
}

func (s suite) write(w drivers.Writer, data []byte, off int64) {
	s.Helper()
	if n, err := w.WriteAt(data, off); n != len(data) || err != nil {
		s.Fatalf("WriteAt of %d bytes at %d: %d, %v", len(data), off, n, err)
	}
}

func (s suite) commit(w drivers.Writer) {
	s.Helper()
	if err := w.Commit(); err != nil {
		s.Fatalf("Commit: %v", err)
	}
}

// addCopy commits a copy with the content data.
func (s suite) addCopy(name string, data []byte) {
	s.Helper()
	w := s.create(name, len(data))
	s.write(w, data, 0)
	s.commit(w)
}

// wantMissing checks that the driver has no file name.
func (s suite) wantMissing(name string) {
	s.Helper()
	_, err := s.Driver.Open(ctx, name)
	s.wantError("Open of "+name, err, fs.ErrNotExist)
	_, err = s.Driver.Stat(ctx, name)
	s.wantError("Stat of "+name, err, fs.ErrNotExist)
}

func (s suite) commitIsAtomic() {
	data := content(twoBlocks, 1)
	w := s.create("a/b/file", len(data))
	s.wantMissing("a/b/file")
	s.write(w, data[drivers.WriteUnit:], drivers.WriteUnit) // in any order
	s.wantMissing("a/b/file")
	s.write(w, data[:drivers.WriteUnit], 0)
	s.wantMissing("a/b/file")
	s.commit(w)
	s.wantFile("a/b/file", data)
	if got := s.names("a/b"); !slices.Equal(got, []string{"file"}) {
		s.Errorf("ReadDir: %q", got)
	}
	if got := s.names("."); !slices.Equal(got, []string{"a"}) {
		s.Errorf("ReadDir of the root: %q", got)
	}
	if err := w.Commit(); err == nil {
		s.Error("a second Commit succeeds, want an error")
	}
}

func (s suite) copyHasSizeAndTime() {
	s.addCopy("file", content(1000, 1))
	info := s.stat("file")
	if info.Size != 1000 || !info.Mtime.Equal(mtime) {
		s.Errorf("got %d bytes, modified %v; want 1000, modified %v", info.Size, info.Mtime, mtime)
	}
	if got := s.open("file").Info(); !got.SameVersion(info) {
		s.Errorf("Info returns %+v, Stat returns %+v", got, info)
	}
}

func (s suite) wrongSize() {
	s.addCopy("file", content(1000, 1))
	data := content(twoBlocks, 2)
	for _, size := range []int{0, drivers.ChecksumBlock} {
		w := s.create("file", len(data))
		s.write(w, data[:size], 0)
		if err := w.Commit(); err == nil {
			s.Errorf("Commit of %d bytes instead of %d succeeds, want an error", size, len(data))
		}
		w.Abort()
		s.wantFile("file", content(1000, 1))
	}
	if _, err := s.store().Create(ctx, "file", drivers.Info{Size: -1, Mtime: mtime}); err == nil {
		s.Error("Create of a negative size succeeds, want an error")
	}
}

func (s suite) partOfUnit() {
	w := s.create("file", twoBlocks)
	for _, part := range [][2]int{{-1, 0}, {0, 1}, {1, drivers.WriteUnit}, {0, twoBlocks - 1}, {0, drivers.ChecksumBlock + drivers.WriteUnit}} {
		if _, err := w.WriteAt(make([]byte, part[1]-part[0]), int64(part[0])); err == nil {
			s.Errorf("WriteAt from %d to %d of %d bytes succeeds, want an error", part[0], part[1], twoBlocks)
		}
	}
	w.Abort()
}

func (s suite) abort() {
	w := s.create("file", 1000)
	s.write(w, content(1000, 1), 0)
	w.Abort()
	w.Abort()
	s.wantMissing("file")
	if err := w.Commit(); err == nil {
		s.Error("Commit after Abort succeeds, want an error")
	}
	s.wantMissing("file")

	w = s.create("file", 1000)
	s.write(w, content(1000, 2), 0)
	s.commit(w)
	w.Abort()
	s.wantFile("file", content(1000, 2))
}

func (s suite) closeAborts() {
	w, err := s.store().Create(ctx, "file", drivers.Info{Size: 10, Mtime: mtime})
	if err != nil {
		s.Fatal(err)
	}
	s.write(w, content(10, 1), 0)
	if err := w.Close(); err != nil {
		s.Error(err)
	}
	s.wantMissing("file")
}

func (s suite) readBack() {
	want := content(1000, 1)
	w := s.create("file", 1000)
	s.write(w, want, 0)
	s.wantReadBack(w, want)
	s.commit(w)
	s.wantReadBack(w, want)
	if err := s.store().Remove(ctx, "file"); err != nil {
		s.Error(err)
	}
	s.wantReadBack(w, want)
}

// wantReadBack checks that w reads the content want.
func (s suite) wantReadBack(w drivers.Writer, want []byte) {
	s.Helper()
	got, err := io.ReadAll(io.NewSectionReader(w, 0, int64(len(want)+1)))
	if err != nil || !bytes.Equal(got, want) {
		s.Errorf("ReadAt of the Writer: %v, or wrong bytes", err)
	}
}

func (s suite) replacesCopy() {
	s.addCopy("file", content(100_000, 1))
	o := s.open("file")
	w := s.create("file", 50_000)
	s.write(w, content(50_000, 2), 0)
	s.wantFile("file", content(100_000, 1))
	s.commit(w)
	s.wantFile("file", content(50_000, 2))
	s.wantOpenedVersion(o, content(100_000, 1))
}

func (s suite) emptyCopy() {
	s.commit(s.create("empty", 0))
	s.wantFile("empty", nil)
}

func (s suite) anyName() {
	for i, name := range oddNames {
		s.addCopy(name+"/"+name, content(10, byte(i)))
	}
	for i, name := range oddNames {
		s.wantFile(name+"/"+name, content(10, byte(i)))
	}
	for _, name := range []string{"", ".", "/file", "a//b", "../file", "a/../b", "file/"} {
		if _, err := s.store().Create(ctx, name, drivers.Info{Mtime: mtime}); err == nil {
			s.Errorf("Create(%q) succeeds, want an error", name)
		}
		if err := s.store().Remove(ctx, name); err == nil {
			s.Errorf("Remove(%q) succeeds, want an error", name)
		}
	}
}

func (s suite) longName() {
	name := strings.Repeat(strings.Repeat("d", 99)+"/", 90) + "file"
	s.addCopy(name, content(10, 1))
	s.wantFile(name, content(10, 1))
	s.addCopy(name, content(20, 2))
	if got := s.stat(name).Size; got != 20 {
		s.Errorf("Stat: size %d, want 20", got)
	}
	if err := s.store().Remove(ctx, name); err != nil {
		s.Error(err)
	}
	s.wantMissing(name)
}

func (s suite) folderForFile() {
	s.addCopy("x", content(10, 1))
	s.addCopy("x/y/file", content(20, 2))
	s.wantFile("x/y/file", content(20, 2))
}

func (s suite) fileForFolder() {
	s.addCopy("x/file", content(10, 1))
	w := s.create("x", 20)
	s.write(w, content(20, 2), 0)
	if err := w.Commit(); err == nil {
		s.Error("Commit in place of a folder with copies succeeds, want an error")
	}
	if err := s.store().Remove(ctx, "x/file"); err != nil {
		s.Error(err)
	}
	s.commit(w)
	s.wantFile("x", content(20, 2))
}

func (s suite) remove() {
	s.addCopy("dir/a", content(10, 1))
	s.addCopy("dir/b", content(10, 2))
	o := s.open("dir/a")
	if err := s.store().Remove(ctx, "dir/a"); err != nil {
		s.Error(err)
	}
	s.wantMissing("dir/a")
	s.wantContent(o, content(10, 1))
	s.wantFile("dir/b", content(10, 2))
	for _, name := range []string{"dir/a", "missing/file", "dir/b/file"} {
		s.wantError("Remove of "+name, s.store().Remove(ctx, name), fs.ErrNotExist)
	}
	if err := s.store().Remove(ctx, "dir"); err == nil {
		s.Error("Remove of a directory succeeds, want an error")
	}
}

func (s suite) concurrentCopies() {
	store := s.store()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 8 {
				s.addInHalves(store, fmt.Sprintf("a/%d/%d", k, i), content(twoBlocks, byte(i*8+k)))
			}
		})
	}
	wg.Wait()
	for i := range 8 {
		for k := range 8 {
			s.wantFile(fmt.Sprintf("a/%d/%d", k, i), content(twoBlocks, byte(i*8+k)))
		}
	}
}

// addInHalves commits a copy whose two blocks it writes concurrently. It may be called from any
// goroutine: it does not call Fatal.
func (s suite) addInHalves(store drivers.Store, name string, data []byte) {
	w, err := store.Create(ctx, name, drivers.Info{Size: int64(len(data)), Mtime: mtime})
	if err != nil {
		s.Errorf("Create(%q): %v", name, err)
		return
	}
	s.closeAtEnd(name, w)
	var writers sync.WaitGroup
	for _, half := range [][2]int{{0, drivers.ChecksumBlock}, {drivers.ChecksumBlock, len(data)}} {
		writers.Go(func() {
			if _, err := w.WriteAt(data[half[0]:half[1]], int64(half[0])); err != nil {
				s.Errorf("WriteAt of %s: %v", name, err)
			}
		})
	}
	writers.Wait()
	if err := w.Commit(); err != nil {
		s.Errorf("Commit of %s: %v", name, err)
	}
}

func (s suite) probe() {
	if err := as[drivers.Prober](s).Probe(ctx); err != nil {
		s.Error(err)
	}
	if got := s.names("."); len(got) != 0 {
		s.Errorf("Probe leaves %q behind", got)
	}
}

func (s suite) probeCopy() {
	p := as[drivers.CopyProber](s)
	for i, size := range []int{0, 1, 5000, drivers.ChecksumBlock, 3*drivers.ChecksumBlock + 7} {
		name := fmt.Sprint("file", i)
		s.Put(name, content(size, byte(i)))
		for range 5 {
			if n, err := p.ProbeCopy(ctx, name); n < 0 || err != nil {
				s.Errorf("ProbeCopy of %d bytes: %d, %v", size, n, err)
			}
		}
	}
	_, err := p.ProbeCopy(ctx, "missing")
	s.wantError("ProbeCopy of a missing copy", err, fs.ErrNotExist)
}
