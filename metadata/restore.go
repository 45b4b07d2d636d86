package metadata

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"os"
	"sync/atomic"
	"time"
)

// restore has the container know what was known when the file at path was saved
// from the same source: it is believed for as long as if the source had said it
// to this container. It must be called before anything is looked up, and costs
// the same whatever the file holds: a directory is read from the file when it is
// first wanted. One that is found damaged then is as if it had not been saved.
//
// The file stays open until Close.
func (c *Container) restore(path, source string) error {
	if err := ours(path); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		c.saved, err = openSaved(f, info.Size(), source)
	}
	if err != nil {
		f.Close()
		return fmt.Errorf("%s: %w", path, err)
	}
	c.saved.file = f
	if root := c.saved.root; root.size > 0 {
		c.root.dir.saved.Store(&root)
	}
	return nil
}

// Close ends the listings that are under way, waits until they have ended, and
// closes the file that Restore has opened. Nothing may be looked up or saved after
// it.
func (c *Container) Close() error {
	c.background.end()
	if c.saved == nil {
		return nil
	}
	return c.saved.file.Close()
}

// recall loads a directory from the saved names, if it is there and has not
// been loaded. The levels are what the tiers hold now.
func (c *Container) recall(ctx context.Context, dir *Entry) error {
	d := dir.dir
	if d.saved.Load() == nil {
		return nil
	}
	begun, err := d.begin(ctx, func() bool { return d.saved.Load() == nil })
	if !begun {
		return err
	}
	listed, entries := c.remember(dir)
	copies := c.copies(ctx, dir)
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.end(nil)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	d.saved.Store(nil)
	if dir.Stale() {
		return nil
	}
	for _, e := range entries {
		c.addVersion(e, nil, copies.of(e.Name()))
	}
	d.sorted, d.version = entries, d.version+1
	if listed != 0 {
		d.listed, d.known = c.at(listed), true
	}
	return nil
}

// remember reads the entries of a directory from the saved names.
func (c *Container) remember(dir *Entry) (moment, []*Entry) {
	names, err := c.saved.read(*dir.dir.saved.Load())
	if err != nil {
		if !c.saved.warned.Swap(true) {
			c.log.Warn("saved names cannot be read; asking the source", "path", dir.Path(), "err", err)
		}
		return 0, nil
	}
	entries := make([]*Entry, 0, names.n)
	for n := range names.all() {
		n.info.Name, n.info.Version = string(n.name), string(n.version)
		e := makeEntry(dir, n.info, c.at(n.asked))
		if below := n.below; below.size > 0 {
			e.dir.saved.Store(&below)
		}
		entries = append(entries, e)
	}
	return names.listed, entries
}

// savedNames is an open file of saved names.
type savedNames struct {
	file   io.Closer
	r      io.ReaderAt
	root   block
	at     moment      // when it was saved
	warned atomic.Bool // it was logged that a block cannot be read
}

// openSaved reads head and tail of a file.
func openSaved(r io.ReaderAt, size int64, source string) (*savedNames, error) {
	from, low, err := readHead(io.NewSectionReader(r, 0, size))
	if err != nil {
		return nil, err
	}
	if from != source {
		return nil, fmt.Errorf("saved from another source, %q", from)
	}
	tail := make([]byte, tailSize)
	if _, err := r.ReadAt(tail, size-tailSize); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	tail, ok := checked(tail)
	if !ok || string(tail[:len(tailMagic)]) != tailMagic {
		return nil, errDamaged
	}
	field := func(i int) int64 { return int64(binary.LittleEndian.Uint64(tail[len(tailMagic)+8*i:])) }
	s := &savedNames{r: r, root: block{off: field(0), size: field(1)}, at: moment(field(2))}
	if s.root.size > 0 {
		s.root.low = low
	}
	if !s.root.before(size - tailSize) {
		return nil, errDamaged
	}
	if s.at > thisMoment() {
		return nil, errors.New("saved at a time that is yet to come")
	}
	return s, nil
}

// before reports whether b is nothing, or something that begins no earlier than
// it may and ends before off.
func (b block) before(off int64) bool {
	return b == block{} || b.off >= b.low && b.size > crc32.Size && b.size <= off && b.off <= off-b.size
}

// maxSource is how long the name of a source may be.
const maxSource = 64 << 10

// readHead returns the source in a head, and where that ends.
func readHead(r io.Reader) (source string, end int64, err error) {
	in := bufio.NewReader(r)
	b := make([]byte, len(headMagic))
	if _, err := io.ReadFull(in, b); err != nil || string(b) != headMagic {
		return "", 0, ErrForeign
	}
	version, err := binary.ReadUvarint(in)
	if err == nil && version != formatVersion {
		return "", 0, fmt.Errorf("format version %d: this is version %d", version, formatVersion)
	}
	n, err := binary.ReadUvarint(in)
	if err != nil || n > maxSource {
		return "", 0, errDamaged
	}
	b = binary.AppendUvarint(binary.AppendUvarint(b, version), n)
	start := len(b)
	b = append(b, make([]byte, n+crc32.Size)...)
	if _, err := io.ReadFull(in, b[start:]); err != nil {
		return "", 0, errDamaged
	}
	b, ok := checked(b)
	if !ok {
		return "", 0, errDamaged
	}
	return string(b[start:]), int64(len(b)) + crc32.Size, nil
}

// checked returns b without the checksum at its end, and whether that is right.
func checked(b []byte) ([]byte, bool) {
	n := len(b) - crc32.Size
	return b[:n], crc32.Checksum(b[:n], castagnoli) == binary.LittleEndian.Uint32(b[n:])
}

// A content is what a block says.
type content struct {
	listed moment // when all names were known, 0 if they were not
	n      int
	names  decoder
}

// all are the names, in order.
func (c *content) all() iter.Seq[savedName] {
	return func(yield func(savedName) bool) {
		d, last := c.names, savedName{asked: c.listed}
		for range c.n {
			if last = d.name(last); !yield(last) {
				return
			}
		}
	}
}

// read returns what a block says, if all of it can be. What it allocates is no
// more than the file had when it was opened, since the blocks are within it.
func (s *savedNames) read(b block) (*content, error) {
	if b.size > maxBlock || b.depth >= maxDepth {
		return nil, errDamaged
	}
	buf := make([]byte, b.size)
	if _, err := s.r.ReadAt(buf, b.off); err != nil {
		return nil, err
	}
	buf, ok := checked(buf)
	if !ok {
		return nil, errDamaged
	}
	return decode(buf, b, s.at)
}

// decode returns what a block, whose bytes without the checksum are b, says that
// was saved at some time.
func decode(b []byte, at block, saved moment) (*content, error) {
	d := decoder{b: b, low: at.low, depth: at.depth + 1}
	c := &content{listed: moment(d.signed())}
	c.n = int(d.below(uint64(len(b)))) // an entry takes more than a byte
	c.names = d
	if d.bad || c.listed < 0 || c.listed > saved {
		return nil, errDamaged
	}
	last := savedName{asked: c.listed}
	for i := range c.n {
		n := d.name(last)
		if d.bad || !validName(string(n.name)) || i > 0 && bytes.Compare(last.name, n.name) >= 0 ||
			n.asked < 0 || n.asked > saved || !n.below.before(at.off) {
			return nil, errDamaged
		}
		last = n
	}
	if len(d.b) > 0 {
		return nil, errDamaged
	}
	return c, nil
}

// A decoder takes values off the front of b. When there are none, or they are
// out of range, it is bad, and so is what it returns.
type decoder struct {
	b     []byte
	bad   bool
	low   int64 // of the next directory that has a block
	depth int   // of all of them
}

// name returns the entry after last.
func (d *decoder) name(last savedName) savedName {
	n := savedName{name: d.bytes(), version: d.bytes()}
	i := &n.info
	for _, v := range []*uint32{&i.Mode, &i.Nlink, &i.UID, &i.GID, &i.Rdev} {
		*v = uint32(d.below(1 << 32))
	}
	i.Size = int64(d.below(1 << 63))
	base := last.info.Mtime.Unix()
	if last.name == nil {
		base = 0
	}
	i.Mtime = d.time(base)
	i.Ctime = d.time(i.Mtime.Unix())
	i.Atime = d.time(i.Mtime.Unix())
	n.asked = last.asked + moment(d.signed())
	if i.IsDir() {
		n.below = d.block()
	}
	return n
}

// block returns the block of a directory.
func (d *decoder) block() block {
	b := block{off: int64(d.below(1 << 63)), size: int64(d.below(1 << 63))}
	if b.size > 0 {
		b.low, b.depth = d.low, d.depth
		d.low = b.off + b.size
	}
	return b
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

// time returns a time that is relative to the seconds of another.
func (d *decoder) time(base int64) time.Time {
	s := d.signed()
	return time.Unix(base+s, int64(d.below(1e9)))
}
