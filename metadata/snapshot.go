package metadata

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A metadata snapshot is a file with the cached names and attributes of a container. The
// next container for the same source starts with them instead of requesting them. Integers
// are varints as in encoding/binary, unless noted; strings are their length and bytes;
// checksums are CRC-32C, 4 bytes, little endian.
//
//	head     magic, format version, source, user, root, checksum of these
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
//	stamp    mtime and ctime of the directory, and the time of the stamp; see stamp
//	number   of entries, which follow by name
//	entry    name, version, mode and two bits, nlink, uid, gid, rdev, size, blocks, mtime,
//	         ctime, atime, time of the request that validated it, and for a directory the
//	         offset and size of its block, 0 if there is none
//	checksum of these
//
// The lowest bit is whether the source lets the user in the head use the file; see Permit. The second one
// is Unsized. The root in the head is the state of the attributes of the root for which that is so, or
// empty. Blocks are the difference from drivers.FullBlocks. File times are seconds and nanoseconds.
// The seconds of mtime are the difference from the entry before, those of ctime and atime the
// difference from mtime. Other times count units of 100 ms since 1970. The time of validation
// is the difference from the entry before, or from listed for the first entry.
//
// Format version 1 had no versions of files, 2 no blocks, 3 no stamps, 4 no permissions, and 5
// no Unsized.
const (
	headMagic     = "milkweed: names\n"
	tailMagic     = "milkweed: end  \n"
	formatVersion = 6
	tailSize      = int64(len(tailMagic)) + 3*8 + crc32.Size
)

// Directories beyond these limits are read from the source after a restart.
const (
	maxBlock = 1 << 30 // bytes: about 30 million names in one directory, 15 million with versions
	maxDepth = 2048    // levels: Linux accepts no deeper path, since a path has at most 4096 bytes
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrForeign is the error of OpenSnapshot and SaveSnapshot for a file that is not a metadata
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
	permitted bool
	validated wallTime
	below     extent // the block of a directory
}

// OpenSnapshot opens the snapshot that is the file name in folder. It is for Options.Snapshot of a
// container of the same source. Its cost does not depend on the size of the file. The caller
// closes the snapshot.
func OpenSnapshot(folder *os.Root, name, source string) (*Snapshot, error) {
	if err := checkSnapshotFile(folder, name); err != nil {
		return nil, err
	}
	f, err := folder.Open(name)
	if err != nil {
		return nil, err
	}
	var s *Snapshot
	info, err := f.Stat()
	if err == nil {
		s, err = newSnapshot(f, info.Size(), source)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s.file = f
	return s, nil
}

// useSnapshot makes the container start with a snapshot. It must be called before the first
// lookup. A directory is read when it is first used, and one that is damaged is read from the
// source instead.
func (c *Container) useSnapshot(s *Snapshot) {
	c.snapshot = s
	if s.user == c.source.User() && s.permittedRoot == c.rootState() {
		c.root.setBits(permitted)
	}
	if root := s.root; root.size > 0 {
		c.root.dir.snapshot.Store(&root)
	}
}

// loadSnapshot loads a directory from the snapshot, if it is there and was not loaded yet.
// The levels are those of the copies that the tiers hold now.
//
// With Options.SnapshotTTL, the directory is first compared with the source:
//
//  1. If its times prove that no name in it has changed since the snapshot was made, its listing
//     is valid. A file that was rewritten in place is not revealed by these times: the attributes
//     of files are cached for SnapshotTTL from now on.
//  2. If they do not, only the directories in it are loaded: what is below them is compared by
//     itself.
//  3. If the source fails, everything is loaded, to be served during the outage.
//
// In all cases the first lookup of a directory requests its attributes.
func (c *Container) loadSnapshot(ctx context.Context, dir *Entry) error {
	d := dir.dir
	if d.snapshot.Load() == nil {
		return nil
	}
	started, err := d.startLoad(ctx, func() bool { return d.snapshot.Load() == nil })
	if !started {
		return err
	}
	failure := c.validateDirectory(ctx, dir)
	if c.denies(failure) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.endLoad(failure)
		return failure
	}
	failed := failure != nil
	b := c.readSnapshot(dir)
	stamped := dir.stamp()
	now := loaded{c: c, dir: dir, proven: !failed && b.stamp.proves(stamped.fileTimes, c.racy), failed: failed}
	entries := now.entries(b)
	copies := c.listCopies(ctx, dir)
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.endLoad(nil)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	d.snapshot.Store(nil)
	d.loaded.Store(c.now())
	if dir.Stale() {
		return nil
	}
	for _, e := range entries {
		c.addVersion(e, nil, copies.of(e.Name()))
	}
	d.sorted, d.version = entries, d.version+1
	d.stamp = b.stamp
	switch {
	case now.changed():
		d.stamp = stamped
	case b.listed == 0:
	case now.proven && c.snapshotTTL > 0:
		d.listed, d.everListed = dir.validated.Load(), true
	default:
		d.listed, d.everListed = c.fromWall(b.listed), true
	}
	return nil
}

// validateDirectory requests the attributes of dir from the source, unless that was done within
// the last SnapshotTTL, or there is none.
func (c *Container) validateDirectory(ctx context.Context, dir *Entry) error {
	if c.snapshotTTL == 0 {
		return nil
	}
	if validated := dir.validated.Load(); validated != 0 && c.since(validated) < c.snapshotTTL {
		return nil
	}
	if dir.parent == nil {
		return c.refreshRoot(ctx)
	}
	_, _, err := c.revalidateName(ctx, dir.parent, dir.Name())
	return err
}

// A loaded is a directory that is loaded from the snapshot.
type loaded struct {
	c      *Container
	dir    *Entry
	proven bool // no name has changed since the snapshot was made
	failed bool // the source has not returned the times of the directory
}

// changed reports whether names in the directory may have changed.
func (l *loaded) changed() bool { return l.c.snapshotTTL > 0 && !l.proven && !l.failed }

// entries returns the entries of a block that are used.
func (l *loaded) entries(b *block) []*Entry {
	entries := make([]*Entry, 0, b.n)
	sameUser := l.c.snapshot.user == l.c.source.User()
	for s := range b.all() {
		if l.changed() && !s.info.IsDir() {
			continue
		}
		s.info.Name, s.info.Version = string(s.name), string(s.version)
		e := makeEntry(l.dir, s.info, l.validated(s))
		if s.permitted && sameUser {
			e.setBits(permitted)
		}
		if below := s.below; below.size > 0 {
			e.dir.snapshot.Store(&below)
		}
		entries = append(entries, e)
	}
	return entries
}

// validated returns when an entry of the snapshot counts as validated.
func (l *loaded) validated(s snapshotEntry) uint32 {
	switch c := l.c; {
	case c.snapshotTTL == 0 || l.failed:
		return c.fromWall(s.validated)
	case s.info.IsDir():
		return 0
	default:
		now := c.now()
		return now - min(uint32((c.ttl-c.snapshotTTL)/tick), now-1)
	}
}

// readSnapshot returns the block of a directory in the snapshot. One that is not readable is empty.
func (c *Container) readSnapshot(dir *Entry) *block {
	b, err := c.snapshot.read(*dir.dir.snapshot.Load())
	if err != nil {
		if !c.snapshot.warned.Swap(true) {
			c.log.Warn("metadata snapshot not readable; reading the directory from the source", "path", dir.Path(), "err", err)
		}
		return new(block)
	}
	return b
}

// Changes counts the changes of what a snapshot would contain.
func (c *Container) Changes() uint64 { return c.changes.Load() }

// Overtaken returns a channel that receives after a file has got another version or other
// attributes. If it was changed in place, the times of its directory do not tell, and a container
// that starts with an earlier snapshot shows the file as it was, even to programs that have seen the
// change. The receiver removes the snapshot until it saves the next one.
func (c *Container) Overtaken() <-chan struct{} { return c.overtaken }

// overtake lets Overtaken receive.
func (c *Container) overtake() {
	select {
	case c.overtaken <- struct{}{}:
	default: // the receiver has not handled an earlier one yet
	}
}

// RemoveSnapshot removes the file name in folder, if it exists. After that, a power failure does not
// bring it back. For a file that is not a metadata snapshot, the error matches ErrForeign.
func RemoveSnapshot(folder *os.Root, name string) error {
	err := checkSnapshotFile(folder, name)
	if err == nil {
		err = folder.Remove(name)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return syncFolder(folder) // also if an earlier call has removed it and has failed here
}

// SaveSnapshot writes the cached metadata to the file name in folder, from which OpenSnapshot and
// New can start another container for the same source. It replaces an earlier snapshot atomically.
// It does not replace any other file, and then the error matches ErrForeign. Concurrent changes may
// or may not be included. When ctx is done, the earlier snapshot remains.
func (c *Container) SaveSnapshot(ctx context.Context, folder *os.Root, name, source string) error {
	if err := checkSnapshotFile(folder, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	removeTemporaries(folder, name)
	temp := fmt.Sprintf("%s.%016x%s", name, rand.Uint64(), temporary)
	f, err := folder.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("create %s: %w", name, withoutPath(err))
	}
	defer folder.Remove(temp)
	defer f.Close()
	if err := c.writeSnapshot(interruptible{ctx, f}, source); err != nil {
		return fmt.Errorf("write %s: %w", name, withoutPath(err))
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("write %s: %w", name, withoutPath(err))
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := folder.Rename(temp, name); err != nil {
		return err
	}
	return syncFolder(folder)
}

// withoutPath returns the cause of err. The name of a temporary file differs each time, so that a
// caller could not tell whether it has logged the error before.
func withoutPath(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// An interruptible writes until ctx is done.
type interruptible struct {
	ctx context.Context
	w   io.Writer
}

func (w interruptible) Write(b []byte) (int, error) {
	if w.ctx.Err() != nil {
		return 0, context.Cause(w.ctx)
	}
	return w.w.Write(b)
}

// temporary is the suffix of the names of temporary files.
const temporary = ".unfinished"

// removeTemporaries removes temporary files of calls of SaveSnapshot that were interrupted.
func removeTemporaries(folder *os.Root, name string) {
	f, err := folder.Open(".")
	if err != nil {
		return
	}
	defer f.Close()
	names, _ := f.Readdirnames(-1)
	for _, n := range names {
		if strings.HasPrefix(n, name+".") && strings.HasSuffix(n, temporary) && checkSnapshotFile(folder, n) == nil {
			folder.Remove(n)
		}
	}
}

// checkSnapshotFile returns nil if the file is a metadata snapshot of any format version and
// source.
func checkSnapshotFile(folder *os.Root, name string) error {
	info, err := folder.Lstat(name)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: %w", name, ErrForeign)
	}
	f, err := folder.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	magic := make([]byte, len(headMagic))
	if _, err := io.ReadFull(f, magic); err != nil || string(magic) != headMagic {
		return fmt.Errorf("%s: %w", name, ErrForeign)
	}
	return nil
}

func syncFolder(folder *os.Root) error {
	f, err := folder.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
