package posix

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// memory mounts a tmpfs with options, and returns its path.
func memory(t *testing.T, options string) string {
	t.Helper()
	drivertest.Need(t, "root")
	point := t.TempDir()
	if err := unix.Mount("milkweed-test", point, "tmpfs", 0, options); err != nil {
		drivertest.Skipf(t, "a tmpfs with %s: %v", options, err)
	}
	t.Cleanup(func() { unix.Unmount(point, unix.MNT_DETACH) })
	return point
}

// A complete copy takes what its size needs, in the unit of the file system: neither the rest of a huge page, nor
// what XFS has allocated ahead. That holds before the commit, too, in whichever order the blocks come.
func TestCopiesTakeTheirSize(t *testing.T) {
	for _, test := range []struct {
		name string
		make func(t *testing.T) string
		unit int64
	}{
		{"tmpfs in huge pages", func(t *testing.T) string { return memory(t, "size=64M,huge=always") }, 4096},
		{"tmpfs", func(t *testing.T) string { return memory(t, "size=64M,huge=never") }, 4096},
		{"ext4", func(t *testing.T) string { return drivertest.Disk(t, "mkfs.ext4", "-q", "-b", "4096") }, 4096},
		{"ext4 with content beside attributes", func(t *testing.T) string {
			return drivertest.Disk(t, "mkfs.ext4", "-q", "-b", "4096", "-O", "inline_data", "-I", "512")
		}, 4096},
		{"ext4 with clusters", func(t *testing.T) string {
			return drivertest.Disk(t, "mkfs.ext4", "-q", "-b", "4096", "-O", "bigalloc", "-C", "65536")
		}, 65536},
		{"xfs", func(t *testing.T) string { return drivertest.Disk(t, "mkfs.xfs", "-q") }, 4096},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := openIn(t, test.make(t))
			st, err := s.Statfs(background)
			if err != nil || st.Unit != test.unit {
				t.Fatalf("unit: got %d, %v; want %d", st.Unit, err, test.unit)
			}
			for _, size := range []int64{300, 20_000, 1 << 20, 3_000_000, 9<<20 + 1} {
				for _, reverse := range []bool{false, true} {
					name := fmt.Sprint(size, reverse)
					data := randomBytes(int(size))
					w, err := s.Create(background, name, drivers.Info{Size: size, Mtime: time.Unix(1e9, 0)})
					if err != nil {
						t.Fatal(err)
					}
					blocks := blocksOf(size)
					for i := range blocks {
						if reverse {
							i = blocks - 1 - i
						}
						off := i * drivers.ChecksumBlock
						if _, err := w.WriteAt(data[off:min(off+drivers.ChecksumBlock, size)], off); err != nil {
							t.Fatal(err)
						}
					}
					var st unix.Stat_t
					if err := unix.Fstat(w.(*writer).temp.fd, &st); err != nil {
						t.Fatal(err)
					}
					// A large file may have a block for its extents.
					needs, most := (size+test.unit-1)/test.unit*test.unit, test.unit
					if size < 1<<20 {
						most = 0
					}
					if got := st.Blocks * drivers.BlockBytes; got > needs+most {
						t.Errorf("%s: a complete copy takes %d bytes, and needs %d", name, got, needs)
					}
					if err := w.Commit(); err != nil {
						t.Fatal(err)
					}
					copied, err := s.Stat(background, name)
					if err != nil || !copied.Mtime.Equal(time.Unix(1e9, 0)) {
						t.Errorf("%s: %v, %v", name, copied.Mtime, err)
					}
					if got := copied.Blocks * drivers.BlockBytes; got > needs+most {
						t.Errorf("%s: a copy takes %d bytes, and needs %d", name, got, needs)
					}
					if err := w.Close(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}

// The unit of a folder in which nothing can be written is not known, and copies in it can be read. It is found out
// when there is room.
func TestUnitOfFullDisk(t *testing.T) {
	point := memory(t, "size=64M,huge=never")
	s := openIn(t, point)
	addCopy(t, s, "copy", "data")
	s.Close()
	mine := filepath.Join(point, "mine")
	if err := os.WriteFile(mine, make([]byte, 64<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	info, err := os.Stat(mine)
	if err == nil {
		err = os.Truncate(mine, info.Size()-4096) // for the lock
	}
	if err != nil {
		t.Fatal(err)
	}
	s = openIn(t, point)
	st, err := s.Statfs(background)
	if err != nil || st.Unit != 0 {
		t.Errorf("unit: got %d, %v; want 0", st.Unit, err)
	}
	if _, err := s.Open(background, "copy"); err != nil {
		t.Error(err)
	}
	if err := os.Remove(mine); err != nil {
		t.Fatal(err)
	}
	if st, err = s.Statfs(background); err != nil || st.Unit != 4096 {
		t.Errorf("unit when there is room: got %d, %v; want 4096", st.Unit, err)
	}
}

// The last write of a copy does not wait until the disk has the others, as a truncation would on XFS: it has the
// time-out of a write, and a commit has a longer one. Here the disk takes nothing meanwhile.
func TestTrimDoesNotWait(t *testing.T) {
	const size = 9<<20 + 5
	drivertest.Need(t, "fsfreeze", "mkfs.xfs")
	host := drivertest.Disk(t, "mkfs.ext4", "-q")
	image, point := filepath.Join(host, "image"), t.TempDir()
	run(t, "truncate", "-s", "300M", image)
	run(t, "mkfs.xfs", "-q", image)
	run(t, "mount", "-o", "loop", image, point)
	t.Cleanup(func() { unix.Unmount(point, unix.MNT_DETACH) })
	s := openIn(t, point)
	w, err := s.Create(background, "copy", drivers.Info{Size: size, Mtime: time.Unix(1e9, 0)})
	if err != nil {
		t.Fatal(err)
	}
	data, written := randomBytes(size), make(chan error, 1)
	run(t, "fsfreeze", "-f", host)
	go func() {
		_, err := w.WriteAt(data, 0)
		written <- err
	}()
	select {
	case err = <-written:
		run(t, "fsfreeze", "-u", host)
	case <-time.After(10 * time.Second):
		run(t, "fsfreeze", "-u", host)
		t.Error("the last write waits for the disk")
		err = <-written
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// A huge page whose rest cannot be given back while somebody reads from it is given back by the commit.
func TestTrimAfterReader(t *testing.T) {
	const size, tail = 2<<20 + 20_000, 2 << 20
	s := openIn(t, memory(t, "size=64M,huge=always"))
	w, err := s.Create(background, "copy", drivers.Info{Size: size, Mtime: time.Unix(1e9, 0)})
	if err != nil {
		t.Fatal(err)
	}
	fd, data := w.(*writer).temp.fd, randomBytes(size)
	takes := func() int64 {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * drivers.BlockBytes
	}
	if _, err := w.WriteAt(data[tail:], tail); err != nil {
		t.Fatal(err)
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	off := int64(tail)
	if _, err := unix.Splice(fd, &off, pipe[1], nil, 4096, 0); err != nil { // the pipe has the page
		t.Fatal(err)
	}
	if _, err := w.WriteAt(data[:tail], 0); err != nil {
		t.Fatal(err)
	}
	if got := takes(); got < 4<<20 {
		t.Errorf("a page that is being read was given back: the copy takes %d bytes", got)
	}
	unix.Close(pipe[0])
	unix.Close(pipe[1])
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	if got := takes(); got > roundUp(size, 4096) {
		t.Errorf("a copy of %d bytes takes %d", size, got)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}
