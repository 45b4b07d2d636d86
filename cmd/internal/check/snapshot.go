package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
)

const snapshotName = "metadata snapshot" // the name of the finding

// snapshot checks the file of the metadata snapshot and its folder. A mount starts without the
// snapshot if it cannot be used, so no finding is a Problem.
func (h host) snapshot(ctx context.Context, c *config.Config) []Finding {
	file := c.Mount.SnapshotFile()
	if file == "" {
		return nil
	}
	onTimeout := warning(snapshotName, "Choose another file for mount.metadata_snapshot, on a disk of this machine.",
		"%s did not respond within %s", file, h.timeout)
	return h.withTimeout(ctx, onTimeout, func() []Finding { return h.inspectSnapshot(file) })
}

func (h host) inspectSnapshot(file string) []Finding {
	const remedy = "Choose another file for mount.metadata_snapshot."
	dir := filepath.Dir(file)
	info, err := h.stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return warning(snapshotName, fmt.Sprintf(`Create it with "mkdir -p %s".`, dir), "the folder of %s does not exist", file)
	case err != nil:
		return warning(snapshotName, remedy, "%s: %v", dir, reason(err))
	case !info.IsDir():
		return warning(snapshotName, remedy, "%s is not a directory", dir)
	}
	if info, err := h.stat(file); err == nil && !info.Mode().IsRegular() {
		return warning(snapshotName, remedy, "%s is not a file", file)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return warning(snapshotName, "Choose a file for mount.metadata_snapshot in a folder that you may write to.",
			"%s cannot be written: %v", file, err)
	}
	return ok(snapshotName, "%s", file)
}
