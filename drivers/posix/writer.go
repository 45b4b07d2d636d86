package posix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
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
	info  drivers.Info // size and modification time of the copy
	done  bool         // committed or aborted
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
	temp, err := t.create(name, info.Size)
	if err != nil {
		t.release()
		return nil, pathError("create", name, err)
	}
	return &writer{store: s, tree: t, temp: temp, name: name, info: info}, nil
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
	return newTempFile(t.incoming)
}

// makeDirs returns a descriptor of the folder dir below files and creates what is missing.
func (t *tree) makeDirs(dir string) (int, error) {
	fd, err := openBelow(t.files.root, dir, unix.O_PATH|unix.O_DIRECTORY)
	if err == nil || !isMissing(err) {
		return fd, err
	}
	fd, err = openat2(t.files.root, ".", unix.O_PATH|unix.O_DIRECTORY)
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
	n, err := w.tree.files.cache.writeAt(w.temp.fd, p, off)
	if err != nil {
		return n, pathError("write", w.name, err)
	}
	return n, nil
}

// ReadAt implements drivers.Writer.
func (w *writer) ReadAt(p []byte, off int64) (int, error) {
	n, err := w.tree.files.cache.readAt(w.temp.fd, p, off, w.info.Size)
	if err != nil && err != io.EOF {
		return n, pathError("read", w.name, err)
	}
	return n, err
}

// Commit implements drivers.Writer. It does not wait for the disk; see the package comment.
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
	dir, base := split(w.name)
	parent, err := w.tree.makeDirs(dir)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	w.store.commits.RLock()
	defer w.store.commits.RUnlock()
	if w.store.closed {
		return fs.ErrClosed
	}
	rename := func() error { return unix.Renameat(w.temp.dirfd, w.temp.name, parent, base) }
	err = rename()
	if err == unix.EISDIR && unix.Unlinkat(parent, base, unix.AT_REMOVEDIR) == nil {
		err = rename() // at the source, a file has replaced the folder
	}
	w.store.dirty.Store(true) // after the rename; a Sync in between would miss the copy
	return err
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
	w.tree.files.cache.dropAfterReads(w.temp.fd)
	err := w.temp.close()
	w.tree.release()
	return err
}
