package check

import (
	"errors"
	"os"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/drivers/posix"
)

// fileSystemOf returns the type of a file system.
func fileSystemOf(st unix.Statfs_t) config.FileSystem { return config.FileSystemOf(int64(st.Type)) }

func statfs(path string) (unix.Statfs_t, error) {
	var st unix.Statfs_t
	err := unix.Statfs(path, &st)
	return st, err
}

// allocationUnit is posix.AllocationUnit of a folder that it makes in dir, and removes. The error says why nothing can be
// written there.
func allocationUnit(dir string) (unit int64, err error) {
	probe, err := os.MkdirTemp(dir, ".milkweed-check-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(probe)) }()
	fd, err := unix.Open(probe, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return posix.AllocationUnit(fd)
}

// available returns the free space in bytes that this user may use.
func available(st unix.Statfs_t) int64 { return int64(st.Bavail) * st.Bsize }

// size formats a number of bytes for people.
func size(n int64) string { return humanize.IBytes(uint64(max(0, n))) }
