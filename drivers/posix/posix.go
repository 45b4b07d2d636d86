// Package posix reaches a dataset, and copies of one, in a folder of a local,
// a parallel or a memory file system. A Dir reads a folder and has no method
// that writes; a Store is the folder of one dataset in a tier.
//
// No symbolic link below a root is ever followed: every name is resolved by
// openat2(2) with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS, which needs
// Linux 5.6.
//
// # What a power failure leaves
//
// A commit does not wait for the disk: with an fdatasync a copy of 100 KB took
// 330 µs instead of 40 µs, on a disk that is fast. A daemon that is killed
// loses nothing by it, for the kernel still has the pages. After a power
// failure, though, a file can have its name, size and modification time and
// not its content. Such copies are told by their change time: Sync brings
// everything to the disk and then notes, in synced.json beside the copies, the
// time from which on nothing is certain. A Store that finds the note of an
// earlier boot, not closed in order, does not believe the copies that were
// changed from then until it was opened: they are as absent, and are replaced
// in time. All these times are of the file system's own clock. That clock set
// back, and the power failing before the next Sync, is the case that escapes.
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

// pathError says what was done on which name. Callers find the errno, or the
// sentinel, below it.
func pathError(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// begin is what every operation on a name does first.
func begin(ctx context.Context, op, name string) error {
	if err := ctx.Err(); err != nil {
		return pathError(op, name, err)
	}
	if !drivers.ValidName(name) {
		return pathError(op, name, unix.EINVAL)
	}
	return nil
}

// openBelow opens name below the folder dirfd, following no link. The name may
// be longer than the kernel takes at once.
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

// openat2 asks again when the kernel was interrupted, and a while longer when
// it says that the tree was being renamed or a lease is being taken back.
func openat2(dirfd int, name string, flags int) (int, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	for again := 0; ; {
		fd, err := unix.Openat2(dirfd, name, &how)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN && again < 100:
			again++
			time.Sleep(time.Duration(again) * 10 * time.Microsecond)
		default:
			return fd, err
		}
	}
}

// retry calls f until it is not interrupted.
func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// absent turns the errno for a name below a file into the one for a name that
// is not there, which is what it is.
func absent(err error) error {
	if err == unix.ENOTDIR {
		return unix.ENOENT
	}
	return err
}

// notRegular is the error for opening st, or nil if it is a regular file.
func notRegular(st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return unix.EISDIR
	}
	return fmt.Errorf("not a regular file: %w", unix.ENXIO)
}

// describe is st in the words of the contract.
func describe(name string, st *unix.Stat_t) drivers.Info {
	return drivers.Info{
		Name:  path.Base(name),
		Mode:  st.Mode,
		Nlink: uint32(st.Nlink),
		UID:   st.Uid,
		GID:   st.Gid,
		Rdev:  uint32(st.Rdev),
		Size:  st.Size,
		Mtime: time.Unix(st.Mtim.Unix()),
		Ctime: time.Unix(st.Ctim.Unix()),
		Atime: time.Unix(st.Atim.Unix()),
	}
}

// statfs is the size of the file system that fd is on.
func statfs(fd int) (drivers.Statfs, error) {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
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

// fsType names the kind of file system that fd is on, as mount(8) does; a
// kind without a name here is its magic number.
func fsType(fd int) string {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
		return "unknown"
	}
	magic := uint32(st.Type)
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

// gone reports whether err says that a name is not there, or not any more.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESTALE)
}
