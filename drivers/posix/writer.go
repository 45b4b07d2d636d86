package posix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

var _ drivers.Writer = (*writer)(nil)

// A writer is a drivers.Writer. It writes a temporary file, which Commit renames.
type writer struct {
	store *Store
	tree  *tree // released by Close
	temp  tempFile
	name  string
	info  drivers.Info // attributes of the source file
	done  bool         // committed or aborted

	sums   []uint32      // checksums of the blocks
	summed []atomic.Bool // blocks whose checksum is in sums
	lost   atomic.Bool   // the disk has lost bytes that were written
	checks sync.RWMutex  // read-locked while lost is being determined
	inode  uint64        // of the temporary file; set by finish, like mtime
	mtime  unix.Timespec

	copy atomic.Pointer[copyObject] // the committed copy; it shares the descriptor and is not closed
}

// Create implements drivers.Store. It fails if the file system has not enough free space. It
// does not reserve the space: for a large file on tmpfs, fallocate(2) would take long, and
// the open(2) of the job would wait for it.
func (s *Store) Create(ctx context.Context, name string, info drivers.Info) (drivers.Writer, error) {
	if err := checkRequest(ctx, "create", name); err != nil {
		return nil, err
	}
	if name == "." || info.Size < 0 {
		return nil, pathError("create", name, unix.EINVAL)
	}
	t, err := s.acquire()
	if err != nil {
		return nil, pathError("create", name, err)
	}
	w, err := s.newWriter(t, name, info)
	if err != nil {
		t.release()
		return nil, pathError("create", name, err)
	}
	return w, nil
}

// newWriter returns a writer, which releases t.
func (s *Store) newWriter(t *tree, name string, info drivers.Info) (*writer, error) {
	end, err := s.beginChange()
	if err != nil {
		return nil, err
	}
	defer end()
	temp, err := t.create(name, info.Size)
	if err != nil {
		return nil, err
	}
	blocks := blocksOf(info.Size)
	w := &writer{
		store: s, tree: t, temp: temp, name: name, info: info,
		sums: make([]uint32, blocks), summed: make([]atomic.Bool, blocks),
	}
	s.writers.Store(w, nil)
	return w, nil
}

// create returns a temporary file for a copy of name with size bytes.
func (t *tree) create(name string, size int64) (tempFile, error) {
	space, err := statfs(t.incoming)
	if err != nil {
		return tempFile{}, err
	}
	if space.Total > 0 && space.Available < size {
		return tempFile{}, unix.ENOSPC
	}
	dir, _ := split(name)
	parent, err := t.makeDirs(dir)
	if err != nil {
		return tempFile{}, err
	}
	unix.Close(parent)
	return newTempFile(t.incoming, copyMode)
}

// makeDirs returns a descriptor of the folder dir below files and creates what is missing.
func (t *tree) makeDirs(dir string) (int, error) {
	fd, err := openBelow(t.root().fd, dir, unix.O_PATH|unix.O_DIRECTORY)
	if err == nil || !isMissing(err) {
		return fd, err
	}
	fd, err = openat2(t.root().fd, ".", unix.O_PATH|unix.O_DIRECTORY)
	for elem := range strings.SplitSeq(dir, "/") {
		if err != nil {
			return -1, err
		}
		var next int
		next, err = makeDir(fd, elem)
		unix.Close(fd)
		fd = next
	}
	return fd, err
}

// makeDir returns a descriptor of the folder name in dirfd and creates it if it is missing.
// It removes a copy of that name: at the source, a folder has replaced the file.
func makeDir(dirfd int, name string) (int, error) {
	for range 3 { // other goroutines may change the folder at the same time
		if err := mkdirAt(dirfd, name); err != nil && err != unix.EEXIST {
			return -1, err
		}
		fd, err := openat2(dirfd, name, unix.O_PATH|unix.O_DIRECTORY)
		switch err {
		case unix.ENOENT:
		case unix.ENOTDIR:
			if err := removeRegular(dirfd, name); err != nil && !isMissing(err) && err != unix.EISDIR {
				return -1, err
			}
		default:
			return fd, err
		}
	}
	return -1, unix.ENOTDIR
}

// WriteAt implements drivers.Writer. It computes the checksums of blocks that p covers whole.
func (w *writer) WriteAt(p []byte, off int64) (int, error) {
	n, err := w.tree.root().cache.writeAt(w.temp.fd, p, off, w.info.Size)
	w.sum(p[:n], off)
	if err != nil {
		return n, pathError("write", w.name, err)
	}
	return n, nil
}

// sum sets the checksums of the blocks that p, written at off, covers whole. Those of other
// blocks are computed by commit.
func (w *writer) sum(p []byte, off int64) {
	for len(p) > 0 && off < w.info.Size {
		block := off / drivers.ChecksumBlock
		start := block * drivers.ChecksumBlock
		end := min(start+drivers.ChecksumBlock, w.info.Size)
		n := min(end-off, int64(len(p)))
		whole := n == end-start
		if whole {
			w.sums[block] = drivers.Checksum(0, p[:n])
		}
		w.summed[block].Store(whole)
		p, off = p[n:], off+n
	}
}

// ReadAt implements drivers.Writer. What was written stays in memory until the disk has confirmed
// it, unless the file is large or memory is short. If a block was dropped before, and the disk
// has failed to store it, the read returns other bytes without an error. The kernel records
// the failure before it drops the block, so that the check after the read finds it. After the
// commit, blocks are compared with their checksums.
func (w *writer) ReadAt(p []byte, off int64) (int, error) {
	if c := w.copy.Load(); c != nil {
		return c.ReadAt(background, p, off)
	}
	n, err := w.tree.root().cache.readAt(w.temp.fd, p, off, w.info.Size)
	if err != nil && err != io.EOF {
		return n, pathError("read", w.name, err)
	}
	if lost := w.checkWrites(); lost != nil {
		return 0, pathError("read", w.name, lost)
	}
	return n, err
}

// checkWrites returns an error if the disk has failed to store what was written. It does not
// wait for writes in flight.
func (w *writer) checkWrites() error {
	switch {
	case w.tree.root().cache.inMemory:
		return nil
	case w.lost.Load():
		return drivers.ErrLost
	}
	w.checks.RLock()
	defer w.checks.RUnlock()
	// The kernel reports an error once for each descriptor, whatever the range is. In this
	// range, there is nothing to wait for.
	const beyond = 1 << 62
	err := ignoringEINTR(func() error {
		return unix.SyncFileRange(w.temp.fd, beyond, 1, unix.SYNC_FILE_RANGE_WAIT_BEFORE)
	})
	return w.noteLost(err)
}

// noteLost returns err, of a call that waits for the disk, as one that matches drivers.ErrLost.
// A full disk has not lost what it has confirmed before.
func (w *writer) noteLost(err error) error {
	if err == nil {
		return nil
	}
	w.lost.Store(true)
	if err == unix.ENOSPC || err == unix.EDQUOT {
		return err
	}
	return fmt.Errorf("%w: %w", drivers.ErrLost, err)
}

// Commit implements drivers.Writer. It waits for the disk; see the package comment.
func (w *writer) Commit() error {
	if w.done {
		return pathError("commit", w.name, errors.New("already committed or aborted"))
	}
	if err := w.commit(); err != nil {
		return pathError("commit", w.name, err)
	}
	w.done = true
	return nil
}

func (w *writer) commit() error {
	if err := w.finish(); err != nil {
		return err
	}
	if err := w.confirm(); err != nil {
		return err
	}
	end, err := w.store.beginChange()
	if err != nil {
		return err
	}
	defer end()
	dir, base := split(w.name)
	parent, err := w.tree.makeDirs(dir)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	replaced, err := w.findReplaced(parent, base)
	if err != nil {
		return err
	}
	rec := record{inode: w.inode, name: nameHash(w.name), source: w.info, sums: w.sums}
	checked := allChecked
	if !w.tree.root().cache.inMemory {
		checked = newCheckedBlocks(len(rec.sums))
	}
	added, err := w.tree.records.add(background, rec, checked)
	if err != nil {
		return err
	}
	rename := func() error { return unix.Renameat(w.temp.dirfd, w.temp.name, parent, base) }
	err = rename()
	if err == unix.EISDIR && unix.Unlinkat(parent, base, unix.AT_REMOVEDIR) == nil {
		err = rename() // at the source, a file has replaced the folder
	}
	if err != nil {
		return err
	}
	if replaced != 0 {
		w.tree.records.remove(replaced, w.name)
	}
	o := &object{fd: w.temp.fd, cache: &w.tree.root().cache, name: w.name, info: w.info, mtime: w.mtime}
	w.copy.Store(&copyObject{object: o, tree: w.tree, rec: added})
	return nil
}

// findReplaced returns the inode number of the file that a commit will replace, or 0. The error
// is a *ForeignError if the file belongs to another user.
func (w *writer) findReplaced(dirfd int, name string) (inode uint64, err error) {
	var st unix.Stat_t
	if unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return 0, nil // renameat(2) will return the error, if there is one
	}
	if !isOwn(st.Uid) {
		return 0, &ForeignError{filepath.Join(w.tree.path, filesName, w.name), st.Uid}
	}
	return st.Ino, nil
}

// confirm computes the checksums that are missing, and waits until the disk has the content.
func (w *writer) confirm() error {
	if err := w.sumRest(); err != nil {
		return err
	}
	if w.tree.root().cache.inMemory {
		return nil
	}
	err := ignoringEINTR(func() error { return unix.Fdatasync(w.temp.fd) })
	if err := w.noteLost(err); err != nil {
		return err
	}
	w.checks.Lock() // a concurrent ReadAt may have received the error in place of this call
	defer w.checks.Unlock()
	if w.lost.Load() {
		return drivers.ErrLost
	}
	dropPages(w.temp.fd, 0)
	return nil
}

// sumRest computes the checksums of blocks that were not written at once.
func (w *writer) sumRest() error {
	buf := blockBuffers.Get().(*[drivers.ChecksumBlock]byte)
	defer blockBuffers.Put(buf)
	for i := range w.sums {
		if w.summed[i].Load() {
			continue
		}
		off := int64(i) * drivers.ChecksumBlock
		p := buf[:min(drivers.ChecksumBlock, w.info.Size-off)]
		if _, err := w.ReadAt(p, off); err != nil {
			return err
		}
		w.sums[i] = drivers.Checksum(0, p)
	}
	return nil
}

// finish sets the modification time. It then checks that the file system has stored exactly
// that time and the expected size.
func (w *writer) finish() error {
	mtime, err := unix.TimeToTimespec(w.info.Mtime)
	if err != nil {
		return err
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, mtime}
	if err := unix.UtimesNanoAt(w.temp.dirfd, w.temp.name, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(w.temp.fd, &st); err != nil {
		return err
	}
	w.inode, w.mtime = st.Ino, st.Mtim
	if st.Size != w.info.Size {
		return fmt.Errorf("%d bytes were written, want %d", st.Size, w.info.Size)
	}
	if st.Mtim != mtime {
		return fmt.Errorf("the file system stored the modification time %v as %v", w.info.Mtime, time.Unix(st.Mtim.Unix()))
	}
	return nil
}

// Abort implements drivers.Writer.
func (w *writer) Abort() {
	if !w.done {
		w.done = true
		w.temp.unlink()
	}
}

// Close implements drivers.Writer.
func (w *writer) Close() error {
	w.Abort()
	w.store.writers.Delete(w)
	if c := w.copy.Load(); c != nil && c.kept.Load() {
		dropPages(w.temp.fd, 0)
	}
	w.tree.root().cache.dropAfterReads(w.temp.fd)
	err := w.temp.close()
	w.tree.release()
	return err
}
