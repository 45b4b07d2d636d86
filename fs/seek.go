package fs

import (
	"sort"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

// Lseek replies to lseek(2) with SEEK_HOLE and SEEK_DATA; the kernel itself handles the rest. If
// the holes are unknown, the reply is that all is data, which is always true: holes read as zeros.
// A node is one version of a file, so that no handle is needed, and a stateless mount has none.
func (f *fileSystem) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	if !f.names.FindsHoles() {
		return statusNeverAgain
	}
	e, status := f.entry(in.NodeId)
	if status != fuse.OK {
		return status
	}
	r := f.newNameRequest(cancel)
	defer r.end()
	holes, err := f.names.Holes(r, e)
	if err != nil {
		f.log.Debug("holes unknown", "path", e.Path(), "err", err)
	}
	off := seek(holes, e.Size(), int64(in.Offset), in.Whence)
	if off < 0 {
		return statusNoOffset
	}
	out.Offset = uint64(off)
	return fuse.OK
}

// seek returns the first offset, not before off, of a hole or of data. Every file has a hole at
// its end. seek returns -1 if off is outside of the file, or if no data follows.
func seek(holes []drivers.Hole, size, off int64, whence uint32) int64 {
	if off < 0 || off >= size {
		return -1
	}
	i := sort.Search(len(holes), func(i int) bool { return holes[i].End > off })
	next := drivers.Hole{Start: size, End: size}
	if i < len(holes) {
		next = holes[i]
	}
	inHole := next.Start <= off
	switch {
	case whence == unix.SEEK_HOLE:
		return max(next.Start, off)
	case !inHole:
		return off
	case next.End >= size:
		return -1
	}
	return next.End
}
