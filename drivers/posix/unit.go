package posix

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

// minUnit is the size of the file that AllocationUnit writes. Smaller ones may lie beside their attributes.
const minUnit = 4096

// AllocationUnit returns the number of bytes of which a file in the folder of dirfd takes a multiple, with a block
// for its attributes if these need one, or an error if no file can be written there. It creates a file, and
// removes it: statfs(2) shows neither the clusters of ext4 (bigalloc), nor whether f_bsize is such a unit or only a
// good size for requests.
func AllocationUnit(dirfd int) (int64, error) {
	f, err := newTempFile(dirfd, fileMode)
	if err != nil {
		return 0, err
	}
	defer f.unlink()
	_, err = writeAt(f.fd, bytes.Repeat([]byte{1}, minUnit), 0, 0) // zeros may be a hole
	trim(f.fd, minUnit)
	if closed := f.close(); err == nil {
		err = closed
	}
	if err != nil {
		return 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dirfd, f.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return 0, err
	}
	return st.Blocks * drivers.BlockBytes, nil
}

// trim gives back what the file system has allocated behind the end of a complete file of size bytes: the rest of
// a huge page (tmpfs), or what XFS has allocated for further writes, up to more than half of the file, until the
// file is closed. It does not wait for the disk, as ftruncate(2) does on XFS. It changes the modification time.
// If it fails, as on tmpfs while somebody reads the last page, the file keeps what it has.
func trim(fd int, size int64) {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_BLOCKS, &st)
	if end := roundUp(size, minUnit); err == nil && int64(st.Blocks)*drivers.BlockBytes > end {
		unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, end, maxTrim)
	}
}

// maxTrim is more than a file system allocates behind the end of a file.
const maxTrim = 1 << 40

// roundUp returns the least multiple of unit that is not less than n.
func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }
