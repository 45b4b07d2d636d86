package check

import (
	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
)

// fileSystemOf returns the type of a file system.
func fileSystemOf(st unix.Statfs_t) config.FileSystem { return config.FileSystemOf(int64(st.Type)) }

func statfs(path string) (unix.Statfs_t, error) {
	var st unix.Statfs_t
	err := unix.Statfs(path, &st)
	return st, err
}

// available returns the free space in bytes that this user may use.
func available(st unix.Statfs_t) int64 { return int64(st.Bavail) * st.Bsize }

// size formats a number of bytes for people.
func size(n int64) string { return humanize.IBytes(uint64(max(0, n))) }
