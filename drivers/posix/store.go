package posix

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

var (
	_ drivers.Store       = (*Store)(nil)
	_ drivers.Statfser    = (*Store)(nil)
	_ drivers.Prober      = (*Store)(nil)
	_ drivers.Sweeper     = (*Store)(nil)
	_ drivers.Linker      = (*Store)(nil)
	_ drivers.Syncer      = (*Store)(nil)
	_ drivers.PathChecker = (*Store)(nil)

	_ drivers.Restamper = (*Store)(nil)
	_ drivers.Profiler  = (*Store)(nil)
)

// background is the context of short operations on the folders of a store.
var background = context.Background()

// A StoreConfig identifies the folder to open and the process that opens it.
type StoreConfig struct {
	Tier       string       // path of the tier; created if missing
	Dataset    string       // id of the dataset, which is the name of its folder in the tier
	Source     string       // location of the dataset; the folder of another source is an error
	Mountpoint string       // recorded in the lock, for the LockedError of other processes
	Log        *slog.Logger // receives warnings; may be nil
}

// holder describes this process, for the lock.
func (c StoreConfig) holder() Holder {
	host, _ := os.Hostname()
	return Holder{PID: os.Getpid(), Host: host, Mountpoint: c.Mountpoint, Since: time.Now().Truncate(time.Second)}
}

// A Store is a drivers.Store in a folder of a tier. It holds copies of one dataset:
//
//	<tier>/<dataset>/files/<name>     copies
//	<tier>/<dataset>/incoming/        temporary files, which become copies
//	<tier>/<dataset>/milkweed.json    marks the folder as one of Milkweed
//	<tier>/<dataset>/checksums.log    the records of the copies
//	<tier>/<dataset>/lock             admits one process at a time
//
// Folders have the permissions 0700, files 0600, and copies 01600. A file of another user counts as
// missing. All methods may be called concurrently. Open Objects stay readable after Close. Writers
// can then only be aborted.
type Store struct {
	config StoreConfig
	tree   atomic.Pointer[tree] // nil after Close

	// mu is locked before changes.
	mu sync.Mutex // serializes Probe and Close, which replace tree

	writers sync.Map // keys: each *writer that was not closed

	changes sync.RWMutex // read-locked by each change of the folder; guards the following
	closed  bool         // changes fail
}

// OpenStore opens the folder of a dataset and creates it if it is missing. The error may be a
// *ForeignError, a *NotOursError or a *LockedError.
func OpenStore(config StoreConfig) (*Store, error) {
	if !drivers.ValidName(config.Dataset) || config.Dataset == "." || strings.Contains(config.Dataset, "/") {
		return nil, fmt.Errorf("dataset %q: not a valid folder name", config.Dataset)
	}
	tier, err := filepath.Abs(config.Tier)
	if err != nil {
		return nil, err
	}
	config.Tier = tier
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	t, err := openTree(config, nil)
	if err != nil {
		return nil, err
	}
	unknown, err := t.sweep()
	if err != nil {
		t.close()
		return nil, pathError("sweep", t.path, err)
	}
	if unknown > 0 {
		config.Log.Warn("left files that Milkweed did not create",
			"folder", filepath.Join(t.path, incomingName), "files", unknown)
	}
	s := &Store{config: config}
	s.tree.Store(t)
	return s, nil
}

// beginChange begins a change of the copies or of their records, unless the store is closed:
// another process may have locked the folder since. The caller calls end.
func (s *Store) beginChange() (end func(), err error) {
	s.changes.RLock()
	if s.closed {
		s.changes.RUnlock()
		return nil, fs.ErrClosed
	}
	return s.changes.RUnlock, nil
}

// acquire returns the current tree. The caller releases it.
func (s *Store) acquire() (*tree, error) {
	for {
		t := s.tree.Load()
		if t == nil {
			return nil, fs.ErrClosed
		}
		if t.refs.Acquire() {
			return t, nil
		}
	}
}

// Path returns the path of the dataset folder.
func (s *Store) Path() string { return filepath.Join(s.config.Tier, s.config.Dataset) }

// Folder opens the folder of the dataset, for files beside the copies. The caller closes it.
func (s *Store) Folder() (*os.Root, error) {
	t, err := s.acquire()
	if err != nil {
		return nil, pathError("open", s.Path(), err)
	}
	defer t.release()
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", t.folder))
}

// Profile implements drivers.Profiler. Only tmpfs never blocks.
func (s *Store) Profile() drivers.Profile {
	if s.FSType() == "tmpfs" {
		return drivers.Profile{Latency: drivers.LatencyMemory}
	}
	return drivers.Profile{}
}

// FSType returns the type of the file system of the store, such as "tmpfs".
func (s *Store) FSType() string {
	t, err := s.acquire()
	if err != nil {
		return "unknown"
	}
	defer t.release()
	return t.files.FSType()
}

// Open implements drivers.Driver.
func (s *Store) Open(ctx context.Context, name string) (drivers.Object, error) {
	if err := checkRequest(ctx, "open", name); err != nil {
		return nil, err
	}
	t, err := s.acquire()
	if err != nil {
		return nil, pathError("open", name, err)
	}
	defer t.release()
	c, err := t.openCopy(ctx, name)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return c, nil
}

// Stat implements drivers.Driver.
func (s *Store) Stat(ctx context.Context, name string) (drivers.Info, error) {
	t, err := s.acquire()
	if err != nil {
		return drivers.Info{}, pathError("stat", name, err)
	}
	defer t.release()
	return t.statCopy(ctx, name)
}

// ReadDir implements drivers.Driver. It omits files that are not valid copies.
func (s *Store) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	return s.readDir(ctx, dir, func(t *tree, _ int, name string, info *drivers.Info) (bool, error) {
		return t.isValid(ctx, name, info)
	})
}

// Sweep implements drivers.Sweeper. It removes only files that Milkweed has created: those with a
// record under their name, and those with copyMode, whose record a power failure may have lost.
func (s *Store) Sweep(ctx context.Context, dir string) ([]drivers.Info, error) {
	return s.readDir(ctx, dir, func(t *tree, dirfd int, name string, info *drivers.Info) (bool, error) {
		valid, err := t.isValid(ctx, name, info)
		if err != nil || valid {
			return valid, err
		}
		created, err := t.hasCreated(ctx, name, info)
		if err != nil || !created {
			return false, err
		}
		end, err := s.beginChange()
		if err != nil {
			return false, err
		}
		defer end()
		t.removeCopy(dirfd, name, info.Inode)
		return false, nil
	})
}

// readDir lists a folder of copies. It omits the regular files for which keep reports false.
// keep gets a descriptor of the folder, and may change the Info.
func (s *Store) readDir(
	ctx context.Context, dir string, keep func(t *tree, dirfd int, name string, info *drivers.Info) (bool, error),
) ([]drivers.Info, error) {
	if err := checkRequest(ctx, "readdir", dir); err != nil {
		return nil, err
	}
	t, err := s.acquire()
	if err != nil {
		return nil, pathError("readdir", dir, err)
	}
	defer t.release()
	fd, infos, err := t.files.list(ctx, dir)
	if err != nil {
		return nil, pathError("readdir", dir, err)
	}
	defer unix.Close(fd)
	copies := infos[:0]
	for _, info := range infos {
		if info.Err != nil {
			return nil, pathError("readdir", dir, info.Err)
		}
		if info.IsRegular() {
			kept, err := keep(t, fd, path.Join(dir, info.Name), &info)
			if err != nil {
				return nil, pathError("readdir", dir, err)
			}
			if !kept {
				continue
			}
		}
		copies = append(copies, info)
	}
	return copies, nil
}

// Statfs implements drivers.Statfser. While the unit is not known, it writes a file to find it out.
func (s *Store) Statfs(ctx context.Context) (drivers.Statfs, error) {
	t, err := s.acquire()
	if err != nil {
		return drivers.Statfs{}, pathError("statfs", ".", err)
	}
	defer t.release()
	st, err := t.files.Statfs(ctx)
	if err == nil {
		st.Unit = t.allocationUnit()
	}
	return st, err
}

// Remove implements drivers.Store.
func (s *Store) Remove(ctx context.Context, name string) error {
	if err := checkRequest(ctx, "remove", name); err != nil {
		return err
	}
	t, err := s.acquire()
	if err != nil {
		return pathError("remove", name, err)
	}
	defer t.release()
	end, err := s.beginChange()
	if err != nil {
		return pathError("remove", name, err)
	}
	defer end()
	dir, _ := split(name)
	parent, err := openBelow(t.root().fd, dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return pathError("remove", name, asMissing(err))
	}
	defer unix.Close(parent)
	if err := t.removeCopy(parent, name, 0); err != nil {
		return pathError("remove", name, err)
	}
	return nil
}

// removeCopy removes the copy of a name, whose folder is dirfd, and its record. It does not remove the
// file of another user, nor a file with another inode number than inode, unless that is 0.
func (t *tree) removeCopy(dirfd int, name string, inode uint64) error {
	_, base := split(name)
	// While fd is open, no new file has the inode number, and so no new record.
	fd, st, err := openEntry(dirfd, base)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	switch {
	case !isOwn(st.Uid):
		return unix.EPERM
	case inode != 0 && inode != st.Ino:
		return nil
	}
	if err := unix.Unlinkat(dirfd, base, 0); err != nil {
		return err
	}
	t.records.remove(st.Ino, name)
	return nil
}

// openEntry opens what a name of a folder is, without access to its content, and returns its attributes.
func openEntry(dirfd int, base string) (fd int, st unix.Stat_t, err error) {
	fd, err = unix.Openat(dirfd, base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, st, err
	}
	if err = unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// Link implements drivers.Linker, by a hard link. The record of the new name is written first, as a
// commit does.
func (s *Store) Link(ctx context.Context, from, to string, info drivers.Info) error {
	if err := s.link(ctx, from, to, info); err != nil {
		return &os.LinkError{Op: "link", Old: from, New: to, Err: err}
	}
	return nil
}

func (s *Store) link(ctx context.Context, from, to string, info drivers.Info) error {
	if err := cmp.Or(checkRequest(ctx, "link", from), checkRequest(ctx, "link", to)); err != nil {
		return err
	}
	t, err := s.acquire()
	if err != nil {
		return err
	}
	defer t.release()
	copied, err := t.openCopy(ctx, from) // while it is open, no new file has its inode number
	if err != nil {
		return err
	}
	defer copied.Close()
	if info.Size != copied.info.Size {
		return fmt.Errorf("the copy has %d bytes, not %d: %w", copied.info.Size, info.Size, unix.EINVAL)
	}
	end, err := s.beginChange()
	if err != nil {
		return err
	}
	defer end()
	dir, base := split(to)
	parent, err := t.makeDirs(dir)
	if err != nil {
		return asUnfit(err)
	}
	defer unix.Close(parent)
	if err := t.removeCopy(parent, to, 0); err != nil && err != unix.ENOENT {
		return err
	}
	rec := record{
		inode: copied.rec.inode, name: nameHash(to), source: info, sums: copied.rec.sums,
		link: true, mtime: copied.rec.mtime,
	}
	if _, err := t.records.add(ctx, rec, copied.rec.checked); err != nil {
		return err
	}
	if err := linkDescriptor(copied.fd, parent, base); err != nil {
		t.records.remove(rec.inode, to)
		return asUnfit(err)
	}
	return nil
}

// linkDescriptor gives the file of fd another name.
func linkDescriptor(fd, dirfd int, name string) error {
	return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), dirfd, name, unix.AT_SYMLINK_FOLLOW)
}

// Restamp implements drivers.Restamper. It appends a record to the log.
func (s *Store) Restamp(ctx context.Context, name string, info drivers.Info) error {
	t, err := s.acquire()
	if err != nil {
		return pathError("restamp", name, err)
	}
	defer t.release()
	var rec copyRecord
	err = t.files.withPath(ctx, "restamp", name, func(fd int) (err error) {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		rec, err = t.validate(ctx, name, infoOf(name, &st))
		return err
	})
	if err != nil {
		return err
	}
	end, err := s.beginChange()
	if err != nil {
		return pathError("restamp", name, err)
	}
	defer end()
	source := &rec.source
	source.Mode, source.UID, source.GID, source.Nlink, source.Ctime = info.Mode, info.UID, info.GID, info.Nlink, info.Ctime
	if err := t.records.replace(rec); err != nil {
		return pathError("restamp", name, err)
	}
	return nil
}

// Sync implements drivers.Syncer. The copies themselves are on the disk already.
func (s *Store) Sync(ctx context.Context) error {
	t, err := s.acquire()
	if err == nil {
		defer t.release()
		if err = t.records.sync(); err != nil {
			err = fmt.Errorf("%w: %w", drivers.ErrLost, err)
		}
	}
	if err != nil {
		return pathError("sync", s.Path(), err)
	}
	return nil
}

// Probe implements drivers.Prober. It writes its file through to the disk and drops it from
// the page cache before it reads it. Otherwise a broken disk would seem to work.
func (s *Store) Probe(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return pathError("probe", s.Path(), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.reopenIfMissing()
	if err == nil {
		err = t.probe()
	}
	if err != nil {
		return pathError("probe", s.Path(), err)
	}
	return nil
}

// CheckPath implements drivers.PathChecker.
func (s *Store) CheckPath(ctx context.Context) error {
	t, err := s.acquire()
	if err != nil {
		return pathError("check", s.Path(), err)
	}
	defer t.release()
	if intact, err := t.intact(); err != nil || intact {
		return err
	}
	return pathError("check", s.Path(), errElsewhere)
}

var errElsewhere = errors.New("another folder has the path of the tier by now, or none")

// reopenIfMissing returns the current tree. If files of it were removed, it first creates
// and opens a new tree. s.mu must be held.
func (s *Store) reopenIfMissing() (*tree, error) {
	t := s.tree.Load()
	if t == nil {
		return nil, fs.ErrClosed
	}
	intact, err := t.intact()
	if err != nil || intact {
		return t, err
	}
	if err := t.checkMounted(); err != nil {
		return nil, err
	}
	reopened, err := openTree(s.config, t)
	if err != nil {
		return nil, err
	}
	s.tree.Store(reopened)
	t.release()
	s.config.Log.Warn("recreated the folder of the dataset", "folder", reopened.path)
	return reopened, nil
}

// probe writes, reads and removes a temporary file.
func (t *tree) probe() error {
	f, err := newTempFile(t.incoming, fileMode)
	if err != nil {
		return err
	}
	defer f.close()
	defer f.unlink()
	want := make([]byte, 4096)
	rand.Read(want)
	if _, err := writeAt(f.fd, want, 0, 0); err != nil {
		return err
	}
	if err := ignoringEINTR(func() error { return unix.Fdatasync(f.fd) }); err != nil {
		return err
	}
	unix.Fadvise(f.fd, 0, 0, unix.FADV_DONTNEED)
	got := make([]byte, len(want))
	if _, err := readAt(f.fd, got, 0, 0); err != nil {
		return err
	}
	if string(got) != string(want) {
		return errors.New("the bytes read differ from the bytes written")
	}
	return nil
}

// closeTimeout bounds how long Close waits for a disk.
const closeTimeout = time.Second

// Close unlocks the folder. Changes that have not begun then fail, also a commit that waits for the
// disk, and temporary files are removed. Close also syncs the store; what the disk has not
// confirmed after closeTimeout may be lost by a power failure. The error means that a change has
// not ended after closeTimeout; the folder is unlocked when it has. Further calls do nothing.
func (s *Store) Close() error {
	if s.tree.Load() == nil {
		return nil
	}
	unlocked, synced := make(chan struct{}), make(chan error, 1)
	go func() { // it may hang in a system call, and then outlives Close
		defer panics.Contain()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changes.Lock()
		s.closed = true
		s.changes.Unlock()
		t := s.tree.Swap(nil)
		if t == nil { // closed by another call
			close(unlocked)
			synced <- nil
			return
		}
		writeHolder(t.lock, nil)
		unix.Flock(t.lock, unix.LOCK_UN) // writers may still use the tree
		close(unlocked)
		s.writers.Range(func(w, _ any) bool { // a commit that waits for the disk would leave its file
			w.(*writer).temp.unlink()
			return true
		})
		err := t.records.sync()
		t.release()
		synced <- err
	}()
	timeout := time.After(closeTimeout)
	select {
	case <-unlocked:
	case <-timeout:
		return pathError("close", s.Path(), errors.New("the disk does not answer; the folder stays locked until it does"))
	}
	select {
	case err := <-synced:
		return err
	case <-timeout:
		return nil
	}
}

// split returns the directory and the last element of name. The root is ".".
func split(name string) (dir, base string) {
	i := strings.LastIndexByte(name, '/')
	if i < 0 {
		return ".", name
	}
	return name[:i], name[i+1:]
}
