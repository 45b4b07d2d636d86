package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// mountByHelper mounts with fusermount3, which has the privilege, and returns the descriptor of /dev/fuse that it has
// opened.
func mountByHelper(cfg Config) (fd int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(pair[0])
	theirs := os.NewFile(uintptr(pair[1]), "socketpair")
	options := []string{
		"ro", "nosuid", "nodev", "subtype=" + Type[len("fuse."):], fmt.Sprintf("max_read=%d", cfg.MaxRequest),
		"fsname=" + strings.NewReplacer(`\`, `\\`, `,`, `\,`).Replace(cfg.Source),
	}
	if cfg.NoExec {
		options = append(options, "noexec")
	}
	if cfg.AllowOther {
		options = append(options, "allow_other", "default_permissions")
	}
	err = fusermount(context.Background(), theirs, "-o", strings.Join(options, ","), "--", cfg.Point)
	theirs.Close() // otherwise the end of the helper would not be seen below
	if err != nil {
		return -1, err
	}
	if fd, err = receiveDescriptor(pair[0]); err != nil {
		unmountByHelper(context.Background(), cfg.Point, true)
	}
	return fd, err
}

// receiveDescriptor returns the descriptor that another process has sent through a socket.
func receiveDescriptor(socket int) (fd int, err error) {
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, make([]byte, 1), control, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("recvmsg", err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err == nil && len(messages) > 0 {
		var fds []int
		if fds, err = unix.ParseUnixRights(&messages[0]); err == nil && len(fds) > 0 {
			return fds[0], nil
		}
	}
	return -1, errors.Join(errors.New("fusermount3 has sent no descriptor"), err)
}

// unmountByHelper unmounts a FUSE mount of this user with fusermount3.
func unmountByHelper(ctx context.Context, point string, lazy bool) error {
	args := []string{"-u"}
	if lazy {
		args = append(args, "-z")
	}
	return fusermount(ctx, nil, append(args, "--", point)...)
}

// fusermount runs fusermount3, a set-user-ID program. socket may be nil; otherwise it gets the descriptor of a
// new mount.
func fusermount(ctx context.Context, socket *os.File, args ...string) error {
	program, err := exec.LookPath("fusermount3")
	if errors.Is(err, exec.ErrNotFound) {
		program, err = exec.LookPath("fusermount")
	}
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, args...)
	if socket != nil {
		cmd.ExtraFiles = []*os.File{socket}
		cmd.Env = append(os.Environ(), "_FUSE_COMMFD=3")
	}
	cmd.WaitDelay = time.Second // a helper that asks a service of the cluster may leave a process behind
	output, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrWaitDelay) { // it has succeeded
		return nil
	}
	if _, exited := errors.AsType[*exec.ExitError](err); exited && len(output) > 0 {
		return errors.New(string(bytes.TrimSpace(output)))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	return nil
}
