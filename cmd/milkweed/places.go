package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
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
	left, err := mounts.Below(dir)
	for _, point := range slices.Backward(left) {
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
