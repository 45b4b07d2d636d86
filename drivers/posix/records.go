package posix

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

// records is the log of the records of all copies in a dataset folder. A commit appends the
// record of its copy before it renames the copy, and a removal appends one of removedSize.
// The last record of an inode number counts, and of its links the last for each name. A power
// failure may lose the end of the log, and then the copies that were committed last.
//
// Only the positions of the records are in memory, about 30 bytes for each copy. All methods
// may be called concurrently.
type records struct {
	dirfd int // the folder of the log; not owned

	loading chan struct{} // of capacity 1; the goroutine that has sent to it loads the log
	loaded  atomic.Bool   // the following are valid

	append sync.Mutex  // serializes appends; guards the following
	fd     int         // -1 before the log is loaded
	end    int64       // where the next record is written
	dirty  atomic.Bool // the log has changed since the last sync

	mu sync.RWMutex // guards the following
	recordIndex
}

// A recordIndex has the positions of the records that count.
type recordIndex struct {
	index map[uint64]position            // by inode number: of the first name
	links map[uint64]map[uint64]position // by inode number and hash of the name: of further names
}

func newRecordIndex() recordIndex {
	return recordIndex{make(map[uint64]position), make(map[uint64]map[uint64]position)}
}

// add enters the position of a record. same reports whether it is of the name that the inode number
// had; else it is of a new file, without links.
func (x *recordIndex) add(r *record, p position, same bool) {
	switch {
	case r.link && x.links[r.inode] == nil:
		x.links[r.inode] = map[uint64]position{r.name: p}
	case r.link:
		x.links[r.inode][r.name] = p
	default:
		x.index[r.inode] = p
		if !same {
			delete(x.links, r.inode)
		}
	}
}

// remove removes the record of a name.
func (x *recordIndex) remove(r *record) {
	if !r.link {
		delete(x.index, r.inode)
		return
	}
	delete(x.links[r.inode], r.name)
	if len(x.links[r.inode]) == 0 {
		delete(x.links, r.inode)
	}
}

// get returns the position of the record of a name, if that is a link, and else that of the first
// name.
func (x *recordIndex) get(inode, name uint64) (p position, link, ok bool) {
	if p, ok = x.links[inode][name]; ok {
		return p, true, true
	}
	p, ok = x.index[inode]
	return p, false, ok
}

// update replaces the record of an inode number at an offset, if it counts.
func (x *recordIndex) update(inode uint64, off int64, p position) {
	if old, ok := x.index[inode]; ok && old.off == off {
		x.index[inode] = p
	}
	for name, old := range x.links[inode] {
		if old.off == off {
			x.links[inode][name] = p
		}
	}
}

// at returns the record at an offset, if it counts.
func (x *recordIndex) at(inode uint64, off int64) (p position, ok bool) {
	if p, ok = x.index[inode]; ok && p.off == off {
		return p, true
	}
	for _, p := range x.links[inode] {
		if p.off == off {
			return p, true
		}
	}
	return position{}, false
}

// A position says where the last record of an inode number is.
type position struct {
	off     int64
	checked *checkedBlocks // nil: no block was checked yet
}

func newRecords(dirfd int) *records {
	return &records{dirfd: dirfd, loading: make(chan struct{}, 1), fd: -1}
}

// load reads the log, unless that was done. It creates the log if it is missing, and rewrites
// it if most of it is of no use any more. After an error the next call tries again.
func (r *records) load(ctx context.Context) error {
	if r.loaded.Load() {
		return nil
	}
	select {
	case r.loading <- struct{}{}:
		defer func() { <-r.loading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if r.loaded.Load() {
		return nil
	}
	fd, err := openLog(r.dirfd)
	if err != nil {
		return err
	}
	index, live, end, err := readLog(ctx, fd)
	if err != nil {
		unix.Close(fd)
		return err
	}
	if end > minLog && end > 2*live {
		smaller, moved, length, err := rewriteLog(r.dirfd, fd, index)
		switch {
		case err == nil:
			unix.Close(fd)
			fd, index, end = smaller, moved, length
		case !isNoRoom(err) || !isNamed(r.dirfd, recordsName, fd): // otherwise the log is used as it is
			unix.Close(fd)
			return err
		}
	}
	r.fd, r.end, r.recordIndex = fd, end, index
	r.loaded.Store(true)
	return nil
}

// minLog is the size in bytes from which a log is rewritten if most of it is of no use.
const minLog = 1 << 20

// openLog opens the log and creates it if it is missing.
func openLog(dirfd int) (fd int, err error) {
	err = ignoringEINTR(func() error {
		fd, err = unix.Openat(dirfd, recordsName, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return -1, err
	}
	if err := unix.Fchmod(fd, 0o600); err != nil { // without regard to the umask
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// readLog returns the position of the last record of each inode number, the bytes that these
// records take, and the end of the log. It skips what is damaged. Records are aligned to 4
// bytes.
func readLog(ctx context.Context, fd int) (index recordIndex, live, end int64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return recordIndex{}, 0, 0, err
	}
	s := logScanner{size: st.Size, index: newRecordIndex(), first: make(map[uint64]firstName), links: make(map[linkKey]int64)}
	buf := make([]byte, 1<<20)
	for s.off < s.size {
		if err := ctx.Err(); err != nil {
			return recordIndex{}, 0, 0, err
		}
		n, err := readAt(fd, buf, s.off, 0)
		if err != nil && err != io.EOF {
			return recordIndex{}, 0, 0, err
		}
		if n == 0 { // the file has become shorter
			break
		}
		from := s.off
		need := s.scan(buf[:n])
		if need > int64(len(buf)) {
			buf = make([]byte, need)
		} else if s.off == from { // the file has become shorter
			break
		}
	}
	for inode := range s.index.index {
		live += s.first[inode].length
	}
	for inode, links := range s.index.links {
		for name := range links {
			live += s.links[linkKey{inode, name}]
		}
	}
	return s.index, live, (st.Size + 3) &^ 3, nil
}

// A logScanner finds the records of a log of size bytes.
type logScanner struct {
	size  int64
	off   int64 // how far the log was scanned
	index recordIndex
	first map[uint64]firstName // by inode number, also those that were removed
	links map[linkKey]int64    // the lengths of their last records
}

// A firstName describes the last record of the first name of an inode number.
type firstName struct {
	name   uint64 // its hash
	length int64  // of the record
}

// A linkKey is the inode number of a link, and the hash of its name.
type linkKey struct{ inode, name uint64 }

// scan enters the records in b, which is at off, and advances off. If the next record is longer
// than b, scan returns its length.
func (s *logScanner) scan(b []byte) (need int64) {
	for len(b) > 0 {
		r, n, err := decodeRecord(b)
		switch {
		case err == errShortRecord && s.off+n <= s.size:
			return n
		case err != nil:
			n = 4
		case r.source.Size == removedSize:
			s.index.remove(&r)
		default:
			s.index.add(&r, position{off: s.off}, s.first[r.inode].name == r.name)
			if r.link {
				s.links[linkKey{r.inode, r.name}] = n
			} else {
				s.first[r.inode] = firstName{r.name, n}
			}
		}
		s.off += n
		b = b[min(n, int64(len(b))):]
	}
	return 0
}

// maxRecord is the length of the record of a copy of 64 TiB.
const maxRecord = 256 << 20

// rewriteLog writes the records of index to a new log, which replaces that of fd. It returns the
// descriptor, the index and the length of the new log.
func rewriteLog(dirfd, fd int, index recordIndex) (int, recordIndex, int64, error) {
	f, err := newTempFile(dirfd, fileMode)
	if err != nil {
		return -1, recordIndex{}, 0, err
	}
	end := int64(0)
	moved, err := index.moved(func(p position) (position, error) {
		r, err := readRecord(fd, p.off)
		switch {
		case err == errNoRecord: // it is damaged: its copy is found to be of no use later
			return p, nil
		case err != nil:
			return p, err
		}
		b := r.appendTo(nil)
		p = position{off: end}
		end += int64(len(b))
		_, err = writeAt(f.fd, b, p.off, 0)
		return p, err
	})
	if err == nil {
		err = f.rename(recordsName)
	}
	if err != nil {
		f.unlink()
		f.close()
		return -1, recordIndex{}, 0, err
	}
	return f.fd, moved, end, nil
}

// moved returns an index with the positions that f returns for those of x. It calls f for the first
// names before the links, because the record of a first name drops the links of an earlier file.
func (x recordIndex) moved(f func(position) (position, error)) (y recordIndex, err error) {
	y = newRecordIndex()
	for inode, p := range x.index {
		if y.index[inode], err = f(p); err != nil {
			return y, err
		}
	}
	for inode, links := range x.links {
		y.links[inode] = make(map[uint64]position, len(links))
		for name, p := range links {
			if y.links[inode][name], err = f(p); err != nil {
				return y, err
			}
		}
	}
	return y, nil
}

// readRecord reads the record at an offset of the log.
func readRecord(fd int, off int64) (record, error) {
	buf := make([]byte, recordSize+4*8)
	for {
		n, err := readAt(fd, buf, off, 0)
		if err != nil && err != io.EOF {
			return record{}, err
		}
		r, want, err := decodeRecord(buf[:n])
		if err != errShortRecord || n < len(buf) || want > maxRecord { // a damaged record may seem long
			if err != nil {
				err = errNoRecord
			}
			return r, err
		}
		buf = make([]byte, want)
	}
}

// A copyRecord is the record of a copy, and which blocks of the copy were checked.
type copyRecord struct {
	record
	off     int64 // position in the log
	checked *checkedBlocks
}

// find returns the last record of a name of an inode number. If it has none, find returns that of the
// first name. The error is errNoRecord if there is none either, or it is damaged.
func (r *records) find(ctx context.Context, inode uint64, name string) (copyRecord, error) {
	if err := r.load(ctx); err != nil {
		return copyRecord{}, err
	}
	r.mu.RLock()
	p, link, ok := r.get(inode, nameHash(name))
	r.mu.RUnlock()
	if !ok {
		return copyRecord{}, errNoRecord
	}
	rec, err := readRecord(r.fd, p.off)
	if err == nil && (rec.inode != inode || rec.link != link) {
		err = errNoRecord
	}
	if err != nil {
		return copyRecord{}, err
	}
	if p.checked == nil {
		p.checked = r.startChecking(inode, p.off, len(rec.sums))
	}
	return copyRecord{rec, p.off, p.checked}, nil
}

// startChecking returns the checked blocks of the copy whose record is at off, which are none
// yet.
func (r *records) startChecking(inode uint64, off int64, blocks int) *checkedBlocks {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, ok := r.at(inode, off)
	if !ok { // the copy was removed or replaced
		return newCheckedBlocks(blocks)
	}
	if p.checked == nil {
		p.checked = newCheckedBlocks(blocks)
		r.update(inode, off, p)
	}
	return p.checked
}

// allAreChecked records that all blocks of the copy whose record is at off were checked.
func (r *records) allAreChecked(inode uint64, off int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.update(inode, off, position{off, allChecked})
}

// uncheck records that the copy whose record is at off is corrupt or was not readable. Later
// opens check its blocks again.
func (r *records) uncheck(inode uint64, off int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.update(inode, off, position{off: off})
}

// add appends the record of a copy, some blocks of which need not be compared with their checksums.
func (r *records) add(ctx context.Context, rec record, checked *checkedBlocks) (copyRecord, error) {
	if err := r.load(ctx); err != nil {
		return copyRecord{}, err
	}
	off, err := r.write(&rec)
	if err != nil {
		return copyRecord{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recordIndex.add(&rec, position{off, checked}, false)
	return copyRecord{rec, off, checked}, nil
}

// replace appends rec in place of the record at rec.off, unless that is not the last one of its
// inode number any more.
func (r *records) replace(rec copyRecord) error {
	off, err := r.write(&rec.record)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := r.at(rec.inode, rec.off); ok {
		r.update(rec.inode, rec.off, position{off, p.checked})
	}
	return nil
}

// remove records that a name of an inode number was removed.
func (r *records) remove(inode uint64, name string) error {
	if !r.loaded.Load() {
		return nil
	}
	rec := record{inode: inode, name: nameHash(name)}
	rec.source.Size = removedSize
	r.mu.Lock()
	_, link, ok := r.get(inode, rec.name)
	rec.link = link
	r.recordIndex.remove(&rec)
	r.mu.Unlock()
	if !ok {
		return nil
	}
	_, err := r.write(&rec)
	return err
}

// write appends a record to the log and returns its offset.
func (r *records) write(rec *record) (off int64, err error) {
	b := rec.appendTo(make([]byte, 0, recordSize+4*len(rec.sums)))
	r.append.Lock()
	defer r.append.Unlock()
	off = r.end
	if _, err := writeAt(r.fd, b, off, 0); err != nil {
		if err == unix.EFBIG {
			return 0, drivers.ErrNoRecord
		}
		return 0, err
	}
	r.end += int64(len(b))
	r.dirty.Store(true)
	return off, nil
}

// sync writes the log to the disk, if it has changed.
func (r *records) sync() error {
	if !r.dirty.Swap(false) {
		return nil
	}
	err := ignoringEINTR(func() error { return unix.Fdatasync(r.fd) })
	if err != nil {
		r.dirty.Store(true)
	}
	return err
}

// close closes the log. No other method may be called after it.
func (r *records) close() {
	if r.loaded.Load() {
		unix.Close(r.fd)
	}
}

// checkedBlocks is the set of blocks of one copy that were compared with their checksums since
// they were written or the store was opened. Its methods may be called concurrently.
type checkedBlocks struct {
	left atomic.Int64 // blocks that are not in the set
	bits []atomic.Uint32
}

// allChecked is the set of all blocks of any copy.
var allChecked = new(checkedBlocks)

func newCheckedBlocks(blocks int) *checkedBlocks {
	if blocks == 0 {
		return allChecked
	}
	c := &checkedBlocks{bits: make([]atomic.Uint32, (blocks+31)/32)}
	c.left.Store(int64(blocks))
	return c
}

// complete reports whether all blocks are in the set.
func (c *checkedBlocks) complete() bool { return c.left.Load() == 0 }

// has reports whether a block is in the set.
func (c *checkedBlocks) has(block int64) bool {
	return c.complete() || c.bits[block/32].Load()&(1<<(block%32)) != 0
}

// add adds a block.
func (c *checkedBlocks) add(block int64) {
	if bit := uint32(1) << (block % 32); !c.complete() && c.bits[block/32].Or(bit)&bit == 0 {
		c.left.Add(-1)
	}
}
