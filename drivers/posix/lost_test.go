package posix

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// run runs a program and returns its output.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}

// thinDisk mounts a file system on a disk that claims to have 512 MiB, but can store only size
// bytes, with the journal: further ones fail when the kernel writes them back, as on a thin pool that is
// full. It returns the mount point and the image of the disk.
func thinDisk(t *testing.T, fsType string, size int) (point, image string) {
	t.Helper()
	drivertest.Need(t, "root", "mkfs.ext4", "mkfs.xfs")
	pool := t.TempDir()
	point, image = t.TempDir(), filepath.Join(pool, "disk.img")
	if err := unix.Mount("milkweed-test", pool, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(pool, unix.MNT_DETACH) })
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 512<<20); err != nil {
		t.Fatal(err)
	}
	args := map[string][]string{
		"ext4": {"-q", "-F", "-J", "size=4", "-E", "nodiscard"},
		"xfs":  {"-q", "-f", "-K"},
	}[fsType]
	run(t, "mkfs."+fsType, append(args, image)...)
	run(t, "mount", "-o", "loop", image, point)
	t.Cleanup(func() { unix.Unmount(point, unix.MNT_DETACH) })
	return point, image
}

// A disk that accepts writes and loses them later fails the commits of the copies that it has
// lost. What it has lost without an error is detected at the first use. No copy is ever read
// with other bytes.
func TestDiskLosesWrites(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the kernel to write pages")
	}
	for fsType, size := range map[string]int{"ext4": 30 << 20, "xfs": 90 << 20} {
		t.Run(fsType, func(t *testing.T) {
			point, _ := thinDisk(t, fsType, size)
			s := openIn(t, point)
			content := func(i int) []byte { return randomBytes(500_000 + i) }
			var kept, lost int
			for i := range 96 {
				switch err := writeAndRead(t, s, fmt.Sprint("file", i), content(i)); {
				case err == nil:
					kept++
				case errors.Is(err, drivers.ErrLost), errors.Is(err, unix.ENOSPC):
					lost++
				case errors.Is(err, unix.EROFS) && lost > 0: // the journal was lost, too
				default:
					t.Errorf("file %d: got %v, want ErrLost", i, err)
				}
			}
			if kept == 0 || lost == 0 {
				t.Fatalf("%d copies were kept and %d lost, want some of each", kept, lost)
			}
			corrupt := 0
			for i := range 96 {
				o, err := s.Open(ctx, fmt.Sprint("file", i))
				if err != nil {
					continue
				}
				defer o.Close()
				want := content(i)
				got := make([]byte, len(want))
				switch _, err := o.ReadAt(ctx, got, 0); {
				case errors.Is(err, drivers.ErrCorrupt):
					corrupt++
				case err != nil || !bytes.Equal(got, want):
					t.Errorf("file %d: %v, or wrong bytes", i, err)
				}
			}
			t.Logf("%d copies were kept, %d of them are corrupt; %d were lost", kept, corrupt, lost)
			if corrupt > kept/10 {
				t.Errorf("%d of %d copies that were confirmed are corrupt", corrupt, kept)
			}
		})
	}
}

// writeAndRead makes a copy, and reads it while it is in flight and after the commit. Between
// the reads the kernel writes it back, and drops it from memory if that has failed.
func writeAndRead(t *testing.T, s *Store, name string, data []byte) error {
	w, err := s.Create(ctx, name, drivers.Info{Size: int64(len(data)), Mtime: time.Unix(1e9, 0)})
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err := w.WriteAt(data, 0); err != nil {
		return err
	}
	read := func(when string) {
		got := make([]byte, len(data))
		if _, err := w.ReadAt(got, 0); err == nil && !bytes.Equal(got, data) {
			t.Errorf("%s: wrong bytes %s the commit", name, when)
		}
	}
	fd := w.(*writer).temp.fd
	for range 3 {
		read("before")
		unix.SyncFileRange(fd, 0, 0, unix.SYNC_FILE_RANGE_WRITE)
		time.Sleep(time.Millisecond)
	}
	err = w.Commit()
	unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED)
	read("after")
	return err
}

// withoutAllocation returns a store on an ext4 that accepts writes and cannot allocate a block. The folders of
// the store were made before.
func withoutAllocation(t *testing.T) *Store {
	t.Helper()
	point, image := thinDisk(t, "ext4", 100<<20)
	s := openIn(t, point)
	addCopy(t, s, "before", "content")
	s.Close()
	run(t, "umount", point)
	disk, err := os.OpenFile(image, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	bitmaps := regexp.MustCompile(`Block bitmap at (\d+)`).FindAllStringSubmatch(run(t, "dumpe2fs", image), -1)
	for _, m := range bitmaps {
		block, _ := strconv.ParseInt(m[1], 10, 64)
		if _, err := disk.WriteAt(make([]byte, 4096), block*4096); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "mount", "-o", "loop,errors=continue", image, point)
	return openIn(t, point)
}

// Bytes for which the file system finds no place when it writes them back are lost, and the kernel
// reports that to nobody. They are never read with another content, and no copy of them is committed.
func TestAllocationFails(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the kernel to write pages")
	}
	for _, size := range []int{5000, 300_000, 3 * drivers.ChecksumBlock} {
		for _, way := range []string{"at the commit", "in the background", "during reads"} {
			t.Run(fmt.Sprint(size, " bytes ", way), func(t *testing.T) {
				s := withoutAllocation(t)
				w, err := s.Create(ctx, "file", drivers.Info{Size: int64(size), Mtime: time.Unix(1e9, 0)})
				if err != nil {
					t.Fatal(err)
				}
				defer w.Close()
				data := randomBytes(size)
				if _, err := w.WriteAt(data, 0); err != nil {
					t.Fatal(err)
				}
				read := func() error {
					got := make([]byte, size/2)
					off := rand.IntN(size - len(got))
					_, err := w.ReadAt(got, int64(off))
					if err == nil && !bytes.Equal(got, data[off:][:len(got)]) {
						t.Error("wrong bytes")
					}
					return err
				}
				var done atomic.Bool
				var readers sync.WaitGroup
				switch way {
				case "in the background":
					unix.Syncfs(w.(*writer).temp.fd)
					if err := read(); !errors.Is(err, drivers.ErrLost) {
						t.Errorf("got %v, want ErrLost", err)
					}
				case "during reads":
					for range 4 {
						readers.Go(func() {
							for !done.Load() {
								read()
							}
						})
					}
				}
				if err := w.Commit(); !errors.Is(err, drivers.ErrLost) {
					t.Errorf("commit: got %v, want ErrLost", err)
				}
				done.Store(true)
				readers.Wait()
				if err := read(); !errors.Is(err, drivers.ErrLost) {
					t.Errorf("after the commit: got %v, want ErrLost", err)
				}
			})
		}
	}
}

// A check reads the disk, also if the kernel has the right bytes in its page cache, in folios that
// are larger than a block or that begin in another block.
func TestCheckReadsTheDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("makes two file systems")
	}
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			point, image := thinDisk(t, fsType, 200<<20)
			setReadAhead(t, point, 2560) // some folios then are larger than a block
			s := openIn(t, point)
			const size = 7*drivers.ChecksumBlock + 5000
			data := randomBytes(size)
			addCopy(t, s, "file", string(data))
			o := openCopyOf(t, s, "file")
			for off := int64(0); off < size; off += drivers.ChecksumBlock {
				if _, err := o.(drivers.Checker).Check(ctx, off); err != nil {
					t.Fatal(err)
				}
			}
			for _, off := range []int64{100, drivers.ChecksumBlock + 77, 5*drivers.ChecksumBlock - 1, size - 1} {
				cacheInLargeFolios(t, copyPath(s, "file"))
				flipOnDisk(t, image, data, off)
				if _, err := o.(drivers.Checker).Check(ctx, off-off%drivers.ChecksumBlock); !errors.Is(err, drivers.ErrCorrupt) {
					t.Errorf("flip at %d: got %v, want ErrCorrupt", off, err)
				}
			}
		})
	}
}

// setReadAhead sets the read-ahead of the disk of a file system, in KiB. It determines the size of
// folios.
func setReadAhead(t *testing.T, point string, kib int) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(point, &st); err != nil {
		t.Fatal(err)
	}
	file := fmt.Sprintf("/sys/dev/block/%d:%d/queue/read_ahead_kb", unix.Major(st.Dev), unix.Minor(st.Dev))
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(kib)), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.WriteFile(file, before, 0) })
}

// cacheInLargeFolios makes the kernel cache a file, as a sequential reader with a large read-ahead
// does.
func cacheInLargeFolios(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dropPages(int(f.Fd()), 0)
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_SEQUENTIAL); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, f); err != nil {
		t.Fatal(err)
	}
}

// flipOnDisk flips a bit of a file of which a disk has the content data. It finds the place in the
// image of the disk, so that the kernel does not notice.
func flipOnDisk(t *testing.T, image string, data []byte, off int64) {
	t.Helper()
	disk, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	page := off - off%4096
	at := bytes.Index(disk, data[page:min(page+4096, int64(len(data)))])
	if at < 0 {
		t.Fatalf("the disk does not have the page at %d", page)
	}
	flip(t, image, int64(at)+off-page)
}
