package fs

import (
	"context"
	"errors"
	"io"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/milkweedfs/milkweed/drivers"
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
	out.Fh = f.files.add(handle{in.NodeId, obj})
	return fuse.OK
}

// Read reads from an open file.
func (f *fileSystem) Read(cancel <-chan struct{}, in *fuse.ReadIn, _ []byte) (fuse.ReadResult, fuse.Status) {
	readAt, status := f.readAt(in)
	if status != fuse.OK {
		return nil, status
	}
	if result := f.splice(in); result != nil {
		return result, fuse.OK
	}
	r := newRequest(cancel)
	defer r.end()
	for {
		buf := f.buffers.get(int(in.Size))
		n, err := readAt(r, buf[:in.Size], int64(in.Offset))
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

// readAt returns what reads the file that a request is for.
func (f *fileSystem) readAt(in *fuse.ReadIn) (func(context.Context, []byte, int64) (int, error), fuse.Status) {
	if f.mode != Stateless {
		h, ok := f.files.get(in.Fh)
		if !ok {
			return nil, fuse.EBADF
		}
		return h.obj.ReadAt, fuse.OK
	}
	e, status := f.entry(in.NodeId)
	return func(ctx context.Context, p []byte, off int64) (int, error) {
		return f.reader.ReadAt(ctx, e, p, off)
	}, status
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
		f.nodes.release(h.node)
	}
	h.obj.Close()
}
