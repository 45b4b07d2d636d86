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

var (
	_ drivers.Writer = (*writer)(nil)
)

// A writer is a part that becomes a copy.
type writer struct {
	store *Store
	tree  *tree // held until Close
	part  part
	name  string
	info  drivers.Info // what the copy is to be
	done  bool         // committed or aborted
}

// Create implements drivers.Store. A store that has not the room says so here.
// Nothing is reserved: fallocate(2) on tmpfs would take its time for a large
// file, in the job's open.
func (s *Store) Create(ctx context.Context, name string, info drivers.Info) (drivers.Writer, error) {
	if err := begin(ctx, "create", name); err != nil {
		return nil, err
	}
	if name == "." || info.Size < 0 {
		return nil, pathError("create", name, unix.EINVAL)
	}
	t, err := s.acquire()
	if err != nil {
		return nil, pathError("create", name, err)
	}
	p, err := t.create(name, info.Size)
	if err != nil {
		t.release()
		return nil, pathError("create", name, err)
	}
	return &writer{store: s, tree: t, part: p, name: name, info: info}, nil
}

func (t *tree) create(name string, size int64) (part, error) {
	room, err := statfs(t.incoming)
	if err != nil {
		return part{}, err
	}
	if room.Total > 0 && room.Available < size {
		return part{}, unix.ENOSPC
	}
	dir, _ := split(name)
	parent, err := t.makeDirs(dir)
	if err != nil {
		return part{}, err
	}
	unix.Close(parent)
	return newPart(t.incoming)
}

// makeDirs returns a descriptor of dir in files, which it makes if need be.
func (t *tree) makeDirs(dir string) (int, error) {
	fd, err := openBelow(t.files.root, dir, unix.O_PATH|unix.O_DIRECTORY)
	if err == nil || !gone(err) {
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

// makeDir returns a descriptor of the folder name in dirfd, which it makes if
// need be: also in place of a copy, when what was a file is now a folder at
// the source.
func makeDir(dirfd int, name string) (int, error) {
	for range 3 { // others may be at it too
		if err := mkdirAt(dirfd, name); err != nil && err != unix.EEXIST {
			return -1, err
		}
		fd, err := openat2(dirfd, name, unix.O_PATH|unix.O_DIRECTORY)
		switch err {
		case unix.ENOENT:
		case unix.ENOTDIR:
			if err := removeRegular(dirfd, name); err != nil && !gone(err) && err != unix.EISDIR {
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
	n, err := w.tree.files.cache.writeAt(w.part.fd, p, off)
	if err != nil {
		return n, pathError("write", w.name, err)
	}
	return n, nil
}

// ReadAt implements drivers.Writer.
func (w *writer) ReadAt(p []byte, off int64) (int, error) {
	n, err := w.tree.files.cache.readAt(w.part.fd, p, off, w.info.Size)
	if err != nil && err != io.EOF {
		return n, pathError("read", w.name, err)
	}
	return n, err
}

// Commit implements drivers.Writer. It does not wait for the disk; see the
// package comment.
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
	rename := func() error { return unix.Renameat(w.part.dirfd, w.part.name, parent, base) }
	err = rename()
	if err == unix.EISDIR && unix.Unlinkat(parent, base, unix.AT_REMOVEDIR) == nil {
		err = rename() // what was a folder is now a file at the source
	}
	w.store.dirty.Store(true) // after the change, or a Sync could miss it
	return err
}

// finish sets the modification time, and checks what the file system made of
// it and of the size.
func (w *writer) finish() error {
	mtime, err := unix.TimeToTimespec(w.info.Mtime)
	if err != nil {
		return err
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, mtime}
	if err := unix.UtimesNanoAt(w.part.dirfd, w.part.name, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(w.part.fd, &st); err != nil {
		return err
	}
	if st.Size != w.info.Size {
		return fmt.Errorf("size is %d, not %d", st.Size, w.info.Size)
	}
	if st.Mtim != mtime {
		return fmt.Errorf("the file system keeps the modification time as %v, not %v", time.Unix(st.Mtim.Unix()), w.info.Mtime)
	}
	return nil
}

// Abort implements drivers.Writer.
func (w *writer) Abort() {
	if !w.done {
		w.done = true
		w.part.unlink()
	}
}

// Close implements drivers.Writer. What was not committed is thrown away.
func (w *writer) Close() error {
	w.Abort()
	w.tree.files.cache.closed(w.part.fd)
	err := w.part.close()
	w.tree.release()
	return err
}
