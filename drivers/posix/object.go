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

// An object is an open regular file.
type object struct {
	fd    int
	cache *cachePolicy
	name  string
	info  drivers.Info  // as of the open
	mtime unix.Timespec // info.Mtime as the kernel returns it
	piece int           // reads are split into concurrent reads of this many bytes; 0: not split

	// shared is set when the kernel may read the file without this package. The pages
	// of the file are then its only ones, and Close keeps them.
	shared atomic.Bool
}

// newObject returns the Object of fd and takes over fd. After an error the caller closes fd.
func (r *root) newObject(fd int, name string) (*object, error) {
	var st unix.Stat_t
	if err := ignoringEINTR(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return nil, err
	}
	if err := checkRegular(&st); err != nil {
		return nil, err
	}
	o := &object{
		fd: fd, cache: &r.cache, name: name, info: infoOf(name, &st), mtime: st.Mtim,
		piece: pieceSize(r.fsType, int64(st.Blksize)),
	}
	r.mark(&o.info, fd, "")
	return o, nil
}

// ReadAt implements drivers.Object. It checks ctx before the read; a read in flight cannot
// be interrupted. It allocates nothing unless it fails.
//
// It verifies the file after the read: the kernel sets the modification time before it
// changes content. If the time is unchanged, the bytes are of the version that was opened.
func (o *object) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, pathError("read", o.name, err)
	}
	n, err := o.read(p, off)
	if err != nil && err != io.EOF {
		return n, pathError("read", o.name, err)
	}
	if changed := o.verify(); changed != nil {
		return 0, pathError("read", o.name, changed)
	}
	if err == io.EOF && off+int64(n) < o.info.Size {
		return n, pathError("read", o.name, drivers.ErrShort)
	}
	return n, err
}

// read is ReadAt without the verification.
func (o *object) read(p []byte, off int64) (int, error) {
	if o.piece == 0 || len(p) <= o.piece {
		return o.cache.readAt(o.fd, p, off, o.info.Size)
	}
	return readPieces(p, off, o.piece, func(p []byte, off int64) (int, error) {
		return o.cache.readAt(o.fd, p, off, o.info.Size)
	})
}

// Verify implements drivers.Verifier. It requests only the size and the modification time:
// for the access time, which reads change, a network file system needs a round trip.
func (o *object) Verify(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return o.verify()
}

// verify is Verify without a context. It does not add the name to the error.
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

// statx is unix.Statx for an open file. It does not allocate; unix.Statx allocates the empty
// path.
func statx(fd, mask int, st *unix.Statx_t) unix.Errno {
	var empty byte
	_, _, err := unix.Syscall6(unix.SYS_STATX, uintptr(fd), uintptr(unsafe.Pointer(&empty)), unix.AT_EMPTY_PATH,
		uintptr(mask), uintptr(unsafe.Pointer(st)), 0)
	return err
}

// Info implements drivers.Object.
func (o *object) Info() drivers.Info { return o.info }

// BackingFile implements drivers.BackingFiler. There is nothing to release, because the
// kernel holds its own reference to a registered file.
func (o *object) BackingFile(register func(fd uintptr) error) (release func(), err error) {
	o.shared.Store(true)
	if err := register(uintptr(o.fd)); err != nil {
		return nil, err
	}
	return func() {}, nil
}

// SpliceDescriptor implements drivers.Splicer. It fails if the file has changed. The caller
// calls release before Close.
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
		o.cache.dropAfterReads(o.fd)
	}
	return unix.Close(o.fd)
}
