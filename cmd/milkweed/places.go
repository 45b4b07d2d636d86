package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// shm is where memory is a file system.
const shm = "/dev/shm"

// hasMemory reports whether dir is memory, with ample room for n bytes: in a
// container it is often 64 MB.
func hasMemory(dir string, n int64) bool {
	var s unix.Statfs_t
	err := unix.Statfs(dir, &s)
	return err == nil && s.Type == unix.TMPFS_MAGIC && int64(s.Bavail)*s.Bsize > 2*n
}

// unmountBelow takes the mounts that are still in a folder of ours out of sight.
// While one stays nothing there may be removed, for that would be done through
// it.
func unmountBelow(dir string) error {
	left, err := mountsBelow(dir)
	for _, point := range left {
		err = errors.Join(err, unmount(context.Background(), point, true))
	}
	if err != nil {
		return fmt.Errorf("%s is left: %w", text(dir), err)
	}
	return nil
}

// removeAll removes folders with all that is in them.
func removeAll(folders []string) error {
	var errs []error
	for _, dir := range folders {
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// mountsBelow lists the mounts in a folder, of any file system, the last first.
func mountsBelow(dir string) ([]string, error) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, dir+"/"), false
	})
	var points []string
	for _, m := range slices.Backward(mounts) {
		points = append(points, m.Mountpoint)
	}
	return points, err
}
