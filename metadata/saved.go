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
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"sync/atomic"
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
// A block comes after those of the directories in it, which is why no file can
// make a reader go in circles. It is
//
//	listed   when all names were last known, 0 if they were not
//	number   of entries, which follow by name
//	entry    name, mode, nlink, uid, gid, rdev, size, mtime, ctime, atime,
//	         when the source was asked for it, and of a directory the offset
//	         and size of its block, 0 if nothing is known of it
//	checksum of these
//
// Times of files are seconds, and nanoseconds apart: mtime's as the difference
// from the entry before, ctime's and atime's from mtime's. Other times count
// units of 100 ms since 1970; when an entry was asked for is the difference
// from the entry before, and of the first from listed.
const (
	headMagic     = "milkweed: names\n"
	tailMagic     = "milkweed: end  \n"
	formatVersion = 1
	tailSize      = int64(len(tailMagic)) + 3*8 + crc32.Size
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var (
	errForeign = errors.New("not a saved name space")
	errDamaged = errors.New("saved name space is damaged")
)

// A block is where the names of a directory are in the file. The zero value
// is nowhere: nothing is known of them.
type block struct{ off, size int64 }

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
	name  []byte
	info  drivers.Info // without the name
	asked moment
	below block // of a directory
}

// Save writes what is known of the name space to a file, from which Restore of
// another container for the same source can go on. The file takes the place of
// an earlier one in one step; a file of another kind is left alone, and is an
// error. What changes in the meantime may be saved or not.
func (c *Container) Save(path, source string) error {
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
		return fmt.Errorf("%s: %w", path, errForeign)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	magic := make([]byte, len(headMagic))
	if _, err := io.ReadFull(f, magic); err != nil || string(magic) != headMagic {
		return fmt.Errorf("%s: %w", path, errForeign)
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
	s.put([]byte(headMagic))
	s.put(binary.AppendUvarint(nil, formatVersion))
	s.put(appendString(nil, source))
	s.putSum()
	root := s.directory(c.root)
	s.put([]byte(tailMagic))
	tail := binary.LittleEndian.AppendUint64(nil, uint64(root.off))
	tail = binary.LittleEndian.AppendUint64(tail, uint64(root.size))
	s.put(binary.LittleEndian.AppendUint64(tail, uint64(s.at)))
	s.putSum()
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

// directory writes what is known of a directory and of what is below.
func (s *saver) directory(e *Entry) block {
	d := e.dir
	if b := d.saved.Load(); b != nil {
		return s.copy(*b)
	}
	d.mu.Lock()
	entries, listed := d.all(), d.listed
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
		n := savedName{name: []byte(e.name), info: e.Info(), asked: s.moment(e.checked.Load())}
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
	buf = appendString(buf, n.name)
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
	return block{b.off, b.s.n - b.off}
}

func appendString[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendTime adds a time, with seconds as the difference from base.
func appendTime(b []byte, t time.Time, base int64) []byte {
	return binary.AppendUvarint(binary.AppendVarint(b, t.Unix()-base), uint64(t.Nanosecond()))
}

// Restore has the container know what was known when the file at path was saved
// from the same source: it is believed for as long as if the source had said it
// to this container. It must be called before anything is looked up, and costs
// the same whatever the file holds: a directory is read from the file when it is
// first wanted. One that is found damaged then is as if it had not been saved.
//
// The file stays open until Close.
func (c *Container) Restore(path, source string) error {
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

// Close closes the file that Restore has opened. Nothing may be looked up or
// saved after it.
func (c *Container) Close() error {
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
	copies, unsure := c.copies(ctx, dir.Path())
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.end()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	d.saved.Store(nil)
	if dir.Stale() {
		return nil
	}
	for _, e := range entries {
		c.table.add(e)
		e.locate(copies[e.name], unsure)
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
		n.info.Name = string(n.name)
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
	head, err := readHead(io.NewSectionReader(r, 0, size))
	if err != nil {
		return nil, err
	}
	if head != source {
		return nil, fmt.Errorf("saved from another source, %q", head)
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
	s := &savedNames{r: r, root: block{field(0), field(1)}, at: moment(field(2))}
	if !s.root.before(size - tailSize) {
		return nil, errDamaged
	}
	if s.at > thisMoment() {
		return nil, errors.New("saved at a time that is yet to come")
	}
	return s, nil
}

// before reports whether b is nothing, or something that ends before off.
func (b block) before(off int64) bool {
	return b == block{} || b.off > 0 && b.size > crc32.Size && b.size <= off && b.off <= off-b.size
}

// maxSource is how long the name of a source may be.
const maxSource = 64 << 10

// readHead returns the source in a head.
func readHead(r io.Reader) (source string, err error) {
	in := bufio.NewReader(r)
	b := make([]byte, len(headMagic))
	if _, err := io.ReadFull(in, b); err != nil || string(b) != headMagic {
		return "", errForeign
	}
	version, err := binary.ReadUvarint(in)
	if err == nil && version != formatVersion {
		return "", fmt.Errorf("format version %d: this is version %d", version, formatVersion)
	}
	n, err := binary.ReadUvarint(in)
	if err != nil || n > maxSource {
		return "", errDamaged
	}
	b = binary.AppendUvarint(binary.AppendUvarint(b, version), n)
	start := len(b)
	b = append(b, make([]byte, n+crc32.Size)...)
	if _, err := io.ReadFull(in, b[start:]); err != nil {
		return "", errDamaged
	}
	b, ok := checked(b)
	if !ok {
		return "", errDamaged
	}
	return string(b[start:]), nil
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

// read returns what a block says, if all of it can be.
func (s *savedNames) read(b block) (*content, error) {
	buf := make([]byte, b.size)
	if _, err := s.r.ReadAt(buf, b.off); err != nil {
		return nil, err
	}
	buf, ok := checked(buf)
	if !ok {
		return nil, errDamaged
	}
	return decode(buf, b.off, s.at)
}

// decode returns what a block at an offset, without its checksum, says that was
// saved at some time.
func decode(b []byte, off int64, saved moment) (*content, error) {
	d := decoder{b: b}
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
			n.asked < 0 || n.asked > saved || !n.below.before(off) {
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
	b   []byte
	bad bool
}

// name returns the entry after last.
func (d *decoder) name(last savedName) savedName {
	n := savedName{name: d.bytes()}
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
		n.below = block{int64(d.below(1 << 63)), int64(d.below(1 << 63))}
	}
	return n
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
