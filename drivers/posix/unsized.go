package posix

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

// mark sets info.Unsized, also if the file system is not known. dir is a descriptor of a directory below which the file
// has the name, or of the file, and then the name is "". Only for an empty file of another device than that of r, mark
// may make a request: one for each mount, before Linux 6.8 for each file. It needs no reference to r.
func (r *root) mark(info *drivers.Info, dir int, name string) {
	switch {
	case info.Err != nil || !info.IsRegular() || info.Size > 0:
		return
	case info.Dev == r.file.dev:
		info.Unsized = isUnsized(r.fsType)
		return
	}
	// The number of a device is given to the next mount when it is free.
	var st unix.Statx_t
	err := ignoringEINTR(func() error {
		return unix.Statx(dir, name, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID_UNIQUE, &st)
	})
	unique := err == nil && st.Mask&unix.STATX_MNT_ID_UNIQUE != 0
	if unique {
		if unsized, known := r.unsized.Load(st.Mnt_id); known {
			info.Unsized = unsized.(bool)
			return
		}
	}
	var fs unix.Statfs_t
	if err := ignoringEINTR(func() error { return unix.Statfs(path.Join(procPath(dir), name), &fs) }); err != nil {
		info.Unsized = true
		return
	}
	info.Unsized = isUnsized(nameOf(uint32(fs.Type)))
	if unique {
		r.unsized.Store(st.Mnt_id, info.Unsized)
	}
}

// isUnsized reports whether a type of file system may show a size of 0 for a file that has content. A Google
// document in a mount of rclone is such a file, and each in /proc. On those that fsType names, other than FUSE, the
// kernel reads nothing of a file of that size, except on an overlay of one that it does not name.
func isUnsized(fsType string) bool {
	return fsType == "fuse" || fsType == "unknown" || strings.HasPrefix(fsType, "0x")
}
