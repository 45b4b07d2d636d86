package fs

import (
	"bytes"
	"context"
	"errors"
	"os/exec"

	"golang.org/x/sys/unix"
)

// Unmount unmounts the FUSE file system at a mount point, with CAP_SYS_ADMIN by the system call and
// otherwise by fusermount3. It needs no daemon. While the mount is in use, Unmount fails;
// with lazy, it detaches the mount at once, and the file system ends when its last file is
// closed.
func Unmount(ctx context.Context, point string, lazy bool) error {
	err := unmountDirect(point, lazy)
	if errors.Is(err, unix.EPERM) {
		err = fusermount(ctx, point, lazy)
	}
	return err
}

// unmountDirect calls umount2(2). The error matches unix.EPERM if this process may not call it.
func unmountDirect(point string, lazy bool) error {
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
