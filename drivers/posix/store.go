package posix

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

var (
	_ drivers.Store    = (*Store)(nil)
	_ drivers.Statfser = (*Store)(nil)
	_ drivers.Prober   = (*Store)(nil)
	_ drivers.Profiler = (*Store)(nil)
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
//	<tier>/<dataset>/synced.json      which copies are on the disk
//	<tier>/<dataset>/lock             admits one process at a time
//
// Folders have the permissions 0700 and files 0600. A copy that a power failure may have
// damaged counts as missing; see the package comment. All methods may be called
// concurrently. Open Objects stay readable after Close. Writers can then only be aborted.
type Store struct {
	config StoreConfig
	boot   string               // bootID; tests set it
	tree   atomic.Pointer[tree] // nil after Close
	dirty  atomic.Bool          // there was a commit since the last Sync
	syncfs func(fd int) error   // syncfs(2); a test simulates a broken disk

	// mu is locked before commits.
	mu sync.Mutex // serializes Probe, Sync and Close, which replace tree or its sync record

	commits sync.RWMutex // read-locked by each commit; guards the following
	closed  bool         // commits fail
}

// OpenStore opens the folder of a dataset and creates it if it is missing. The error may be a
// *ForeignError, a *NotOursError or a *LockedError.
func OpenStore(config StoreConfig) (*Store, error) {
	return openStore(config, bootID())
}

func openStore(config StoreConfig, boot string) (*Store, error) {
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
	t, err := openTree(config, boot, nil)
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
	s := &Store{config: config, boot: boot, syncfs: syncfs}
	s.tree.Store(t)
	return s, nil
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
	t, err := s.acquire()
	if err != nil {
		return nil, pathError("open", name, err)
	}
	defer t.release()
	o, err := t.files.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	if !t.trusts(o.Info()) {
		o.Close()
		return nil, pathError("open", name, unix.ENOENT)
	}
	return o, nil
}

// Stat implements drivers.Driver.
func (s *Store) Stat(ctx context.Context, name string) (drivers.Info, error) {
	t, err := s.acquire()
	if err != nil {
		return drivers.Info{}, pathError("stat", name, err)
	}
	defer t.release()
	info, err := t.files.Stat(ctx, name)
	if err == nil && !t.trusts(info) {
		return drivers.Info{}, pathError("stat", name, unix.ENOENT)
	}
	return info, err
}

// ReadDir implements drivers.Driver.
func (s *Store) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	t, err := s.acquire()
	if err != nil {
		return nil, pathError("readdir", dir, err)
	}
	defer t.release()
	infos, err := t.files.ReadDir(ctx, dir)
	return slices.DeleteFunc(infos, func(i drivers.Info) bool { return !t.trusts(i) }), err
}

// trusts reports whether the file that info describes has its content. Only regular files
// have content that a power failure can damage.
func (t *tree) trusts(info drivers.Info) bool {
	return !info.IsRegular() || t.record.Load().trusts(info.Ctime)
}

// Statfs implements drivers.Statfser.
func (s *Store) Statfs(ctx context.Context) (drivers.Statfs, error) {
	t, err := s.acquire()
	if err != nil {
		return drivers.Statfs{}, pathError("statfs", ".", err)
	}
	defer t.release()
	return t.files.Statfs(ctx)
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
	dir, base := split(name)
	parent, err := openBelow(t.files.root, dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return pathError("remove", name, asMissing(err))
	}
	defer unix.Close(parent)
	if err := unix.Unlinkat(parent, base, 0); err != nil {
		return pathError("remove", name, err)
	}
	return nil
}

// Sync writes all committed copies to the disk, so that they are trusted after a power
// failure. It is cheap if there was no commit since the last call. The daemon calls it
// every 30 seconds; other callers need not.
func (s *Store) Sync() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sync(false)
}

// sync implements Sync. If clean, the store is being closed in order, and sync records that,
// too. s.mu must be held.
//
// The kernel reports a failed write once, and never again. After such a report, copies that
// were committed since the last sync are no longer trusted.
func (s *Store) sync(clean bool) error {
	t := s.tree.Load()
	if t == nil {
		return pathError("sync", s.Path(), fs.ErrClosed)
	}
	dirty := s.dirty.Swap(false)
	if !dirty && !clean {
		return nil
	}
	var lost error
	err := t.saveRecord(func(now time.Time) syncRecord {
		r := *t.record.Load()
		r.Clean = clean
		if !dirty {
			return r
		}
		if lost = s.syncfs(t.folder); lost != nil {
			return r.lose(now)
		}
		r.Synced = now
		return r
	})
	if err != nil {
		s.dirty.Store(true)
	}
	if err := errors.Join(lost, err); err != nil {
		return pathError("sync", t.path, err)
	}
	return nil
}

func syncfs(fd int) error {
	return ignoringEINTR(func() error { return unix.Syncfs(fd) })
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
	reopened, err := openTree(s.config, s.boot, t)
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
	f, err := newTempFile(t.incoming)
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

// Close syncs the store and unlocks its folder, also if it returns an error. Further calls
// do nothing.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tree.Load() == nil {
		return nil
	}
	s.commits.Lock()
	s.closed = true
	s.commits.Unlock()
	err := s.sync(true)
	t := s.tree.Swap(nil)
	writeHolder(t.lock, nil)
	unix.Flock(t.lock, unix.LOCK_UN) // writers may still use the tree
	t.release()
	return err
}

// split returns the directory and the last element of name. The root is ".".
func split(name string) (dir, base string) {
	i := strings.LastIndexByte(name, '/')
	if i < 0 {
		return ".", name
	}
	return name[:i], name[i+1:]
}
