package fs

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/milkweedfs/milkweed/metadata"
)

// Generations: the root of the mount is the directory of the current generation, and
// metadata.GenerationsDir is the root of the source, which has all generations.
//
// A file of the current generation has two paths, and therefore two nodes: below
// metadata.GenerationsDir, a node ID has the bit viaGenerations. With one node, the kernel would move
// a directory between its paths whenever it is looked up by the other one.
//
// After a switch, no name that the kernel has cached in the root is used any more. The kernel counts
// epochs: it looks up again what it looked up in an earlier one (FUSE_NOTIFY_INC_EPOCH, Linux 6.16),
// also if the reply to a lookup from before the switch arrives later. Without epochs, the kernel
// caches no name in the root.
const (
	viaGenerations  = 1 << 62
	generationsNode = viaGenerations | fuse.FUSE_ROOT_ID // the node of metadata.GenerationsDir
)

// entry returns the entry of a node, which may be a stale one.
func (f *fileSystem) entry(node uint64) (*metadata.Entry, fuse.Status) {
	if node == fuse.FUSE_ROOT_ID {
		return f.names.Top(), fuse.OK
	}
	if e := f.names.Get(node &^ viaGenerations); e != nil {
		return e, fuse.OK
	}
	return nil, statusStale
}

// nodeIn returns the node of an entry in the directory of a node.
func nodeIn(dir uint64, e *metadata.Entry) uint64 { return e.ID() | dir&viaGenerations }

// inodeNumber returns the inode number of a node. It is below 2³² while entries have so small IDs: the
// stat(2) of a 32-bit program fails for larger ones.
func inodeNumber(node uint64) uint64 {
	const via = 1 << 31
	switch id := node &^ viaGenerations; {
	case id >= via:
		return node | 1<<61 // no other node has the number
	case id != node:
		return id | via
	}
	return node
}

// nodesOf returns the nodes that the kernel may have of an entry.
func (f *fileSystem) nodesOf(e *metadata.Entry) []uint64 {
	switch {
	case !f.names.HasGenerations():
		return []uint64{e.ID()}
	case e == f.names.Top():
		return []uint64{fuse.FUSE_ROOT_ID, viaGenerations | e.ID()}
	case e == f.names.Root():
		return []uint64{generationsNode}
	}
	return []uint64{e.ID(), viaGenerations | e.ID()}
}

// isSwitched reports whether a switch may replace the content of the directory of a node.
func (f *fileSystem) isSwitched(node uint64) bool {
	return node == fuse.FUSE_ROOT_ID && f.names.HasGenerations()
}

// cachesNames reports whether the kernel may cache the names in the directory of a node.
func (f *fileSystem) cachesNames(node uint64) bool { return !f.isSwitched(node) || f.epochs.Load() }

// cachesListing reports whether the kernel may cache the listing of the directory of a node.
// Entry.CachedListing has the version that one node has cached.
func (f *fileSystem) cachesListing(node uint64) bool {
	return !f.isSwitched(node) && node&viaGenerations == 0
}

// isHidden reports whether an entry does not appear in the directory of a node: the root of the
// source may have other files than generations.
func isHidden(dir uint64, e *metadata.Entry) bool {
	return dir == generationsNode && !e.IsDir() && e.Type() != 0
}

// Switch makes another generation the current one, and returns the directory of the one before.
// Every path below the mount point that a program begins to resolve after Switch has returned is in
// the new one.
func (m *Mount) Switch(ctx context.Context, name string) (before *metadata.Entry, err error) {
	if before, err = m.fs.names.Switch(ctx, name); err != nil {
		return nil, err
	}
	if m.fs.epochs.Load() {
		err = m.fs.conn.nextEpoch()
	}
	m.server.InodeNotify(fuse.FUSE_ROOT_ID, 0, 0)
	return before, err
}

// Forget makes the kernel forget the files of a generation that no program has open or mapped, with
// their pages. The kernel then sends FORGETs, after Forget has returned.
func (m *Mount) Forget(generation *metadata.Entry) {
	for e := range m.fs.names.Held(generation) {
		dirs := m.fs.nodesOf(e.Parent())
		if e.Parent() == generation { // it may have been the root when the kernel looked the name up
			dirs = append(dirs, fuse.FUSE_ROOT_ID)
		}
		for _, dir := range dirs {
			m.server.EntryNotify(dir, e.Name())
		}
	}
}

// nextEpoch makes the kernel look up again every name that it has looked up.
func (c connection) nextEpoch() error {
	const notifyIncEpoch = 8 // FUSE_NOTIFY_INC_EPOCH
	var b [16]byte           // struct fuse_out_header of linux/fuse.h: len, error, unique
	binary.NativeEndian.PutUint32(b[0:], uint32(len(b)))
	binary.NativeEndian.PutUint32(b[4:], notifyIncEpoch)
	if _, err := c.file.Write(b[:]); err != nil {
		return fmt.Errorf("notify the kernel of an epoch: %w", err)
	}
	return nil
}
