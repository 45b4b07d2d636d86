package mounts

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/fs"
)

// The kernel gives the device number of a file system that has ended to the next one. A connection
// stays that of the first.
func TestConnection(t *testing.T) {
	drivertest.Need(t, "root")
	// mount mounts a FUSE file system that nobody serves.
	mount := func() (*os.File, string, uint64) {
		device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { device.Close() })
		point := t.TempDir()
		data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device.Fd())
		if err := unix.Mount("test", point, "fuse.test", 0, data); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(point, unix.MNT_DETACH) })
		table, err := Read(Self)
		m, ok := table.At(point)
		if err != nil || !ok {
			t.Fatalf("not in the table: %v", err)
		}
		return device, point, m.Dev
	}
	aborted := func(device *os.File) bool { return errors.Is(fs.CheckDevice(int(device.Fd())), fs.ErrNotMounted) }

	_, point, dev := mount()
	c, err := Connection(dev, point)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n, err := c.Waiting(); n != 1 || err != nil || !c.Live() {
		t.Errorf("a mount whose first request waits: %d requests, %v, live %t", n, err, c.Live())
	}
	if err := unix.Unmount(point, 0); err != nil {
		t.Fatal(err)
	}
	var device *os.File
	for range 100 { // another program may take the number
		var again uint64
		if device, _, again = mount(); again == dev {
			break
		}
		device = nil
	}
	if device == nil {
		t.Fatalf("no later file system got the number %d", unix.Minor(dev))
	}
	if c.Live() {
		t.Error("the connection is live after its end")
	}
	c.Abort()
	if aborted(device) {
		t.Error("another connection was aborted")
	}
	if _, err := Connection(dev, point); !errors.Is(err, ErrNotMounted) {
		t.Errorf("a mount point that has no mount any more: got %v", err)
	}

	device, point, dev = mount()
	if c, err = Connection(dev, point); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Abort(); err != nil || !aborted(device) {
		t.Errorf("aborted: %t, %v", aborted(device), err)
	}
	if !c.Live() {
		t.Error("an aborted connection is not live, though it is mounted")
	}
}
