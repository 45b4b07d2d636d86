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
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hanwen/go-fuse/v2/splice"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/metadata"
)

// An Opener opens regular files. An error that matches drivers.ErrChanged
// makes the kernel look the name up again.
type Opener interface {
	// Open opens a file for one handle of the kernel's. The Object may be a
	// drivers.BackingFiler and a drivers.Splicer.
	Open(ctx context.Context, e *metadata.Entry) (drivers.Object, error)
}

// A Reader reads files for a kernel that does not say when it opens and closes
// them, as in a stateless mount.
type Reader interface {
	// ReadAt reads from e as the ReadAt of an Object does.
	ReadAt(ctx context.Context, e *metadata.Entry, p []byte, off int64) (int, error)

	// SpliceDescriptor is that of a drivers.Splicer that has e open.
	SpliceDescriptor(e *metadata.Entry) (fd uintptr, release func(n int), err error)
}

// A Mode is how the kernel gets at the content of files.
type Mode int

// The modes.
const (
	// Cached: the kernel tells of each open, and asks for what it has no pages
	// of.
	Cached Mode = iota

	// Passthrough is Cached, but a file whose Object has a backing file is
	// read by the kernel itself. It needs CAP_SYS_ADMIN and Linux
	// 6.9; without them it is Cached.
	Passthrough

	// Stateless: the kernel opens files without telling, keeps their pages
	// from one open to the next, and asks for what it has no pages of. Files
	// must be a Reader.
	Stateless
)

// String returns the mode as metrics name it.
func (m Mode) String() string { return [...]string{"cached", "passthrough", "stateless"}[m] }

// Type is the type of the file system, as df -T and /proc/mounts name it.
const Type = "fuse.milkweed"

// Config is how a file system is mounted.
type Config struct {
	Point      string        // the mount point, an existing directory
	Source     string        // the first column of df and /proc/mounts
	AllowOther bool          // let other users in, as far as file modes permit
	Timeout    time.Duration // how long the kernel believes that a name is not there
	NoExec     bool          // refuse to execute files
	Reread     bool          // keep no pages of a file for its next open, as where memory is short
	ReadAhead  int           // bytes that the kernel reads ahead, where it lets us say; 0 is its 128 KiB
	Mode       Mode          // how the kernel gets at the content of files
	StackDepth int           // in passthrough, how many file systems may be stacked below; 0 is 1, Linux has at most 2
}

// A Mount is a mounted file system that is being served.
type Mount struct {
	server *fuse.Server
	fs     *fileSystem
	point  string
	served chan struct{} // closed when nothing more is served
}

// New mounts a file system and begins to serve it: when New returns, the
// mount can be used. It ends when it is unmounted, by Unmount or from outside.
//
// The process must not use its own mount: a request that it makes while it
// holds what the answer needs would wait for ever.
func New(names *metadata.Container, files Opener, cfg Config, log *slog.Logger) (*Mount, error) {
	f := &fileSystem{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		names:         names, opener: files, mode: cfg.Mode, timeout: cfg.Timeout, reread: cfg.Reread, log: log,
	}
	if cfg.Mode == Stateless {
		f.reader = files.(Reader)
	}
	server, err := mount(f, cfg, log)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", cfg.Point, err)
	}
	m := &Mount{server: server, fs: f, point: cfg.Point, served: make(chan struct{})}
	serving, stop := context.WithCancel(context.Background())
	var background sync.WaitGroup
	background.Go(func() { m.closePipes(serving) })
	background.Go(func() { m.invalidate(serving) })
	go func() {
		defer close(m.served)
		server.Serve()
		stop()
		background.Wait()
		splice.ClearSplicePool()
	}()
	if err := server.WaitMount(); err != nil {
		m.Detach()
		m.Wait()
		return nil, fmt.Errorf("mount %s: %w", cfg.Point, err)
	}
	if cfg.ReadAhead > 0 {
		if err := setReadAhead(cfg.Point, cfg.ReadAhead); err != nil {
			log.Debug("read-ahead stays as it is", "err", err)
		}
	}
	return m, nil
}

// closePipes closes pipes that reads were answered by and that nobody uses now,
// until the mount has ended. go-fuse would keep as many as ever were in use.
func (m *Mount) closePipes(ctx context.Context) {
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			splice.ClearSplicePool()
		case <-ctx.Done():
			return
		}
	}
}

// invalidate has the kernel drop the dentries of stale names, until ctx is done.
func (m *Mount) invalidate(ctx context.Context) {
	for dir, name := range m.fs.names.StaleNames(ctx) {
		m.server.EntryNotify(dir.ID(), name) // ENOENT if the kernel has not cached it
	}
}

// MaxRequest is the most that the kernel asks for in one read, in bytes.
const MaxRequest = 1 << 20

func mount(f *fileSystem, cfg Config, log *slog.Logger) (*fuse.Server, error) {
	opts := &fuse.MountOptions{
		FsName:               cfg.Source,
		Name:                 Type[len("fuse."):],
		Options:              []string{"nosuid", "nodev"},
		AllowOther:           cfg.AllowOther,
		MaxWrite:             MaxRequest,
		MaxReadAhead:         MaxRequest,
		MaxBackground:        64,
		EnableSymlinkCaching: true,
		IgnoreSecurityLabels: true,
		Logger:               slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	if cfg.Mode == Passthrough {
		opts.MaxStackDepth = cfg.StackDepth
	} else { // with it, nothing could be stacked on the mount
		opts.DisabledCapabilities = fuse.CAP_PASSTHROUGH
	}
	if cfg.NoExec {
		opts.Options = append(opts.Options, "noexec")
	}
	if cfg.AllowOther {
		opts.Options = append(opts.Options, "default_permissions")
	}
	if os.Geteuid() == 0 {
		server, err := mountDirect(f, cfg, opts)
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

// mountDirect mounts as only root may. go-fuse could do it too, but it leaves
// the connection open in every process that this one starts. Were this one
// killed, the kernel would take the others for servers, and whoever uses the
// mount, they themselves too when they close a file as they end, would wait
// for ever and could not be killed.
func mountDirect(f *fileSystem, cfg Config, opts *fuse.MountOptions) (*fuse.Server, error) {
	var st unix.Stat_t
	if err := unix.Stat(cfg.Point, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, syscall.ENOTDIR // mount would call it an invalid argument
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/fuse: %w", err)
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_RDONLY)
	if cfg.NoExec {
		flags |= unix.MS_NOEXEC
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,max_read=%d", fd, MaxRequest)
	if cfg.AllowOther {
		data += ",allow_other,default_permissions"
	}
	if err := unix.Mount(cfg.Source, cfg.Point, Type, flags, data); err != nil {
		unix.Close(fd)
		return nil, err
	}
	server, err := fuse.NewServer(f, fmt.Sprintf("/dev/fd/%d", fd), opts)
	if err != nil {
		unix.Unmount(cfg.Point, unix.MNT_DETACH)
	}
	return server, err
}

// Wait returns when the file system is unmounted, all requests have been
// answered, and all files are closed.
func (m *Mount) Wait() { <-m.served }

// Unmount unmounts the file system. While files are open on it, Unmount fails, with an error
// that matches syscall.EBUSY if this process is root.
func (m *Mount) Unmount() error {
	err := unmountAsRoot(m.point, false)
	if err == unix.EPERM {
		return m.server.Unmount() // which calls fusermount3, and retries if files were just closed
	}
	return err
}

// Detach detaches the mount from its mount point. The file system ends when the last file that
// is open on it is closed.
func (m *Mount) Detach() error { return Unmount(context.Background(), m.point, true) }

// OpenFiles returns how many files the kernel has open now.
func (m *Mount) OpenFiles() int { return m.fs.files.len() }

// A fileSystem answers the kernel. What it does not answer itself is ENOSYS by
// the RawFileSystem within, which the kernel takes as "never ask again": that
// is right for lseek, access and locks. What would change something never
// comes, for the mount is read-only.
type fileSystem struct {
	fuse.RawFileSystem
	names   *metadata.Container
	opener  Opener
	reader  Reader // set in a stateless mount
	mode    Mode
	timeout time.Duration
	reread  bool // Config.Reread
	log     *slog.Logger

	files   handles[handle]
	nodes   *openNodes // set in a mount with passthrough
	dirs    handles[*dirHandle]
	buffers bufferPool
}

// A handle is one open of a file.
type handle struct {
	entry *metadata.Entry
	obj   drivers.Object
}

var _ fuse.RawFileSystem = (*fileSystem)(nil)

func (f *fileSystem) String() string { return "milkweed" }

// Init is called before the first request.
func (f *fileSystem) Init(server *fuse.Server) {
	if f.mode == Passthrough {
		f.nodes = &openNodes{server: server, log: f.log}
	}
}

// OnUnmount closes what the kernel had open when the connection ended. Of a
// file that is closed right before, Release may never be called.
func (f *fileSystem) OnUnmount() {
	for _, h := range f.files.clear() {
		h.obj.Close()
	}
	f.dirs.clear()
}

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

// clear removes all handles and returns them.
func (h *handles[T]) clear() map[uint64]T {
	h.mu.Lock()
	defer h.mu.Unlock()
	open := h.open
	h.open = nil
	return open
}

func (h *handles[T]) len() int {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return len(h.open)
}
