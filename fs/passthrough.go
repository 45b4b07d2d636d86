package fs

import (
	"errors"
	"log/slog"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// openNodes counts the opens of each node of a mount in Passthrough, and holds the backing
// file of each node.
//
// In passthrough the reply to OPEN names a backing file, and the kernel reads it by itself,
// without READ requests. The rules of the kernel (fs/fuse/iomode.c) are:
//
//   - All opens of a node that are alive at the same time have the same backing file.
//   - A node has no backing file while an open of it uses the page cache of the node.
//   - An open that breaks these rules fails with EIO.
//
// Therefore the first open of a node decides how the node is read until its last RELEASE. If the
// backing file is on a disk that fails, a later open gets another node of the same version.
// openNodes counts an open before the reply to OPEN, and the kernel forgets an open before
// it sends RELEASE. So the count is never less than that of the kernel.
type openNodes struct {
	server *fuse.Server
	log    *slog.Logger
	shards [64]openNodeShard
}

type openNodeShard struct {
	mu    panics.Mutex // guards the following
	nodes map[uint64]*openNode
}

// An openNode is the state that all opens of a node share.
type openNode struct {
	opens   int
	backing int32  // ID of the backing file in the kernel; 0: the node is read through the daemon
	release func() // ends the registration of the backing file; nil if backing is 0
}

func (n *openNodes) shard(node uint64) *openNodeShard {
	return &n.shards[node%uint64(len(n.shards))]
}

// open counts an open of a node. It returns the backing file for the reply to OPEN, or 0.
// The caller calls release once for each open.
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
		countOpen(obj)
	}
	o.opens++
	return o.backing
}

// isFailing reports whether the kernel would read a new open of a node from a backing file whose
// storage fails. obj is the object of the new open.
func (n *openNodes) isFailing(node uint64, obj drivers.Object) bool {
	s := n.shard(node)
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.nodes[node]
	if o == nil || o.backing == 0 {
		return false
	}
	_, err := backingFile(obj, func(uintptr) error { return errNotRegistered })
	return errors.Is(err, drivers.ErrFailing)
}

var errNotRegistered = errors.New("not registered")

// release undoes one call of open. The last one ends the registration of the backing file,
// first with the kernel and then with the Object.
func (n *openNodes) release(node uint64) {
	if o := n.remove(node); o != nil && o.backing != 0 {
		o.release() // without the lock: it may close a file, which may take long
	}
}

// remove removes one open of a node. If it was the last one, remove unregisters the backing
// file from the kernel and returns the node, otherwise nil.
func (n *openNodes) remove(node uint64) *openNode {
	s := n.shard(node)
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.nodes[node]
	if o.opens--; o.opens > 0 {
		return nil
	}
	delete(s.nodes, node)
	if o.backing != 0 {
		n.server.UnregisterBackingFd(o.backing) // EBADF after the connection ended, which unregisters all
	}
	return o
}

// register registers the backing file of obj with the kernel. It returns 0 if obj has no
// backing file now, or if the kernel refuses the file.
func (n *openNodes) register(obj drivers.Object) (backing int32, release func()) {
	release, err := backingFile(obj, func(fd uintptr) (err error) {
		backing, err = registerBacking(n.server, fd)
		return err
	})
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		n.log.Debug("backing file not registered", "err", err)
	}
	return backing, release
}

// countOpen makes obj count an open in passthrough. The kernel reads this open from the
// backing file that is registered already, so that the registration of obj ends at once.
func countOpen(obj drivers.Object) {
	release, err := backingFile(obj, func(uintptr) error { return nil })
	if err == nil {
		release()
	}
}

// backingFile calls BackingFile if obj is a drivers.BackingFiler.
func backingFile(obj drivers.Object, register func(fd uintptr) error) (release func(), err error) {
	b, ok := drivers.As[drivers.BackingFiler](obj)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return b.BackingFile(register)
}

// registerBacking registers a descriptor with the kernel and returns the ID of the backing
// file, which is not 0.
func registerBacking(server *fuse.Server, fd uintptr) (int32, error) {
	id, errno := server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(fd)})
	if errno != 0 {
		return 0, errno
	}
	return id, nil
}
