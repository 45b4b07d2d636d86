package metadata

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// A Snapshot is a metadata snapshot that is open for reading.
type Snapshot struct {
	file          io.Closer
	r             io.ReaderAt
	root          extent
	written       wallTime
	user          string      // for whom its permissions were decided; see drivers.Permitter
	permittedRoot string      // see Container.permittedRoot
	warned        atomic.Bool // it was logged that a block is not readable
	ended         atomic.Bool // no block is read any more: a read took too long, or Close was called
}

// Written returns when the snapshot was written.
func (s *Snapshot) Written() time.Time { return time.Unix(0, int64(s.written)*int64(tick)) }

// Close closes the file. Directories that were not loaded are read from the source then. It may be
// called while the container is in use.
func (s *Snapshot) Close() error {
	s.ended.Store(true)
	return s.file.Close()
}

// newSnapshot reads the head and the tail of a file of that size.
func newSnapshot(r io.ReaderAt, size int64, source string) (*Snapshot, error) {
	h, low, err := readHead(io.NewSectionReader(r, 0, size))
	if err != nil {
		return nil, err
	}
	if h.source != source {
		return nil, fmt.Errorf("metadata snapshot of another source, %q", h.source)
	}
	tail := make([]byte, tailSize)
	if _, err := r.ReadAt(tail, size-tailSize); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	tail, ok := verifySum(tail)
	if !ok || string(tail[:len(tailMagic)]) != tailMagic {
		return nil, errDamaged
	}
	field := func(i int) int64 { return int64(binary.LittleEndian.Uint64(tail[len(tailMagic)+8*i:])) }
	s := &Snapshot{r: r, root: extent{off: field(0), size: field(1)}, written: wallTime(field(2)), user: h.user, permittedRoot: h.root}
	if s.root.size > 0 {
		s.root.low = low
	}
	if !s.root.endsBy(size - tailSize) {
		return nil, errDamaged
	}
	if s.written > wallNow() {
		return nil, errors.New("metadata snapshot was written in the future")
	}
	return s, nil
}

// endsBy reports whether x is empty, or begins at x.low or later and ends at off or earlier.
func (x extent) endsBy(off int64) bool {
	return x == extent{} || x.off >= x.low && x.size > crc32.Size && x.size <= off && x.off <= off-x.size
}

// A head is the head of a snapshot.
type head struct{ source, user, root string }

// maxField bounds the length of each of the strings in a head.
const maxField = 64 << 10

// readHead returns a head and its size.
func readHead(r io.Reader) (h head, size int64, err error) {
	in := bufio.NewReader(r)
	b := make([]byte, len(headMagic))
	if _, err := io.ReadFull(in, b); err != nil || string(b) != headMagic {
		return head{}, 0, ErrForeign
	}
	version, err := binary.ReadUvarint(in)
	if err == nil && version != formatVersion {
		return head{}, 0, fmt.Errorf("metadata snapshot has format version %d, want %d", version, formatVersion)
	}
	b = binary.AppendUvarint(b, version)
	for _, field := range []*string{&h.source, &h.user, &h.root} {
		n, err := binary.ReadUvarint(in)
		if err != nil || n > maxField {
			return head{}, 0, errDamaged
		}
		b = binary.AppendUvarint(b, n)
		text := make([]byte, n)
		if _, err := io.ReadFull(in, text); err != nil {
			return head{}, 0, errDamaged
		}
		b, *field = append(b, text...), string(text)
	}
	sum := make([]byte, crc32.Size)
	if _, err := io.ReadFull(in, sum); err != nil || crc32.Checksum(b, castagnoli) != binary.LittleEndian.Uint32(sum) {
		return head{}, 0, errDamaged
	}
	return h, int64(len(b) + len(sum)), nil
}

// verifySum returns b without the checksum at its end, and whether the checksum is right.
func verifySum(b []byte) ([]byte, bool) {
	n := len(b) - crc32.Size
	return b[:n], crc32.Checksum(b[:n], castagnoli) == binary.LittleEndian.Uint32(b[n:])
}

// A block is the decoded block of a directory.
type block struct {
	listed  wallTime // time when all names were last known, 0 if they were not
	stamp   stamp    // of the directory
	n       int      // number of entries
	entries decoder
}

// all yields the entries, sorted by name.
func (b *block) all() iter.Seq[snapshotEntry] {
	return func(yield func(snapshotEntry) bool) {
		d, last := b.entries, snapshotEntry{validated: b.listed}
		for range b.n {
			if last = d.entry(last); !yield(last) {
				return
			}
		}
	}
}

// read returns the block at x, if all of it is valid. The blocks are within the file, so
// that read never allocates more than the size that the file had when it was opened.
func (s *Snapshot) read(x extent) (*block, error) {
	if x.size > maxBlock || x.depth >= maxDepth {
		return nil, errDamaged
	}
	buf := make([]byte, x.size)
	if err := s.readAt(buf, x.off); err != nil {
		return nil, err
	}
	buf, ok := verifySum(buf)
	if !ok {
		return nil, errDamaged
	}
	return decodeBlock(buf, x, s.written)
}

// readTimeout bounds a read of a block. The disk of a tier may hang.
const readTimeout = 5 * time.Second

var (
	errNotRead = fmt.Errorf("metadata snapshot was not read within %v", readTimeout)
	errEnded   = errors.New("metadata snapshot is not in use any more")
)

// readAt fills buf. After a read that takes too long, no other begins, and buf must not be used.
func (s *Snapshot) readAt(buf []byte, off int64) error {
	if s.ended.Load() {
		return errEnded
	}
	read := make(chan error, 1)
	go func() {
		read <- panics.Do(func() error { _, err := s.r.ReadAt(buf, off); return err })
	}()
	timeout := time.NewTimer(readTimeout)
	defer timeout.Stop()
	select {
	case err := <-read:
		return err
	case <-timeout.C:
		s.ended.Store(true)
		return errNotRead
	}
}

// decodeBlock decodes and validates the block at x of a snapshot that was written at that
// time. buf is the block without the checksum.
func decodeBlock(buf []byte, x extent, written wallTime) (*block, error) {
	d := decoder{b: buf, low: x.low, depth: x.depth + 1}
	b := &block{listed: wallTime(d.signed()), stamp: d.stamp()}
	b.n = int(d.below(uint64(len(buf)))) // an entry takes more than a byte
	b.entries = d
	if d.bad || b.listed < 0 || b.listed > written ||
		b.stamp.seen < 0 || b.stamp.seen > int64(written)*int64(tick) {
		return nil, errDamaged
	}
	last := snapshotEntry{validated: b.listed}
	for i := range b.n {
		e := d.entry(last)
		if d.bad || !validName(string(e.name)) || i > 0 && bytes.Compare(last.name, e.name) >= 0 ||
			e.validated < 0 || e.validated > written || !e.below.endsBy(x.off) {
			return nil, errDamaged
		}
		last = e
	}
	if len(d.b) > 0 {
		return nil, errDamaged
	}
	return b, nil
}

// A decoder removes values from the front of b. If b ends early or a value is out of range, it
// sets bad, and the results are undefined.
type decoder struct {
	b     []byte
	bad   bool
	low   int64 // extent.low of the next directory that has a block
	depth int   // extent.depth of all directories
}

// entry returns the entry after last.
func (d *decoder) entry(last snapshotEntry) snapshotEntry {
	e := snapshotEntry{name: d.bytes(), version: d.bytes()}
	i := &e.info
	mode := d.below(1 << 34)
	i.Mode, e.permitted, i.Unsized = uint32(mode>>2), mode&1 != 0, mode&2 != 0
	for _, v := range []*uint32{&i.Nlink, &i.UID, &i.GID, &i.Rdev} {
		*v = uint32(d.below(1 << 32))
	}
	i.Size = int64(d.below(1 << 63))
	i.Blocks = drivers.FullBlocks(i.Size) + d.signed()
	base := last.info.Mtime.Unix()
	if last.name == nil {
		base = 0
	}
	i.Mtime = d.time(base)
	i.Ctime = d.time(i.Mtime.Unix())
	i.Atime = d.time(i.Mtime.Unix())
	e.validated = last.validated + wallTime(d.signed())
	if i.IsDir() {
		e.below = d.extent()
	}
	return e
}

// stamp returns the stamp of a directory.
func (d *decoder) stamp() stamp {
	mtime := d.time(0)
	ctime := d.time(mtime.Unix())
	return stamp{timesOf(drivers.Info{Mtime: mtime, Ctime: ctime}), d.signed() * int64(tick)}
}

// extent returns the position of a directory's block.
func (d *decoder) extent() extent {
	x := extent{off: int64(d.below(1 << 63)), size: int64(d.below(1 << 63))}
	if x.size > 0 {
		x.low, x.depth = d.low, d.depth
		d.low = x.off + x.size
	}
	return x
}

func (d *decoder) signed() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}

// below returns an integer below limit.
func (d *decoder) below(limit uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v >= limit {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) bytes() []byte {
	n := d.below(uint64(len(d.b)) + 1)
	if n > uint64(len(d.b)) {
		d.bad = true
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

// time returns a time whose seconds are the difference from base.
func (d *decoder) time(base int64) time.Time {
	s := d.signed()
	return time.Unix(base+s, int64(d.below(1e9)))
}
