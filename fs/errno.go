package fs

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// This file chooses the errno that a job gets, with the reason for each. An errno inside an
// error, such as that of the source, is passed on.

// The statuses of requests that fail without an error of the source or a tier.
const (
	// statusStale: the version of the file that the request names is no longer current.
	// After ESTALE in reply to LOOKUP or OPEN, the kernel looks the path up again and
	// repeats the system call, so that the job opens the current version. In reply to
	// READ, the job gets ESTALE from read(2), as NFS reports it.
	statusStale = fuse.Status(syscall.ESTALE)

	// statusHidden: a name beside the generations at the source is not shown in `.generations`.
	statusHidden = fuse.ENOENT

	// statusReadOnly: open(2) for writing. The kernel refuses most such calls by itself.
	statusReadOnly = fuse.EROFS

	// statusNotExecutable: access(2) asks whether a file may be executed, and its mode does not
	// permit it.
	statusNotExecutable = fuse.EACCES

	// statusNameTooLong: there is no file of a name that is longer than maxName.
	statusNameTooLong = fuse.Status(syscall.ENAMETOOLONG)

	// statusNoOffset: lseek(2) finds neither a hole nor data at or after the offset.
	statusNoOffset = fuse.Status(syscall.ENXIO)

	// statusBadHandle: the kernel sent a handle that is not open. This would be a bug.
	statusBadHandle = fuse.EBADF

	// statusNeverAgain: after ENOSYS the kernel sends no more requests of this kind. OPEN and
	// FLUSH then succeed without a round trip, LISTXATTR fails with EOPNOTSUPP, and for LSEEK files
	// have no holes.
	// No job gets this errno.
	statusNeverAgain = fuse.ENOSYS

	// statusNoXattr: the attribute is not in the namespace "user.", the only one that is
	// exposed; or the file has no ACL.
	statusNoXattr = fuse.ENODATA

	// statusNoXattrs: extended attributes are not shown, or the namespace is unknown. The job gets
	// the same errno as after statusNeverAgain, but the kernel continues to request others.
	statusNoXattrs = fuse.Status(syscall.EOPNOTSUPP)

	// statusBufferTooSmall: the value of an attribute, or the list of their names, is
	// larger than the buffer given to getxattr(2) or listxattr(2).
	statusBufferTooSmall = fuse.ERANGE
)

// status returns the errno for err, and logs err unless it only means that a name or an
// attribute does not exist.
func (f *fileSystem) status(err error) fuse.Status {
	s := statusOf(err)
	if s != fuse.OK && s != fuse.ENOENT && s != fuse.ENODATA {
		f.log.Debug("request failed", "err", err)
	}
	return s
}

// statusOf returns the errno for an error of the container, of a file, or of a request's
// context.
func statusOf(err error) fuse.Status {
	var e syscall.Errno
	switch {
	case err == nil:
		return fuse.OK
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fuse.EINTR // the caller was interrupted, and the storage did not answer
	case errors.Is(err, drivers.ErrChanged):
		return statusStale // before the errno of the storage, which may be ENOENT
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return fuse.EIO // it is the daemon that lacks a descriptor, and not the job
	case errors.As(err, &e):
		return fuse.Status(e) // of the storage, unchanged
	case errors.Is(err, fs.ErrNotExist):
		return fuse.ENOENT
	case errors.Is(err, fs.ErrPermission):
		return fuse.EACCES
	}
	return fuse.EIO
}

// panicStatus is the status of a request whose method has panicked. go-fuse has recovered v.
func panicStatus(v any) fuse.Status { return statusOf(panics.Note(v)) }
