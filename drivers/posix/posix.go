// Package posix reads a dataset from a folder of a local, parallel or memory file
// system, and holds copies of a dataset in such a folder. A Dir reads a folder and has
// no method that writes. A Store is the folder of one dataset in a tier.
//
// No symbolic link below a root is ever followed: every name is resolved by openat2(2)
// with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS, which needs Linux 5.6.
//
// # Failing disks
//
// A write to a file succeeds when the kernel has the bytes; the disk may fail later. A copy is
// therefore written to a temporary file, and its commit waits for fdatasync(2) on the
// descriptor that was written, which returns every error of the disk since the file was
// created. What the file system has dropped without an error is a hole in the file, which the commit
// looks for. Only then is the file renamed. A file under the name of a copy has reached the
// disk, whenever the power fails and whatever the clocks show, and even if the daemon is
// killed.
//
// # Checksums
//
// A disk may also lose or change what it has confirmed. The commit appends a record with
// the checksum of each block to checksums.log beside the copies (record.go, records.go). A
// block is compared with its checksum when it is first used after the store was opened
// (copy.go). A file without a valid record is not a copy.
package posix

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

// pathError adds the operation and the name to err.
func pathError(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// isNoRoom reports whether err says that a file cannot be written because there is no room for it.
func isNoRoom(err error) bool {
	return err == unix.ENOSPC || err == unix.EDQUOT || err == unix.EFBIG
}

// checkRequest returns an error if ctx is done or name is invalid.
func checkRequest(ctx context.Context, op, name string) error {
	if err := ctx.Err(); err != nil {
		return pathError(op, name, err)
	}
	if !drivers.ValidName(name) {
		return pathError(op, name, unix.EINVAL)
	}
	return nil
}

// openBelow opens name below the folder dirfd and follows no symbolic link. The name may
// be longer than PATH_MAX.
func openBelow(dirfd int, name string, flags int) (int, error) {
	if len(name) < unix.PathMax {
		return openat2(dirfd, name, flags)
	}
	cut := strings.LastIndexByte(name[:unix.PathMax], '/')
	if cut <= 0 {
		return -1, unix.ENAMETOOLONG
	}
	mid, err := openat2(dirfd, name[:cut], unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	defer unix.Close(mid)
	return openBelow(mid, name[cut+1:], flags)
}

// openat2 calls openat2(2) below dirfd. It retries after a signal. It also retries, for
// about 50 ms, after EAGAIN, which reports a rename in the tree or a lease that is being
// revoked, and after EXDEV. A valid name does not lead out of dirfd, so EXDEV reports that the
// file was moved out of dirfd after its name was looked up.
func openat2(dirfd int, name string, flags int) (int, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	for retries := 0; ; {
		fd, err := unix.Openat2(dirfd, name, &how)
		switch {
		case err == unix.EINTR:
		case (err == unix.EAGAIN || err == unix.EXDEV) && retries < 100:
			retries++
			time.Sleep(time.Duration(retries) * 10 * time.Microsecond)
		default:
			return fd, err
		}
	}
}

// ignoringEINTR calls f again as long as a signal interrupts it.
func ignoringEINTR(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// asMissing maps ENOTDIR, the errno of a name below a file, to ENOENT: such a name does
// not exist.
func asMissing(err error) error {
	if err == unix.ENOTDIR {
		return unix.ENOENT
	}
	return err
}

// isMissing reports whether err means that a name does not exist, or no longer exists.
func isMissing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESTALE)
}

// checkRegular returns an error if st does not describe a regular file.
func checkRegular(st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return unix.EISDIR
	}
	return fmt.Errorf("not a regular file: %w", unix.ENXIO)
}

// infoOf converts st to an Info. name is the path of the file.
func infoOf(name string, st *unix.Stat_t) drivers.Info {
	return drivers.Info{
		Name:  path.Base(name),
		Mode:  st.Mode,
		Inode: st.Ino,
		Dev:   st.Dev,
		Nlink: uint32(st.Nlink),
		UID:   st.Uid,
		GID:   st.Gid,
		Rdev:  uint32(st.Rdev),
		Size:  st.Size,
		Mtime: time.Unix(st.Mtim.Unix()),
		Ctime: time.Unix(st.Ctim.Unix()),
		Atime: time.Unix(st.Atim.Unix()),

		Blocks: st.Blocks,
	}
}

// statfs returns the size of the file system of fd.
func statfs(fd int) (drivers.Statfs, error) {
	var st unix.Statfs_t
	if err := ignoringEINTR(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
		return drivers.Statfs{}, pathError("statfs", ".", err)
	}
	unit := int64(st.Frsize)
	if unit == 0 {
		unit = int64(st.Bsize)
	}
	return drivers.Statfs{
		Total:     int64(st.Blocks) * unit,
		Free:      int64(st.Bfree) * unit,
		Available: int64(st.Bavail) * unit,
		Files:     int64(st.Files),
		FilesFree: int64(st.Ffree),
	}, nil
}

// fsType returns the type of the file system of fd by the name that mount(8) uses, or
// its magic number if the type is not in the table.
func fsType(fd int) string {
	var st unix.Statfs_t
	if err := ignoringEINTR(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
		return "unknown"
	}
	return nameOf(uint32(st.Type))
}

// nameOf returns the type of file system of a magic number, as fsType does.
func nameOf(magic uint32) string {
	names := map[uint32]string{
		unix.TMPFS_MAGIC:           "tmpfs",
		unix.RAMFS_MAGIC:           "ramfs",
		unix.EXT4_SUPER_MAGIC:      "ext4",
		unix.XFS_SUPER_MAGIC:       "xfs",
		unix.BTRFS_SUPER_MAGIC:     "btrfs",
		unix.F2FS_SUPER_MAGIC:      "f2fs",
		unix.OVERLAYFS_SUPER_MAGIC: "overlay",
		unix.NFS_SUPER_MAGIC:       "nfs",
		unix.CEPH_SUPER_MAGIC:      "ceph",
		unix.SMB2_SUPER_MAGIC:      "smb",
		unix.FUSE_SUPER_MAGIC:      "fuse",
		unix.SQUASHFS_MAGIC:        "squashfs",
		unix.EROFS_SUPER_MAGIC_V1:  "erofs",
		unix.ISOFS_SUPER_MAGIC:     "iso9660",
		0x2fc12fc1:                 "zfs",
		0x0bd00bd0:                 "lustre",
		0x47504653:                 "gpfs",
		0x19830326:                 "beegfs",
	}
	if name, ok := names[magic]; ok {
		return name
	}
	return fmt.Sprintf("%#x", magic)
}

// isLocal reports whether a type of file system is mostly on a disk or in the memory of this
// machine. The type "fuse" is not: it may be that of any remote file system.
func isLocal(fsType string) bool {
	switch fsType {
	case "tmpfs", "ramfs", "ext4", "xfs", "btrfs", "f2fs", "zfs", "overlay":
		return true
	}
	return false
}

// readsAhead reports whether the kernel reads far ahead on a type of file system: from a disk it
// needs not to read further, and the clients of Lustre and GPFS have a read-ahead of their own.
func readsAhead(fsType string) bool {
	return isLocal(fsType) || fsType == "lustre" || fsType == "gpfs"
}
