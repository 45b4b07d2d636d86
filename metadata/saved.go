package metadata

import (
	"bufio"
	"encoding/binary"
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

// The file of a saved name space holds what a container knew of its names, so
// that the next one need not ask the source. Integers are varints as of
// encoding/binary, unless said otherwise; strings are their length and bytes;
// checksums are CRC-32C, 4 bytes, little endian.
//
//	head     magic, format version, source, checksum of these
//	blocks   one for each directory of which something is known
//	tail     44 bytes: magic; offset and size of the root's block and the time
//	         of saving, 8 bytes each, little endian; checksum of these
//
// A block comes after those of the directories in it, and between two of these
// are only those of what is below the second. A reader takes no other order: no
// file can make it go in circles, or to a block twice, so that all it reads of a
// file is at most the file. A block is
//
//	listed   when all names were last known, 0 if they were not
//	number   of entries, which follow by name
//	entry    name, version, mode, nlink, uid, gid, rdev, size, mtime, ctime,
//	         atime, when the source was asked for it, and of a directory the
//	         offset and size of its block, 0 if nothing is known of it
//	checksum of these
//
// Times of files are seconds, and nanoseconds apart: mtime's as the difference
// from the entry before, ctime's and atime's from mtime's. Other times count
// units of 100 ms since 1970; when an entry was asked for is the difference
// from the entry before, and of the first from listed.
//
// Format version 1 had no versions of files.
const (
	headMagic     = "milkweed: names\n"
	tailMagic     = "milkweed: end  \n"
	formatVersion = 2
	tailSize      = int64(len(tailMagic)) + 3*8 + crc32.Size
)

// What is beyond these is asked of the source again after a restart.
const (
	maxBlock = 1 << 30 // bytes: some 30 million names in one directory, 15 million with versions
	maxDepth = 2048    // levels: Linux takes no path that is deeper, of 4096 bytes
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrForeign is what Restore and Save return for a file that is no saved name
// space. It is left alone.
var ErrForeign = errors.New("not a saved name space")

var errDamaged = errors.New("saved name space is damaged")

// A block is where the names of a directory are in the file. The zero value
// is nowhere: nothing is known of them. Only a reader needs low and depth, and
// finds them on its way from the root.
type block struct {
	off, size int64
	low       int64 // what is below the directory is between low and off
	depth     int   // levels below the root
}

// A moment is a time by the clock on the wall, in units of tick since 1970: it
// means something to the next process too.
type moment int64

func thisMoment() moment { return moment(time.Now().UnixNano() / int64(tick)) }

// at returns what Container.now was at a moment, or rather before than after.
func (c *Container) at(m moment) uint32 {
	now := c.now()
	age := max(thisMoment()-m, 0) + 1
	return now - uint32(min(age, moment(now-1)))
}

// A savedName is what a block says of one name.
type savedName struct {
	name    []byte
	version []byte
	info    drivers.Info // without these
	asked   moment
	below   block // of a directory
}

// SaveSnapshot writes what is known of the name space to a file, from which Restore of
// another container for the same source can go on. The file takes the place of
// an earlier one in one step; a file of another kind is left alone, and is an
// error. What changes in the meantime may be saved or not.
func (c *Container) SaveSnapshot(path, source string) error {
	if err := ours(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	removeLeftovers(path)
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+leftover)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := c.write(f, source); err != nil {
		return fmt.Errorf("save names: %w", err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("save names: %w", err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// leftover is the end of the name of a file that is being saved.
const leftover = ".*.unfinished"

// removeLeftovers removes what saves to path left that did not come to an end.
func removeLeftovers(path string) {
	names, err := filepath.Glob(filepath.Join(filepath.Dir(path), filepath.Base(path)+leftover))
	if err != nil {
		return // the path is a pattern itself
	}
	for _, name := range names {
		if ours(name) == nil {
			os.Remove(name)
		}
	}
}

// ours returns nil if there is a saved name space at path, of whatever version
// and source.
func ours(path string) error {
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

// write writes the whole file.
func (c *Container) write(w io.Writer, source string) error {
	s := &saver{c: c, w: bufio.NewWriterSize(w, 1<<20), now: c.now(), at: thisMoment()}
	s.head(source)
	s.tail(s.directory(c.root))
	if s.err != nil {
		return s.err
	}
	return s.w.Flush()
}

// A saver writes the file. It keeps the first error.
type saver struct {
	c   *Container
	w   *bufio.Writer
	now uint32 // when it began, by Container.now
	at  moment // the same
	n   int64  // bytes written
	sum uint32 // of the bytes since the last checksum
	err error
	buf []byte // of one entry
}

func (s *saver) put(b []byte) {
	if s.err == nil {
		_, s.err = s.w.Write(b)
	}
	s.n += int64(len(b))
	s.sum = crc32.Update(s.sum, castagnoli, b)
}

func (s *saver) putSum() {
	s.put(binary.LittleEndian.AppendUint32(nil, s.sum))
	s.sum = 0
}

// moment returns when the time at of Container.now was, which is none after
// the saver began.
func (s *saver) moment(at uint32) moment { return s.at - moment(s.now-min(at, s.now)) }

func (s *saver) head(source string) {
	s.put([]byte(headMagic))
	s.put(binary.AppendUvarint(nil, formatVersion))
	s.put(appendString(nil, source))
	s.putSum()
}

func (s *saver) tail(root block) {
	s.put([]byte(tailMagic))
	b := binary.LittleEndian.AppendUint64(nil, uint64(root.off))
	b = binary.LittleEndian.AppendUint64(b, uint64(root.size))
	s.put(binary.LittleEndian.AppendUint64(b, uint64(s.at)))
	s.putSum()
}

// directory writes what is known of a directory and of what is below.
func (s *saver) directory(e *Entry) block {
	d := e.dir
	if b := d.saved.Load(); b != nil {
		return s.copy(*b)
	}
	d.mu.Lock()
	entries, listed := d.all(), d.listed
	if len(d.doubts) > 0 { // the next container does not have them
		listed = 0
	}
	d.mu.Unlock()
	if len(entries) == 0 && listed == 0 {
		return block{}
	}
	var below []block
	for _, e := range entries {
		if e.IsDir() && s.err == nil {
			below = append(below, s.directory(e))
		}
	}
	var when moment
	if listed != 0 {
		when = s.moment(listed)
	}
	b := s.begin(when, len(entries))
	for _, e := range entries {
		n := savedName{name: []byte(e.Name()), version: []byte(e.version()), info: e.Info(), asked: s.moment(e.checked.Load())}
		if e.IsDir() && s.err == nil {
			n.below, below = below[0], below[1:]
		}
		b.add(n)
	}
	return b.end()
}

// copy writes what an earlier file, that was restored, says of a directory at
// which nobody has looked since.
func (s *saver) copy(b block) block {
	names, err := s.c.saved.read(b)
	if err != nil {
		return block{} // as it would have been had somebody looked
	}
	var below []block
	for n := range names.all() {
		if n.below.size > 0 && s.err == nil {
			below = append(below, s.copy(n.below))
		}
	}
	out := s.begin(names.listed, names.n)
	for n := range names.all() {
		if n.below.size > 0 && s.err == nil {
			n.below, below = below[0], below[1:]
		}
		out.add(n)
	}
	return out.end()
}

// A blockWriter writes a block.
type blockWriter struct {
	s     *saver
	off   int64
	mtime int64
	asked moment
}

func (s *saver) begin(listed moment, names int) *blockWriter {
	listed = min(listed, s.at)
	b := &blockWriter{s: s, off: s.n, asked: listed}
	s.put(binary.AppendUvarint(binary.AppendVarint(nil, int64(listed)), uint64(names)))
	return b
}

func (b *blockWriter) add(n savedName) {
	i, asked, buf := n.info, min(n.asked, b.s.at), b.s.buf[:0]
	buf = appendString(appendString(buf, n.name), n.version)
	for _, v := range []uint32{i.Mode, i.Nlink, i.UID, i.GID, i.Rdev} {
		buf = binary.AppendUvarint(buf, uint64(v))
	}
	buf = binary.AppendUvarint(buf, uint64(i.Size))
	mtime := i.Mtime.Unix()
	buf = appendTime(buf, i.Mtime, b.mtime)
	buf = appendTime(buf, i.Ctime, mtime)
	buf = appendTime(buf, i.Atime, mtime)
	buf = binary.AppendVarint(buf, int64(asked-b.asked))
	if i.IsDir() {
		buf = binary.AppendUvarint(buf, uint64(n.below.off))
		buf = binary.AppendUvarint(buf, uint64(n.below.size))
	}
	b.mtime, b.asked, b.s.buf = mtime, asked, buf
	b.s.put(buf)
}

func (b *blockWriter) end() block {
	b.s.putSum()
	return block{off: b.off, size: b.s.n - b.off}
}

func appendString[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendTime adds a time, with seconds as the difference from base.
func appendTime(b []byte, t time.Time, base int64) []byte {
	return binary.AppendUvarint(binary.AppendVarint(b, t.Unix()-base), uint64(t.Nanosecond()))
}
