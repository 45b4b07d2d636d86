package torture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/child"
	"github.com/milkweedfs/milkweed/fs/faultdisk"
)

// A volume is a file system on a fault disk.
type volume struct {
	disk   *faultdisk.Disk
	fsType string
	point  string
	mounts int // so far

	options   []string // of mkfs
	fewInodes bool     // the tier may use up the inodes
}

// newVolume makes a disk in the folder dir, which is in memory, formats it, and mounts it
// at point. size is raised to what the file system needs.
func newVolume(dir, point, fsType string, size int64) (*volume, error) {
	folder := filepath.Join(dir, "disk")
	for _, d := range []string{dir, folder, point} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return nil, err
		}
	}
	size = max(size, faultdisk.MinSize(fsType))
	cmd := child.Command(context.Background(), "disk", filepath.Join(dir, "base"), strconv.FormatInt(size, 10), folder)
	cmd.Stderr = os.Stderr
	disk, err := faultdisk.Start(cmd, folder)
	if err != nil {
		return nil, err
	}
	v := &volume{disk: disk, fsType: fsType, point: point}
	return v, v.format(context.Background())
}

// format makes an empty file system and mounts it.
func (v *volume) format(ctx context.Context) error {
	if err := v.disk.Forget(); err != nil {
		return err
	}
	device, err := v.disk.Attach(ctx)
	if err != nil {
		return err
	}
	err = faultdisk.Format(ctx, device, v.fsType, v.options...)
	return errors.Join(err, v.disk.Detach(), v.mount(ctx))
}

// odd lets the next format make a file system of an odd kind, or of the usual one if kind is "".
func (v *volume) odd(kind string) {
	v.options, v.fewInodes = nil, kind == fewInodes
	if v.fsType == "ext4" {
		v.options = map[string][]string{fewInodes: {"-N", "96"}, coarseTimes: {"-I", "128"}}[kind]
	}
}

// mount mounts the disk. The kernel detaches the loop device when it is unmounted. Every
// other mount of ext4 has data=writeback, in which a power cut loses more.
func (v *volume) mount(ctx context.Context) error {
	device, err := v.disk.Attach(ctx)
	if err != nil {
		return err
	}
	var options []string
	if v.mounts++; v.fsType == "ext4" && v.mounts%2 == 0 {
		options = append(options, "data=writeback")
	}
	err = faultdisk.Mount(ctx, device, v.fsType, v.point, options...)
	return errors.Join(err, v.disk.Detach())
}

// unmountTimeout bounds the time until the last file of a volume is closed.
const unmountTimeout = 10 * time.Second

// unmount unmounts the disk. It waits for files that are being closed.
func (v *volume) unmount() error {
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Unmount(v.point, 0)
		if err == nil || err == unix.EINVAL { // EINVAL: it is not mounted
			return nil
		}
		if err != unix.EBUSY || time.Since(start) > unmountTimeout {
			return fmt.Errorf("umount %s: %w", v.point, err)
		}
	}
}

// cut cuts the power and restores it. Nothing may use the volume.
func (v *volume) cut(ctx context.Context, keep float64, seed uint64) error {
	if err := v.disk.PowerOff(keep, seed); err != nil {
		return err
	}
	if err := v.unmount(); err != nil {
		return err
	}
	if err := v.disk.PowerOn(); err != nil {
		return err
	}
	return v.mount(ctx)
}

// works reports whether the file system accepts a write.
func (v *volume) works() bool {
	f, err := os.CreateTemp(v.point, "works-")
	if err != nil {
		return v.fewInodes && errors.Is(err, unix.ENOSPC)
	}
	_, err = f.WriteString("x")
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name())) == nil
}

// remove ends the disk, also if it hangs.
func (v *volume) remove() error {
	err := v.disk.PowerOff(0, 0)
	if busy := v.unmount(); busy != nil {
		err = errors.Join(err, busy, unix.Unmount(v.point, unix.MNT_DETACH))
	}
	return errors.Join(err, v.disk.Stop())
}
