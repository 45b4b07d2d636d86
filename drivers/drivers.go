// Package drivers says what a kind of storage must do to hold a dataset or
// copies of one: the types and their contract, and no code that does it. Each
// kind is a package below this one; what cuts across kinds (faults, limits,
// counting) is a Driver that wraps a Driver. The contract is also a test, in
// drivers/drivertest, which every driver runs.
//
// A name is a slash-separated path below the root of the driver, without a
// leading or trailing slash and without empty, "." or ".." elements; the root
// itself is ".". A name is bytes: it need not be UTF-8.
package drivers

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"
)

// A Driver reads one kind of storage. All methods may be called concurrently.
//
// An error for a name that is not there matches io/fs.ErrNotExist, for one
// that may not be read io/fs.ErrPermission; other errors of the operating
// system are wrapped so that errors.As finds the syscall.Errno.
//
// A call returns when ctx is done, or when the storage answers, whichever is
// first, if the storage can be interrupted; a local kernel often cannot be.
type Driver interface {
	// Open opens a regular file for reading. The caller closes the Object.
	// A name that is a symbolic link or a special file is an error: no
	// element of a name is ever followed as a link.
	Open(ctx context.Context, name string) (Object, error)

	// ReadDir returns one directory, in any order, without "." and "..".
	// An element that vanished while the directory was read is left out.
	ReadDir(ctx context.Context, dir string) ([]Info, error)

	// Stat describes one name. A symbolic link is described itself.
	Stat(ctx context.Context, name string) (Info, error)
}

// An Object is one open file of one version. ReadAt and Info may be called
// concurrently; Close is called once, after the last of them has returned.
type Object interface {
	// ReadAt reads len(p) bytes from offset off as io.ReaderAt does: fewer
	// only with an error, which is io.EOF at the end of the file. What it
	// returns is of the version that was opened, also when the name was
	// removed or replaced since; where the storage can no longer give that
	// version the error matches ErrChanged.
	//
	// When the call had to return before the storage was done with p, the
	// error matches ErrAbandoned: p may still be written to at any time, and
	// the caller must drop it.
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)

	// Info describes the version that was opened, as it was then.
	Info() Info

	// Close releases what the Object holds.
	Close() error
}

// A Store is a Driver that can be filled: it holds copies.
type Store interface {
	Driver

	// Create begins a copy of name that will have info's size and
	// modification time. It makes the directories that name needs. The copy
	// is invisible to the Driver's methods until it is committed. An error
	// for a store without room matches syscall.ENOSPC or syscall.EDQUOT.
	Create(ctx context.Context, name string, info Info) (Writer, error)

	// Remove removes a copy; Objects open on it stay readable. It leaves
	// directories alone.
	Remove(ctx context.Context, name string) error
}

// A Writer is a copy in the making. ReadAt and WriteAt may be called
// concurrently, on ranges that do not overlap. The caller calls Commit or
// Abort, and then Close, which it may defer together with Abort: after Commit,
// Abort does nothing.
type Writer interface {
	io.WriterAt

	// ReadAt reads what was written, before Commit and after it, as
	// io.ReaderAt does. Bytes that were not written read as anything.
	io.ReaderAt

	// Commit makes the copy visible under its name, in one step, in place
	// of any earlier one. It fails, and leaves the store as it was, if the
	// copy has not the size that Create was told.
	Commit() error

	// Abort throws the copy away.
	Abort()

	// Close releases what the Writer holds, and throws the copy away if it
	// was not committed. After it nothing may be called.
	io.Closer
}

// What only some drivers can do is an interface of its own. A caller asks with
// a type assertion, and does without when the answer is no.
type (
	// A Readlinker has symbolic links.
	Readlinker interface {
		// Readlink returns the target of a link as it is stored.
		Readlink(ctx context.Context, name string) (string, error)
	}

	// An Xattrer has extended attributes. Only names that start with
	// "user." are given out.
	Xattrer interface {
		Listxattr(ctx context.Context, name string) ([]string, error)
		// Getxattr's error for an attribute that is not there matches
		// syscall.ENODATA.
		Getxattr(ctx context.Context, name, attr string) ([]byte, error)
	}

	// A Lister is a Driver whose names are costly to look up one by one and
	// cheap to list: an object store, which has no directories and answers each
	// question only after a while. Whoever wants to know one name lists its
	// directory, and keeps the listing.
	Lister interface {
		// Lists reports whether it is so. Of a wrapper, the driver within
		// decides; where it is not so the other methods are not called.
		Lists() bool

		// List is ReadDir in parts, for a directory of any size. Each name is
		// in one part, in any order. It ends with the first error of part,
		// which is called by one goroutine, and may keep what it is given.
		List(ctx context.Context, dir string, part func([]Info) error) error

		// OpenListed opens a file that a listing described as info. It asks
		// the storage nothing: that the file is gone or has changed shows when
		// it is read, and then matches ErrChanged.
		OpenListed(ctx context.Context, name string, info Info) (Object, error)
	}

	// A Statfser knows how large it is.
	Statfser interface {
		Statfs(ctx context.Context) (Statfs, error)
	}

	// A Sampler finds some files soon, in a dataset of any size.
	Sampler interface {
		// Sample describes up to n regular files by their names, of
		// several directories where there are several. It lists no large
		// directory to the end, and goes into a bounded number of them;
		// one that cannot be read is left out. When ctx is done it returns
		// what it has found by then, which is no error.
		Sample(ctx context.Context, n int) (map[string]Info, error)
	}

	// A Prober finds out whether it works, by using it: a Store writes,
	// reads and removes a small file. It makes again what it needs and has
	// lost, such as a folder that was removed by hand.
	Prober interface {
		Probe(ctx context.Context) error
	}

	// A Prompter is a Store that may be of a kind which never hangs: one in
	// memory. Its callers need no time-outs.
	Prompter interface {
		Prompt() bool
	}

	// A Streamer is an Object that answers each request only after a while, and
	// then fast: it is best asked for much at once.
	Streamer interface {
		// Stride is how many bytes are best asked for at once, 0 if it does
		// not matter; then Stream is not called.
		Stride() int64

		// Stream asks for the n bytes from offset off, which the file must
		// have, and returns them in order. Its Read fails as ReadAt does, but
		// never abandons a buffer: it returns when ctx is done. The caller
		// closes it, at the end or before.
		Stream(ctx context.Context, off, n int64) (io.ReadCloser, error)
	}

	// A Verifier is an Object that can be asked whether it is still the version
	// that was opened. If not, the error matches ErrChanged.
	Verifier interface {
		Verify() error
	}

	// An Fder is an Object or a Writer that is a file of the local kernel,
	// which can read it by itself. The descriptor is valid until Close.
	Fder interface {
		Fd() uintptr
	}
)

// backgroundKey is the key of the value that Background adds.
type backgroundKey struct{}

// Background returns ctx with a hint that nobody waits for what is done with
// it. Storage that must keep callers waiting keeps those with the hint waiting
// first.
func Background(ctx context.Context) context.Context {
	return context.WithValue(ctx, backgroundKey{}, true)
}

// IsBackground reports whether ctx has the hint of Background.
func IsBackground(ctx context.Context) bool {
	return ctx.Value(backgroundKey{}) != nil
}

// Info describes a file, a directory, a link or a special file.
type Info struct {
	Name  string    // the last element of the name; "." for the root
	Mode  uint32    // type and permissions, as st_mode of stat(2)
	Nlink uint32    // number of names
	UID   uint32    // owner
	GID   uint32    // group
	Rdev  uint32    // device number of a special file, as st_rdev of stat(2)
	Size  int64     // bytes
	Mtime time.Time // last change of the content
	Ctime time.Time // last change of content or attributes
	Atime time.Time // last access, as the storage tells it

	// Version is the driver's name for this content of a file, made of what the
	// storage calls it, such as an ETag or a generation; "" where it has no such
	// thing. It is bytes, and means something to its driver alone.
	Version string
}

// Statfs is the size of a file system in bytes and in files.
type Statfs struct {
	Total     int64 // bytes in all
	Free      int64 // bytes not used
	Available int64 // bytes that this process may still use
	Files     int64 // files in all, 0 where unlimited
	FilesFree int64 // files that may still be made
}

// SameVersion reports whether i and j describe the same content, as far as
// size, modification time and, where both know one, Version can tell.
//
// A copy has the size and the time of its source, and no Version. A driver
// whose files have one therefore gives them times that differ where the
// versions do.
func (i Info) SameVersion(j Info) bool {
	return i.Type() == j.Type() && i.Size == j.Size && i.Mtime.Equal(j.Mtime) &&
		(i.Version == j.Version || i.Version == "" || j.Version == "")
}

// Type returns the type bits of i.Mode, S_IFREG of stat(2) and its like.
func (i Info) Type() uint32 { return i.Mode & typeMask }

// IsDir reports whether i describes a directory.
func (i Info) IsDir() bool { return i.Type() == typeDir }

// IsRegular reports whether i describes a regular file.
func (i Info) IsRegular() bool { return i.Type() == typeRegular }

// IsSymlink reports whether i describes a symbolic link.
func (i Info) IsSymlink() bool { return i.Type() == typeSymlink }

// The types in Info.Mode, as S_IFMT, S_IFDIR, S_IFREG and S_IFLNK of stat(2).
const (
	typeMask    = 0o170000
	typeDir     = 0o040000
	typeRegular = 0o100000
	typeSymlink = 0o120000
)

// Errors of an Object, to be tested with errors.Is.
var (
	// ErrChanged: the version that was opened can no longer be read.
	ErrChanged = errors.New("file changed while it was open")

	// ErrAbandoned: the call returned before its buffer was done with.
	ErrAbandoned = errors.New("read abandoned")
)

// ValidName reports whether name has the form that the package describes.
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
