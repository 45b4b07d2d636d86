package metadata

import (
	"cmp"
	"math"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// An Entry is one version of one file, or a directory, symbolic link or special file. Its
// methods may be called concurrently.
//
// A dataset has millions of entries. An Entry and everything that belongs to it take less
// than 200 bytes, of which name and version take up to 48.
type Entry struct {
	parent *Entry
	text   string // the name, then the version: both take one allocation
	id     uint64
	dir    *directory // nil unless a directory

	kind    uint32 // the type bits of mode
	nameLen uint32 // length of the name in text

	// The lock of the parent directory guards the attributes; the root's own lock guards
	// those of the root. The size and mtime of a regular file never change, and neither
	// does the version.
	size                   int64
	mtime, ctime, atime    int64 // seconds; of a piece, atime is its offset
	mtimeN, ctimeN, atimeN uint32
	mode, nlink, uid, gid  uint32
	special                uint32 // see setSpecial

	validated atomic.Uint32 // time of the last request to the source that confirmed the entry, by Container.now
	state     atomic.Uint32 // the level, and the bits in state.go
	lookups   atomic.Int64  // the kernel's lookup count
}

// makeEntry returns an entry without an ID. info is the reply of the source to a request that
// was made at the time requested.
func makeEntry(parent *Entry, info drivers.Info, requested uint32) *Entry {
	e := &Entry{parent: parent, text: info.Name, nameLen: uint32(len(info.Name)), kind: info.Type()}
	if info.IsDir() {
		e.dir = &directory{stamp: makeStamp(timesOf(info))}
	} else {
		e.text += info.Version
	}
	e.set(info)
	if info.Err != nil {
		e.setBits(unknown)
	}
	e.validated.Store(requested)
	return e
}

// ID returns the number of the entry, which is unique in the container for its lifetime. It
// serves as inode number.
func (e *Entry) ID() uint64 { return e.id }

// Name returns the last element of the entry's path, "." for the root.
func (e *Entry) Name() string { return e.text[:e.nameLen] }

// version returns the Version of the drivers.Info that the entry was made from.
func (e *Entry) version() string { return e.text[e.nameLen:] }

// Path returns the path from the root, "." for the root. The path of a piece is that of its file.
func (e *Entry) Path() string {
	e = e.File()
	if e.parent == nil {
		return "."
	}
	n := -1
	for p := e; p.parent != nil; p = p.parent {
		n += int(p.nameLen) + 1
	}
	b := make([]byte, n)
	for p := e; p.parent != nil; p = p.parent {
		n -= int(p.nameLen)
		copy(b[n:], p.Name())
		if n > 0 {
			n--
			b[n] = '/'
		}
	}
	return string(b)
}

// CopyName returns the name of the file's copies in every tier. For a directory it is the
// directory of these names. Every operation on a tier uses it instead of Path.
func (e *Entry) CopyName() string {
	if e.IsPiece() {
		return piecesDir + "/" + e.Path() + "/" + e.Name()
	}
	return e.Path()
}

// Parent returns the directory of the entry, the root for the root, and the file for a piece.
func (e *Entry) Parent() *Entry {
	if e.parent == nil {
		return e
	}
	return e.parent
}

// Type returns the type bits of the entry's mode, such as S_IFREG of stat(2).
func (e *Entry) Type() uint32 { return e.kind }

// IsDir reports whether the entry is a directory.
func (e *Entry) IsDir() bool { return e.dir != nil }

// IsRegular reports whether the entry is a regular file.
func (e *Entry) IsRegular() bool { return drivers.Info{Mode: e.kind}.IsRegular() }

// IsSymlink reports whether the entry is a symbolic link.
func (e *Entry) IsSymlink() bool { return drivers.Info{Mode: e.kind}.IsSymlink() }

// CachedListing holds the version of the listing that the kernel has cached of a directory,
// or 0 if that is unknown. The package that serves the kernel maintains it.
func (e *Entry) CachedListing() *atomic.Uint32 { return &e.dir.cachedListing }

// Moved reports whether a directory, whose drivers.Info has a Dev of dev now, is on another file system than
// when its attributes were first known: something was mounted or unmounted there.
func (e *Entry) Moved(dev uint64) bool {
	mu := e.attributes()
	mu.RLock()
	defer mu.RUnlock()
	return dev != 0 && e.dir.device != 0 && e.dir.device != shortDev(dev)
}

// shortDev returns a hash of a device number, which is not 0 unless the number is.
func shortDev(dev uint64) uint32 {
	if dev == 0 {
		return 0
	}
	return cmp.Or(uint32(dev)^uint32(dev>>32), 1)
}

// Size returns the size of a regular file in bytes.
func (e *Entry) Size() int64 { return e.size }

// Placeable reports whether the entry can have copies. An empty file has no content to copy, and the
// paths of the copies of pieces are reserved.
func (e *Entry) Placeable() bool {
	return e.IsRegular() && !e.Unknown() && e.size > 0 && !e.isReserved()
}

// Info returns the attributes.
func (e *Entry) Info() drivers.Info {
	mu := e.attributes()
	mu.RLock()
	defer mu.RUnlock()
	return e.info()
}

// info is Info; e.attributes must be held.
func (e *Entry) info() drivers.Info {
	if e.IsPiece() {
		return e.pieceInfo()
	}
	return drivers.Info{
		Name: e.Name(), Version: e.version(), Mode: e.mode, Nlink: e.nlink, UID: e.uid, GID: e.gid, Size: e.size,
		Mtime: time.Unix(e.mtime, int64(e.mtimeN)),
		Ctime: time.Unix(e.ctime, int64(e.ctimeN)),
		Atime: time.Unix(e.atime, int64(e.atimeN)),
		Rdev:  e.rdev(), Blocks: e.blocks(), Unsized: e.Unsized(),
	}
}

// attributes returns the lock that guards the attributes.
func (e *Entry) attributes() *panics.RWMutex { return &e.File().Parent().dir.mu }

// set sets the attributes to those of info, which describes the same version, and reports whether
// another one than the access time and the blocks has changed. e.attributes must be held, unless e
// is not shared yet.
func (e *Entry) set(info drivers.Info) (changed bool) {
	changed = e.mode != info.Mode || e.nlink != info.Nlink || e.uid != info.UID || e.gid != info.GID || e.rdev() != info.Rdev ||
		e.size != info.Size || e.times() != timesOf(info)
	if changed {
		e.clearBits(noXattrs | noACL | permitted | wasEmpty)
		if info.Unsized {
			e.setBits(unsized)
		} else {
			e.clearBits(unsized)
		}
	}
	if e.dir != nil && e.dir.device == 0 {
		e.dir.device = shortDev(info.Dev)
	}
	e.mode, e.nlink, e.uid, e.gid = info.Mode, info.Nlink, info.UID, info.GID
	e.setSpecial(info)
	if e.size != info.Size { // Size reads it without the lock, so an equal size is not written
		e.size = info.Size
	}
	e.mtime, e.mtimeN = info.Mtime.Unix(), uint32(info.Mtime.Nanosecond())
	e.ctime, e.ctimeN = info.Ctime.Unix(), uint32(info.Ctime.Nanosecond())
	e.atime, e.atimeN = info.Atime.Unix(), uint32(info.Atime.Nanosecond())
	return changed
}

// setSpecial sets what only some types of files have, in one field: the number of a device, and of
// others the difference between the blocks and drivers.FullBlocks, up to 1 TiB. e.attributes must
// be held, unless e is not shared yet.
func (e *Entry) setSpecial(info drivers.Info) {
	if e.isDevice() {
		e.special = info.Rdev
		return
	}
	more := info.Blocks - drivers.FullBlocks(info.Size)
	e.special = uint32(int32(max(math.MinInt32, min(more, math.MaxInt32))))
}

// rdev returns the number of a device; e.attributes must be held.
func (e *Entry) rdev() uint32 {
	if e.isDevice() {
		return e.special
	}
	return 0
}

// blocks returns the blocks that are allocated; e.attributes must be held.
func (e *Entry) blocks() int64 {
	if e.isDevice() {
		return 0
	}
	return drivers.FullBlocks(e.size) + int64(int32(e.special))
}

// isDevice reports whether the entry is a character or block device.
func (e *Entry) isDevice() bool { return e.kind == syscall.S_IFCHR || e.kind == syscall.S_IFBLK }

// matches reports whether info, a reply of the source, describes e and not another version;
// e.attributes must be held. A directory has one version, whatever its content is. Nothing
// describes an Unknown e.
//
// A source may omit the Version now and then: an info without one matches if all else is
// equal. An e without a Version does not match an info with one. Equal content cannot be
// proved, and only an entry with the Version detects the next change.
func (e *Entry) matches(info drivers.Info) bool {
	if e.Unknown() {
		return false
	}
	if e.IsDir() || info.IsDir() {
		return e.IsDir() && info.IsDir()
	}
	return e.sameVersion(info) && (info.Version == "" || e.version() != "")
}

// sameVersion reports whether info, of the source or of a copy, describes the version of e.
// It compares only attributes that both have; e.attributes must be held.
func (e *Entry) sameVersion(info drivers.Info) bool {
	f := e.File()
	return info.SameVersion(drivers.Info{
		Mode: e.kind, Size: e.size, Mtime: time.Unix(f.mtime, int64(f.mtimeN)), Version: f.version(),
	})
}
