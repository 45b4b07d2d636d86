package faultdisk

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fsIocFiemap is FS_IOC_FIEMAP of linux/fs.h.
const fsIocFiemap = 0xc020660b

// The flags of an extent that has no bytes of its own at a known place: unknown, not yet
// allocated, encoded, inline, shared with the tail of other files, or unwritten. They are
// FIEMAP_EXTENT_* of linux/fiemap.h.
const noPlace = 0x2 | 0x4 | 0x8 | 0x200 | 0x400 | 0x800

// A fiemap is struct fiemap of linux/fiemap.h, with one extent.
type fiemap struct {
	start, length          uint64
	flags, mapped          uint32
	count, reserved        uint32
	logical, physical, len uint64
	_                      [2]uint64
	extentFlags            uint32
	_                      [3]uint32
}

// Locate returns the offset on the disk of a byte of a file. ok is false if the byte has
// no place of its own there, for example because it was not written back yet.
func Locate(f *os.File, off int64) (place int64, ok bool, err error) {
	m := fiemap{start: uint64(off), length: 1, count: 1}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fsIocFiemap, uintptr(unsafe.Pointer(&m))); e != 0 {
		return 0, false, &os.PathError{Op: "fiemap", Path: f.Name(), Err: e}
	}
	inside := m.logical <= uint64(off) && uint64(off) < m.logical+m.len
	if m.mapped == 0 || m.extentFlags&noPlace != 0 || !inside {
		return 0, false, nil
	}
	return int64(m.physical + uint64(off) - m.logical), true, nil
}
