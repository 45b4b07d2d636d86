package faultdisk

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// diskEnv makes the test binary the process of a disk: the base file and the folder.
const diskEnv = "FAULTDISK_TEST"

func TestMain(m *testing.M) {
	if base := os.Getenv(diskEnv); base != "" {
		if err := Run(base, MinSize("xfs"), filepath.Join(filepath.Dir(base), "disk"), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A rig is a disk with a file system that is mounted.
type rig struct {
	*Disk
	t      *testing.T
	fsType string
	point  string
}

func newRig(t *testing.T, fsType string) *rig {
	t.Helper()
	dir := t.TempDir()
	r := &rig{t: t, fsType: fsType, point: filepath.Join(dir, "mnt")}
	must(t, os.Mkdir(r.point, 0o755))
	must(t, os.Mkdir(filepath.Join(dir, "disk"), 0o755))
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), diskEnv+"="+filepath.Join(dir, "base"))
	cmd.Stderr = os.Stderr
	var err error
	r.Disk, err = Start(cmd, filepath.Join(dir, "disk"))
	must(t, err)
	t.Cleanup(func() {
		if err := errors.Join(r.PowerOff(0, 0), r.unmount(), r.Stop()); err != nil {
			t.Error(err)
		}
	})
	device, err := r.Attach(t.Context())
	must(t, err)
	must(t, Format(t.Context(), device, fsType))
	must(t, Mount(t.Context(), device, fsType, r.point))
	return r
}

// unmount unmounts the file system, if it is mounted.
func (r *rig) unmount() error {
	for err := error(nil); ; time.Sleep(10 * time.Millisecond) {
		if err = unix.Unmount(r.point, 0); err == unix.EINVAL {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// cut cuts the power and mounts the disk again.
func (r *rig) cut(keep float64) {
	r.t.Helper()
	must(r.t, r.PowerOff(keep, 1))
	must(r.t, r.unmount())
	must(r.t, r.Detach())
	must(r.t, r.PowerOn())
	device, err := r.Attach(r.t.Context())
	must(r.t, err)
	must(r.t, Mount(r.t.Context(), device, r.fsType, r.point))
}

// put writes a file and returns it open.
func (r *rig) put(name string, data []byte) *os.File {
	r.t.Helper()
	f, err := os.Create(filepath.Join(r.point, name))
	must(r.t, err)
	r.t.Cleanup(func() { f.Close() })
	_, err = f.Write(data)
	must(r.t, err)
	return f
}

// syncDir makes the names of the mount durable.
func (r *rig) syncDir() {
	r.t.Helper()
	d, err := os.Open(r.point)
	must(r.t, err)
	defer d.Close()
	must(r.t, d.Sync())
}

func (r *rig) wantFile(name string, data []byte) {
	r.t.Helper()
	got, err := os.ReadFile(filepath.Join(r.point, name))
	if err != nil || !bytes.Equal(got, data) {
		r.t.Errorf("%s has %d bytes that are wrong, or error %v", name, len(got), err)
	}
}

// eachType runs a test on each file system.
func eachType(t *testing.T, f func(t *testing.T, r *rig)) {
	drivertest.Need(t, "root", "mkfs.ext4", "mkfs.xfs", "losetup")
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) { f(t, newRig(t, fsType)) })
	}
}

// After a power cut, a file that was synced has its content. One that was not synced has
// lost it, even if it was written back.
func TestFileSystemPowerCut(t *testing.T) {
	if testing.Short() {
		t.Skip("makes file systems of several kinds on failing disks")
	}
	eachType(t, func(t *testing.T, r *rig) {
		synced, lost := pattern(1, 300_000), pattern(2, 300_000)
		f := r.put("synced", synced)
		must(t, f.Sync())
		r.syncDir()
		f.Close()
		f = r.put("lost", lost)
		must(t, unix.SyncFileRange(int(f.Fd()), 0, 0, 7)) // writes the pages back, without a flush
		f.Close()
		r.cut(0)
		r.wantFile("synced", synced)
		if got, err := os.ReadFile(filepath.Join(r.point, "lost")); err == nil && bytes.Equal(got, lost) {
			t.Error("a file that was not synced survived")
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	})
}

// The error of a write reaches fsync: of a disk that fails, one that tears writes, and a
// thin pool that is full.
func TestFileSystemWriteBackFails(t *testing.T) {
	if testing.Short() {
		t.Skip("makes file systems of several kinds on failing disks")
	}
	for name, faults := range map[string]Faults{
		"error": {WriteError: 1},
		"full":  {Full: true},
		"tear":  {Tear: 1},
	} {
		t.Run(name, func(t *testing.T) {
			eachType(t, func(t *testing.T, r *rig) {
				f := r.put("file", pattern(1, 1<<20))
				must(t, r.SetFaults(faults))
				if err := f.Sync(); err == nil {
					t.Error("fsync succeeded")
				}
			})
		})
	}
}

// A flush that fails makes fsync fail.
func TestFileSystemFlushFails(t *testing.T) {
	eachType(t, func(t *testing.T, r *rig) {
		f := r.put("file", pattern(1, 100_000))
		must(t, r.SetFaults(Faults{FlushError: 1}))
		if err := f.Sync(); err == nil {
			t.Error("fsync succeeded")
		}
	})
}

// An fsync hangs with the disk, and succeeds after it.
func TestFileSystemHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("makes file systems of several kinds on failing disks")
	}
	eachType(t, func(t *testing.T, r *rig) {
		data := pattern(1, 100_000)
		f := r.put("file", data)
		must(t, r.SetFaults(Faults{Hang: true}))
		ended := make(chan error, 1)
		go func() { ended <- f.Sync() }()
		select {
		case err := <-ended:
			t.Errorf("it did not hang: %v", err)
		case <-time.After(200 * time.Millisecond):
		}
		must(t, r.SetFaults(Faults{}))
		must(t, <-ended)
		r.wantFile("file", data)
	})
}

// A flip at the offset that Locate returns is read, when the page cache is dropped.
func TestFileSystemFlip(t *testing.T) {
	if testing.Short() {
		t.Skip("drops pages from the page cache")
	}
	eachType(t, func(t *testing.T, r *rig) {
		data := pattern(1, 300_000)
		f := r.put("file", data)
		must(t, f.Sync())
		const at = 123_456
		off, ok, err := Locate(f, at)
		must(t, err)
		if !ok {
			t.Fatal("the file has no place on the disk")
		}
		must(t, r.Flip(off, 5))
		must(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
		data[at] ^= 1 << 5
		r.wantFile("file", data)
	})
}

// On a thin pool that is full, fsync fails, although the write was accepted.
func TestThinPool(t *testing.T) {
	drivertest.Need(t, "root", "mkfs.ext4", "losetup")
	pool, err := NewThinPool(t.Context(), t.TempDir(), 64<<20, 16<<20, "ext4")
	must(t, err)
	defer func() { must(t, pool.Remove()) }()
	f, err := os.Create(filepath.Join(pool.Point, "file"))
	must(t, err)
	defer f.Close()
	_, err = f.Write(pattern(1, 20<<20))
	must(t, err)
	if err := f.Sync(); err == nil {
		t.Error("fsync succeeded")
	}
}
