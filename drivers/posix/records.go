package posix

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// records is the log of the records of all copies in a dataset folder. A commit appends the
// record of its copy before it renames the copy, and a removal appends one of removedSize.
// The last record of an inode number counts. A power failure may lose the end of the log,
// and then the copies that were committed last.
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

	mu    sync.RWMutex // guards the following
	index map[uint64]position
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
	if err == nil && end > minLog && end > 2*live {
		fd, end, err = rewriteLog(r.dirfd, fd, index)
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	r.fd, r.end, r.index = fd, end, index
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
func readLog(ctx context.Context, fd int) (index map[uint64]position, live, end int64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, 0, 0, err
	}
	s := logScanner{size: st.Size, index: make(map[uint64]position), lengths: make(map[uint64]int64)}
	buf := make([]byte, 1<<20)
	for s.off < s.size {
		if err := ctx.Err(); err != nil {
			return nil, 0, 0, err
		}
		n, err := readAt(fd, buf, s.off, 0)
		if err != nil && err != io.EOF {
			return nil, 0, 0, err
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
	for _, n := range s.lengths {
		live += n
	}
	return s.index, live, (st.Size + 3) &^ 3, nil
}

// A logScanner finds the records of a log of size bytes.
type logScanner struct {
	size    int64
	off     int64 // how far the log was scanned
	index   map[uint64]position
	lengths map[uint64]int64 // of the records in index
}

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
			delete(s.index, r.inode)
			delete(s.lengths, r.inode)
		default:
			s.index[r.inode] = position{off: s.off}
			s.lengths[r.inode] = n
		}
		s.off += n
		b = b[min(n, int64(len(b))):]
	}
	return 0
}

// maxRecord is the length of the record of a copy of 64 TiB.
const maxRecord = 256 << 20

// rewriteLog writes the records of index to a new log, which replaces that of fd. It updates
// index. It closes fd unless it fails.
func rewriteLog(dirfd, fd int, index map[uint64]position) (int, int64, error) {
	f, err := newTempFile(dirfd, fileMode)
	if err != nil {
		return fd, 0, err
	}
	end := int64(0)
	for inode, p := range index {
		r, err := readRecord(fd, p.off)
		if err == nil {
			b := r.appendTo(nil)
			_, err = writeAt(f.fd, b, end, 0)
			index[inode] = position{off: end}
			end += int64(len(b))
		}
		if err != nil && err != errNoRecord {
			f.unlink()
			f.close()
			return fd, 0, err
		}
	}
	if err := f.rename(recordsName); err != nil {
		f.unlink()
		f.close()
		return fd, 0, err
	}
	unix.Close(fd)
	return f.fd, end, nil
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

// find returns the last record of an inode number. The error is errNoRecord if there is none
// or it is damaged.
func (r *records) find(ctx context.Context, inode uint64) (copyRecord, error) {
	if err := r.load(ctx); err != nil {
		return copyRecord{}, err
	}
	r.mu.RLock()
	p, ok := r.index[inode]
	r.mu.RUnlock()
	if !ok {
		return copyRecord{}, errNoRecord
	}
	rec, err := readRecord(r.fd, p.off)
	if err == nil && rec.inode != inode {
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
	p, ok := r.index[inode]
	if !ok || p.off != off { // the copy was removed or replaced
		return newCheckedBlocks(blocks)
	}
	if p.checked == nil {
		p.checked = newCheckedBlocks(blocks)
		r.index[inode] = p
	}
	return p.checked
}

// allAreChecked records that all blocks of the copy whose record is at off were checked.
func (r *records) allAreChecked(inode uint64, off int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := r.index[inode]; ok && p.off == off {
		r.index[inode] = position{off, allChecked}
	}
}

// uncheck records that the copy whose record is at off is corrupt or was not readable. Later
// opens check its blocks again.
func (r *records) uncheck(inode uint64, off int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := r.index[inode]; ok && p.off == off {
		r.index[inode] = position{off: off}
	}
}

// has reports whether there is a record of an inode number. It does not read it.
func (r *records) has(inode uint64) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, ok := r.index[inode]
	return ok
}

// add appends the record of a copy. checked means that its blocks need not be compared with
// their checksums.
func (r *records) add(ctx context.Context, rec record, checked bool) (copyRecord, error) {
	if err := r.load(ctx); err != nil {
		return copyRecord{}, err
	}
	off, err := r.write(&rec)
	if err != nil {
		return copyRecord{}, err
	}
	added := copyRecord{rec, off, allChecked}
	if !checked {
		added.checked = newCheckedBlocks(len(rec.sums))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.index[rec.inode] = position{off, added.checked}
	return added, nil
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
	if p, ok := r.index[rec.inode]; ok && p.off == rec.off {
		r.index[rec.inode] = position{off, p.checked}
	}
	return nil
}

// remove records that the copy with an inode number was removed.
func (r *records) remove(inode uint64) error {
	if !r.loaded.Load() || !r.has(inode) {
		return nil
	}
	r.mu.Lock()
	delete(r.index, inode)
	r.mu.Unlock()
	rec := record{inode: inode}
	rec.source.Size = removedSize
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
