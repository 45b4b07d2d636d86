package fs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hanwen/go-fuse/v2/splice"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/fs/fusectl"
	"github.com/milkweedfs/milkweed/metadata"
)

// A Mode is how the kernel reads the content of files.
type Mode int

// The modes.
const (
	// Cached: each open is a FUSE round trip. Reads are round trips unless the page
	// cache of the kernel has the content.
	Cached Mode = iota

	// Passthrough is Cached, except that the kernel itself reads a file whose Object
	// has a backing file. It needs CAP_SYS_ADMIN and Linux 6.9. Without them it is the
	// same as Cached.
	Passthrough

	// Stateless: an open is not a round trip. The Opener must be a Reader.
	Stateless
)

// String returns the name of the mode.
func (m Mode) String() string { return [...]string{"cached", "passthrough", "stateless"}[m] }

// Type is the type of the file system that df -T and /proc/mounts show.
const Type = "fuse.milkweed"

// MaxRequest is the largest read that the kernel sends by default, in bytes.
const MaxRequest = 1 << 20

// Config describes a mount.
type Config struct {
	Point              string        // the mount point, an existing directory; with Device, only a name for messages
	Device             int           // a descriptor of /dev/fuse that CheckDevice accepts, mounted by another process; 0: New mounts
	DefaultPermissions bool          // Device was mounted with default_permissions, so that the kernel checks modes
	Source             string        // shown as the device by df and /proc/mounts
	AllowOther         bool          // other users can access the mount, subject to the modes and ACLs of files
	Xattrs             bool          // extended attributes of the namespace "user." are shown
	Node               string        // the value of NodeXattr; "": there is none
	NegativeTTL        time.Duration // how long the kernel caches that a name does not exist
	NoExec             bool          // programs on the mount cannot be executed
	InvalidateOnOpen   bool          // each open of a file drops its page cache
	MaxRequest         int           // the largest read of the kernel in bytes; 0 is MaxRequest
	MaxBackground      int           // requests of the page cache in flight; 0 is MaxBackground
	Mode               Mode          // how the kernel reads the content of files
	StackDepth         int           // in Passthrough, 2 allows backing files on overlayfs; 0 is 1

	// Socket returns the path of the control socket for a user whom the kernel lets read the root, as the
	// value of SocketXattr, or "" if there is none at present. It may be called concurrently. nil: there is no such
	// attribute.
	Socket func(uid uint32) string
}

// A Mount is a mounted file system that is being served.
type Mount struct {
	server  *fuse.Server
	fs      *fileSystem
	replies *lostReplies
	point   string
	adopted bool          // another process has mounted it: see Config.Device
	served  chan struct{} // closed after the last request was answered
}

// New mounts a file system and serves it until it is unmounted, by Unmount or by another
// program. When New returns, the mount can be used. If cfg.Mode is Stateless, files must
// be a Reader. With cfg.Device, New mounts nothing and serves the file system of that descriptor.
//
// The process must not access its own mount. Such a request blocks for ever if the
// process holds a lock that the reply needs.
func New(names *metadata.Container, files Opener, cfg Config, log *slog.Logger) (*Mount, error) {
	f := &fileSystem{
		RawFileSystem:    fuse.NewDefaultRawFileSystem(),
		names:            names,
		opener:           files,
		mode:             cfg.Mode,
		negativeTTL:      cfg.NegativeTTL,
		invalidateOnOpen: cfg.InvalidateOnOpen,
		socket:           cfg.Socket,
		node:             cfg.Node,
		xattrs:           cfg.Xattrs,
		log:              log,
		generation:       uint64(uint32(time.Now().UnixMilli())), // the kernel has 32 bits for it
	}
	if cfg.AllowOther {
		f.acls = names.HasACLs(context.Background())
	}
	if cfg.Mode == Stateless {
		f.reader = files.(Reader)
	}
	if cfg.MaxRequest == 0 {
		cfg.MaxRequest = MaxRequest
	}
	if f.maxBackground = cfg.MaxBackground; f.maxBackground == 0 {
		f.maxBackground = MaxBackground
	}
	replies := newLostReplies(log)
	server, err := mount(f, cfg, replies)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", cfg.Point, err)
	}
	m := &Mount{server: server, fs: f, replies: replies, point: cfg.Point, adopted: cfg.Device != 0, served: make(chan struct{})}
	go m.serve()
	f.epochs.Store(names.HasGenerations() && f.conn.nextEpoch() == nil)
	return m, nil
}

// serve replies to requests until the connection ends.
func (m *Mount) serve() {
	defer close(m.served)
	ctx, stop := context.WithCancel(context.Background())
	var background sync.WaitGroup
	background.Go(func() { panics.Repeat(ctx, func() { closePipes(ctx) }) })
	background.Go(func() { panics.Repeat(ctx, func() { m.invalidate(ctx) }) })
	m.server.Serve()
	stop()
	background.Wait()
	m.fs.conn.close()
	splice.ClearSplicePool()
}

// closePipes closes idle splice pipes every 5 seconds until ctx is done. go-fuse itself
// would keep as many open as were ever in use at once.
func closePipes(ctx context.Context) {
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

// invalidate invalidates the parts of the kernel's cache that are outdated, until ctx is done.
func (m *Mount) invalidate(ctx context.Context) {
	for o := range m.fs.names.Outdated(ctx) {
		for _, node := range m.fs.nodesOf(o.Entry) {
			switch { // the kernel replies ENOENT if it has not cached the part
			case o.Name != "":
				m.server.EntryNotify(node, o.Name)
			case o.Content, m.fs.mode == Stateless: // the source may deny the file now, and there are no opens
				m.server.InodeNotify(node, 0, 0) // the attributes and all pages
			default:
				m.server.InodeNotify(node, -1, 0) // the attributes only
			}
		}
	}
}

// Wait returns after the file system was unmounted, all requests were answered, and all
// files were closed.
func (m *Mount) Wait() { <-m.served }

// Unmount unmounts the file system. While files are open on it, Unmount fails. If this
// process has CAP_SYS_ADMIN, the error then matches syscall.EBUSY. If another process has mounted the
// file system, the error is ErrAdopted.
func (m *Mount) Unmount() error {
	if m.adopted {
		return ErrAdopted
	}
	return Unmount(context.Background(), m.point, false)
}

// Detach removes the mount from its mount point at once. Open files stay readable; the
// file system ends when the last one is closed. If another process has mounted the file system, the
// error is ErrAdopted.
func (m *Mount) Detach() error {
	if m.adopted {
		return ErrAdopted
	}
	return Unmount(context.Background(), m.point, true)
}

// Requests returns the number of requests for names, attributes and content that the kernel has
// sent.
func (m *Mount) Requests() int64 { return int64(m.fs.inFlight.last.Load()) }

// Ended is closed when Wait would return.
func (m *Mount) Ended() <-chan struct{} { return m.served }

// OpenFiles returns the number of file handles that the kernel has open.
func (m *Mount) OpenFiles() int { return m.fs.files.len() }

// mount mounts f, unless another process has, and returns the server of it.
func mount(f *fileSystem, cfg Config, replies *lostReplies) (*fuse.Server, error) {
	opts := &fuse.MountOptions{
		MaxWrite:             cfg.MaxRequest,
		MaxReadAhead:         cfg.MaxRequest,
		MaxBackground:        f.maxBackground,
		CongestionThreshold:  f.maxBackground,
		EnableSymlinkCaching: true,
		EnableAcl:            f.acls,
		Logger:               replies.logger(),
		PanicHandler:         panicStatus,
		DisableSplice:        !canSplice(replies.log),
	}
	if cfg.Mode == Passthrough {
		opts.MaxStackDepth = cfg.StackDepth
	} else { // the capability forbids file systems that are stacked on the mount
		opts.DisabledCapabilities = fuse.CAP_PASSTHROUGH
	}
	if cfg.Device != 0 {
		opts.IDMappedMount = cfg.AllowOther && cfg.DefaultPermissions // nobody asks for its callers
		return serveDevice(f, cfg.Device, opts)
	}
	fd, err := mountDirect(cfg)
	switch unknown := knowsCallers(); {
	case errors.Is(err, os.ErrPermission):
		fd, err = mountByHelper(cfg) // perhaps in another PID namespace
	case cfg.AllowOther && unknown == nil:
		opts.IDMappedMount = true
	case cfg.AllowOther && err == nil:
		replies.log.Info("the mount cannot be idmapped", "err", unknown)
	}
	if err != nil {
		return nil, err
	}
	server, err := serveDevice(f, fd, opts)
	if err != nil {
		Unmount(context.Background(), cfg.Point, true)
	}
	return server, err
}

// mountDirect mounts by mount(2), and returns the descriptor of /dev/fuse. Child processes do not inherit it: if
// this process were then killed, the kernel would wait for the children to serve the mount. Processes that use
// it, and the children themselves when they close its files at exit, would block for ever and could not be killed.
func mountDirect(cfg Config) (fd int, err error) {
	var st unix.Stat_t
	if err := unix.Stat(cfg.Point, &st); err != nil {
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return -1, syscall.ENOTDIR // mount(2) would fail with EINVAL
	}
	if fd, err = unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return -1, fmt.Errorf("open /dev/fuse: %w", err)
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_RDONLY)
	if cfg.NoExec {
		flags |= unix.MS_NOEXEC
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,max_read=%d", fd, os.Geteuid(), os.Getegid(), cfg.MaxRequest)
	if cfg.AllowOther {
		data += ",allow_other,default_permissions"
	}
	if err := unix.Mount(cfg.Source, cfg.Point, Type, flags, data); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// serveDevice serves f at a descriptor of /dev/fuse that is mounted. After an error, the descriptor is closed, perhaps
// later.
func serveDevice(f *fileSystem, fd int, opts *fuse.MountOptions) (server *fuse.Server, err error) {
	if f.conn, err = dupConnection(fd); err == nil {
		err = unix.SetNonblock(fd, false) // go-fuse would take EAGAIN for the end
	}
	if err != nil {
		unix.Close(fd)
		f.conn.close()
		return nil, err
	}
	if fusectl.DefaultRequestTimeout() > 0 {
		server, err = newPatientServer(f, fd, opts)
	} else {
		server, err = fuse.NewServer(f, deviceName(fd), opts)
	}
	if err != nil {
		f.conn.close()
	}
	return server, err
}
