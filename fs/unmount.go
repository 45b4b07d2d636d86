package fs

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// Unmount unmounts the FUSE file system at a mount point, with CAP_SYS_ADMIN by the system call and
// otherwise by fusermount3. It needs no daemon. While the mount is in use, Unmount fails;
// with lazy, it detaches the mount at once, and the file system ends when its last file is
// closed.
func Unmount(ctx context.Context, point string, lazy bool) error {
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	err := unix.Unmount(point, flags)
	if errors.Is(err, unix.EPERM) {
		err = unmountByHelper(ctx, point, lazy)
	}
	return err
}
