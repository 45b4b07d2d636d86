package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// endTimeout is how long a daemon is given to end after its mount has gone.
const endTimeout = 30 * time.Second

func newUmount() *cobra.Command {
	var lazy bool
	c := &cobra.Command{
		Use:     "umount MOUNTPOINT",
		Aliases: []string{"unmount"},
		Short:   "Unmount a dataset and end its daemon",
		Long: `Umount unmounts a dataset, and returns when its daemon has ended, so that the
same dataset can be mounted again at once. The copies stay in the tiers.

While a process has a file of the mount open, or stands in one of its folders,
it says which, and exits with 4. With --lazy the mount disappears at once
nevertheless; files that are open stay readable, and the daemon ends when the
last is closed.

It also clears up after a daemon that has died.`,
		Example: `  milkweed umount /mnt/imagenet
  milkweed umount --lazy /mnt/imagenet`,
		Args:              usage(cobra.ExactArgs(1)),
		ValidArgsFunction: completeMounts,
		RunE: func(c *cobra.Command, args []string) error {
			return umount(c.Context(), args[0], lazy)
		},
	}
	c.Flags().BoolVarP(&lazy, "lazy", "l", false, "unmount now, although it is in use")
	return c
}

func umount(ctx context.Context, path string, lazy bool) error {
	m, name, err := control.Find(path)
	if err != nil {
		return endLeftOver(ctx, path, err)
	}
	if name != "." {
		return &exit.Error{
			Code:   exit.Usage,
			Err:    fmt.Errorf("%s is not a mount point, but within one", text(path)),
			Remedy: fmt.Sprintf("`milkweed umount %s` unmounts it.", text(m.Point)),
		}
	}
	d := daemonOf(ctx, m.Point)
	defer d.close()
	if err := unmount(ctx, m.Point, lazy); err != nil {
		return err
	}
	if lazy {
		return nil // it ends when the last file is closed
	}
	return d.wait(ctx)
}

// clearStale unmounts the mount of a daemon that has died. One that is alive is
// left alone.
func clearStale(ctx context.Context, point string) error {
	m, name, err := control.Find(point)
	if err != nil || name != "." {
		return nil // nothing of ours is mounted there
	}
	if daemon, err := control.Dial(ctx, m.Point); err == nil {
		daemon.Close()
		return nil
	}
	return unmount(ctx, m.Point, true)
}

// endLeftOver ends a daemon that serves no mount any more, since somebody else
// unmounted it. Where there is none either, notFound stands.
func endLeftOver(ctx context.Context, path string, notFound error) error {
	point, err := control.Resolve(path)
	if err != nil {
		return notFound
	}
	c, err := control.Dial(ctx, point)
	if err != nil {
		return notFound
	}
	defer c.Close()
	d := daemonOf(ctx, point)
	defer d.close()
	if err := c.Shutdown(ctx); err != nil {
		return err
	}
	return d.wait(ctx)
}

// unmount has the kernel unmount.
func unmount(ctx context.Context, point string, lazy bool) error {
	err := error(unix.EPERM)
	if os.Geteuid() == 0 {
		flags := unix.UMOUNT_NOFOLLOW
		if lazy {
			flags |= unix.MNT_DETACH
		}
		err = unix.Unmount(point, flags)
	}
	if errors.Is(err, unix.EPERM) { // as it is for root in a user name space
		err = fusermount(ctx, point, lazy)
	}
	if err == nil {
		return nil
	}
	e := &exit.Error{Code: exit.MountPoint, Err: fmt.Errorf("unmount %s: %w", text(point), err)}
	if users := usersOf(point); len(users) > 0 {
		e.Err = fmt.Errorf("%s is in use by %s", text(point), strings.Join(users, ", "))
	}
	e.Remedy = "End what uses it, or unmount with --lazy."
	return e
}

// fusermount asks the program that may unmount what its caller has mounted.
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
	said, err := exec.CommandContext(ctx, program, append(args, "--", point)...).CombinedOutput()
	if ended := (*exec.ExitError)(nil); errors.As(err, &ended) && len(said) > 0 {
		return errors.New(string(bytes.TrimSpace(said)))
	}
	return err
}

// usersOf lists the processes that keep a mount busy, as "python3 (1234)", as
// far as this user may see. The mount itself is not asked anything.
func usersOf(point string) []string {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var users []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		if uses(dir, point) {
			name, _ := os.ReadFile(filepath.Join(dir, "comm"))
			users = append(users, fmt.Sprintf("%s (%d)", bytes.TrimSpace(name), pid))
		}
	}
	return users
}

// uses reports whether the process of a folder in /proc has something below
// point open or mapped, or stands there.
func uses(dir, point string) bool {
	links := []string{filepath.Join(dir, "cwd"), filepath.Join(dir, "root"), filepath.Join(dir, "exe")}
	for _, sub := range []string{"fd", "map_files"} {
		entries, _ := os.ReadDir(filepath.Join(dir, sub)) // not ours to see
		for _, e := range entries {
			links = append(links, filepath.Join(dir, sub, e.Name()))
		}
	}
	return slices.ContainsFunc(links, func(link string) bool {
		target, err := os.Readlink(link)
		return err == nil && (target == point || strings.HasPrefix(target, point+"/"))
	})
}

// A process is the daemon that serves a mount, held so that its number cannot
// come to mean another process.
type process struct {
	pid   int
	pidfd int // -1 for a daemon that is gone, or was never found
}

// daemonOf returns the daemon of a mount, one that is gone if none answers.
func daemonOf(ctx context.Context, mountPoint string) process {
	s, err := statusOf(ctx, mountPoint)
	if err != nil {
		return process{pidfd: -1}
	}
	fd, err := unix.PidfdOpen(s.PID, 0)
	if err != nil {
		return process{pidfd: -1}
	}
	return process{s.PID, fd}
}

func (d process) close() {
	if d.pidfd >= 0 {
		unix.Close(d.pidfd)
	}
}

// wait returns when the daemon has ended.
func (d process) wait(ctx context.Context) error {
	if d.pidfd < 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, endTimeout, &exit.Error{
		Code:   exit.Failure,
		Err:    fmt.Errorf("it is unmounted, but its daemon (process %d) has not ended after %v", d.pid, endTimeout),
		Remedy: "Its log says what it waits for: perhaps the source or a tier does not answer.",
	})
	defer cancel()
	// A pidfd is readable when the process has ended. The short timeout is for
	// ctx to be watched too.
	poll := []unix.PollFd{{Fd: int32(d.pidfd), Events: unix.POLLIN}}
	for ctx.Err() == nil {
		n, err := unix.Poll(poll, 50)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return &fs.PathError{Op: "poll", Path: "pidfd", Err: err}
		case n > 0:
			return nil
		}
	}
	return context.Cause(ctx)
}
