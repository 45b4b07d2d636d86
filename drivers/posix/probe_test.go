package posix

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A probe reads a copy from the disk, also if the kernel has the right bytes in its page cache, and
// leaves the page cache as it is.
func TestProbeCopyReadsTheDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("looks at the page cache")
	}
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			point, image := thinDisk(t, fsType, 200<<20)
			s := openIn(t, point)
			data := randomBytes(drivers.ChecksumBlock - 5000)
			addCopy(t, s, "file", string(data))
			cacheInLargeFolios(t, copyPath(s, "file"))
			f, err := os.Open(copyPath(s, "file"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			before := resident(t, f.Fd())
			if _, err := s.ProbeCopy(ctx, "file"); err != nil {
				t.Fatal(err)
			}
			if after := resident(t, f.Fd()); before == 0 || after != before {
				t.Errorf("%d bytes are in the page cache after the probe, %d before", after, before)
			}
			buf := blockBuffers.Get().(*[drivers.ChecksumBlock]byte)
			defer blockBuffers.Put(buf)
			// Without O_DIRECT, the probe would read the pages again, of which there are then as many.
			if err := openCopyOf(t, s, "file").(*copyObject).checkDirect(0, buf[:]); err != nil {
				t.Errorf("with O_DIRECT: %v", err)
			}
			flipOnDisk(t, image, data, 77_777)
			if _, err := s.ProbeCopy(ctx, "file"); !errors.Is(err, drivers.ErrCorrupt) {
				t.Errorf("a bit was flipped on the disk: got %v, want ErrCorrupt", err)
			}
			_, err = openCopyOf(t, s, "file").(drivers.BackingFiler).BackingFile(func(uintptr) error { return nil })
			if !errors.Is(err, drivers.ErrCorrupt) {
				t.Errorf("backing file of the corrupt copy: got %v, want ErrCorrupt", err)
			}
		})
	}
}

// After a read has failed, the kernel may not read the copy directly until all of it was compared
// with its checksums.
func TestUnreadableCopyIsCheckedAgain(t *testing.T) {
	s := openIn(t, t.TempDir())
	addCopy(t, s, "file", string(randomBytes(2*drivers.ChecksumBlock)))
	check := func(c *copyObject) {
		t.Helper()
		for off := range int64(2) {
			if _, err := c.Check(ctx, off*drivers.ChecksumBlock); err != nil {
				t.Fatal(err)
			}
		}
	}
	check(openCopyOf(t, s, "file").(*copyObject))
	c := openCopyOf(t, s, "file").(*copyObject)
	if !c.Checked() {
		t.Fatal("the copy is not checked")
	}
	c.unreadable(pathError("read", "file", unix.EIO))
	again := openCopyOf(t, s, "file").(*copyObject)
	if _, err := again.BackingFile(func(uintptr) error { return nil }); !errors.Is(err, drivers.ErrUnchecked) {
		t.Errorf("got %v, want ErrUnchecked", err)
	}
	check(again)
	if !openCopyOf(t, s, "file").(*copyObject).Checked() {
		t.Error("the copy does not count as checked after the second time")
	}
}

func BenchmarkProbeCopy(b *testing.B) {
	size := drivertest.Size(64<<20, 4<<20)
	s, err := OpenStore(config(b.TempDir()))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	w, err := s.Create(ctx, "file", drivers.Info{Mode: unix.S_IFREG, Size: int64(size), Mtime: time.Unix(1, 0)})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	if _, err := w.WriteAt(randomBytes(size), 0); err != nil {
		b.Fatal(err)
	}
	if err := w.Commit(); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(drivers.ChecksumBlock)
	for b.Loop() {
		if _, err := s.ProbeCopy(ctx, "file"); err != nil {
			b.Fatal(err)
		}
	}
}
