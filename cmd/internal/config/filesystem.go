package config

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// A FileSystem is a type of file system.
type FileSystem struct {
	Name   string // for messages
	Remote bool   // whether a read leaves this machine, or goes to another daemon
}

var tmpfs = FileSystem{"tmpfs", false}

// fileSystems maps the type in the result of statfs(2) to the file system.
var fileSystems = map[int64]FileSystem{
	unix.TMPFS_MAGIC:           tmpfs,
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

// FileSystemOf returns the file system of a type in the result of statfs(2).
func FileSystemOf(magic int64) FileSystem {
	if fs, ok := fileSystems[magic]; ok {
		return fs
	}
	return FileSystem{Name: fmt.Sprintf("a file system of type %#x", magic)}
}
