package metadata

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A metadata snapshot is a file with the cached names and attributes of a container. The
// next container for the same source starts with them instead of requesting them. Integers
// are varints as in encoding/binary, unless noted; strings are their length and bytes;
// checksums are CRC-32C, 4 bytes, little endian.
//
//	head     magic, format version, source, checksum of these
//	blocks   one for each directory of which names are cached
//	tail     44 bytes: magic; offset and size of the root's block and the time of
//	         writing, 8 bytes each, little endian; checksum of these
//
// The block of a directory comes after the blocks of its subdirectories. Between the blocks
// of two subdirectories there are only blocks of directories below the second. A reader
// rejects any other order. Therefore no file can make it loop or read a block twice, and it
// reads at most the whole file. A block is
//
//	listed   time when all names were last known, 0 if they were not
//	number   of entries, which follow by name
//	entry    name, version, mode, nlink, uid, gid, rdev, size, blocks, mtime,
//	         ctime, atime, time of the request that validated it, and for a directory the
//	         offset and size of its block, 0 if there is none
//	checksum of these
//
// Blocks are the difference from drivers.FullBlocks. File times are seconds and nanoseconds.
// The seconds of mtime are the difference from the entry before, those of ctime and atime the
// difference from mtime. Other times count units of 100 ms since 1970. The time of validation
// is the difference from the entry before, or from listed for the first entry.
//
// Format version 1 had no versions of files, and 2 no blocks.
const (
	headMagic     = "milkweed: names\n"
	tailMagic     = "milkweed: end  \n"
	formatVersion = 3
	tailSize      = int64(len(tailMagic)) + 3*8 + crc32.Size
)

// Directories beyond these limits are read from the source after a restart.
const (
	maxBlock = 1 << 30 // bytes: about 30 million names in one directory, 15 million with versions
	maxDepth = 2048    // levels: Linux accepts no deeper path, since a path has at most 4096 bytes
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrForeign is the error of New and SaveSnapshot for a file that is not a metadata
// snapshot. They do not change the file.
var ErrForeign = errors.New("not a metadata snapshot")

var errDamaged = errors.New("metadata snapshot is damaged")

// An extent is the position of a directory's block in the file. The zero value means that
// there is no block. Only a reader uses low and depth, and computes them on the way from the
// root.
type extent struct {
	off, size int64
	low       int64 // the blocks of directories below are between low and off
	depth     int   // levels below the root
}

// A wallTime is a time in ticks since 1970. Unlike the result of Container.now, it is valid in
// other processes.
type wallTime int64

func wallNow() wallTime { return wallTime(time.Now().UnixNano() / int64(tick)) }

// fromWall returns the time by Container.now at t. It rounds down, so that nothing is cached
// for longer than its TTL.
func (c *Container) fromWall(t wallTime) uint32 {
	now := c.now()
	age := max(wallNow()-t, 0) + 1
	return now - uint32(min(age, wallTime(now-1)))
}

// A snapshotEntry is one entry of a block.
type snapshotEntry struct {
	name      []byte
	version   []byte
	info      drivers.Info // without name and version
	validated wallTime
	below     extent // the block of a directory
}

// openSnapshot makes the container start with the metadata in the snapshot at path, if it
// is of the same source. TTLs continue as if this container had made the requests.
// It must be called before the first lookup. Its cost does not depend on the size of the
// file: a directory is read when it is first used, and one that is damaged is read from the
// source instead. The file stays open until Close.
func (c *Container) openSnapshot(path, source string) error {
	if err := checkSnapshotFile(path); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		c.snapshot, err = newSnapshot(f, info.Size(), source)
	}
	if err != nil {
		f.Close()
		return fmt.Errorf("%s: %w", path, err)
	}
	c.snapshot.file = f
	if root := c.snapshot.root; root.size > 0 {
		c.root.dir.snapshot.Store(&root)
	}
	return nil
}

// loadSnapshot loads a directory from the snapshot, if it is there and was not loaded yet.
// The levels are those of the copies that the tiers hold now.
func (c *Container) loadSnapshot(ctx context.Context, dir *Entry) error {
	d := dir.dir
	if d.snapshot.Load() == nil {
		return nil
	}
	started, err := d.startLoad(ctx, func() bool { return d.snapshot.Load() == nil })
	if !started {
		return err
	}
	listed, entries := c.readSnapshot(dir)
	stamped := dir.stamp()
	copies := c.listCopies(ctx, dir)
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.endLoad(nil)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	d.snapshot.Store(nil)
	if dir.Stale() {
		return nil
	}
	for _, e := range entries {
		c.addVersion(e, nil, copies.of(e.Name()))
	}
	d.sorted, d.version = entries, d.version+1
	if listed != 0 {
		d.listed, d.everListed = c.fromWall(listed), true
		d.stamp = stamp{stamped.fileTimes, int64(listed) * int64(tick)}
	}
	return nil
}

// readSnapshot returns the entries of a directory in the snapshot, and the time when it was
// last listed, or 0.
func (c *Container) readSnapshot(dir *Entry) (listed wallTime, entries []*Entry) {
	b, err := c.snapshot.read(*dir.dir.snapshot.Load())
	if err != nil {
		if !c.snapshot.warned.Swap(true) {
			c.log.Warn("metadata snapshot not readable; reading the directory from the source", "path", dir.Path(), "err", err)
		}
		return 0, nil
	}
	entries = make([]*Entry, 0, b.n)
	for s := range b.all() {
		s.info.Name, s.info.Version = string(s.name), string(s.version)
		e := makeEntry(dir, s.info, c.fromWall(s.validated))
		if below := s.below; below.size > 0 {
			e.dir.snapshot.Store(&below)
		}
		entries = append(entries, e)
	}
	return b.listed, entries
}

// SaveSnapshot writes the cached metadata to a file, from which New can start another
// container for the same source. It replaces an earlier snapshot atomically. It does not
// replace any other file, and then the error matches ErrForeign. Concurrent changes may or
// may not be included.
func (c *Container) SaveSnapshot(path, source string) error {
	if err := checkSnapshotFile(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	removeTemporaries(path)
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+temporary)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := c.writeSnapshot(f, source); err != nil {
		return fmt.Errorf("write metadata snapshot: %w", err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("write metadata snapshot: %w", err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// temporary is the suffix of the names of temporary files, as a pattern.
const temporary = ".*.unfinished"

// removeTemporaries removes temporary files of calls of SaveSnapshot that were interrupted.
func removeTemporaries(path string) {
	names, err := filepath.Glob(filepath.Join(filepath.Dir(path), filepath.Base(path)+temporary))
	if err != nil {
		return // the path contains characters of a malformed pattern
	}
	for _, name := range names {
		if checkSnapshotFile(name) == nil {
			os.Remove(name)
		}
	}
}

// checkSnapshotFile returns nil if the file at path is a metadata snapshot of any format
// version and source.
func checkSnapshotFile(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: %w", path, ErrForeign)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	magic := make([]byte, len(headMagic))
	if _, err := io.ReadFull(f, magic); err != nil || string(magic) != headMagic {
		return fmt.Errorf("%s: %w", path, ErrForeign)
	}
	return nil
}

func syncFolder(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
