package posix

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A size of 0 proves nothing in /proc, and elsewhere it does. A Dir finds that out for each file system below it.
func TestUnsized(t *testing.T) {
	work := t.TempDir()
	for name, content := range map[string]string{"empty": "", "full": "x"} {
		if err := os.WriteFile(filepath.Join(work, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		root, dir, name string
		want            bool
	}{
		{"/proc/sys", "kernel", "ostype", true},
		{"/", "proc/sys/kernel", "ostype", true},
		{"/proc/sys", ".", "kernel", false},
		{work, ".", "empty", false},
		{work, ".", "full", false},
		{"/", strings.TrimPrefix(work, "/"), "empty", false},
	} {
		d, err := OpenDir(tt.root)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		want := func(what string, got drivers.Info, err error) {
			t.Helper()
			if err != nil || got.Err != nil || got.Name != tt.name || got.Unsized != tt.want {
				t.Errorf("%s of %s below %s: got %+v, %v; want Unsized %v", what, tt.name, tt.root, got, err, tt.want)
			}
		}
		for range 2 { // the second time, the file system is known
			info, err := d.Stat(t.Context(), filepath.Join(tt.dir, tt.name))
			want("Stat", info, err)
			if tt.name != "kernel" {
				o, err := d.Open(t.Context(), filepath.Join(tt.dir, tt.name))
				if err != nil {
					t.Fatal(err)
				}
				want("Open", o.Info(), nil)
				o.Close()
			}
			if _, info, err = d.ACL(t.Context(), filepath.Join(tt.dir, tt.name)); errors.Is(err, unix.ENOTSUP) {
				err = nil
			}
			want("ACL", info, err)
			infos, err := d.StatNames(t.Context(), tt.dir, []string{tt.name})
			want("StatNames", infos[0], err)
			infos, err = d.ReadDir(t.Context(), tt.dir)
			for _, info := range infos {
				if info.Name == tt.name {
					want("ReadDir", info, err)
				}
			}
		}
	}
}

// The number of a device is given to the next mount. What was known of the one before does not count for it.
func TestUnsizedAfterRemount(t *testing.T) {
	drivertest.Need(t, "root")
	root := t.TempDir()
	point := filepath.Join(root, "sub")
	if err := os.Mkdir(point, 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := OpenDir(root)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, fs := range []struct {
		name, file string
		want       bool
	}{{"tmpfs", "f", false}, {"proc", "version", true}, {"tmpfs", "f", false}} {
		if err := unix.Mount(fs.name, point, fs.name, 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(point, unix.MNT_DETACH) })
		if !fs.want {
			if err := os.WriteFile(filepath.Join(point, fs.file), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		info, err := d.Stat(t.Context(), "sub/"+fs.file)
		if err != nil || info.Unsized != fs.want {
			t.Errorf("%s, device %d: got %v, %v; want %v", fs.name, info.Dev, info.Unsized, err, fs.want)
		}
		if err := unix.Unmount(point, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// A file counts as Unsized if its file system is not known.
func TestUnsizedUnknown(t *testing.T) {
	r := &root{file: fileID{dev: 1}, fsType: "unknown"}
	for _, dev := range []uint64{1, 2} { // the other one is that of a file that is gone
		info := drivers.Info{Dev: dev, Mode: unix.S_IFREG}
		if r.mark(&info, -1, "gone"); !info.Unsized {
			t.Errorf("device %d: the size counts", dev)
		}
	}
}
