package posix

import (
	"io"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A cache is how the files of a folder pass through the kernel's page cache:
// leaving nothing there, as far as the file system lets it. A block of the
// source is read once, to be copied; a copy is written once; and what is read
// of either for the mount is kept in the pages of the mount. Those of the file
// would be a second copy in memory, in place of something that the job uses. In
// passthrough the kernel reads copies without this package, and keeps their
// pages as it likes.
//
// RWF_DONTCACHE, where the file system knows it, takes back just the pages that
// the call brought, and those of a write when they are on the disk. Elsewhere
// there is posix_fadvise(2). After a write it takes all up to the end of the
// write: of its range alone, pages would stay that are in a folio with its
// neighbours. After reads it takes all when the file is closed, and not before:
// several blocks are read at the same time, and one read would drop what the
// kernel has read ahead for another, to be asked for again.
type cache struct {
	memory    bool        // the pages are the files
	unflagged atomic.Bool // the file system does not know RWF_DONTCACHE
}

// isMemory reports whether a kind of file system has its files in the page cache
// and nowhere else.
func isMemory(fsType string) bool {
	switch fsType {
	case "tmpfs", "ramfs":
		return true
	}
	return false
}

// readOnce is the least read that leaves nothing behind. Smaller ones live on
// what the kernel reads ahead, unless they read the end of the file: of 4 KiB
// one after the other, 200 MB/s were read without it and 900 MB/s with it.
const readOnce = 64 << 10

// readAt reads p from a file of size bytes, as io.ReaderAt does.
func (c *cache) readAt(fd int, p []byte, off, size int64) (int, error) {
	if c.memory || len(p) < readOnce && off+int64(len(p)) < size {
		return readAt(fd, p, off, 0)
	}
	if !c.unflagged.Load() {
		n, err := readAt(fd, p, off, unix.RWF_DONTCACHE)
		if err != unix.EOPNOTSUPP {
			return n, err
		}
		c.unflagged.Store(true)
	}
	return readAt(fd, p, off, 0)
}

// closed takes what reads of a file have left behind, before it is closed.
func (c *cache) closed(fd int) {
	if !c.memory && c.unflagged.Load() {
		forget(fd, 0)
	}
}

// writeAt writes all of p.
func (c *cache) writeAt(fd int, p []byte, off int64) (int, error) {
	if c.memory {
		return writeAt(fd, p, off, 0)
	}
	if !c.unflagged.Load() {
		n, err := writeAt(fd, p, off, unix.RWF_DONTCACHE)
		if err != unix.EOPNOTSUPP {
			return n, err
		}
		c.unflagged.Store(true)
	}
	n, err := writeAt(fd, p, off, 0)
	if n > 0 { // a length of 0 is the whole file
		forget(fd, off+int64(n))
	}
	return n, err
}

// forget has the kernel drop the first n bytes of the pages of a file, or all if
// n is 0: those that are on the disk at once. The others it begins to write, and
// a later call drops them. It is a hint, which a file system may ignore.
func forget(fd int, n int64) { unix.Fadvise(fd, 0, n, unix.FADV_DONTNEED) }

// readAt reads len(p) bytes, or fewer with an error, as io.ReaderAt does.
func readAt(fd int, p []byte, off int64, flags int) (int, error) {
	for n := 0; ; {
		if n == len(p) {
			return n, nil
		}
		m, err := vector(unix.SYS_PREADV2, fd, p[n:], off+int64(n), flags)
		switch {
		case err == unix.EINTR:
		case err != 0:
			return n, err
		case m == 0:
			return n, io.EOF
		default:
			n += m
		}
	}
}

// writeAt writes all of p.
func writeAt(fd int, p []byte, off int64, flags int) (int, error) {
	n := 0
	for n < len(p) {
		m, err := vector(unix.SYS_PWRITEV2, fd, p[n:], off+int64(n), flags)
		switch {
		case err == unix.EINTR:
		case err != 0:
			return n, err
		default:
			n += m
		}
	}
	return n, nil
}

// vector is preadv2(2) or pwritev2(2) of one buffer, which is not empty. Those
// of unix allocate. An offset of -1, which is the file's own position for the
// kernel, is as wrong as the others below 0.
func vector(call uintptr, fd int, p []byte, off int64, flags int) (int, unix.Errno) {
	if off < 0 {
		return 0, unix.EINVAL
	}
	iov := unix.Iovec{Base: unsafe.SliceData(p)}
	iov.SetLen(len(p))
	// An offset has two words; where one is enough the second is ignored.
	n, _, err := unix.Syscall6(call, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1,
		uintptr(off), uintptr(uint64(off)>>32), uintptr(flags))
	return int(n), err
}
