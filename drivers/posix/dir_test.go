package posix

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

var ctx = context.Background()

// wantNoLeak fails the test if more descriptors are open at its end than now. The test must
// not be parallel.
func wantNoLeak(t *testing.T) {
	t.Helper()
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	// With the first pipe, the runtime opens descriptors of its own.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	before := count()
	t.Cleanup(func() {
		for start := time.Now(); count() > before; time.Sleep(10 * time.Millisecond) { // a busy disk may delay the end of Close
			if time.Since(start) > 30*time.Second {
				t.Errorf("%d descriptors are open at the end, %d at the start", count(), before)
				return
			}
		}
	})
}

func openDir(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func TestDir(t *testing.T) {
	wantNoLeak(t)
	for _, tmp := range tempFolders(t) {
		t.Run(tmp.fsType, func(t *testing.T) {
			drivertest.Run(t, func(t *testing.T) drivertest.Subject {
				root := tmp.make(t)
				return drivertest.Folder(t, openDir(t, root), root)
			})
		})
	}
}

// A tempFolder creates empty folders on one type of file system.
type tempFolder struct {
	fsType string
	make   func(t *testing.T) string
}

// tempFolders returns the file system of temporary files and that of shared memory.
func tempFolders(t *testing.T) []tempFolder {
	shm := func(t *testing.T) string {
		dir, err := os.MkdirTemp("/dev/shm", "milkweed-test")
		if err != nil {
			drivertest.Skipf(t, "needs shared memory: %v", err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		return dir
	}
	temp := func(t *testing.T) string { return t.TempDir() }
	return []tempFolder{{"temporary", temp}, {"shared memory", shm}}
}

// A request for attributes is a system call in a local file system, and a round trip in others.
func TestIsLocal(t *testing.T) {
	for fsType, want := range map[string]bool{"ext4": true, "tmpfs": true, "xfs": true, "nfs": false, "lustre": false, "fuse": false, "0x1234": false} {
		if got := isLocal(fsType); got != want {
			t.Errorf("%s: got %v", fsType, got)
		}
	}
}

func TestOpenDirOfMissingFolder(t *testing.T) {
	wantNoLeak(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, file + "2"} {
		if _, err := OpenDir(path); err == nil {
			t.Errorf("OpenDir(%q) succeeds, want an error", path)
		}
	}
}

func TestObjectHasADescriptor(t *testing.T) {
	root := t.TempDir()
	want := []byte("monarch")
	if err := os.WriteFile(filepath.Join(root, "file"), want, 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := openDir(t, root).Open(ctx, "file")
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	got := make([]byte, len(want))
	if _, err := readAt(o.(*object).fd, got, 0, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read %q, %v; want %q", got, err, want)
	}
}

func BenchmarkOpenReadClose(b *testing.B) {
	root := b.TempDir()
	if err := os.WriteFile(filepath.Join(root, "file"), make([]byte, 110_000), 0o600); err != nil {
		b.Fatal(err)
	}
	d, err := OpenDir(root)
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	p := make([]byte, 110_000)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		o, err := d.Open(ctx, "file")
		if err != nil {
			b.Fatal(err)
		}
		if _, err := o.ReadAt(ctx, p, 0); err != nil {
			b.Fatal(err)
		}
		o.Close()
	}
}

func BenchmarkReadAt(b *testing.B) {
	root, err := os.MkdirTemp("/dev/shm", "milkweed-test")
	if err != nil {
		drivertest.Skipf(b, "needs shared memory: %v", err)
	}
	defer os.RemoveAll(root)
	if err := os.WriteFile(filepath.Join(root, "file"), make([]byte, 4<<20), 0o600); err != nil {
		b.Fatal(err)
	}
	d, err := OpenDir(root)
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	o, err := d.Open(ctx, "file")
	if err != nil {
		b.Fatal(err)
	}
	defer o.Close()
	for _, size := range []int{4 << 10, 128 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			p := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := o.ReadAt(ctx, p, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A name whose attributes cannot be read is listed with the error, and the other names without
// one. A name that has disappeared is omitted.
func TestReadDirOfFailingName(t *testing.T) {
	root := t.TempDir()
	for i := range 2 * statAlone {
		if err := os.WriteFile(filepath.Join(root, fmt.Sprintf("%03d", i)), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d := openDir(t, root)
	defer func() { fstatat = unix.Fstatat }()
	for _, errno := range []unix.Errno{unix.EIO, unix.EACCES, unix.ESTALE, unix.ENOENT} {
		fstatat = func(dirfd int, name string, st *unix.Stat_t, flags int) error {
			if name == "007" {
				return errno
			}
			return unix.Fstatat(dirfd, name, st, flags)
		}
		infos, err := d.ReadDir(ctx, ".")
		if err != nil {
			t.Fatalf("%v: %v", errno, err)
		}
		failed := 0
		for _, info := range infos {
			switch {
			case info.Name == "007" && errors.Is(info.Err, errno) && info.IsRegular():
				failed++
			case info.Err != nil || info.Name == "007" || info.Size != 1:
				t.Errorf("%v: got %+v", errno, info)
			}
		}
		if listed := len(infos) == 2*statAlone; listed != (errno != unix.ENOENT) || failed == 1 != listed {
			t.Errorf("%v: listed %d names, %d of them with the error", errno, len(infos), failed)
		}
	}
}
