package drivers

import (
	"hash/fnv"
	"time"
)

// Info describes a file, a directory, a symbolic link or a special file.
type Info struct {
	Name  string    // last element of the name; "." for the root
	Mode  uint32    // type and permissions, as st_mode of stat(2)
	Inode uint64    // inode number in its file system; 0 if the storage has none
	Dev   uint64    // device number of its file system, which names it only while it is mounted; 0 if unknown
	Nlink uint32    // number of hard links
	UID   uint32    // owner
	GID   uint32    // group
	Rdev  uint32    // device number of a special file, as st_rdev of stat(2)
	Size  int64     // bytes
	Mtime time.Time // last change of the content
	Ctime time.Time // last change of the content or the attributes
	Atime time.Time // last access, as reported by the storage

	// Blocks is the number of blocks of BlockBytes that are allocated, as st_blocks of
	// stat(2), or FullBlocks(Size) if the storage has no such number.
	Blocks int64

	// Unsized tells that Size, which is 0, proves nothing: the storage makes the content of some files when
	// they are read, and shows no size for them. Only a read tells such a file from an empty one.
	Unsized bool

	// Names is the number of names of a Store that share the storage of a copy, and 0 elsewhere.
	// See Linker.
	Names uint32

	// Version identifies the content of a file where the storage has such an
	// identifier, for example an ETag or a generation. It is "" elsewhere. It
	// is a sequence of bytes that only its driver interprets.
	Version string

	// Err is why ReadDir, or a Namer, has found the name but not its attributes,
	// and nil elsewhere. Then only Name is valid, and the type in Mode, which is 0 if it
	// is unknown too.
	Err error
}

// BlockBytes is the number of bytes of a block in Info.Blocks.
const BlockBytes = 512

// FullBlocks returns the number of blocks that size bytes without holes need.
func FullBlocks(size int64) int64 { return size/BlockBytes + min(size%BlockBytes, 1) }

// IsSparse reports whether the storage holds less of a regular file than its size, because
// the file has holes or is compressed.
func (i Info) IsSparse() bool { return i.IsRegular() && i.Blocks < i.Size/BlockBytes }

// A Hole is a part of a file that the storage does not hold, and that reads as zeros.
type Hole struct {
	Start int64 // offset of the first byte
	End   int64 // offset of the byte after the last
}

// MaxHoles is the largest number of holes that Holes returns for one file.
const MaxHoles = 4096

// Statfs is the size of a file system in bytes and in files.
type Statfs struct {
	Total     int64  // bytes in total
	Free      int64  // bytes not used
	Available int64  // bytes that this process may still use
	Files     int64  // files in total; 0 if unlimited
	FilesFree int64  // files that can still be created
	Device    uint64 // number of the device, by which stores on one device are recognized; 0: not known
	Unit      int64  // bytes of which a complete file takes a multiple, about; 0: not known
}

// SameVersion reports whether i and j describe the same content, by type, size,
// modification time and, if both have one, Version.
//
// A copy has the size and modification time of its source, and no Version. A
// driver with Versions therefore gives different modification times to
// different Versions.
func (i Info) SameVersion(j Info) bool {
	return i.Type() == j.Type() && i.Size == j.Size && i.Mtime.Equal(j.Mtime) &&
		(i.Version == j.Version || i.Version == "" || j.Version == "")
}

// SameContent reports whether a copy has the content of the file that i describes. copied are
// the attributes that the file had when it was copied. SameVersion must hold. If moreover the
// change times differ, the file may have been rewritten and its modification time restored,
// as touch -r does; unless another attribute has changed, which explains the difference.
func (i Info) SameContent(copied Info) bool {
	switch {
	case !i.SameVersion(copied):
		return false
	case i.Version != "", i.Ctime.IsZero(), copied.Ctime.IsZero(), i.Ctime.Equal(copied.Ctime):
		return true
	}
	return i.Mode != copied.Mode || i.UID != copied.UID || i.GID != copied.GID || i.Nlink != copied.Nlink
}

// VersionedTime returns the modification time of a version: t in whole seconds, and a digest of the
// version in the nanoseconds. A copy in a tier records only the size and the time of its file. The
// digest distinguishes two versions of the same size within one second, except for one pair in a billion.
// If version is "", the nanoseconds are those of t.
func VersionedTime(t time.Time, version string) time.Time {
	ns := int64(t.Nanosecond())
	if version != "" {
		h := fnv.New64a()
		h.Write([]byte(version))
		ns = int64(h.Sum64() % 1e9)
	}
	return time.Unix(t.Unix(), ns)
}

// Type returns the type bits of i.Mode, such as S_IFREG of stat(2).
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
