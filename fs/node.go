package fs

import (
	"errors"
	"io/fs"
	"strings"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/metadata"
)

// Lookup finds a name in a directory. The kernel also caches that a name does not exist.
func (f *fileSystem) Lookup(cancel <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	dir, status := f.entry(in.NodeId)
	if status != fuse.OK {
		return status
	}
	r := f.newNameRequest(cancel)
	defer r.end()
	if name == metadata.GenerationsDir && f.isSwitched(in.NodeId) {
		f.setEntry(out, in.NodeId, generationsNode, f.names.Root())
		return fuse.OK
	}
	e, err := f.names.Lookup(r, dir, name)
	if err == nil && isHidden(in.NodeId, e) {
		return statusHidden
	}
	if errors.Is(err, fs.ErrNotExist) {
		if len(name) > maxName {
			return statusNameTooLong
		}
		if f.negativeTTL > 0 && f.cachesNames(in.NodeId) && err != metadata.ErrUnconfirmed && f.names.HoldMissing(dir, name, r.began) {
			out.SetEntryTimeout(f.negativeTTL)
			return fuse.OK // a reply without a node is a negative lookup
		}
	}
	if err != nil {
		return f.status(err)
	}
	e.Use()
	f.setEntry(out, in.NodeId, nodeIn(in.NodeId, e), e)
	return fuse.OK
}

// setEntry sets the reply to a lookup, in the directory of the node dir, that found e, which gets a
// node. It adds one to the kernel's lookup count of e, which a FORGET subtracts.
func (f *fileSystem) setEntry(out *fuse.EntryOut, dir, node uint64, e *metadata.Entry) {
	f.names.Hold(e)
	out.NodeId, out.Generation = node, f.generation
	out.SetAttrTimeout(f.attrTTL(e))
	ttl := f.names.TTL(e)
	if e.Stale() || !f.cachesNames(dir) {
		// An old listing may still contain a stale e. The dentry must expire at once: the
		// invalidation of the name may have reached the kernel before this reply.
		ttl = 0
	}
	out.SetEntryTimeout(ttl)
	setAttr(&out.Attr, node, e)
}

// Forget subtracts n from the kernel's lookup count of a node.
func (f *fileSystem) Forget(node, n uint64) { f.names.Forget(node&^viaGenerations, n) }

// GetAttr returns the attributes of a node.
func (f *fileSystem) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	e, status := f.entry(in.NodeId)
	if status != fuse.OK {
		return status
	}
	r := f.newNameRequest(cancel)
	defer r.end()
	// A removed file still has its attributes, for its open handles. Lookup reports
	// that the name does not exist.
	if err := f.names.Refresh(r, e); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f.status(err)
	}
	if f.mode == Stateless && e.Unsized() && in.Flags()&fuse.FUSE_GETATTR_FH != 0 {
		if err := f.names.Permit(r, e); err != nil {
			return f.status(err)
		}
	}
	e.Use()
	out.SetTimeout(f.attrTTL(e))
	setAttr(&out.Attr, in.NodeId, e)
	return fuse.OK
}

// attrTTL returns for how long the kernel caches the attributes of e. A stateless mount gets no OPEN, and no READ of
// a file of size 0. If that proves nothing, the request for the attributes of an open file, which comes before each
// read when they have expired, is the only one that can fail.
func (f *fileSystem) attrTTL(e *metadata.Entry) time.Duration {
	if f.mode == Stateless && e.Unsized() {
		return 0
	}
	return f.names.TTL(e)
}

// Access replies to access(2) and chdir(2). The kernel sends it only without allow_other, when the
// caller is the user who reads the source. Only the right to execute a file is checked, by its
// cached mode: the bit of the owner for the owner, and for others that of the group or of all
// others. A POSIX ACL that grants it sets the bit of the group. Everything else is decided by the
// source when it is used, because other kinds of ACLs may grant what the mode does not.
func (f *fileSystem) Access(_ <-chan struct{}, in *fuse.AccessIn) fuse.Status {
	e, status := f.entry(in.NodeId)
	if status != fuse.OK || in.Mask&fuse.X_OK == 0 || e.IsDir() {
		return status
	}
	i := e.Info()
	bits := uint32(0o011)
	switch in.Uid {
	case 0:
		bits = 0o111
	case i.UID:
		bits = 0o100
	}
	if i.Mode&bits == 0 {
		return statusNotExecutable
	}
	return fuse.OK
}

// setAttr sets the attributes of an entry with a node. They are those of the source, except that the
// inode number is that of the node: the source may span devices, on which inode numbers repeat.
func setAttr(out *fuse.Attr, node uint64, e *metadata.Entry) {
	i := e.Info()
	links := uint32(1) // each hard link has an inode number of its own
	if e.IsDir() {
		links = i.Nlink
	}
	*out = fuse.Attr{
		Ino:       inodeNumber(node),
		Size:      uint64(i.Size),
		Blocks:    uint64(i.Blocks),
		Atime:     uint64(i.Atime.Unix()),
		Mtime:     uint64(i.Mtime.Unix()),
		Ctime:     uint64(i.Ctime.Unix()),
		Atimensec: nanoseconds(i.Atime),
		Mtimensec: nanoseconds(i.Mtime),
		Ctimensec: nanoseconds(i.Ctime),
		Mode:      i.Mode,
		Nlink:     links,
		Owner:     fuse.Owner{Uid: i.UID, Gid: i.GID},
		Rdev:      i.Rdev,
		Blksize:   4096,
	}
}

func nanoseconds(t time.Time) uint32 { return uint32(t.Nanosecond()) }

// Readlink returns the target of a symbolic link as the source stores it.
func (f *fileSystem) Readlink(cancel <-chan struct{}, in *fuse.InHeader) ([]byte, fuse.Status) {
	e, status := f.entry(in.NodeId)
	if status != fuse.OK {
		return nil, status
	}
	r := f.newNameRequest(cancel)
	defer r.end()
	target, err := f.names.Readlink(r, e)
	return []byte(target), f.status(err)
}

// SocketXattr is the extended attribute of the root of a mount whose value Config.Socket returns.
const SocketXattr = "user.milkweed.socket"

// NodeXattr is the extended attribute of the root of a mount whose value is Config.Node: the index of
// this node among those that share their tiers, "/" and their number.
const NodeXattr = "user.milkweed.node"

// GetXAttr returns the value of an extended attribute of the source, its ACL, the path of the control
// socket, or the index of this node.
func (f *fileSystem) GetXAttr(cancel <-chan struct{}, in *fuse.InHeader, attr string, dst []byte) (uint32, fuse.Status) {
	isACL := attr == drivers.ACLXattr && f.acls
	switch {
	case attr == SocketXattr && in.NodeId == fuse.FUSE_ROOT_ID && f.socket != nil:
		path := f.socket(callerOf(in).user())
		if path == "" {
			return 0, statusNoXattr
		}
		return xattrReply(dst, []byte(path))
	case attr == NodeXattr && in.NodeId == fuse.FUSE_ROOT_ID:
		if f.node == "" {
			return 0, statusNoXattr
		}
		return xattrReply(dst, []byte(f.node))
	case isACL:
	case !f.xattrs:
		return 0, statusNoXattrs // the kernel must continue to request ACLs, and SocketXattr
	case strings.HasPrefix(attr, "trusted."), strings.HasPrefix(attr, "security."), strings.HasPrefix(attr, "system.posix_acl_"):
		return 0, statusNoXattr
	case !strings.HasPrefix(attr, "user."):
		return 0, statusNoXattrs // as local file systems reply for an unknown namespace
	}
	e, status := f.entry(in.NodeId)
	if status != fuse.OK {
		return 0, status
	}
	r := f.newNameRequest(cancel)
	defer r.end()
	if isACL {
		return f.acl(r, e, dst)
	}
	value, err := f.names.Getxattr(r, e, attr)
	if err != nil {
		return 0, f.status(err)
	}
	return xattrReply(dst, value)
}

// acl returns the ACL of an entry. The kernel caches it, also that there is none, until it
// requests the attributes again. After an error the kernel denies access.
func (f *fileSystem) acl(r *request, e *metadata.Entry, dst []byte) (uint32, fuse.Status) {
	acl, err := f.names.ACL(r, e)
	switch {
	case err != nil:
		return 0, f.status(err)
	case acl == nil:
		return 0, statusNoXattr
	}
	return xattrReply(dst, acl)
}

// ListXAttr lists the names of the extended attributes of the source.
func (f *fileSystem) ListXAttr(cancel <-chan struct{}, in *fuse.InHeader, dst []byte) (uint32, fuse.Status) {
	if !f.xattrs {
		return 0, statusNeverAgain
	}
	e, status := f.entry(in.NodeId)
	if status != fuse.OK {
		return 0, status
	}
	r := f.newNameRequest(cancel)
	defer r.end()
	list, err := f.names.Listxattr(r, e)
	if err != nil {
		return 0, f.status(err)
	}
	return xattrReply(dst, list)
}

// xattrReply copies value to dst and returns its size. If dst is too small, the reply is
// the size alone.
func xattrReply(dst, value []byte) (uint32, fuse.Status) {
	if len(dst) < len(value) {
		return uint32(len(value)), statusBufferTooSmall
	}
	return uint32(copy(dst, value)), fuse.OK
}

// maxName is the length of the longest name in bytes, as on most file systems. The source may have
// longer ones, which can be read.
const maxName = 255

// StatFs returns the size of the source, or zeros if the source has no size.
func (f *fileSystem) StatFs(cancel <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	r := f.newNameRequest(cancel)
	defer r.end()
	s, err := f.names.Statfs(r)
	if errors.Is(err, errors.ErrUnsupported) {
		s, err = drivers.Statfs{}, nil
	}
	if err != nil {
		return f.status(err)
	}
	const block = 4096
	*out = fuse.StatfsOut{
		Blocks: uint64(s.Total / block), Bfree: uint64(s.Free / block), Bavail: uint64(s.Available / block),
		Files: uint64(s.Files), Ffree: uint64(s.FilesFree),
		Bsize: block, Frsize: block, NameLen: maxName,
	}
	return fuse.OK
}
