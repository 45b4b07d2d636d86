// Package fs shows a name space to the kernel: a read-only FUSE file system.
// It answers the kernel's requests from a metadata container and from files
// that an Opener opens, and turns errors into errnos. It knows nothing of
// copies.
//
// It is written to go-fuse's raw interface. The nodes that go-fuse's own tree
// would keep are the container's entries: a node ID is an entry's ID, so that
// a file which the kernel remembers costs one Entry and nothing else. An entry
// is one version of a file, and so the kernel's page cache, which belongs to a
// node, never mixes two.
package fs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/metadata"
)

// An Opener opens regular files. An error that matches drivers.ErrChanged
// makes the kernel look the name up again.
type Opener interface {
	Open(ctx context.Context, e *metadata.Entry) (drivers.Object, error)
}

// Type is the type of the file system, as df -T and /proc/mounts name it.
const Type = "fuse.milkweed"

// Config is how a file system is mounted.
type Config struct {
	Point      string        // the mount point, an existing directory
	Source     string        // the first column of df and /proc/mounts
	AllowOther bool          // let other users in, as far as file modes permit
	Timeout    time.Duration // how long the kernel believes names and attributes
	NoExec     bool          // refuse to execute files
}

// A Mount is a mounted file system that is being served.
type Mount struct {
	server *fuse.Server
	fs     *fileSystem
	point  string
}

// New mounts a file system and begins to serve it: when New returns, the
// mount can be used. It ends when it is unmounted, by Unmount or from outside.
//
// The process must not use its own mount: a request that it makes while it
// holds what the answer needs would wait for ever.
func New(names *metadata.Container, files Opener, cfg Config, log *slog.Logger) (*Mount, error) {
	f := &fileSystem{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		names:         names, opener: files, timeout: cfg.Timeout, log: log,
	}
	server, err := mount(f, cfg, log)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", cfg.Point, err)
	}
	go server.Serve() // Wait waits for it
	if err := server.WaitMount(); err != nil {
		server.Unmount()
		return nil, fmt.Errorf("mount %s: %w", cfg.Point, err)
	}
	return &Mount{server: server, fs: f, point: cfg.Point}, nil
}

// requestSize is the largest read that is asked for in one request: the most
// that the kernel does.
const requestSize = 1 << 20

func mount(f *fileSystem, cfg Config, log *slog.Logger) (*fuse.Server, error) {
	opts := &fuse.MountOptions{
		FsName:               cfg.Source,
		Name:                 Type[len("fuse."):],
		Options:              []string{"nosuid", "nodev"},
		AllowOther:           cfg.AllowOther,
		MaxWrite:             requestSize,
		MaxReadAhead:         requestSize,
		MaxBackground:        64,
		EnableSymlinkCaching: true,
		IgnoreSecurityLabels: true,
		// A megabyte does not fit into a pipe: every splice would be
		// tried, fail, and be copied after all.
		DisableSplice: true,
		Logger:        slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	if cfg.NoExec {
		opts.Options = append(opts.Options, "noexec")
	}
	if cfg.AllowOther {
		opts.Options = append(opts.Options, "default_permissions")
	}
	if os.Geteuid() == 0 {
		direct := *opts
		direct.DirectMountStrict = true
		direct.DirectMountFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_RDONLY
		server, err := fuse.NewServer(f, cfg.Point, &direct)
		if !errors.Is(err, syscall.EPERM) { // as root in a container may be told
			return server, err
		}
	}
	opts.Options = append(opts.Options, "ro")
	server, err := fuse.NewServer(f, cfg.Point, opts)
	if err != nil { // it ends in a newline where it is fusermount's
		return nil, errors.New(strings.TrimSpace(err.Error()))
	}
	return server, nil
}

// Wait returns when the file system is unmounted and all requests have been
// answered.
func (m *Mount) Wait() { m.server.Wait() }

// Unmount unmounts the file system. It fails, with an error that matches
// syscall.EBUSY where the kernel says so, while files are open on it.
func (m *Mount) Unmount() error {
	if os.Geteuid() == 0 {
		err := unix.Unmount(m.point, unix.UMOUNT_NOFOLLOW)
		if err != unix.EPERM {
			return err
		}
	}
	return m.server.Unmount()
}

// Detach takes the mount out of sight; it ends when the last file that is open
// on it is closed.
func (m *Mount) Detach() error {
	if os.Geteuid() == 0 {
		err := unix.Unmount(m.point, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		if err != unix.EPERM {
			return err
		}
	}
	out, err := exec.Command("fusermount3", "-u", "-z", m.point).CombinedOutput()
	if err != nil {
		return fmt.Errorf("fusermount3 -u -z %s: %w: %s", m.point, err, out)
	}
	return nil
}

// Stats is what a file system has been asked since it was mounted.
type Stats struct {
	Open     int64 // handles of files that are open
	Lookups  int64
	GetAttrs int64
	ReadDirs int64
	Reads    int64
	Bytes    int64 // read
	Errors   int64 // requests that failed, other than for names that are not there
}

// Stats returns what the file system has been asked so far.
func (m *Mount) Stats() Stats {
	f := m.fs
	return Stats{
		Open:    int64(f.files.len()),
		Lookups: f.lookups.Load(), GetAttrs: f.getattrs.Load(), ReadDirs: f.readdirs.Load(),
		Reads: f.reads.Load(), Bytes: f.bytes.Load(), Errors: f.errors.Load(),
	}
}

// A fileSystem answers the kernel. What it does not answer itself is ENOSYS by
// the RawFileSystem within, which the kernel takes as "never ask again": that
// is right for flush, lseek, access and locks. What would change something
// never comes, for the mount is read-only.
type fileSystem struct {
	fuse.RawFileSystem
	names   *metadata.Container
	opener  Opener
	timeout time.Duration
	log     *slog.Logger

	files   handles[drivers.Object]
	dirs    handles[*dirHandle]
	buffers bufferPool

	lookups, getattrs, readdirs, reads, bytes, errors atomic.Int64
}

var _ fuse.RawFileSystem = (*fileSystem)(nil)

func (f *fileSystem) String() string { return "milkweed" }

// handles are what the kernel has open, by the numbers that it was given.
type handles[T any] struct {
	mu   sync.RWMutex // guards the following
	last uint64
	open map[uint64]T
}

func (h *handles[T]) add(v T) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open == nil {
		h.open = make(map[uint64]T)
	}
	h.last++
	h.open[h.last] = v
	return h.last
}

func (h *handles[T]) get(id uint64) (T, bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	v, ok := h.open[id]
	return v, ok
}

func (h *handles[T]) remove(id uint64) (T, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v, ok := h.open[id]
	delete(h.open, id)
	return v, ok
}

func (h *handles[T]) len() int {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return len(h.open)
}
