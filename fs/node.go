package fs

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/metadata"
)

// entry returns the entry of a node.
func (f *fileSystem) entry(node uint64) (*metadata.Entry, fuse.Status) {
	if e := f.names.Get(node); e != nil {
		return e, fuse.OK
	}
	return nil, fuse.Status(syscall.ESTALE)
}

// Lookup finds a name in a directory. The kernel remembers names that are not
// there as long as those that are.
func (f *fileSystem) Lookup(cancel <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	dir, status := f.entry(in.NodeId)
	if status != fuse.OK {
		return status
	}
	r := newRequest(cancel)
	defer r.end()
	e, err := f.names.Lookup(r, dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		out.SetEntryTimeout(f.timeout)
		if f.timeout > 0 {
			return fuse.OK // with no node: there is no such name
		}
	}
	if err != nil {
		return f.errno(err)
	}
	f.fill(e, out)
	return fuse.OK
}

// fill tells the kernel of an entry, which it will Forget.
func (f *fileSystem) fill(e *metadata.Entry, out *fuse.EntryOut) {
	f.names.Hold(e)
	out.NodeId = e.ID()
	lasts := f.names.TTL(e)
	out.SetAttrTimeout(lasts)
	if e.Stale() { // of a listing from before; the kernel may be told of it after it was told to forget it
		lasts = 0
	}
	out.SetEntryTimeout(lasts)
	setAttr(&out.Attr, e)
}

// Forget says that the kernel has forgotten a node.
func (f *fileSystem) Forget(node, n uint64) { f.names.Forget(node, n) }

// GetAttr returns the attributes of a node.
func (f *fileSystem) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	e, status := f.entry(in.NodeId)
	if status != fuse.OK {
		return status
	}
	r := newRequest(cancel)
	defer r.end()
	// A name that has gone is found out by Lookup; a handle that is open on
	// it still has its attributes.
	if err := f.names.Refresh(r, e); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f.errno(err)
	}
	out.SetTimeout(f.names.TTL(e))
	setAttr(&out.Attr, e)
	return fuse.OK
}

// setAttr sets the attributes of an entry: the source's, except for the inode
// number, which is the entry's own, since the source may be several devices.
func setAttr(out *fuse.Attr, e *metadata.Entry) {
	i := e.Info()
	*out = fuse.Attr{
		Ino:       e.ID(),
		Size:      uint64(i.Size),
		Blocks:    uint64(i.Size+511) / 512,
		Atime:     uint64(i.Atime.Unix()),
		Mtime:     uint64(i.Mtime.Unix()),
		Ctime:     uint64(i.Ctime.Unix()),
		Atimensec: nanoseconds(i.Atime),
		Mtimensec: nanoseconds(i.Mtime),
		Ctimensec: nanoseconds(i.Ctime),
		Mode:      i.Mode,
		Nlink:     i.Nlink,
		Owner:     fuse.Owner{Uid: i.UID, Gid: i.GID},
		Rdev:      i.Rdev,
		Blksize:   4096,
	}
}

func nanoseconds(t time.Time) uint32 { return uint32(t.Nanosecond()) }

// Readlink returns the target of a symbolic link, as it is at the source.
func (f *fileSystem) Readlink(cancel <-chan struct{}, in *fuse.InHeader) ([]byte, fuse.Status) {
	e, status := f.entry(in.NodeId)
	if status != fuse.OK {
		return nil, status
	}
	r := newRequest(cancel)
	defer r.end()
	target, err := f.names.Readlink(r, e)
	return []byte(target), f.errno(err)
}

// GetXAttr returns a user attribute of the source.
func (f *fileSystem) GetXAttr(cancel <-chan struct{}, in *fuse.InHeader, attr string, dst []byte) (uint32, fuse.Status) {
	e, status := f.entry(in.NodeId)
	if status != fuse.OK {
		return 0, status
	}
	if !strings.HasPrefix(attr, "user.") {
		return 0, fuse.ENODATA
	}
	r := newRequest(cancel)
	defer r.end()
	value, err := f.names.Getxattr(r, e, attr)
	if err != nil {
		return 0, f.errno(err)
	}
	return reply(dst, value)
}

// ListXAttr lists the user attributes of the source.
func (f *fileSystem) ListXAttr(cancel <-chan struct{}, in *fuse.InHeader, dst []byte) (uint32, fuse.Status) {
	e, status := f.entry(in.NodeId)
	if status != fuse.OK {
		return 0, status
	}
	r := newRequest(cancel)
	defer r.end()
	attrs, err := f.names.Listxattr(r, e)
	if err != nil {
		return 0, f.errno(err)
	}
	var list []byte
	for _, a := range attrs {
		list = append(append(list, a...), 0)
	}
	return reply(dst, list)
}

// reply answers a request for an attribute: the value, or if the caller has no
// room for it, its size.
func reply(dst, value []byte) (uint32, fuse.Status) {
	if len(dst) < len(value) {
		return uint32(len(value)), fuse.ERANGE
	}
	return uint32(copy(dst, value)), fuse.OK
}

// StatFs tells the size of the source.
func (f *fileSystem) StatFs(cancel <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	r := newRequest(cancel)
	defer r.end()
	s, err := f.names.Statfs(r)
	if errors.Is(err, errors.ErrUnsupported) {
		s, err = drivers.Statfs{}, nil // a source without a size
	}
	if err != nil {
		return f.errno(err)
	}
	const block = 4096
	*out = fuse.StatfsOut{
		Blocks: uint64(s.Total / block), Bfree: uint64(s.Free / block), Bavail: uint64(s.Available / block),
		Files: uint64(s.Files), Ffree: uint64(s.FilesFree),
		Bsize: block, Frsize: block, NameLen: 255,
	}
	return fuse.OK
}
