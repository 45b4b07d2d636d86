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

// background is for what is done on a small folder of ours.
var background = context.Background()

// A StoreConfig says which folder to open, and for whom.
type StoreConfig struct {
	Tier       string       // path of the tier; made if it is not there
	Dataset    string       // id of the dataset, which names its folder in the tier
	Source     string       // where the dataset lives; a folder of another source is refused
	Mountpoint string       // where it will be shown, for whoever finds the folder locked
	Log        *slog.Logger // told what is found odd; nil for nobody
}

// holder is what the lock says of this process.
func (c StoreConfig) holder() Holder {
	host, _ := os.Hostname()
	return Holder{PID: os.Getpid(), Host: host, Mountpoint: c.Mountpoint, Since: time.Now().Truncate(time.Second)}
}

// A Store holds copies of one dataset in a folder of a tier:
//
//	<tier>/<dataset>/files/<name>     copies
//	<tier>/<dataset>/incoming/        copies in the making
//	<tier>/<dataset>/milkweed.json    what makes the folder ours
//	<tier>/<dataset>/synced.json      what is on the disk
//	<tier>/<dataset>/lock             one process at a time
//
// Folders are 0700 and files 0600. A copy that a power failure may have
// spoilt is as absent; the package comment explains. All methods may be
// called concurrently. Objects that are open outlive Close; Writers can then
// only be aborted.
type Store struct {
	config StoreConfig
	boot   string               // bootID, or what a test calls it
	tree   atomic.Pointer[tree] // nil once closed
	dirty  atomic.Bool          // something was committed since the last Sync
	syncfs func(fd int) error   // syncfs(2), or what a test has for a broken disk

	// Where both are needed, mu is taken first.
	mu sync.Mutex // serializes Probe, Sync and Close, which replace tree or its ledger

	commits sync.RWMutex // held by a commit, for reading; guards the following
	closed  bool         // nothing may be committed any more
}

// OpenStore opens the folder of a dataset, and makes it if it is not there.
// The error may be a *ForeignError, a *NotOursError or a *LockedError.
func OpenStore(config StoreConfig) (*Store, error) {
	return openStore(config, bootID())
}

func openStore(config StoreConfig, boot string) (*Store, error) {
	if !drivers.ValidName(config.Dataset) || config.Dataset == "." || strings.Contains(config.Dataset, "/") {
		return nil, fmt.Errorf("dataset %q: does not name a folder", config.Dataset)
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
	strangers, err := t.sweep()
	if err != nil {
		t.close()
		return nil, pathError("sweep", t.path, err)
	}
	if strangers > 0 {
		config.Log.Warn("files that Milkweed did not make are left alone",
			"folder", filepath.Join(t.path, incomingName), "files", strangers)
	}
	s := &Store{config: config, boot: boot, syncfs: syncfs}
	s.tree.Store(t)
	return s, nil
}

// acquire returns the tree of now, which the caller releases.
func (s *Store) acquire() (*tree, error) {
	for {
		t := s.tree.Load()
		if t == nil {
			return nil, fs.ErrClosed
		}
		if t.retain() {
			return t, nil
		}
	}
}

// Path is the folder of the dataset.
func (s *Store) Path() string { return filepath.Join(s.config.Tier, s.config.Dataset) }

// Profile implements drivers.Profiler. Only tmpfs never blocks.
func (s *Store) Profile() drivers.Profile {
	if s.FSType() == "tmpfs" {
		return drivers.Profile{Latency: drivers.LatencyMemory}
	}
	return drivers.Profile{}
}

// FSType is the kind of file system that the store is on, such as "tmpfs".
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
	if !t.believes(o.Info()) {
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
	if err == nil && !t.believes(info) {
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
	return slices.DeleteFunc(infos, func(i drivers.Info) bool { return !t.believes(i) }), err
}

// believes reports whether what info describes may be shown. Only files have
// content to lose.
func (t *tree) believes(info drivers.Info) bool {
	return info.Mode&unix.S_IFMT != unix.S_IFREG || t.ledger.Load().believes(info.Ctime)
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
	if err := begin(ctx, "remove", name); err != nil {
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
		return pathError("remove", name, absent(err))
	}
	defer unix.Close(parent)
	if err := unix.Unlinkat(parent, base, 0); err != nil {
		return pathError("remove", name, err)
	}
	return nil
}

// Sync brings what was committed to the disk, so that it is believed after a
// power failure too. It is cheap when nothing was. The daemon calls it every
// half a minute or so, and nobody else need.
func (s *Store) Sync() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sync(false)
}

// sync notes that the store is clean, if it is about to be closed. s.mu must
// be held.
//
// The kernel tells of a write that it could not finish once, and then forgets
// it. What was committed since the last sync is then not believed any more,
// from now on.
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
	err := t.saveLedger(func(now time.Time) ledger {
		l := *t.ledger.Load()
		l.Clean = clean
		if !dirty {
			return l
		}
		if lost = s.syncfs(t.folder); lost != nil {
			return l.lose(now)
		}
		l.Synced = now
		return l
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
	return retry(func() error { return unix.Syncfs(fd) })
}

// Probe implements drivers.Prober. It forces its file to the disk and out of
// memory, or a broken disk would seem to work.
func (s *Store) Probe(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return pathError("probe", s.Path(), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.present()
	if err == nil {
		err = t.probe()
	}
	if err != nil {
		return pathError("probe", s.Path(), err)
	}
	return nil
}

// present returns the tree, opened anew if its folder is not there any more.
// s.mu must be held.
func (s *Store) present() (*tree, error) {
	t := s.tree.Load()
	if t == nil {
		return nil, fs.ErrClosed
	}
	ok, err := t.intact()
	if err != nil || ok {
		return t, err
	}
	if err := t.sameHome(); err != nil {
		return nil, err
	}
	again, err := openTree(s.config, s.boot, t)
	if err != nil {
		return nil, err
	}
	s.tree.Store(again)
	t.release()
	s.config.Log.Warn("folder was made again", "folder", again.path)
	return again, nil
}

func (t *tree) probe() error {
	p, err := newPart(t.incoming)
	if err != nil {
		return err
	}
	defer p.close()
	defer p.unlink()
	want := make([]byte, 4096)
	rand.Read(want)
	if _, err := writeAt(p.fd, want, 0, 0); err != nil {
		return err
	}
	if err := retry(func() error { return unix.Fdatasync(p.fd) }); err != nil {
		return err
	}
	unix.Fadvise(p.fd, 0, 0, unix.FADV_DONTNEED)
	got := make([]byte, len(want))
	if _, err := readAt(p.fd, got, 0, 0); err != nil {
		return err
	}
	if string(got) != string(want) {
		return errors.New("read something else than was written")
	}
	return nil
}

// Close brings the store to the disk and lets others have its folder. It
// releases the folder also when it returns an error.
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

// split is path.Split with "." for the root.
func split(name string) (dir, base string) {
	i := strings.LastIndexByte(name, '/')
	if i < 0 {
		return ".", name
	}
	return name[:i], name[i+1:]
}
