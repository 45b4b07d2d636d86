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

	left  atomic.Int64 // bytes to write
	sums  stepSums     // of what was written
	inode uint64       // of the temporary file; set by finish, like mtime
	mtime unix.Timespec

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
	w := &writer{store: s, tree: t, temp: temp, name: name, info: info, sums: newStepSums(info.Size)}
	w.left.Store(info.Size)
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
	dir, base := split(name)
	parent, err := t.makeDirs(dir)
	if err != nil {
		return tempFile{}, asUnfit(err)
	}
	defer unix.Close(parent)
	var st unix.Stat_t
	if err := unix.Fstatat(parent, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil && err != unix.ENOENT {
		return tempFile{}, asUnfit(err) // before the source is read in vain
	}
	temp, err := newTempFile(t.incoming, copyMode)
	if err != nil {
		return tempFile{}, err
	}
	if err := allowsSize(temp.fd, size); err != nil {
		temp.unlink()
		temp.close()
		return tempFile{}, asUnfit(err)
	}
	return temp, nil
}

// allowsSize fails if the file system, or RLIMIT_FSIZE, does not allow a file of size bytes.
func allowsSize(fd int, size int64) error {
	if size <= drivers.ChecksumBlock { // its only write will tell
		return nil
	}
	if err := ignoringEINTR(func() error { return unix.Ftruncate(fd, size) }); err != nil {
		return err
	}
	return ignoringEINTR(func() error { return unix.Ftruncate(fd, 0) })
}

// asUnfit returns err, of an operation on one name, as one that matches drivers.ErrUnfit if it says that
// the file system cannot hold this file.
func asUnfit(err error) error {
	switch err {
	case unix.EFBIG, unix.ENAMETOOLONG, unix.EILSEQ, unix.EINVAL, unix.EMLINK, unix.EOVERFLOW, unix.ERANGE:
		return fmt.Errorf("%w: %w", drivers.ErrUnfit, err)
	}
	return err
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

// WriteAt implements drivers.Writer.
func (w *writer) WriteAt(p []byte, off int64) (int, error) {
	if !drivers.WholeUnits(off, int64(len(p)), w.info.Size) {
		return 0, pathError("write", w.name, unix.EINVAL)
	}
	n, err := w.tree.root().cache.writeAt(w.temp.fd, p, off, w.info.Size)
	if err != nil {
		return n, pathError("write", w.name, err)
	}
	w.sums.add(p, off)
	if w.left.Add(-int64(n)) == 0 {
		trim(w.temp.fd, w.info.Size)
	}
	return n, nil
}

// ReadAt implements drivers.Writer. It compares the bytes with what was written. That stays in memory
// until the disk has confirmed it, unless the file is large, memory is short, or the kernel fails to
// write it back. The kernel does not report each failure: if ext4 cannot allocate blocks in the
// background, it drops the pages, and the file has a hole (Linux 6.18).
func (w *writer) ReadAt(p []byte, off int64) (int, error) {
	if c := w.copy.Load(); c != nil {
		return c.ReadAt(background, p, off)
	}
	cache := &w.tree.root().cache
	if cache.inMemory {
		n, err := cache.readAt(w.temp.fd, p, off, w.info.Size)
		if err != nil && err != io.EOF {
			err = pathError("read", w.name, err)
		}
		return n, err
	}
	if off < 0 {
		return 0, pathError("read", w.name, unix.EINVAL)
	}
	n := 0
	for end := min(off+int64(len(p)), w.info.Size); off < end; {
		step := p[n : int64(n)+min(end-off, sumStep-off%sumStep)]
		switch err := w.readStep(step, off); {
		case err == io.EOF: // somebody has made the file shorter
			return n, err
		case err != nil:
			return n, pathError("read", w.name, err)
		}
		n += len(step)
		off += int64(len(step))
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// stepBuffers holds buffers of one step.
var stepBuffers = sync.Pool{New: func() any { return new([sumStep]byte) }}

// readStep reads p, which lies within one step, and compares the step.
func (w *writer) readStep(p []byte, off int64) error {
	first := off / sumStep * sumStep
	step := p
	if size := min(sumStep, w.info.Size-first); int64(len(p)) < size {
		buf := stepBuffers.Get().(*[sumStep]byte)
		defer stepBuffers.Put(buf)
		step = buf[:size]
	}
	if _, err := w.tree.root().cache.readAt(w.temp.fd, step, first, w.info.Size); err != nil {
		return err
	}
	if !w.sums.match(step, first) {
		return drivers.ErrLost
	}
	if len(step) > len(p) {
		copy(p, step[off-first:])
	}
	return nil
}

// asLost returns err, of a call that waits for the disk, as one that matches drivers.ErrLost.
// A full disk has not lost what it has confirmed before.
func asLost(err error) error {
	if err == nil || err == unix.ENOSPC || err == unix.EDQUOT {
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
		return asUnfit(err)
	}
	defer unix.Close(parent)
	// No other copy gets the inode number of the replaced file, and a record, while that file is open.
	fd, replaced, err := openEntry(parent, base)
	switch {
	case err == unix.ENOENT:
	case err != nil:
		return asUnfit(err)
	default:
		defer unix.Close(fd)
		if !isOwn(replaced.Uid) {
			return &ForeignError{filepath.Join(w.tree.path, filesName, w.name), replaced.Uid}
		}
	}
	rec := record{
		inode: w.inode, name: nameHash(w.name), source: w.info, sums: w.sums.blocks(w.info.Size), mtime: time.Unix(w.mtime.Unix()),
	}
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
		return asUnfit(err)
	}
	if fd >= 0 {
		w.tree.records.remove(replaced.Ino, w.name)
	}
	o := &object{fd: w.temp.fd, cache: &w.tree.root().cache, name: w.name, info: w.info, mtime: w.mtime}
	w.copy.Store(&copyObject{object: o, tree: w.tree, rec: added})
	return nil
}

// confirm waits until the disk has the content.
func (w *writer) confirm() error {
	if w.tree.root().cache.inMemory {
		return nil
	}
	if err := asLost(ignoringEINTR(func() error { return unix.Fdatasync(w.temp.fd) })); err != nil {
		return err
	}
	dropPages(w.temp.fd, 0)
	return w.checkHoles()
}

// checkHoles returns an error if the file has a hole where it has content: the file system has dropped
// that without a report, as ReadAt says. Some file systems make holes of zeros.
func (w *writer) checkHoles() error {
	holes, err := findHoles(background, w.temp.fd, w.info.Size)
	if err == unix.EINVAL { // the file system has no SEEK_HOLE
		return nil
	}
	if err != nil {
		return asLost(err)
	}
	buf := stepBuffers.Get().(*[sumStep]byte)
	defer stepBuffers.Put(buf)
	for _, h := range holes {
		for off := h.Start / sumStep * sumStep; off < h.End; off += sumStep {
			if err := w.readStep(buf[:min(sumStep, w.info.Size-off)], off); err != nil {
				return err
			}
		}
	}
	return nil
}

// finish sets the modification time to that of the source file, as far as the file system can store
// that: with old inodes, ext4 has whole seconds until 2038. The record has both times. It then checks
// the size.
func (w *writer) finish() error {
	mtime, err := unix.TimeToTimespec(w.info.Mtime)
	if err != nil {
		return err
	}
	if w.tree.root().cache.inMemory {
		trim(w.temp.fd, w.info.Size) // again: somebody may have read the last page
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, mtime}
	err = unix.UtimesNanoAt(w.temp.dirfd, w.temp.name, times, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil && !isTimeError(err) {
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
	return nil
}

// isTimeError reports whether err is that of a file system that cannot store a time, or none.
func isTimeError(err error) bool {
	switch err {
	case unix.EINVAL, unix.ERANGE, unix.EOVERFLOW, unix.ENOTSUP, unix.ENOSYS, unix.EPERM:
		return true
	}
	return false
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
