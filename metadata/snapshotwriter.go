package metadata

import (
	"bufio"
	"encoding/binary"
	"hash/crc32"
	"io"
	"slices"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// writeSnapshot writes a whole snapshot.
func (c *Container) writeSnapshot(w io.Writer, source string) error {
	s := &snapshotWriter{c: c, w: bufio.NewWriterSize(w, 1<<20), now: c.now(), wall: wallNow()}
	s.head(head{source, c.source.User(), c.permittedRoot()})
	if s.err == nil {
		s.err = s.w.Flush() // by its head, removeTemporaries recognizes the file
	}
	s.tail(s.directory(c.root))
	if s.err != nil {
		return s.err
	}
	return s.w.Flush()
}

// A snapshotWriter writes a snapshot. It keeps the first error.
type snapshotWriter struct {
	c    *Container
	w    *bufio.Writer
	now  uint32   // time of the start, by Container.now
	wall wallTime // the same
	n    int64    // bytes written
	sum  uint32   // of the bytes since the last checksum
	err  error
	buf  []byte // one entry
}

func (s *snapshotWriter) put(b []byte) {
	if s.err == nil {
		_, s.err = s.w.Write(b)
	}
	s.n += int64(len(b))
	s.sum = crc32.Update(s.sum, castagnoli, b)
}

func (s *snapshotWriter) putSum() {
	s.put(binary.LittleEndian.AppendUint32(nil, s.sum))
	s.sum = 0
}

// toWall converts a time of Container.now. A time after the start counts as the start.
func (s *snapshotWriter) toWall(t uint32) wallTime { return s.wall - wallTime(s.now-min(t, s.now)) }

func (s *snapshotWriter) head(h head) {
	s.put([]byte(headMagic))
	s.put(binary.AppendUvarint(nil, formatVersion))
	for _, field := range []string{h.source, h.user, h.root} {
		s.put(appendString(nil, field))
	}
	s.putSum()
}

func (s *snapshotWriter) tail(root extent) {
	s.put([]byte(tailMagic))
	b := binary.LittleEndian.AppendUint64(nil, uint64(root.off))
	b = binary.LittleEndian.AppendUint64(b, uint64(root.size))
	s.put(binary.LittleEndian.AppendUint64(b, uint64(s.wall)))
	s.putSum()
}

// directory writes the cached names of a directory, after those of the directories below it.
func (s *snapshotWriter) directory(e *Entry) extent {
	d := e.dir
	if x := d.snapshot.Load(); x != nil {
		return s.copy(*x)
	}
	d.mu.Lock()
	entries, listed, stamp := d.all(), d.listed, d.stamp
	if len(d.invalidated) > 0 || d.relist { // the snapshot does not contain these names
		listed = 0
	}
	d.mu.Unlock()
	if slices.ContainsFunc(entries, (*Entry).Unknown) { // nor these
		entries, listed = slices.DeleteFunc(slices.Clone(entries), (*Entry).Unknown), 0
	}
	if len(entries) == 0 && listed == 0 {
		return extent{}
	}
	var below []extent
	for _, e := range entries {
		if e.IsDir() && s.err == nil {
			below = append(below, s.directory(e))
		}
	}
	var wallListed wallTime
	if listed != 0 {
		wallListed = s.toWall(listed)
	}
	b := s.beginBlock(wallListed, stamp, len(entries))
	for _, e := range entries {
		entry := snapshotEntry{
			name: []byte(e.Name()), version: []byte(e.version()),
			info: e.Info(), permitted: e.state.Load()&permitted != 0, validated: s.toWall(e.validated.Load()),
		}
		if e.IsDir() && s.err == nil {
			entry.below, below = below[0], below[1:]
		}
		b.add(entry)
	}
	return b.end()
}

// copy copies a directory, and the directories below it, that was not loaded from the
// earlier snapshot.
func (s *snapshotWriter) copy(x extent) extent {
	names, err := s.c.snapshot.read(x)
	if err != nil {
		return extent{} // a lookup would have found no names either
	}
	var below []extent
	for n := range names.all() {
		if n.below.size > 0 && s.err == nil {
			below = append(below, s.copy(n.below))
		}
	}
	sameUser := s.c.snapshot.user == s.c.source.User()
	b := s.beginBlock(names.listed, names.stamp, names.n)
	for n := range names.all() {
		n.permitted = n.permitted && sameUser
		if n.below.size > 0 && s.err == nil {
			n.below, below = below[0], below[1:]
		}
		b.add(n)
	}
	return b.end()
}

// A blockWriter writes one block.
type blockWriter struct {
	s         *snapshotWriter
	off       int64    // of the block
	mtime     int64    // seconds, of the entry before
	validated wallTime // of the entry before
}

// beginBlock starts a block of n entries.
func (s *snapshotWriter) beginBlock(listed wallTime, stamp stamp, n int) *blockWriter {
	listed = min(listed, s.wall)
	b := &blockWriter{s: s, off: s.n, validated: listed}
	buf := binary.AppendVarint(nil, int64(listed))
	buf = appendTime(buf, time.Unix(stamp.mtime, int64(stamp.mtimeN)), 0)
	buf = appendTime(buf, time.Unix(stamp.ctime, int64(stamp.ctimeN)), stamp.mtime)
	buf = binary.AppendVarint(buf, min(stamp.seen/int64(tick), int64(s.wall)))
	s.put(binary.AppendUvarint(buf, uint64(n)))
	return b
}

func (b *blockWriter) add(e snapshotEntry) {
	i, validated, buf := e.info, min(e.validated, b.s.wall), b.s.buf[:0]
	buf = appendString(appendString(buf, e.name), e.version)
	mode := uint64(i.Mode) << 2
	if e.permitted {
		mode |= 1
	}
	if i.Unsized {
		mode |= 2
	}
	buf = binary.AppendUvarint(buf, mode)
	for _, v := range []uint32{i.Nlink, i.UID, i.GID, i.Rdev} {
		buf = binary.AppendUvarint(buf, uint64(v))
	}
	buf = binary.AppendUvarint(buf, uint64(i.Size))
	buf = binary.AppendVarint(buf, i.Blocks-drivers.FullBlocks(i.Size))
	mtime := i.Mtime.Unix()
	buf = appendTime(buf, i.Mtime, b.mtime)
	buf = appendTime(buf, i.Ctime, mtime)
	buf = appendTime(buf, i.Atime, mtime)
	buf = binary.AppendVarint(buf, int64(validated-b.validated))
	if i.IsDir() {
		buf = binary.AppendUvarint(buf, uint64(e.below.off))
		buf = binary.AppendUvarint(buf, uint64(e.below.size))
	}
	b.mtime, b.validated, b.s.buf = mtime, validated, buf
	b.s.put(buf)
}

func (b *blockWriter) end() extent {
	b.s.putSum()
	return extent{off: b.off, size: b.s.n - b.off}
}

func appendString[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendTime appends a time, with seconds as the difference from base.
func appendTime(b []byte, t time.Time, base int64) []byte {
	return binary.AppendUvarint(binary.AppendVarint(b, t.Unix()-base), uint64(t.Nanosecond()))
}
