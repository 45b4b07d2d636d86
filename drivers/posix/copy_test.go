package posix

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// randomBytes returns n bytes that do not repeat.
func randomBytes(n int) []byte {
	data := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(data)
	return data
}

// copyPath returns the path of the copy of a name.
func copyPath(s *Store, name string) string { return filepath.Join(s.Path(), filesName, name) }

// keepingTimes calls f, which changes the file at path, and restores its modification time.
func keepingTimes(t *testing.T, path string, f func()) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f()
	if err := os.Chtimes(path, time.Time{}, info.ModTime()); err != nil {
		t.Fatal(err)
	}
}

// flip inverts one bit of the file at path. The modification time stays.
func flip(t *testing.T, path string, off int64) {
	t.Helper()
	keepingTimes(t, path, func() {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var b [1]byte
		f.ReadAt(b[:], off)
		b[0] ^= 1 << (off % 8)
		if _, err := f.WriteAt(b[:], off); err != nil {
			t.Fatal(err)
		}
	})
}

// reopened opens the store of a tier again, as the next mount does.
func reopened(t *testing.T, s *Store) *Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return openIn(t, s.config.Tier)
}

// openCopyOf opens a copy and closes it at the end of the test.
func openCopyOf(t *testing.T, s *Store, name string) drivers.Object {
	t.Helper()
	o, err := s.Open(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	return o
}

// A file that is not exactly what was written is never read as a copy.
func TestDamagedCopies(t *testing.T) {
	needsRoot := func(t *testing.T) {
		drivertest.Need(t, "root")
	}
	data := randomBytes(5000)
	tests := map[string]struct {
		damage func(t *testing.T, s *Store)
		want   error
	}{
		"truncated": {func(t *testing.T, s *Store) {
			keepingTimes(t, copyPath(s, "file"), func() { os.Truncate(copyPath(s, "file"), 4999) })
		}, drivers.ErrCorrupt},
		"another modification time": {func(t *testing.T, s *Store) {
			os.Chtimes(copyPath(s, "file"), time.Time{}, time.Unix(1, 0))
		}, drivers.ErrCorrupt},
		"replaced by a file of the same size and time": {func(t *testing.T, s *Store) {
			path := copyPath(s, "file")
			keepingTimes(t, path, func() {
				os.Rename(path, path+".old")
				os.WriteFile(path, randomBytes(5000), 0o600)
			})
		}, fs.ErrNotExist},
		"two copies exchanged": {func(t *testing.T, s *Store) {
			a, b := copyPath(s, "file"), copyPath(s, "other")
			if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
				t.Fatal(err)
			}
		}, drivers.ErrCorrupt},
		"the tier was copied": {func(t *testing.T, s *Store) {
			path := copyPath(s, "file")
			if out, err := exec.Command("cp", "-a", path, path+".new").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			os.Rename(path+".new", path)
		}, drivers.ErrCorrupt},
		"the log is gone": {func(t *testing.T, s *Store) {
			os.Remove(filepath.Join(s.Path(), recordsName))
		}, drivers.ErrCorrupt},
		"the record is damaged": {func(t *testing.T, s *Store) {
			flip(t, filepath.Join(s.Path(), recordsName), 30)
		}, drivers.ErrCorrupt},
		"another owner": {func(t *testing.T, s *Store) {
			needsRoot(t)
			os.Chown(copyPath(s, "file"), 12345, -1)
		}, fs.ErrNotExist},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			wantNoLeak(t)
			s := openIn(t, t.TempDir())
			addCopy(t, s, "file", string(data))
			addCopy(t, s, "other", string(randomBytes(5000)))
			s = closed(t, s, func() { test.damage(t, s) })
			if has(t, s, "file") {
				t.Error("the store has the copy")
			}
			if _, err := s.Open(ctx, "file"); !errors.Is(err, test.want) {
				t.Errorf("Open: got %v, want %v", err, test.want)
			}
			if _, err := s.Stat(ctx, "file"); !errors.Is(err, test.want) {
				t.Errorf("Stat: got %v, want %v, as for Open", err, test.want)
			}
		})
	}
}

// closed closes s, calls f and opens the store again.
func closed(t *testing.T, s *Store, f func()) *Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	f()
	return openIn(t, s.config.Tier)
}

// Attributes that say nothing about the content may change.
func TestUndamagedCopies(t *testing.T) {
	s := openIn(t, t.TempDir())
	addCopy(t, s, "file", "data")
	s = closed(t, s, func() {
		if err := os.Chmod(copyPath(s, "file"), 0o640); err != nil {
			t.Fatal(err)
		}
	})
	if !has(t, s, "file") {
		t.Error("chmod makes a copy unusable")
	}
}

// A bit that flips in a copy is detected at the first use of its block after the store was
// opened, however the copy is read.
func TestBitRot(t *testing.T) {
	const size = 3*drivers.ChecksumBlock + 1000
	data := randomBytes(size)
	for _, off := range []int64{0, drivers.ChecksumBlock - 1, 2*drivers.ChecksumBlock + 77, size - 1} {
		s := openIn(t, t.TempDir())
		addCopy(t, s, "file", string(data))
		flip(t, copyPath(s, "file"), off)
		s = reopened(t, s)
		for _, n := range []int{1, 4096, 1 << 20, size} {
			o := openCopyOf(t, s, "file")
			got := make([]byte, n)
			var failed error
			for at := 0; at < size && failed == nil; at += n {
				want := data[at:min(at+n, size)]
				if n == 1 && at > 10 { // single bytes: only near the flip
					at = max(at, int(off)-5)
					want = data[at : at+1]
				}
				m, err := o.ReadAt(ctx, got[:len(want)], int64(at))
				switch {
				case err != nil:
					failed = err
				case !bytes.Equal(got[:m], want):
					t.Fatalf("flip at %d, read of %d at %d: wrong bytes", off, n, at)
				}
				if n == 1 && at > int(off) {
					break
				}
			}
			if !errors.Is(failed, drivers.ErrCorrupt) {
				t.Errorf("flip at %d, reads of %d: got %v, want ErrCorrupt", off, n, failed)
			}
		}
	}
}

// The kernel may read a copy directly only after all of its blocks were checked. A copy of one
// block is checked at once.
func TestBackingFileIsChecked(t *testing.T) {
	register := func(uintptr) error { return nil }
	backing := func(s *Store, name string) error {
		release, err := openCopyOf(t, s, name).(drivers.BackingFiler).BackingFile(register)
		if err == nil {
			release()
		}
		_, done, spliceErr := openCopyOf(t, s, name).(drivers.Splicer).SpliceDescriptor()
		if spliceErr == nil {
			done(0)
		}
		if (err == nil) != (spliceErr == nil) {
			t.Errorf("BackingFile: %v; SpliceDescriptor: %v", err, spliceErr)
		}
		return err
	}
	const size = drivers.ChecksumBlock + 1
	s := openIn(t, t.TempDir())
	for _, name := range []string{"small", "small and wrong", "large", "large and wrong"} {
		n := 1000
		if name[0] == 'l' {
			n = size
		}
		addCopy(t, s, name, string(randomBytes(n)))
		want := error(nil)
		if name[0] == 'l' && s.FSType() != "tmpfs" {
			want = drivers.ErrUnchecked
		}
		if err := backing(s, name); !errors.Is(err, want) {
			t.Errorf("%s: just written: got %v, want %v", name, err, want)
		}
	}
	flip(t, copyPath(s, "small and wrong"), 999)
	flip(t, copyPath(s, "large and wrong"), size-1)
	s = reopened(t, s)
	for name, want := range map[string]error{
		"small": nil, "small and wrong": drivers.ErrCorrupt, "large": drivers.ErrUnchecked, "large and wrong": drivers.ErrUnchecked,
	} {
		if err := backing(s, name); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", name, err, want)
		}
	}
	for name, want := range map[string]error{"large": nil, "large and wrong": drivers.ErrCorrupt} {
		c := openCopyOf(t, s, name).(drivers.Checker)
		n, err := c.Check(ctx, 0)
		if n != drivers.ChecksumBlock || err != nil {
			t.Errorf("%s: check of the first block: %d, %v", name, n, err)
		}
		if err := backing(s, name); !errors.Is(err, drivers.ErrUnchecked) {
			t.Errorf("%s: checked in part: got %v, want ErrUnchecked", name, err)
		}
		if _, err = c.Check(ctx, drivers.ChecksumBlock); !errors.Is(err, want) {
			t.Errorf("%s: check of the last block: got %v, want %v", name, err, want)
		}
	}
	if err := backing(s, "large"); err != nil {
		t.Errorf("large: after the check: %v", err)
	}
	for _, off := range []int64{-1, 1, size, 2 * drivers.ChecksumBlock} {
		if _, err := openCopyOf(t, s, "large").(drivers.Checker).Check(ctx, off); err == nil {
			t.Errorf("a check at %d succeeds", off)
		}
	}
}

// Units may be written in any order. The checksums of the blocks are those of the content.
func TestChecksumsInAnyOrder(t *testing.T) {
	for _, size := range []int{
		1, sumStep, sumStep + 1, drivers.WriteUnit, drivers.ChecksumBlock, drivers.ChecksumBlock + 1,
		2*drivers.ChecksumBlock + 12345, 3*drivers.ChecksumBlock - 1,
	} {
		data := randomBytes(size)
		s := openIn(t, t.TempDir())
		w, err := s.Create(ctx, "file", drivers.Info{Size: int64(size), Mtime: time.Unix(1e9, 0)})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		for _, i := range rand.Perm((size + drivers.WriteUnit - 1) / drivers.WriteUnit) {
			off := i * drivers.WriteUnit
			if _, err := w.WriteAt(data[off:min(off+drivers.WriteUnit, size)], int64(off)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Commit(); err != nil {
			t.Fatal(err)
		}
		c := openCopyOf(t, reopened(t, s), "file")
		got := make([]byte, size)
		if _, err := c.ReadAt(ctx, got, 0); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes: got %v, or wrong bytes", size, err)
		}
	}
}

// The Info of a copy has the attributes of the source file.
func TestCopyHasAttributesOfSource(t *testing.T) {
	want := drivers.Info{
		Size: 4, Mtime: time.Unix(1e9, 5), Ctime: time.Unix(2e9, 7), Mode: unix.S_IFREG | 0o4751, UID: 7, GID: 8, Nlink: 9,
	}
	s := openIn(t, t.TempDir())
	w, err := s.Create(ctx, "file", want)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.WriteAt([]byte("data"), 0); err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	s = reopened(t, s)
	listed, err := s.ReadDir(ctx, ".")
	if err != nil || len(listed) != 1 {
		t.Fatalf("ReadDir: %v, %v", listed, err)
	}
	stat, err := s.Stat(ctx, "file")
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range []drivers.Info{listed[0], stat, openCopyOf(t, s, "file").Info()} {
		if !got.SameVersion(want) || !got.Ctime.Equal(want.Ctime) || got.Mode != want.Mode ||
			got.UID != want.UID || got.GID != want.GID || got.Nlink != want.Nlink {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

// Restamp changes the attributes that are kept with a copy, and not the copy.
func TestRestamp(t *testing.T) {
	s := openIn(t, t.TempDir())
	data := randomBytes(drivers.ChecksumBlock + 5)
	addCopy(t, s, "file", string(data))
	want := drivers.Info{Ctime: time.Unix(3e9, 1), Mode: unix.S_IFREG | 0o400, UID: 1, GID: 2, Nlink: 3}
	if err := s.Restamp(ctx, "file", want); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		o := openCopyOf(t, s, "file")
		got := o.Info()
		if !got.Ctime.Equal(want.Ctime) || got.Mode != want.Mode || got.UID != 1 || got.GID != 2 || got.Nlink != 3 {
			t.Errorf("got %+v", got)
		}
		p := make([]byte, len(data))
		if _, err := o.ReadAt(ctx, p, 0); err != nil || !bytes.Equal(p, data) {
			t.Errorf("%v, or wrong bytes", err)
		}
		s = reopened(t, s)
	}
	if err := s.Restamp(ctx, "none", want); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a copy: %v", err)
	}
}

// Sweep removes what is left of copies, and nothing that Milkweed did not create.
func TestSweep(t *testing.T) {
	s := openIn(t, t.TempDir())
	for _, name := range []string{"good", "changed", "without record", "removed"} {
		addCopy(t, s, "dir/"+name, "data")
	}
	path := func(name string) string { return copyPath(s, "dir/"+name) }
	s = closed(t, s, func() {
		os.Chtimes(path("changed"), time.Time{}, time.Unix(1, 0))
		os.Rename(path("without record"), path("old"))
		os.WriteFile(path("without record"), []byte("data"), 0o600)
		os.Chmod(path("without record"), 0o600|os.ModeSticky)
		os.WriteFile(path("notes.txt"), []byte("of somebody"), 0o600)
		os.Symlink("/", path("link"))
		os.Rename(path("removed"), path("same inode number")) // as of a new file that gets it
		os.Chmod(path("same inode number"), 0o600)
	})
	infos, err := s.Sweep(ctx, "dir")
	if err != nil || len(infos) != 2 { // and the link
		t.Errorf("Sweep: %v, %v; want one copy and one link", infos, err)
	}
	for name, want := range map[string]bool{
		"good": true, "changed": false, "without record": false, "old": false, "notes.txt": true, "link": true, "same inode number": true,
	} {
		if _, err := os.Lstat(path(name)); (err == nil) != want {
			t.Errorf("%s: exists %v, want %v", name, err == nil, want)
		}
	}
}

// A commit does not replace the file of another user.
func TestCommitOverForeignFile(t *testing.T) {
	drivertest.Need(t, "root")
	s := openIn(t, t.TempDir())
	addCopy(t, s, "file", "data")
	if err := os.Chown(copyPath(s, "file"), 12345, -1); err != nil {
		t.Fatal(err)
	}
	w, err := s.Create(ctx, "file", drivers.Info{Mtime: time.Unix(1e9, 0)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Commit(); !errors.As(err, new(*ForeignError)) {
		t.Errorf("Commit: got %v, want a ForeignError", err)
	}
	if err := s.Remove(ctx, "file"); !errors.Is(err, unix.EPERM) {
		t.Errorf("Remove: got %v, want EPERM", err)
	}
	if _, err := s.Create(ctx, "file/below", drivers.Info{}); !errors.Is(err, unix.EPERM) { // now a directory at the source
		t.Errorf("Create below: got %v, want EPERM", err)
	}
	if _, err := os.Stat(copyPath(s, "file")); err != nil {
		t.Error(err)
	}
}

// waste makes most of the log of no use, so that it is due to be rewritten.
func waste(t *testing.T, s *Store) {
	t.Helper()
	records := s.tree.Load().records
	for range 2 * minLog / recordSize {
		if _, err := records.write(&record{inode: 1 << 60, source: drivers.Info{Size: removedSize}}); err != nil {
			t.Fatal(err)
		}
	}
}

// The log is rewritten when most of it is of no use, and the records stay.
func TestLogIsRewritten(t *testing.T) {
	s := openIn(t, t.TempDir())
	for i := range 10 {
		addCopy(t, s, fmt.Sprint("keep", i), "data")
	}
	log := filepath.Join(s.Path(), recordsName)
	before, err := os.Stat(log)
	if err != nil {
		t.Fatal(err)
	}
	waste(t, s)
	s = reopened(t, s)
	for i := range 10 {
		if !has(t, s, fmt.Sprint("keep", i)) {
			t.Errorf("copy %d is gone", i)
		}
	}
	if after, err := os.Stat(log); err != nil || after.Size() != before.Size() {
		t.Errorf("the log has %d bytes, want %d (%v)", after.Size(), before.Size(), err)
	}
	addCopy(t, s, "later", "data")
	if s = reopened(t, s); !has(t, s, "later") || !has(t, s, "keep3") {
		t.Error("a copy is gone after the log was rewritten")
	}
}

// A log that cannot be rewritten, because the disk is full, is used as it is.
func TestLogOnAFullDisk(t *testing.T) {
	disk := memory(t, "size=16m")
	s := openIn(t, filepath.Join(disk, "tier"))
	const copies = 1000
	for i := range copies {
		addCopy(t, s, fmt.Sprint("keep", i), "data")
	}
	addLink(t, s, "keep0", "link")
	waste(t, s)
	log, mine := filepath.Join(s.Path(), recordsName), filepath.Join(disk, "mine")
	before, err := os.Stat(log)
	if err != nil {
		t.Fatal(err)
	}
	for _, full := range []bool{true, false} {
		s = closed(t, s, func() {
			if !full {
				os.Remove(mine)
				return
			}
			if err := os.WriteFile(mine, make([]byte, 16<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
				t.Fatalf("the disk is not full: %v", err)
			}
			info, err := os.Stat(mine)
			if err == nil { // so that a part of the log can be written
				err = os.Truncate(mine, info.Size()-copies*recordSize/2)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
		for i := range copies {
			openCopyOf(t, s, fmt.Sprint("keep", i))
		}
		openCopyOf(t, s, "link")
		after, err := os.Stat(log)
		if err != nil {
			t.Fatal(err)
		}
		if rewritten := after.Size() < before.Size()/2; rewritten == full {
			t.Errorf("full disk %v: the log has %d bytes, %d before", full, after.Size(), before.Size())
		}
	}
}

// If the disk has no room when the new log has its name already, that one is used.
func TestLogOnADiskThatBecomesFull(t *testing.T) {
	s := openIn(t, t.TempDir())
	addCopy(t, s, "before", "data")
	waste(t, s)
	s = closed(t, s, func() {})
	failed := false
	syncFolder = func(int) error { failed = true; return unix.ENOSPC }
	t.Cleanup(func() { syncFolder = unix.Fsync })
	if _, err := s.Open(ctx, "before"); !failed || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got error %v", err)
	}
	addCopy(t, s, "after", "data")
	if s = reopened(t, s); !has(t, s, "before") || !has(t, s, "after") {
		t.Error("a copy is gone")
	}
}

// A disk that is full when the store is opened does not keep it from reading the copies.
func TestOpenOnAFullDisk(t *testing.T) {
	disk := memory(t, "size=1m")
	s := openIn(t, filepath.Join(disk, "tier"))
	addCopy(t, s, "f", "data")
	for range 2 {
		s = closed(t, s, func() {
			mine, err := os.OpenFile(filepath.Join(disk, "mine"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer mine.Close()
			for err == nil {
				_, err = mine.Write(make([]byte, 4096))
			}
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
		})
		if !has(t, s, "f") {
			t.Error("the copy is gone")
		}
	}
}

// Records after a damaged part of the log are found.
func TestDamagedLog(t *testing.T) {
	s := openIn(t, t.TempDir())
	addCopy(t, s, "first", "data")
	addCopy(t, s, "middle", string(randomBytes(3<<20)))
	addCopy(t, s, "last", "data")
	s = closed(t, s, func() {
		flip(t, filepath.Join(s.Path(), recordsName), recordSize+4+25) // in the size of the second record
		f, err := os.OpenFile(filepath.Join(s.Path(), recordsName), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		f.Write(make([]byte, 101)) // as after a power failure
	})
	if !has(t, s, "first") || has(t, s, "middle") || !has(t, s, "last") {
		t.Error("damage to one record concerns others, or is not detected")
	}
	addCopy(t, s, "later", "data")
	if s = reopened(t, s); !has(t, s, "later") || !has(t, s, "last") {
		t.Error("a copy is gone")
	}
}

func FuzzReadLog(f *testing.F) {
	r := record{inode: 1, name: 2, sums: []uint32{1, 2}, source: drivers.Info{Size: 2 << 20, Mtime: time.Unix(1e9, 5)}}
	r.mtime = r.source.Mtime
	f.Add(r.appendTo(nil))
	f.Add(r.appendTo(r.appendTo([]byte("damage.."))))
	other := r
	other.mtime = time.Unix(1e9, 0)
	f.Add(other.appendTo(nil))
	link := r
	link.link, link.name, link.mtime = true, 3, time.Unix(2e9, 7)
	f.Add(link.appendTo(r.appendTo(nil)))
	f.Add((&record{inode: 1, name: 3, link: true, source: drivers.Info{Size: removedSize}}).appendTo(link.appendTo(r.appendTo(nil))))
	f.Add((&record{inode: 1, source: drivers.Info{Size: removedSize}}).appendTo(r.appendTo(nil)))
	f.Fuzz(func(t *testing.T, log []byte) {
		file, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		file.Write(log)
		index, live, end, err := readLog(context.Background(), int(file.Fd()))
		if err != nil || live > end || end < int64(len(log)) {
			t.Fatalf("%d bytes live, end %d of %d, %v", live, end, len(log), err)
		}
		for inode, links := range index.links {
			for name, p := range links {
				if r, err := readRecord(int(file.Fd()), p.off); err != nil || !r.link || r.inode != inode || r.name != name {
					t.Fatalf("link %d of %d: %+v, %v", name, inode, r, err)
				}
			}
		}
		for inode, p := range index.index {
			if r, err := readRecord(int(file.Fd()), p.off); err != nil || r.inode != inode {
				t.Fatalf("record of %d: %+v, %v", inode, r, err)
			}
		}
		r := record{inode: 1 << 50, sums: []uint32{7}, source: drivers.Info{Size: 1}}
		file.WriteAt(r.appendTo(nil), end)
		if index, _, _, err = readLog(context.Background(), int(file.Fd())); err != nil || index.index[1<<50].off != end {
			t.Fatalf("a record that was appended at %d is at %d, %v", end, index.index[1<<50].off, err)
		}
	})
}
