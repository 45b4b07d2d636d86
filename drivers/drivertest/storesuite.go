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

// mtime is a time that a file system which keeps only microseconds, or only
// seconds, cannot have.
var mtime = time.Unix(1234567890, 987654321)

func (s suite) store() drivers.Store { return s.Driver.(drivers.Store) }

// create begins a copy. The test need not close it.
func (s suite) create(name string, size int) drivers.Writer {
	s.Helper()
	w, err := s.store().Create(ctx, name, drivers.Info{Size: int64(size), Mtime: mtime})
	if err != nil {
		s.Fatalf("Create(%q): %v", name, err)
	}
	s.Cleanup(func() {
		if err := w.Close(); err != nil {
			s.Errorf("Close of the Writer of %q: %v", name, err)
		}
	})
	return w
}

func (s suite) write(w drivers.Writer, data []byte, off int64) {
	s.Helper()
	if n, err := w.WriteAt(data, off); n != len(data) || err != nil {
		s.Fatalf("WriteAt of %d at %d: %d, %v", len(data), off, n, err)
	}
}

func (s suite) commit(w drivers.Writer) {
	s.Helper()
	if err := w.Commit(); err != nil {
		s.Fatalf("Commit: %v", err)
	}
}

// copyOf makes a copy of data.
func (s suite) copyOf(name string, data []byte) {
	s.Helper()
	w := s.create(name, len(data))
	s.write(w, data, 0)
	s.commit(w)
}

func (s suite) wantAbsent(name string) {
	s.Helper()
	_, err := s.Driver.Open(ctx, name)
	s.wantIs("Open of "+name, err, fs.ErrNotExist)
	_, err = s.Driver.Stat(ctx, name)
	s.wantIs("Stat of "+name, err, fs.ErrNotExist)
}

func (s suite) commitIsAtomic() {
	w := s.create("a/b/file", 1000)
	s.wantAbsent("a/b/file")
	s.write(w, content(1000, 1)[500:], 500) // in any order
	s.wantAbsent("a/b/file")
	s.write(w, content(1000, 1)[:500], 0)
	s.wantAbsent("a/b/file")
	s.commit(w)
	s.wantFile("a/b/file", content(1000, 1))
	if got := s.names("a/b"); !slices.Equal(got, []string{"file"}) {
		s.Errorf("ReadDir: %q", got)
	}
	if got := s.names("."); !slices.Equal(got, []string{"a"}) {
		s.Errorf("ReadDir of the root: %q", got)
	}
	if err := w.Commit(); err == nil {
		s.Error("a second Commit succeeds")
	}
}

func (s suite) copyHasSizeAndTime() {
	s.copyOf("file", content(1000, 1))
	info := s.stat("file")
	if info.Size != 1000 || !info.Mtime.Equal(mtime) {
		s.Errorf("got %d bytes of %v, want 1000 of %v", info.Size, info.Mtime, mtime)
	}
	if got := s.open("file").Info(); !got.SameVersion(info) {
		s.Errorf("the Object says %+v", got)
	}
}

func (s suite) wrongSize() {
	s.copyOf("file", content(1000, 1))
	for _, size := range []int{0, 999, 1001} {
		w := s.create("file", 1000)
		s.write(w, content(size, 2), 0)
		if err := w.Commit(); err == nil {
			s.Errorf("Commit of %d bytes for 1000 succeeds", size)
		}
		w.Abort()
		s.wantFile("file", content(1000, 1))
	}
	if _, err := s.store().Create(ctx, "file", drivers.Info{Size: -1, Mtime: mtime}); err == nil {
		s.Error("Create of less than nothing succeeds")
	}
}

func (s suite) abort() {
	w := s.create("file", 1000)
	s.write(w, content(1000, 1), 0)
	w.Abort()
	w.Abort()
	s.wantAbsent("file")
	if err := w.Commit(); err == nil {
		s.Error("Commit after Abort succeeds")
	}
	s.wantAbsent("file")

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
	s.wantAbsent("file")
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

func (s suite) wantReadBack(w drivers.Writer, want []byte) {
	s.Helper()
	got, err := io.ReadAll(io.NewSectionReader(w, 0, int64(len(want)+1)))
	if err != nil || !bytes.Equal(got, want) {
		s.Errorf("reading the Writer: %v, or other bytes", err)
	}
}

func (s suite) replacesCopy() {
	s.copyOf("file", content(100_000, 1))
	o := s.open("file")
	w := s.create("file", 50_000)
	s.write(w, content(50_000, 2), 0)
	s.wantFile("file", content(100_000, 1))
	s.commit(w)
	s.wantFile("file", content(50_000, 2))
	s.wantVersion(o, content(100_000, 1))
}

func (s suite) emptyCopy() {
	s.commit(s.create("empty", 0))
	s.wantFile("empty", nil)
}

func (s suite) anyName() {
	for i, name := range oddNames {
		s.copyOf(name+"/"+name, content(10, byte(i)))
	}
	for i, name := range oddNames {
		s.wantFile(name+"/"+name, content(10, byte(i)))
	}
	for _, name := range []string{"", ".", "/file", "a//b", "../file", "a/../b", "file/"} {
		if _, err := s.store().Create(ctx, name, drivers.Info{Mtime: mtime}); err == nil {
			s.Errorf("Create(%q) succeeds", name)
		}
		if err := s.store().Remove(ctx, name); err == nil {
			s.Errorf("Remove(%q) succeeds", name)
		}
	}
}

func (s suite) longName() {
	name := strings.Repeat(strings.Repeat("d", 99)+"/", 90) + "file"
	s.copyOf(name, content(10, 1))
	s.wantFile(name, content(10, 1))
	s.copyOf(name, content(20, 2))
	if got := s.stat(name).Size; got != 20 {
		s.Errorf("Stat: size %d, want 20", got)
	}
	if err := s.store().Remove(ctx, name); err != nil {
		s.Error(err)
	}
	s.wantAbsent(name)
}

func (s suite) folderForFile() {
	s.copyOf("x", content(10, 1))
	s.copyOf("x/y/file", content(20, 2))
	s.wantFile("x/y/file", content(20, 2))
}

func (s suite) fileForFolder() {
	s.copyOf("x/file", content(10, 1))
	w := s.create("x", 20)
	s.write(w, content(20, 2), 0)
	if err := w.Commit(); err == nil {
		s.Error("Commit in place of a folder with copies succeeds")
	}
	if err := s.store().Remove(ctx, "x/file"); err != nil {
		s.Error(err)
	}
	s.commit(w)
	s.wantFile("x", content(20, 2))
}

func (s suite) remove() {
	s.copyOf("dir/a", content(10, 1))
	s.copyOf("dir/b", content(10, 2))
	o := s.open("dir/a")
	if err := s.store().Remove(ctx, "dir/a"); err != nil {
		s.Error(err)
	}
	s.wantAbsent("dir/a")
	s.wantContent(o, content(10, 1))
	s.wantFile("dir/b", content(10, 2))
	for _, name := range []string{"dir/a", "missing/file", "dir/b/file"} {
		s.wantIs("Remove of "+name, s.store().Remove(ctx, name), fs.ErrNotExist)
	}
	if err := s.store().Remove(ctx, "dir"); err == nil {
		s.Error("Remove of a directory succeeds")
	}
}

func (s suite) concurrentCopies() {
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 8 {
				name := fmt.Sprintf("a/%d/%d", k, i)
				w := s.create(name, 10_000)
				want := content(10_000, byte(i*8+k))
				var halves sync.WaitGroup
				halves.Go(func() { s.writeQuietly(w, want[:5000], 0) })
				halves.Go(func() { s.writeQuietly(w, want[5000:], 5000) })
				halves.Wait()
				if err := w.Commit(); err != nil {
					s.Errorf("Commit of %s: %v", name, err)
				}
			}
		})
	}
	wg.Wait()
	for i := range 8 {
		for k := range 8 {
			s.wantFile(fmt.Sprintf("a/%d/%d", k, i), content(10_000, byte(i*8+k)))
		}
	}
}

// writeQuietly is write for a goroutine, which may not end the test.
func (s suite) writeQuietly(w drivers.Writer, data []byte, off int64) {
	if _, err := w.WriteAt(data, off); err != nil {
		s.Error(err)
	}
}

func (s suite) probe() {
	if err := as[drivers.Prober](s).Probe(ctx); err != nil {
		s.Error(err)
	}
	if got := s.names("."); len(got) != 0 {
		s.Errorf("probing leaves %q", got)
	}
}
