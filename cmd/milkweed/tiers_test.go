package main

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/posix"
)

// A tier on overlayfs that is open when the mount starts gets the stack depth that it needs. The
// kernel cannot read one that is opened later directly.
func TestTierOnOverlay(t *testing.T) {
	drivertest.Need(t, "root")
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	for _, name := range []string{"lower", "upper", "work", "tier"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	tier := filepath.Join(dir, "tier")
	options := "lowerdir=" + dir + "/lower,upperdir=" + dir + "/upper,workdir=" + dir + "/work"
	if err := unix.Mount("none", tier, "overlay", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(tier, unix.MNT_DETACH) })
	for _, late := range []bool{false, true} {
		store, err := posix.OpenStore(posix.StoreConfig{Tier: tier, Dataset: "d", Source: "/source"})
		if err != nil {
			t.Fatal(err)
		}
		o := openTiers{tiers: []openTier{{passthrough: errNotOpen}}}
		depth, passthrough := 2, error(nil)
		if late {
			depth, passthrough = 1, errLateOverlay
			o.stackDepth()
		}
		if !o.add(0, store, nil) {
			t.Error("the store is not added")
		}
		if !late {
			o.stackDepth()
		}
		if got := o.get(0).passthrough; o.depth != depth || got != passthrough {
			t.Errorf("opened late: %v: stack depth %d, passthrough error %v; want %d, %v", late, o.depth, got, depth, passthrough)
		}
		if err := o.close(); err != nil {
			t.Error(err)
		}
		if o.add(0, store, nil) {
			t.Error("a store was added after close")
		}
	}
}
