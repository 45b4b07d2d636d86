package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// Abort ends the connection of the FUSE file system with a device number, wherever it is mounted:
// requests in flight and later ones fail with ECONNABORTED or ENOTCONN. Root needs no mount of
// fusectl, another user needs it on /sys/fs/fuse/connections. The end of the daemon has the same
// effect.
func Abort(dev uint64) error {
	fd, err := openControl(dev, "abort", unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte("1"))
	return err
}

// openControl opens a file that the kernel has for the connection of the FUSE file system with a
// device number: see Documentation/filesystems/fuse.rst of the kernel.
func openControl(dev uint64, file string, flags int) (int, error) {
	name := fmt.Sprintf("%d/%s", unix.Minor(dev), file)
	path := "/sys/fs/fuse/connections/" + name
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err == nil {
		return fd, nil
	}
	if err != unix.ENOENT {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	control, err := fusectl()
	if err != nil {
		return -1, fmt.Errorf("mount fusectl: %w", err)
	}
	defer unix.Close(control)
	fd, err = unix.Openat(control, name, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// fusectl mounts the file system that controls FUSE connections, at no path, and returns its root.
// The mount ends with the descriptor.
func fusectl() (int, error) {
	config, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(config)
	if err := unix.FsconfigCreate(config); err != nil {
		return -1, err
	}
	return unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, 0)
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
