package fs

import (
	"context"
	"errors"
	"io"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/metadata"
)

// Open opens a file. The kernel may keep the pages that it has read for the
// next open, because the node is one version of the file; unless it shall read
// them again.
//
// In a stateless mount the answer is what the kernel takes as "never ask
// again": from then on it opens files by itself and keeps their pages.
func (f *fileSystem) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		return fuse.EROFS
	}
	if f.mode == Stateless {
		return fuse.ENOSYS
	}
	e := f.names.Get(in.NodeId)
	if e == nil || e.Stale() {
		return fuse.Status(syscall.ESTALE) // and the kernel looks the name up again
	}
	r := newRequest(cancel)
	defer r.end()
	obj, err := f.opener.Open(r, e)
	if err != nil {
		return f.errno(err)
	}
	if f.nodes != nil {
		out.BackingID = f.nodes.open(in.NodeId, obj)
	}
	switch {
	case out.BackingID != 0:
		out.OpenFlags = fuse.FOPEN_PASSTHROUGH
	case !f.reread:
		out.OpenFlags = fuse.FOPEN_KEEP_CACHE
	}
	out.Fh = f.files.add(handle{e, obj})
	return fuse.OK
}

// Read reads from an open file.
func (f *fileSystem) Read(cancel <-chan struct{}, in *fuse.ReadIn, _ []byte) (fuse.ReadResult, fuse.Status) {
	e, c, status := f.content(in)
	if status != fuse.OK {
		return nil, status
	}
	if result := spliced(in, e, c); result != nil {
		return result, fuse.OK
	}
	r := newRequest(cancel)
	defer r.end()
	for {
		buf := f.buffers.get(int(in.Size))
		n, err := c.ReadAt(r, buf[:in.Size], int64(in.Offset))
		switch {
		case err == nil || err == io.EOF:
			return &readResult{&f.buffers, buf, n}, fuse.OK
		case !errors.Is(err, drivers.ErrAbandoned):
			f.buffers.put(buf)
			return nil, f.errno(err)
		case r.Err() != nil:
			return nil, f.errno(r.Err())
		}
		// A tier did not answer. The buffer is lost to it, and the next
		// read goes elsewhere.
	}
}

// A content is what a file is read from. It may be a drivers.Splicer.
type content interface {
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)
}

// content returns the entry that a request is for, and what it is read from.
func (f *fileSystem) content(in *fuse.ReadIn) (*metadata.Entry, content, fuse.Status) {
	if f.mode == Stateless {
		e, status := f.entry(in.NodeId)
		return e, unopened{f.reader, e}, status
	}
	h, ok := f.files.get(in.Fh)
	if !ok {
		return nil, nil, fuse.EBADF
	}
	return h.entry, h.obj, fuse.OK
}

// An unopened is a file that the kernel reads without having told of an open.
type unopened struct {
	reader Reader
	entry  *metadata.Entry
}

func (u unopened) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	return u.reader.ReadAt(ctx, u.entry, p, off)
}

func (u unopened) SpliceDescriptor() (fd uintptr, release func(n int), err error) {
	return u.reader.SpliceDescriptor(u.entry)
}

// Flush answers what the kernel takes as "never ask again": otherwise it would
// ask at every close.
func (f *fileSystem) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.ENOSYS }

// Release closes a file.
func (f *fileSystem) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	h, ok := f.files.remove(in.Fh)
	if !ok {
		return
	}
	if f.nodes != nil {
		f.nodes.release(h.entry.ID())
	}
	h.obj.Close()
}
