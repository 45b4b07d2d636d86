package reader

import (
	"fmt"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sizes of reads with O_DIRECT, in bytes.
const (
	directAlign = 4 << 10 // of the offset, the length and the buffer; no storage needs more
	directSize  = 1 << 20 // of the buffer
)

// A directFile reads a file with O_DIRECT, in aligned blocks. It keeps the last block, since the reader of an
// archive reads in small pieces.
type directFile struct {
	*os.File
	block []byte // aligned
	off   int64  // of the block
	n     int    // bytes in it
}

func openDirect(path string) (*directFile, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err == unix.EINVAL {
		return nil, fmt.Errorf("%s: the file system has no O_DIRECT: %w", path, err)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	b := make([]byte, directSize+directAlign)
	shift := int(-uintptr(unsafe.Pointer(&b[0])) & (directAlign - 1))
	return &directFile{File: os.NewFile(uintptr(fd), path), block: b[shift : shift+directSize]}, nil
}

// ReadAt implements io.ReaderAt.
func (f *directFile) ReadAt(p []byte, off int64) (int, error) {
	n := 0
	for n < len(p) {
		at := off + int64(n)
		if at < f.off || at >= f.off+int64(f.n) {
			if err := f.read(at); err != nil {
				return n, err
			}
		}
		if at >= f.off+int64(f.n) {
			return n, io.EOF
		}
		n += copy(p[n:], f.block[at-f.off:f.n])
	}
	return n, nil
}

// read reads the block that begins at or before an offset.
func (f *directFile) read(off int64) error {
	f.off, f.n = off&^(directAlign-1), 0
	for {
		n, err := unix.Pread(int(f.Fd()), f.block, f.off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "read", Path: f.Name(), Err: err}
		}
		f.n = n
		return nil
	}
}
