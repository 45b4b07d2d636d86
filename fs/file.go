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

// An openFile is a file that the kernel has open.
type openFile struct {
	entry *metadata.Entry
	node  uint64
	obj   drivers.Object
}

// Open opens a file. In a stateless mount its reply, ENOSYS, stops all further OPEN requests.
// Otherwise the page cache of earlier opens stays valid, because a node is one version of a
// file.
func (f *fileSystem) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		return statusReadOnly
	}
	if f.mode == Stateless {
		return statusNeverAgain
	}
	e, status := f.entry(in.NodeId)
	if status == fuse.OK && e.Stale() {
		status = statusStale
	}
	if status != fuse.OK {
		return status
	}
	e.Use()
	r := f.newRequest(cancel)
	r.caller = callerOf(&in.InHeader)
	defer r.end()
	obj, err := f.opener.Open(r, e)
	if err != nil {
		return f.status(err)
	}
	if f.nodes != nil {
		if f.nodes.isFailing(in.NodeId, obj) && f.names.Renew(e) {
			obj.Close()
			return statusStale
		}
		out.BackingID = f.nodes.open(in.NodeId, obj)
	}
	switch {
	case out.BackingID != 0:
		out.OpenFlags = fuse.FOPEN_PASSTHROUGH
	case !f.invalidateOnOpen:
		out.OpenFlags = fuse.FOPEN_KEEP_CACHE
	}
	out.Fh = f.files.add(openFile{e, in.NodeId, obj})
	return fuse.OK
}

// Flush stops all further FLUSH requests by its reply, ENOSYS. The kernel would send one at
// every close(2).
func (f *fileSystem) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return statusNeverAgain }

// Release closes a file.
func (f *fileSystem) Release(cancel <-chan struct{}, in *fuse.ReleaseIn) {
	defer f.newRequest(cancel).end()
	if h, ok := f.files.remove(in.Fh); ok {
		f.close(h)
	}
}

// close closes a file that is no longer in the table of handles.
func (f *fileSystem) close(h openFile) {
	if f.nodes != nil {
		f.nodes.release(h.node)
	}
	h.obj.Close()
}

// Read reads from a file.
func (f *fileSystem) Read(cancel <-chan struct{}, in *fuse.ReadIn, _ []byte) (fuse.ReadResult, fuse.Status) {
	e, c, status := f.content(in)
	if status != fuse.OK {
		return nil, status
	}
	if result := spliceReply(in, e, c); result != nil {
		return result, fuse.OK
	}
	r := f.newRead(cancel, in)
	defer f.reading.Add(-1)
	defer r.end()
	result, err := f.read(r, c, int(in.Size), int64(in.Offset))
	if err != nil {
		return nil, f.status(err)
	}
	return result, fuse.OK
}

// read reads up to size bytes. It is the only place that retries a read: it repeats the read
// while the error matches drivers.ErrRetry, which means that the next read uses another place,
// such as the next tier or the source. An abandoned buffer is not used again, because a hung
// device may still write to it.
func (f *fileSystem) read(r *request, c content, size int, off int64) (fuse.ReadResult, error) {
	for {
		buf := f.buffers.get(size)
		n, err := c.ReadAt(r, buf[:size], off)
		if err == nil || err == io.EOF {
			return &readResult{&f.buffers, buf, n}, nil
		}
		if !errors.Is(err, drivers.ErrAbandoned) {
			f.buffers.put(buf)
		}
		if !errors.Is(err, drivers.ErrRetry) {
			return nil, err
		}
		select {
		case <-r.Done():
			return nil, r.Err()
		default:
		}
	}
}

// A content is what a READ reads: an open file, or the file of a stateless mount. It may
// have the capability drivers.Splicer.
type content interface {
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)
}

// content returns the entry and the content of the file that a READ names.
func (f *fileSystem) content(in *fuse.ReadIn) (*metadata.Entry, content, fuse.Status) {
	if f.mode == Stateless {
		e, status := f.entry(in.NodeId)
		if status == fuse.OK {
			e.Use()
		}
		return e, statelessFile{f.reader, e}, status
	}
	h, ok := f.files.get(in.Fh)
	if !ok {
		return nil, nil, statusBadHandle
	}
	return h.entry, h.obj, fuse.OK
}

// A statelessFile is a file of a stateless mount, for which there is no handle.
type statelessFile struct {
	reader Reader
	entry  *metadata.Entry
}

var _ drivers.Splicer = statelessFile{}

// ReadAt implements content.
func (s statelessFile) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	return s.reader.ReadAt(ctx, s.entry, p, off)
}

// SpliceDescriptor implements drivers.Splicer.
func (s statelessFile) SpliceDescriptor() (fd uintptr, release func(n int), err error) {
	return s.reader.SpliceDescriptor(s.entry)
}
