package fs

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/milkweedfs/milkweed/drivers"
)

// errno turns an error into what the job sees. It is the only place that does.
func (f *fileSystem) errno(err error) fuse.Status {
	status := errno(err)
	if status != fuse.OK && status != fuse.ENOENT && status != fuse.ENODATA {
		f.log.Debug("request failed", "err", err)
	}
	return status
}

func errno(err error) fuse.Status {
	var e syscall.Errno
	switch {
	case err == nil:
		return fuse.OK
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fuse.EINTR
	case errors.Is(err, drivers.ErrChanged):
		// The kernel looks the name up again when an open says so. A read
		// of a version that is gone says so to the job, as NFS does.
		return fuse.Status(syscall.ESTALE)
	case errors.As(err, &e):
		return fuse.Status(e)
	case errors.Is(err, fs.ErrNotExist):
		return fuse.ENOENT
	case errors.Is(err, fs.ErrPermission):
		return fuse.EACCES
	}
	return fuse.EIO
}
