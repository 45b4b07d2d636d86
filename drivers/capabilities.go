package drivers

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
)

// ACLXattr is the extended attribute in which Linux shows the access ACL of a file.
const ACLXattr = "system.posix_acl_access"

// The interfaces below are optional capabilities of a Driver, a Store or an
// Object. Callers find them with As.
type (
	// A Readlinker has symbolic links.
	Readlinker interface {
		// Readlink returns the target of a link as it is stored.
		Readlink(ctx context.Context, name string) (string, error)
	}

	// An Xattrer has extended attributes. It exposes only names that start
	// with "user.".
	Xattrer interface {
		Listxattr(ctx context.Context, name string) ([]string, error)
		// Getxattr returns the value of an attribute. The error for a missing
		// attribute matches syscall.ENODATA.
		Getxattr(ctx context.Context, name, attr string) ([]byte, error)
	}

	// An ACLer has POSIX access control lists.
	ACLer interface {
		// ACL returns the access ACL of a name in the format of ACLXattr, or nil
		// if it has none, and describes the file that the name had at that time.
		// The error for a file system without ACLs matches syscall.ENOTSUP.
		ACL(ctx context.Context, name string) ([]byte, Info, error)
	}

	// A HoleFinder knows the holes of its files.
	HoleFinder interface {
		// Holes returns the first MaxHoles holes of a regular file, by offset, and
		// describes the file that the name had at that time.
		Holes(ctx context.Context, name string) ([]Hole, Info, error)
	}

	// A Lister is a Driver on which a directory listing is cheaper than
	// lookups of single names, such as an object store. Callers look a name
	// up by listing its directory, and cache the listing.
	Lister interface {
		// List is ReadDir in pages, for directories of any size. Each name is
		// in one page; the order is undefined. List calls page from one
		// goroutine and stops at its first error. page may keep the slice.
		List(ctx context.Context, dir string, page func([]Info) error) error
	}

	// A Namer is a Driver on which the attributes of each name take a request of
	// their own, such as a file system. ReadDir makes all these requests.
	Namer interface {
		// Names is ReadDir without attributes: the Err of each Info is
		// ErrNoAttributes.
		Names(ctx context.Context, dir string) ([]Info, error)

		// StatNames describes names in a directory, in parallel. The Infos are in the
		// order of the names. If the storage does not return the attributes of a
		// name, or not within a few seconds, the Info of that name has an Err. It
		// is the same if the directory is missing, or StatNames returns that error.
		StatNames(ctx context.Context, dir string, names []string) ([]Info, error)
	}

	// A VersionOpener opens a version of a file that a listing or a Stat has
	// described. It requests the file only if the storage has refused that before.
	VersionOpener interface {
		// OpenVersion opens the version of a file that info describes. If the
		// file was removed or replaced, the first read fails with an error
		// that matches ErrChanged.
		OpenVersion(ctx context.Context, name string, info Info) (Object, error)
	}

	// A Comparer knows of files that have the same content, without reading them.
	Comparer interface {
		// HaveSameContent reports whether two files at different names are known to have the
		// same content. infos are their attributes, perhaps of long ago: HaveSameContent reports
		// false for a file that has changed since. It may request the attributes of each file once.
		HaveSameContent(ctx context.Context, names [2]string, infos [2]Info) bool
	}

	// A Permitter denies this process some of its files. A Driver without this capability lets it
	// read all files that it lists.
	Permitter interface {
		// Permits reports whether the user of this process may read a regular file, or search a
		// directory, that info describes and that is on the file system of the root. noACL tells that
		// it has no ACL. known is false if only Access can tell. Permits makes no request.
		Permits(info Info, noACL bool) (permitted, known bool)

		// User identifies the user of this process, as far as that decides.
		User() string

		// Access requests whether the user of this process may open a regular file. The error
		// matches fs.ErrPermission if not, and fs.ErrNotExist if the name is not that of a file.
		Access(ctx context.Context, name string) error
	}

	// A Pinner knows the content of its files before they are read. Its Open returns an error that
	// matches ErrMismatch for a file that the storage does not have, or has with another size.
	Pinner interface {
		// Digest returns the SHA-256 that the content of a file must have, which Stat has
		// described. It makes no request, and reports false for what is not a regular file.
		Digest(info Info) (sum [sha256.Size]byte, ok bool)

		// Reject tells that the content of a file that was read has another SHA-256. Open fails
		// with ErrMismatch until the storage has another version of the file.
		Reject(name string, info Info)
	}

	// A Statfser reports the size of its storage.
	Statfser interface {
		Statfs(ctx context.Context) (Statfs, error)
	}

	// A Sampler finds some files quickly, in a dataset of any size.
	Sampler interface {
		// Sample returns up to n regular files and symbolic links, from several
		// directories where there are several. It reads at most the beginning
		// of a large directory, enters a bounded number of directories, and
		// omits those that it cannot read. When ctx is done it returns the
		// files found until then, without an error.
		Sample(ctx context.Context, n int) (Sample, error)
	}

	// A Prober tests its storage by using it: a Store writes, reads and removes
	// a small file. Probe recreates folders that were removed by hand.
	Prober interface {
		Probe(ctx context.Context) error
	}

	// A PathChecker is a Store in a folder that has a path.
	PathChecker interface {
		// CheckPath returns an error if the path leads to another folder by now, or to none.
		// The next Probe uses what has the path then.
		CheckPath(ctx context.Context) error
	}

	// A CopyProber is a Store that can read its copies without the page cache of the kernel.
	CopyProber interface {
		// ProbeCopy reads a random block of a copy from the storage and compares it with
		// its checksum. The errors are those of a Checker. inFlight is the number of
		// requests that the device had in flight before, those of other programs
		// included; 0 if that is unknown. ProbeCopy changes no pages that the kernel has
		// cached, if the file system permits that.
		ProbeCopy(ctx context.Context, name string) (inFlight int, err error)
	}

	// A Sweeper is a Store that can find files that are not valid copies.
	Sweeper interface {
		// Sweep is ReadDir that first removes the files in dir that the Store
		// has created and that are not valid copies.
		Sweep(ctx context.Context, dir string) ([]Info, error)

		// Copies is ReadDir that also lists the damaged copies. Open tells which are
		// damaged.
		Copies(ctx context.Context, dir string) ([]Info, error)
	}

	// A Restamper is a Store that can change which attributes of the source file it keeps
	// with a copy.
	Restamper interface {
		// Restamp sets the mode, owner, number of links and change time of the
		// copy's Info to those of info.
		Restamp(ctx context.Context, name string, info Info) error
	}

	// A Linker is a Store in which several names can share the storage of one copy.
	Linker interface {
		// Link makes a copy under the name to, which shares the storage of that under
		// the name from, and keeps the attributes in info with it, as Create does. It
		// replaces an earlier copy. The size in info is that of the copy; the
		// modification time may be another. If from has no valid copy, the error
		// matches io/fs.ErrNotExist or ErrCorrupt.
		Link(ctx context.Context, from, to string, info Info) error
	}

	// A Syncer is a Store that keeps state which a power failure may lose.
	Syncer interface {
		// Sync writes the state to the storage. After a power failure, the copies
		// that were committed since the last Sync may be missing.
		Sync(ctx context.Context) error
	}

	// A Profiler describes its performance.
	Profiler interface {
		Profile() Profile
	}

	// A Streamer is an Object on which one large request is cheaper than many
	// small ones.
	Streamer interface {
		// Stream requests n bytes from offset off, which must lie within the
		// file, and returns them in order. Read fails as ReadAt does, but
		// never abandons a buffer: it returns when ctx is done. The caller
		// closes the stream, and may do so before its end.
		Stream(ctx context.Context, off, n int64) (io.ReadCloser, error)
	}

	// A Verifier is an Object that can compare itself with the storage.
	Verifier interface {
		// Verify returns an error that matches ErrChanged if the version that
		// was opened was modified. It need not detect that the name has another file.
		Verify(ctx context.Context) error
	}

	// A Checker is an Object with checksums.
	Checker interface {
		// Check reads the block of ChecksumBlock bytes that begins at off from the
		// storage, not from a cache, and returns its length. The error matches
		// ErrCorrupt if the block is not what was written.
		Check(ctx context.Context, off int64) (int, error)

		// Checked reports whether every block was found to be right since it was written
		// or the Store was opened.
		Checked() bool
	}

	// A Checksummer is an Object whose blocks have stored checksums.
	Checksummer interface {
		// Checksums returns the CRC-32C (Castagnoli) of n blocks of ChecksumBlock bytes, the
		// first of which has the given number. The last block of a file may be shorter. The caller
		// does not change the slice. The error matches errors.ErrUnsupported if there are none now.
		Checksums(first, n int64) ([]uint32, error)
	}

	// A BackingFiler is an Object whose content is in a file of the local
	// kernel, which can serve as the backing file of FUSE passthrough.
	BackingFiler interface {
		// BackingFile calls register with the descriptor of the file. The descriptor is valid
		// during the call. If register returns nil, the file counts as registered with the
		// kernel until the caller calls release, which must not be nil and is called once; Close
		// may come before. The error is that of register, or matches errors.ErrUnsupported if
		// there is no such file now. It matches ErrUnchecked if the content must be compared
		// with its checksums first, and ErrFailing if the storage of the file is failing.
		BackingFile(register func(fd uintptr) error) (release func(), err error)
	}

	// A Splicer is an Object whose content is in a local file from which reads
	// never block.
	Splicer interface {
		// SpliceDescriptor returns the descriptor of that file, for splice(2).
		// The descriptor is valid until the caller calls release with the
		// number of bytes that were read. After an error the caller uses
		// ReadAt; the error matches errors.ErrUnsupported if there is no such
		// file now.
		SpliceDescriptor() (fd uintptr, release func(n int), err error)
	}
)

// ErrNoAttributes is the Err of an Info whose attributes were not requested.
var ErrNoAttributes = errors.New("the attributes were not requested")

// ErrUnchecked is the error of BackingFile and SpliceDescriptor for a copy whose blocks have
// not all been compared with their checksums. The caller uses ReadAt, and may call Check
// for each block in the background. It matches errors.ErrUnsupported.
var ErrUnchecked = fmt.Errorf("copy is not checked yet: %w", errors.ErrUnsupported)

// ErrFailing is the error of BackingFile while the storage of the file fails, hangs or is not used.
// A file that the kernel has open on it should be read from another place by later opens. It
// matches errors.ErrUnsupported.
var ErrFailing = fmt.Errorf("the storage is failing: %w", errors.ErrUnsupported)

// As returns the capability T of v, such as a Driver or an Object, and reports whether v
// has it. As errors.As does, it looks inside wrappers. There are two kinds:
//
//   - A wrapper that bounds, counts, limits or injects has a method Inner that returns the
//     wrapped Driver or Object. It has those capabilities that both it and the wrapped value
//     implement. As never skips it: a capability that it does not implement is not found.
//   - A wrapper that does none of these has a method Unwrap instead. As skips it for the
//     capabilities that it does not implement.
func As[T any](v any) (T, bool) {
	t, implements := v.(T)
	switch w := v.(type) {
	case interface{ Inner() Driver }:
		return both(t, implements, w.Inner())
	case interface{ Inner() Object }:
		return both(t, implements, w.Inner())
	case interface{ Unwrap() Driver }:
		if !implements {
			return As[T](w.Unwrap())
		}
	case interface{ Unwrap() Object }:
		if !implements {
			return As[T](w.Unwrap())
		}
	}
	return t, implements
}

// both returns the capability t of a wrapper if inner also has it.
func both[T any](t T, implements bool, inner any) (T, bool) {
	var none T
	if !implements {
		return none, false
	}
	if _, has := As[T](inner); !has {
		return none, false
	}
	return t, true
}

// A Latency is how long one operation of a storage takes, by order of magnitude.
type Latency int

// The classes of latency. The zero value is that of a file system.
const (
	// LatencyFile: microseconds on a local disk to milliseconds on a network
	// file system. More operations in flight delay each other, and an operation
	// may block for ever.
	LatencyFile Latency = iota

	// LatencyMemory: the content is in memory. Operations never block, and
	// callers need no time-outs.
	LatencyMemory

	// LatencyRequest: each operation is a request over a network and takes tens
	// of milliseconds, however many are in flight.
	LatencyRequest
)

// A Profile describes the performance of a storage, for scheduling requests. The zero value
// describes a file system.
type Profile struct {
	Latency       Latency
	Concurrency   int   // requests of Stride bytes in flight that saturate the storage; 0: unknown
	Local         bool  // the storage is of this machine: a request for attributes takes microseconds
	NamesInMemory bool  // names and attributes are known: they take no request
	ReadsAhead    bool  // the kernel reads far ahead of sequential readers by itself
	Stride        int64 // bytes that are best requested at once; 0: any number. Objects are Streamers if it is not 0
}

// ProfileOf returns the profile of d, or the zero value if d has none.
func ProfileOf(d Driver) Profile {
	p, ok := As[Profiler](d)
	if !ok {
		return Profile{}
	}
	return p.Profile()
}

// A Sample is a part of a dataset.
type Sample struct {
	Files map[string]Info // regular files by name
	Links []string        // names of up to n symbolic links in the same directories
}
