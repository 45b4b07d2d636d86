// Package drivers is the contract between Milkweed and one kind of storage: the
// types that a driver implements, what each method promises, and the optional
// capabilities of some kinds. Each kind of storage is a package below this one.
// A concern that cuts across kinds, such as fault injection, rate limiting or
// counting, is a Driver that wraps another Driver. Package drivers/drivertest
// tests the contract; every driver runs it.
//
// A name is a slash-separated path below the root of the driver, without a
// leading or trailing slash and without empty, "." or ".." elements. The root
// itself is ".". A name is a sequence of bytes; it need not be UTF-8.
package drivers

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"strings"
	"syscall"
)

// A Driver reads one kind of storage. All methods may be called concurrently.
//
// The error for a missing name matches io/fs.ErrNotExist, and the error for an
// unreadable one io/fs.ErrPermission. Other errors of the operating system are
// wrapped, so that errors.As finds the syscall.Errno.
//
// If the storage can be interrupted, a call returns as soon as ctx is done. A
// call into the local kernel often cannot be interrupted and returns when the
// storage answers.
type Driver interface {
	// Open opens a regular file for reading. The caller closes the Object.
	// A symbolic link or a special file is an error: no element of a name is
	// ever followed as a link.
	Open(ctx context.Context, name string) (Object, error)

	// ReadDir lists one directory, in any order, without "." and "..". It
	// omits a file that disappears during the call. If the storage does not
	// return the attributes of one name, the Info of that name has an Err.
	ReadDir(ctx context.Context, dir string) ([]Info, error)

	// Stat describes one name. It describes a symbolic link itself.
	Stat(ctx context.Context, name string) (Info, error)
}

// An Object is an open file of one version. ReadAt and Info may be called
// concurrently. Close is called once, after all other calls have returned.
type Object interface {
	// ReadAt reads len(p) bytes at offset off, as io.ReaderAt does: it returns
	// fewer bytes only with an error, which is io.EOF at the end of the file.
	// All bytes are of the version that was opened, even after the name was
	// removed or replaced. If the storage no longer has that version, the
	// error matches ErrChanged. If it has that version, and ends the file
	// before Info().Size, the error matches ErrShort.
	//
	// If ReadAt returns while the storage may still write to p, the error
	// matches ErrAbandoned, and the caller must never use p again. If the
	// error matches ErrRetry, the next call reads from another place.
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)

	// Info describes the version that was opened, as of the time of the open.
	Info() Info

	// Close releases the resources of the Object.
	Close() error
}

// A Store is a writable Driver: it holds copies of files. If a copy is damaged,
// Open, or a read of the Object, fails with an error that matches ErrCorrupt. Stat
// may also return such an error, and then it returns the Info of the damaged file
// as well.
type Store interface {
	Driver

	// Create begins a copy of name with the size and modification time in
	// info. The Info of the copy also has the mode, owner, number of links and
	// change time in info. Create creates the parent directories. The copy is invisible to the
	// methods of Driver until it is committed. If the store is full, the error
	// matches syscall.ENOSPC or syscall.EDQUOT; if it cannot hold this file, ErrUnfit.
	Create(ctx context.Context, name string, info Info) (Writer, error)

	// Remove removes a copy, also a damaged one. Objects that are open on it
	// stay readable. Remove keeps the parent directories.
	Remove(ctx context.Context, name string) error
}

// A Writer writes one copy. ReadAt and WriteAt may be called concurrently on
// ranges that do not overlap. The caller calls Commit or Abort once, and then
// Close. Abort does nothing after Commit, so that a caller may defer both Abort
// and Close.
type Writer interface {
	// WriteAt writes WholeUnits, and fails for another range. Each unit is written once.
	io.WriterAt

	// ReadAt reads bytes that were written, before and after Commit, as io.ReaderAt does. If the
	// storage has lost them, the error matches ErrLost. For other bytes it fails, or their content is
	// undefined.
	io.ReaderAt

	// Commit makes the copy visible under its name in one atomic step, and replaces an earlier
	// copy. Before that, it waits until the storage has confirmed the content; if that fails, the
	// error matches ErrLost. If the size of the copy differs from the size given to Create, Commit
	// fails and leaves the store unchanged.
	Commit() error

	// Abort discards the copy.
	Abort()

	// Close releases the resources of the Writer and discards a copy that was
	// not committed. No method may be called after it.
	io.Closer
}

// backgroundKey is the context key that Background sets.
type backgroundKey struct{}

// Background marks ctx as that of background work: no reader is blocked on the
// request. A rate limiter serves demand reads first, within limits.
func Background(ctx context.Context) context.Context {
	return context.WithValue(ctx, backgroundKey{}, true)
}

// IsBackground reports whether Background has marked ctx.
func IsBackground(ctx context.Context) bool {
	return ctx.Value(backgroundKey{}) != nil
}

// ChecksumBlock is the number of bytes that one checksum covers.
const ChecksumBlock = 1 << 20

// WriteUnit is the unit in which a copy is written, in bytes. It is a part of ChecksumBlock.
const WriteUnit = 128 << 10

// WholeUnits reports whether n bytes from offset off are whole units of a file of size bytes. The last
// unit of a file may be shorter than WriteUnit.
func WholeUnits(off, n, size int64) bool {
	end := off + n
	return off >= 0 && end <= size && off%WriteUnit == 0 && (end%WriteUnit == 0 || end == size)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CheckEmpty returns an error that matches ErrUnsized if an open file has content, whatever its size is. It reads a byte.
func CheckEmpty(ctx context.Context, o Object) error {
	n, err := o.ReadAt(ctx, make([]byte, 1), 0)
	switch {
	case n > 0:
		return ErrUnsized
	case err == io.EOF:
		return nil
	}
	return err
}

// Checksum adds p to a checksum of a block, which begins as 0: a CRC-32C (Castagnoli). It is that of
// records on tiers, and of blocks that nodes send each other.
func Checksum(sum uint32, p []byte) uint32 { return crc32.Update(sum, castagnoli, p) }

// Errors of an Object or of its open, to be tested with errors.Is.
var (
	// ErrChanged: the version that was opened can no longer be read.
	ErrChanged = errors.New("file changed while it was open")

	// ErrShort: the storage ends the file before the size in Info, although it
	// still has the version that was opened. The bytes before the end are valid.
	ErrShort = errors.New("the file ends before its size")

	// ErrUnsized: the file has content, although its size is 0. It matches syscall.EOPNOTSUPP.
	ErrUnsized = fmt.Errorf("the source shows size 0 for a file that has content: %w", syscall.EOPNOTSUPP)

	// ErrMismatch: the storage does not have the file that a Pinner knows. It matches syscall.EIO.
	ErrMismatch = fmt.Errorf("not as in the manifest: %w", syscall.EIO)

	// ErrReported: the driver has logged the reason, once for all files that it concerns.
	ErrReported = errors.New("reported")

	// ErrAbandoned: the call returned before the storage was finished with the
	// buffer. The buffer may still be written to.
	ErrAbandoned = errors.New("read abandoned")

	// ErrLost: the storage has lost bytes that it had accepted from a Writer.
	ErrLost = errors.New("the storage has lost data")

	// ErrCorrupt: the content of a copy is not what was written. The copy is of
	// no use and should be removed.
	ErrCorrupt = errors.New("copy is corrupt")

	// ErrUnfit: a Store cannot hold a file, because of its name or its size. It may hold others. If the
	// size is the reason, the error also matches syscall.EFBIG.
	ErrUnfit = errors.New("the file system cannot hold this file")

	// ErrNoRecord: a Store cannot record a copy, because the file with the records of all copies must not grow.
	ErrNoRecord = errors.New("checksums.log, which records its copies, is as large as its file system or RLIMIT_FSIZE (ulimit -f) allows")

	// ErrFull: no tier of the node that was asked for a file has room for a copy.
	ErrFull = errors.New("no tier has room")

	// ErrRetry: the place that was read failed and is not used for the next read. The
	// caller repeats the call, with a new buffer if the error also matches
	// ErrAbandoned.
	ErrRetry = errors.New("the next read uses another place")
)

// WarnLevel returns the level of a warning about err, an error of one file: slog.LevelDebug if it matches
// ErrReported.
func WarnLevel(err error) slog.Level {
	if errors.Is(err, ErrReported) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// CutUnit returns the name and the piece of a unit of ownership among peers. A unit is the name of a
// file or, for a piece of a large file, that name, a zero byte, and the name of the piece. It reports
// whether the name of the file is valid.
func CutUnit(unit string) (name, piece string, valid bool) {
	name, piece, _ = strings.Cut(unit, "\x00")
	return name, piece, name != "." && ValidName(name)
}

// ValidName reports whether name has the form that the package comment defines.
func ValidName(name string) bool {
	if name == "." {
		return true
	}
	if strings.IndexByte(name, 0) >= 0 {
		return false
	}
	for elem := range strings.SplitSeq(name, "/") {
		if elem == "" || elem == "." || elem == ".." {
			return false
		}
	}
	return true
}
