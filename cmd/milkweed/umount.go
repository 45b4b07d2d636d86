package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/paths"
	"github.com/milkweedfs/milkweed/fs"
)

// endTimeout bounds how long umount waits for the daemon to end.
const endTimeout = 30 * time.Second

func newUmount() *cobra.Command {
	var lazy bool
	c := &cobra.Command{
		Use:     "umount MOUNTPOINT",
		Aliases: []string{"unmount"},
		Short:   "Unmount a dataset and end its daemon",
		Long: `Umount unmounts a dataset and returns when its daemon has ended, so that the
same dataset can be mounted again at once. The copies stay in the tiers.

If a process has a file of the mount open, or its working directory is in the
mount, umount names the process and exits with 4. With --lazy, umount detaches
the mount nevertheless. Open files stay readable, and the daemon ends when the
last one is closed.

Umount also removes the mount of a daemon that has died.`,
		Example: `  milkweed umount /mnt/imagenet
  milkweed umount --lazy /mnt/imagenet`,
		Args:              usage(cobra.ExactArgs(1)),
		ValidArgsFunction: completeMounts,
		RunE: func(c *cobra.Command, args []string) error {
			return umount(c.Context(), args[0], lazy)
		},
	}
	c.Flags().BoolVarP(&lazy, "lazy", "l", false, "unmount even if files are open")
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
			Err:    fmt.Errorf("%s is not a mount point but a path below one", text(path)),
			Remedy: fmt.Sprintf("`milkweed umount %s` unmounts it.", text(m.Point)),
		}
	}
	d := daemonOf(ctx, m.Point)
	defer d.close()
	if err := unmount(ctx, m.Point, lazy); err != nil {
		return err
	}
	if lazy {
		return nil // the daemon ends when the last file is closed
	}
	return d.wait(ctx)
}

// clearStale unmounts point if a mount of Milkweed is there whose daemon has died. It leaves
// the mount of a live daemon alone.
func clearStale(ctx context.Context, point string) error {
	m, name, err := control.Find(point)
	if err != nil || name != "." {
		return nil // no mount of Milkweed
	}
	if daemon, err := control.Dial(ctx, m.Point); err == nil {
		daemon.Close()
		return nil
	}
	return unmount(ctx, m.Point, true)
}

// endLeftOver ends a daemon whose mount was removed by another program, such as umount(8). If
// there is no such daemon, endLeftOver returns notFound.
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

// unmount unmounts a mount point. The error names the processes that use the mount.
func unmount(ctx context.Context, point string, lazy bool) error {
	err := fs.Unmount(ctx, point, lazy)
	if err == nil {
		return nil
	}
	e := &exit.Error{Code: exit.MountPoint, Err: fmt.Errorf("unmount %s: %w", text(point), err)}
	if users := usersOf(point); len(users) > 0 {
		e.Err = fmt.Errorf("%s is in use by %s", text(point), strings.Join(users, ", "))
	}
	e.Remedy = "End the processes that use it, or unmount with --lazy."
	return e
}

// usersOf lists the processes that use a mount, as in "python3 (1234)". It omits processes that
// this user may not inspect. It calls only /proc, because the mount may hang.
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

// uses reports whether the process of dir, a directory of /proc, has a file below point open or
// mapped, or has its working directory, root or program there.
func uses(dir, point string) bool {
	links := []string{filepath.Join(dir, "cwd"), filepath.Join(dir, "root"), filepath.Join(dir, "exe")}
	for _, sub := range []string{"fd", "map_files"} {
		entries, _ := os.ReadDir(filepath.Join(dir, sub)) // an error: the process of another user
		for _, e := range entries {
			links = append(links, filepath.Join(dir, sub, e.Name()))
		}
	}
	return slices.ContainsFunc(links, func(link string) bool {
		target, err := os.Readlink(link)
		return err == nil && paths.Within(target, point)
	})
}

// A process is the daemon of a mount. Its pidfd refers to this process even if the kernel uses
// the process ID again.
type process struct {
	pid   int
	pidfd int // -1 if there is no daemon
}

// daemonOf returns the daemon of a mount, with the pidfd -1 if none answers.
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

// wait waits until the daemon has ended, ctx is done, or endTimeout has passed.
func (d process) wait(ctx context.Context) error {
	if d.pidfd < 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, endTimeout, &exit.Error{
		Code:   exit.Failure,
		Err:    fmt.Errorf("the mount is unmounted, but its daemon (process %d) has not ended after %v", d.pid, endTimeout),
		Remedy: "The source or a tier may not answer. The log of the daemon has the reason.",
	})
	defer cancel()
	// A pidfd is readable when the process has ended. poll(2) does not watch ctx, so its time-out
	// is short.
	poll := []unix.PollFd{{Fd: int32(d.pidfd), Events: unix.POLLIN}}
	for ctx.Err() == nil {
		n, err := unix.Poll(poll, 50)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return &os.PathError{Op: "poll", Path: "pidfd", Err: err}
		case n > 0:
			return nil
		}
	}
	return context.Cause(ctx)
}
