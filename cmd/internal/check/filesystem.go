package check

import (
	"fmt"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"
)

// A fileSystem is a type of file system.
type fileSystem struct {
	name   string
	remote bool // whether a read leaves this machine, or goes to another daemon
}

// fileSystems maps the type in the result of statfs(2) to the file system.
var fileSystems = map[int64]fileSystem{
	unix.TMPFS_MAGIC:           {"tmpfs", false},
	unix.RAMFS_MAGIC:           {"ramfs", false},
	unix.EXT4_SUPER_MAGIC:      {"ext4", false},
	unix.XFS_SUPER_MAGIC:       {"xfs", false},
	unix.BTRFS_SUPER_MAGIC:     {"btrfs", false},
	unix.F2FS_SUPER_MAGIC:      {"f2fs", false},
	unix.OVERLAYFS_SUPER_MAGIC: {"overlayfs", false},
	0x2fc12fc1:                 {"zfs", false},
	0xca451a4e:                 {"bcachefs", false},
	unix.NFS_SUPER_MAGIC:       {"NFS", true},
	unix.SMB_SUPER_MAGIC:       {"SMB", true},
	unix.SMB2_SUPER_MAGIC:      {"SMB", true},
	unix.CIFS_SUPER_MAGIC:      {"SMB", true},
	unix.CEPH_SUPER_MAGIC:      {"Ceph", true},
	unix.V9FS_MAGIC:            {"9p", true},
	unix.AFS_SUPER_MAGIC:       {"AFS", true},
	unix.FUSE_SUPER_MAGIC:      {"FUSE", true},
	0x0bd00bd0:                 {"Lustre", true},
	0x47504653:                 {"GPFS", true},
	0x19830326:                 {"BeeGFS", true},
}

// fileSystemName returns the name of a type of file system, for messages.
func fileSystemName(st unix.Statfs_t) string {
	if fs, ok := fileSystems[int64(st.Type)]; ok {
		return fs.name
	}
	return fmt.Sprintf("a file system of type %#x", st.Type)
}

func statfs(path string) (unix.Statfs_t, error) {
	var st unix.Statfs_t
	err := unix.Statfs(path, &st)
	return st, err
}

// available returns the free space in bytes that this user may use.
func available(st unix.Statfs_t) int64 { return int64(st.Bavail) * st.Bsize }

// size formats a number of bytes for people.
func size(n int64) string { return humanize.IBytes(uint64(max(0, n))) }
