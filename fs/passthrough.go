package fs

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

// In passthrough the kernel reads a file on a tier by itself, as fast as that
// file can be read: OPEN names a backing file, and no READ comes. Its rules
// (fs/fuse/iomode.c) are that a node has one backing file as long as an open of
// it has one, and none while an open of it uses the page cache of the node. An
// open that breaks them fails with EIO, so that all opens of a node must agree.
// How a node is open is counted here, from before the answer to OPEN until
// RELEASE, which the kernel sends when it has forgotten the open: the count is
// never less than the kernel's own.

// openNodes are the nodes that are open in a mount with passthrough.
type openNodes struct {
	server *fuse.Server
	log    *slog.Logger
	shards [64]openShard
}

type openShard struct {
	mu    sync.Mutex // guards the following
	nodes map[uint64]*openNode
}

// An openNode is how all opens of a node read it.
type openNode struct {
	opens   int
	backing int32  // the kernel's number of the backing file; 0: by way of the daemon
	release func() // ends the registration of the backing file; nil: there is none
}

func (n *openNodes) shard(node uint64) *openShard { return &n.shards[node%uint64(len(n.shards))] }

// open counts one more open of a node, and returns the backing file to answer
// it with, or 0. The first open decides.
func (n *openNodes) open(node uint64, obj drivers.Object) (backing int32) {
	s := n.shard(node)
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.nodes[node]
	switch {
	case o == nil:
		o = new(openNode)
		o.backing, o.release = n.register(obj)
		if s.nodes == nil {
			s.nodes = make(map[uint64]*openNode)
		}
		s.nodes[node] = o
	case o.backing != 0:
		if release, err := backingFile(obj, func(uintptr) error { return nil }); err == nil { // to be counted
			release()
		}
	}
	o.opens++
	return o.backing
}

// release takes back what open counted.
func (n *openNodes) release(node uint64) {
	s := n.shard(node)
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.nodes[node]
	if o.opens--; o.opens > 0 {
		return
	}
	delete(s.nodes, node)
	if o.backing != 0 {
		n.server.UnregisterBackingFd(o.backing)
		o.release()
	}
}

// register gives the file of obj to the kernel. It returns 0 if obj has none, or
// the kernel does not take it.
func (n *openNodes) register(obj drivers.Object) (backing int32, release func()) {
	release, err := backingFile(obj, func(fd uintptr) (err error) {
		backing, err = registerBacking(n.server, fd)
		return err
	})
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		n.log.Debug("no passthrough", "err", err)
	}
	return backing, release
}

// backingFile is the BackingFile of obj, if that is a drivers.BackingFiler.
func backingFile(obj drivers.Object, register func(fd uintptr) error) (release func(), err error) {
	b, ok := drivers.As[drivers.BackingFiler](obj)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return b.BackingFile(register)
}

func registerBacking(server *fuse.Server, fd uintptr) (int32, error) {
	id, errno := server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(fd)})
	if errno != 0 {
		return 0, errno
	}
	return id, nil
}

// ProbePassthrough tells of each open regular file whether the kernel would
// read it by itself for a mount: nil, or why not. It asks the kernel, by way of
// a file system that is mounted nowhere.
func ProbePassthrough(files []*os.File) []error {
	errs := make([]error, len(files))
	server, done, err := detached()
	if err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	defer done()
	for i, f := range files {
		errs[i] = probe(server, f)
	}
	return errs
}

// Why a mount can have no passthrough, to be tested with errors.Is.
var (
	ErrPrivilege = errors.New("passthrough needs CAP_SYS_ADMIN")
	ErrKernel    = errors.New("passthrough needs Linux 6.9 with CONFIG_FUSE_PASSTHROUGH")
	ErrStacked   = errors.New("the file is on too many file systems that are stacked")
)

func probe(server *fuse.Server, f *os.File) error {
	id, err := registerBacking(server, f.Fd())
	switch err {
	case nil:
		server.UnregisterBackingFd(id)
		return nil
	case syscall.EPERM:
		return ErrPrivilege
	case syscall.ENOTTY, syscall.EOPNOTSUPP:
		return ErrKernel
	case syscall.ELOOP:
		return ErrStacked
	}
	return fmt.Errorf("the kernel does not take the file: %w", err)
}

// detached makes a FUSE file system that is mounted nowhere, and returns what
// ends it.
func detached() (*fuse.Server, func(), error) {
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open /dev/fuse: %w", err)
	}
	root, err := mountNowhere(device)
	if err != nil {
		unix.Close(device)
		if err == unix.EPERM {
			err = ErrPrivilege
		}
		return nil, nil, err
	}
	server, err := fuse.NewServer(fuse.NewDefaultRawFileSystem(), fmt.Sprintf("/dev/fd/%d", device), &fuse.MountOptions{MaxStackDepth: maxStackDepth})
	if err != nil {
		unix.Close(root)
		return nil, nil, err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.Serve()
	}()
	return server, func() {
		unix.Close(root) // the last reference, with which the connection ends
		<-served
	}, nil
}

// mountNowhere returns the root of a file system that device serves.
func mountNowhere(device int) (root int, err error) {
	fsfd, err := unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fsfd)
	for _, o := range [][2]string{{"fd", fmt.Sprint(device)}, {"rootmode", "40000"}, {"user_id", "0"}, {"group_id", "0"}} {
		if err := unix.FsconfigSetString(fsfd, o[0], o[1]); err != nil {
			return -1, err
		}
	}
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return -1, err
	}
	return unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, 0)
}

// maxStackDepth lets a file system in the daemon's way be one that is stacked on
// another, as overlayfs in a container is. Linux has no more than 2.
const maxStackDepth = 2
