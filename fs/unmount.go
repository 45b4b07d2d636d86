package fs

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// Unmount unmounts the FUSE file system at a mount point, as root by the system call and as
// another user by fusermount3. It needs no daemon. While the mount is in use, Unmount fails;
// with lazy, it detaches the mount at once, and the file system ends when its last file is
// closed.
func Unmount(ctx context.Context, point string, lazy bool) error {
	err := unmountAsRoot(point, lazy)
	if errors.Is(err, unix.EPERM) {
		err = fusermount(ctx, point, lazy)
	}
	return err
}

// unmountAsRoot calls umount2(2). The error matches unix.EPERM if this user may not call it:
// root in a user namespace may not either.
func unmountAsRoot(point string, lazy bool) error {
	if os.Geteuid() != 0 {
		return unix.EPERM
	}
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	return unix.Unmount(point, flags)
}

// fusermount runs the set-user-ID program that unmounts the FUSE mounts of its caller.
func fusermount(ctx context.Context, point string, lazy bool) error {
	program, err := exec.LookPath("fusermount3")
	if errors.Is(err, exec.ErrNotFound) {
		program, err = exec.LookPath("fusermount")
	}
	if err != nil {
		return err
	}
	args := []string{"-u"}
	if lazy {
		args = append(args, "-z")
	}
	output, err := exec.CommandContext(ctx, program, append(args, "--", point)...).CombinedOutput()
	if _, exited := errors.AsType[*exec.ExitError](err); exited && len(output) > 0 {
		return errors.New(string(bytes.TrimSpace(output)))
	}
	return err
}
