package fs

import (
	"errors"
	"io"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/milkweedfs/milkweed/drivers"
)

// Open opens a file. The kernel may keep the pages that it has read for the
// next open, because the node is one version of the file; unless it shall read
// them again.
func (f *fileSystem) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		return fuse.EROFS
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
	out.Fh = f.files.add(obj)
	if !f.reread {
		out.OpenFlags = fuse.FOPEN_KEEP_CACHE
	}
	return fuse.OK
}

// Read reads from an open file.
func (f *fileSystem) Read(cancel <-chan struct{}, in *fuse.ReadIn, _ []byte) (fuse.ReadResult, fuse.Status) {
	obj, ok := f.files.get(in.Fh)
	if !ok {
		return nil, fuse.EBADF
	}
	r := newRequest(cancel)
	defer r.end()
	for {
		buf := f.buffers.get(int(in.Size))
		n, err := obj.ReadAt(r, buf[:in.Size], int64(in.Offset))
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

// Flush answers what the kernel takes as "never ask again": otherwise it would
// ask at every close.
func (f *fileSystem) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.ENOSYS }

// Release closes a file.
func (f *fileSystem) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	if obj, ok := f.files.remove(in.Fh); ok {
		obj.Close()
	}
}
