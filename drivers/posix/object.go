package posix

import (
	"context"
	"io"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

var (
	_ drivers.Object       = (*object)(nil)
	_ drivers.BackingFiler = (*object)(nil)
	_ drivers.Splicer      = (*object)(nil)
	_ drivers.Verifier     = (*object)(nil)
)

// An object is an open file.
type object struct {
	fd    int
	cache *cache
	name  string
	info  drivers.Info  // when it was opened
	mtime unix.Timespec // info.Mtime, as the kernel tells it

	shared atomic.Bool // the kernel may read it by itself, and then its pages are the only ones

	piece int // bytes to read at a time, with others at the same time; 0: all at once
}

// newObject is the Object at fd. The caller closes fd if it gets an error.
func (d *Dir) newObject(fd int, name string) (*object, error) {
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return nil, err
	}
	if err := notRegular(&st); err != nil {
		return nil, err
	}
	return &object{
		fd: fd, cache: &d.cache, name: name, info: describe(name, &st), mtime: st.Mtim,
		piece: pieceOf(d.fsType, int64(st.Blksize)),
	}, nil
}

// ReadAt implements drivers.Object. A read that is under way cannot be
// interrupted; ctx is looked at before. It allocates nothing unless it fails.
//
// The file is looked at after the read: the kernel sets the modification time
// before it changes content, so that an unchanged time means that what was read
// is of the version that was opened.
func (o *object) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, pathError("read", o.name, err)
	}
	n, err := o.read(p, off)
	if err != nil && err != io.EOF {
		return n, pathError("read", o.name, err)
	}
	if cerr := o.verify(); cerr != nil {
		return 0, pathError("read", o.name, cerr)
	}
	if err == io.EOF && off+int64(n) < o.info.Size {
		return n, pathError("read", o.name, io.ErrUnexpectedEOF)
	}
	return n, err
}

// read is ReadAt without a look at the version.
func (o *object) read(p []byte, off int64) (int, error) {
	if o.piece == 0 || len(p) <= o.piece {
		return o.cache.readAt(o.fd, p, off, o.info.Size)
	}
	return readPieces(p, off, o.piece, func(p []byte, off int64) (int, error) {
		return o.cache.readAt(o.fd, p, off, o.info.Size)
	})
}

// Verify implements drivers.Verifier. It asks for size and modification time and
// nothing else: a network file system has to ask its server for the access time,
// which the read has changed.
func (o *object) Verify(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return o.verify()
}

func (o *object) verify() error {
	var st unix.Statx_t
	for {
		switch err := statx(o.fd, unix.STATX_SIZE|unix.STATX_MTIME, &st); {
		case err == unix.EINTR:
		case err != 0:
			return err
		case int64(st.Size) != o.info.Size || st.Mtime.Sec != o.mtime.Sec || int64(st.Mtime.Nsec) != o.mtime.Nsec:
			return drivers.ErrChanged
		default:
			return nil
		}
	}
}

// statx is unix.Statx of an open file, without the memory that it takes for an
// empty path.
func statx(fd, mask int, st *unix.Statx_t) unix.Errno {
	var empty byte
	_, _, err := unix.Syscall6(unix.SYS_STATX, uintptr(fd), uintptr(unsafe.Pointer(&empty)), unix.AT_EMPTY_PATH,
		uintptr(mask), uintptr(unsafe.Pointer(st)), 0)
	return err
}

// Info implements drivers.Object.
func (o *object) Info() drivers.Info { return o.info }

// BackingFile implements drivers.BackingFiler. The kernel holds a reference of its
// own to a registered file, so that there is nothing to release.
func (o *object) BackingFile(register func(fd uintptr) error) (release func(), err error) {
	o.shared.Store(true)
	if err := register(uintptr(o.fd)); err != nil {
		return nil, err
	}
	return func() {}, nil
}

// SpliceDescriptor implements drivers.Splicer for a file that has not changed. The
// caller calls release before Close.
func (o *object) SpliceDescriptor() (fd uintptr, release func(n int), err error) {
	if err := o.verify(); err != nil {
		return 0, nil, err
	}
	o.shared.Store(true)
	return uintptr(o.fd), func(int) {}, nil
}

// Close implements drivers.Object.
func (o *object) Close() error {
	if !o.shared.Load() {
		o.cache.closed(o.fd)
	}
	return unix.Close(o.fd)
}
