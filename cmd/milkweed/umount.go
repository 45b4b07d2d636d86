package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/fs"
)

// endTimeout bounds how long umount waits for the daemon to release the mount.
const endTimeout = 30 * time.Second

func newUmount() *cobra.Command {
	var lazy, force, all, dryRun bool
	c := &cobra.Command{
		Use:     "umount {MOUNTPOINT | --all}",
		Aliases: []string{"unmount"},
		Short:   "Unmount a dataset and end its daemon",
		Long: `Umount unmounts a dataset and returns when its daemon has released the mount
point and the tiers, so that the same dataset can be mounted again at once. The
copies stay in the tiers.

If a process has a file of the mount open, or its working directory is in the
mount, umount names the process and exits with 4. With --lazy, umount detaches
the mount nevertheless, and open files stay readable.

Containers, and services with a mount namespace of their own, have a copy of
the mount, which umount cannot remove. Umount names the namespaces and their
processes. For them, and for files that are open after --lazy, the daemon goes
on serving, from the source only, until the mount is idle: no request for 10 s,
and no process has a file, a mapping or its working directory there. Until then
status shows the daemon as draining.

With --force, the mount ends at once in all namespaces: every access to it fails
with ENOTCONN. Umount --force also ends a daemon that drains, and one that
serves a mount in another mount namespace (mount --fuse-fd).

Umount also removes the mount of a daemon that has died, or was killed and
cannot end, and ends a daemon that has no mount yet: status says what that waits
for.

With --all, umount does this for all mounts of the user, or as root for all
mounts. One that is in use does not keep the others mounted.

With --dry-run, umount changes nothing: it names the processes that use the
mounts, and exits with 4 if there are any.`,
		Example: `  milkweed umount /mnt/imagenet
  milkweed umount --lazy /mnt/imagenet
  milkweed umount --force /mnt/imagenet
  milkweed umount --all
  milkweed umount --all --dry-run`,
		Args: usage(func(c *cobra.Command, args []string) error {
			if all {
				return cobra.NoArgs(c, args)
			}
			return cobra.ExactArgs(1)(c, args)
		}),
		ValidArgsFunction: completeMounts,
		RunE: func(c *cobra.Command, args []string) error {
			run := func(path string) error { return umount(c.Context(), c.ErrOrStderr(), path, lazy, force) }
			if dryRun {
				run = checkUnused
			}
			if !all {
				return run(args[0])
			}
			var err error
			if !dryRun {
				err = endStarting(c.Context(), c.ErrOrStderr()) // first: a mount that is about to be there is in the table then
			}
			return errors.Join(err, forAll(run))
		},
	}
	c.Flags().BoolVarP(&all, "all", "a", false, "unmount all mounts")
	c.Flags().BoolVarP(&lazy, "lazy", "l", false, "unmount even if files are open")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say which mounts are in use, and unmount nothing")
	c.Flags().BoolVarP(&force, "force", "f", false, "unmount in all mount namespaces, even if files are open")
	return c
}

// forAll calls f for the mounts of this user, the latest first, since it may be inside another one.
func forAll(f func(point string) error) error {
	all, err := control.Mounts()
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range slices.Backward(all) {
		if m.UID == os.Geteuid() || os.Geteuid() == 0 {
			errs = append(errs, f(m.Point))
		}
	}
	return errors.Join(errs...)
}

// endStarting ends the daemons that have no mount yet.
func endStarting(ctx context.Context, stderr io.Writer) error {
	var errs []error
	for _, s := range control.AllStarting(ctx) {
		if errors.Is(s.Err, control.ErrStarting) {
			errs = append(errs, endDaemon(ctx, stderr, s.Client, false))
		} else {
			errs = append(errs, s.Err)
			s.Close()
		}
	}
	return errors.Join(errs...)
}

// checkUnused returns an error if a process uses the mount at path.
func checkUnused(path string) error {
	m, _, err := control.Find(path)
	if err != nil {
		return err
	}
	if err := inUse(m); err != nil {
		return &exit.Error{Code: exit.MountPoint, Err: err, Remedy: "End the processes that use it."}
	}
	return nil
}

// inUse returns an error that names the processes that use a mount, or nil if there is none.
func inUse(m control.Mount) error {
	users, _ := procs.Users(m.Dev)
	if len(users) == 0 {
		return nil
	}
	var names []string
	for _, p := range users {
		names = append(names, text(p.String()))
	}
	return fmt.Errorf("%s is in use by %s", text(m.Point), strings.Join(names, ", "))
}

func umount(ctx context.Context, stderr io.Writer, path string, lazy, force bool) error {
	m, name, err := control.Find(path)
	if err != nil {
		s := control.StartingAt(ctx, path)
		switch {
		case s == nil:
			return endLeftOver(ctx, stderr, path, force, err)
		case !errors.Is(s.Err, control.ErrStarting):
			s.Close()
			return s.Err
		}
		return endDaemon(ctx, stderr, s.Client, force)
	}
	if name != "." {
		return &exit.Error{
			Code:   exit.Usage,
			Err:    fmt.Errorf("%s is not a mount point but a path below one", text(path)),
			Remedy: fmt.Sprintf("`milkweed umount %s` unmounts it.", text(m.Point)),
		}
	}
	d, err := daemonOf(ctx, m)
	if err != nil {
		return err
	}
	defer d.close()
	if m.Dev == 0 {
		return umountNamed(ctx, stderr, m, d, force)
	}
	// After the unmount, the device number may be that of another file system. This user may lack the
	// privilege for the connection: the daemon can end itself.
	connection, _ := mounts.Connection(m.Dev, m.Point)
	defer connection.Close()
	if err := unmount(ctx, m, lazy || force); err != nil {
		return err
	}
	if table, err := mounts.Read(mounts.Self); err == nil && table.Has(m.Dev) && connection.Live() && !force {
		return nil // it was one of several mount points, as of mount --bind
	}
	if force && connection.Abort() != nil {
		d.shutdown(ctx, true)
	} else {
		d.shutdown(ctx, false)
	}
	if err := d.wait(ctx, stderr); err != nil || force {
		return err
	}
	if d.drains(ctx) {
		fmt.Fprint(stderr, drainMessage(m, d.pid))
	}
	return nil
}

// umountNamed ends the daemon of a file system that is mounted in another mount namespace.
func umountNamed(ctx context.Context, stderr io.Writer, m control.Mount, d process, force bool) error {
	if !force {
		return &exit.Error{
			Code:   exit.MountPoint,
			Err:    fmt.Errorf("%s is mounted in another mount namespace", text(m.Point)),
			Remedy: "Unmount it there. With --force, its daemon ends, and every access to the mount fails with ENOTCONN.",
		}
	}
	d.shutdown(ctx, true)
	return d.wait(ctx, stderr)
}

// drainMessage tells who still uses a mount that was unmounted.
func drainMessage(m control.Mount, pid int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "milkweed: %s is unmounted here, and still in use elsewhere:\n", text(m.Point))
	for _, n := range procs.Namespaces(m.Dev) {
		fmt.Fprintf(&b, "  %s\n", text(n.String()))
	}
	users, _ := procs.Users(m.Dev)
	for _, p := range users {
		fmt.Fprintf(&b, "  files open by %s\n", text(p.String()))
	}
	fmt.Fprintf(&b, "The daemon (process %d) serves them until the mount is idle. `milkweed umount --force %s` ends it now.\n", pid, text(m.Point))
	return b.String()
}

// clearStale unmounts point if a mount of Milkweed is there whose daemon has died. It leaves
// the mount of a live daemon alone.
func clearStale(ctx context.Context, point string) error {
	m, name, err := control.Find(point)
	if err != nil || name != "." {
		return nil // no mount of Milkweed
	}
	daemon, err := control.Dial(ctx, m.Point)
	if err == nil {
		daemon.Close()
		return nil
	}
	if err := endKilled(m, err); err != nil {
		return err
	}
	if control.Works(m.Point) { // it has no socket
		return nil
	}
	return unmount(ctx, m, true)
}

// endLeftOver ends a daemon that has no mount in this mount namespace any more, because another
// program, such as umount(8), has removed it. With force it also ends one that drains. If there is
// no such daemon, endLeftOver returns notFound.
func endLeftOver(ctx context.Context, stderr io.Writer, path string, force bool, notFound error) error {
	point, err := control.Resolve(path)
	if err != nil {
		return notFound
	}
	c, err := control.Dial(ctx, point)
	if killed := (*control.KilledError)(nil); errors.As(err, &killed) {
		return &exit.Error{
			Code: exit.Failure,
			Err:  fmt.Errorf("%s is not mounted here any more: %w", text(point), killed),
			Remedy: fmt.Sprintf("As root, write 1 to /sys/fs/fuse/connections/N/abort. "+
				"From Linux 6.17 on, `grep -h fuse_connection /proc/%d/task/*/fdinfo/*` shows N.", killed.PID),
		}
	}
	if err != nil {
		return endDraining(ctx, point, force, notFound)
	}
	return endDaemon(ctx, stderr, c, force)
}

// endDaemon ends the daemon whose client is c, and closes c.
func endDaemon(ctx context.Context, stderr io.Writer, c *control.Client, force bool) error {
	defer c.Close()
	d := processOf(ctx, c)
	defer d.close()
	if err := c.Shutdown(ctx, force); err != nil && exit.Of(err) != exit.NotMounted { // it has just ended, or does not answer
		return err
	}
	return d.wait(ctx, stderr)
}

// endDraining ends the daemons of a mount point that drain.
func endDraining(ctx context.Context, point string, force bool, notFound error) error {
	var errs []error
	found := false
	for _, c := range control.Draining(ctx) {
		if s, err := c.Status(ctx); err == nil && s.MountPoint == point {
			found = true
			if force {
				errs = append(errs, c.Shutdown(ctx, true))
			}
		}
		c.Close()
	}
	switch {
	case !found:
		return notFound
	case !force:
		return &exit.Error{
			Code:   exit.NotMounted,
			Err:    fmt.Errorf("%s is not mounted here, but in use elsewhere", text(point)),
			Remedy: fmt.Sprintf("`milkweed status` shows by whom. `milkweed umount --force %s` ends it there, too.", text(point)),
		}
	}
	return errors.Join(errs...)
}

// unmount unmounts a mount point. The error names the processes that use the mount.
func unmount(ctx context.Context, m control.Mount, lazy bool) error {
	err := fs.Unmount(ctx, m.Point, lazy)
	if err == nil {
		return nil
	}
	return &exit.Error{
		Code:   exit.MountPoint,
		Err:    cmp.Or(inUse(m), fmt.Errorf("unmount %s: %w", text(m.Point), err)),
		Remedy: "End the processes that use it, or unmount with --lazy.",
	}
}

// A process is the daemon of a mount. Its pidfd refers to this process even if the kernel uses
// the process ID again.
type process struct {
	client *control.Client
	pid    int
	pidfd  int // -1 if there is no daemon; then the other fields are zero
}

// daemonOf returns the daemon of a mount, with the pidfd -1 if none answers. The caller closes it. The
// error is that of endKilled.
func daemonOf(ctx context.Context, m control.Mount) (process, error) {
	c, err := control.Dial(ctx, m.Point)
	if err != nil {
		return process{pidfd: -1}, endKilled(m, err)
	}
	return processOf(ctx, c), nil
}

// processOf returns the daemon whose client is c, with the pidfd -1 if it has ended. The caller closes it, which
// closes c, too.
func processOf(ctx context.Context, c *control.Client) process {
	pid, err := c.PID(ctx)
	if err == nil {
		var fd int
		if fd, err = unix.PidfdOpen(pid, 0); err == nil {
			return process{c, pid, fd}
		}
	}
	c.Close()
	return process{pidfd: -1}
}

// killedTime bounds how long endKilled waits for the end of a daemon. A disk may prevent it.
const killedTime = 5 * time.Second

// endKilled ends the daemon of a mount if dialErr, the error of control.Dial, says that it was killed and
// has not ended. Reads that wait for it then fail with ECONNABORTED.
func endKilled(m control.Mount, dialErr error) error {
	var killed *control.KilledError
	if !errors.As(dialErr, &killed) {
		return nil
	}
	fd, err := unix.PidfdOpen(killed.PID, 0)
	if err != nil {
		return nil // it has ended
	}
	defer unix.Close(fd)
	connection, err := mounts.Connection(m.Dev, m.Point)
	if err == nil {
		defer connection.Close()
		err = connection.Abort()
	}
	ended, waitErr := process{pidfd: fd}.ended(killedTime)
	if ended || waitErr != nil || err == nil {
		return waitErr
	}
	return &exit.Error{
		Code:   exit.Failure,
		Err:    fmt.Errorf("%w: %w", killed, err),
		Remedy: fmt.Sprintf("As root, `milkweed umount %s` ends it.", text(m.Point)),
	}
}

func (d process) close() {
	if d.pidfd >= 0 {
		unix.Close(d.pidfd)
		d.client.Close()
	}
}

// shutdown tells the daemon that its mount is gone. An error means that it knows.
func (d process) shutdown(ctx context.Context, abort bool) {
	if d.pidfd >= 0 {
		d.client.Shutdown(ctx, abort)
	}
}

// slowEnd is the time after which wait says that it waits.
const slowEnd = time.Second

// wait waits until the daemon has released the mount point and the tiers, ctx is done, or
// endTimeout has passed. The process may end later.
func (d process) wait(ctx context.Context, stderr io.Writer) error {
	if d.pidfd < 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, endTimeout, &exit.Error{
		Code:   exit.Failure,
		Err:    fmt.Errorf("the daemon (process %d) has not released the mount point after %v", d.pid, endTimeout),
		Remedy: "The log of the daemon has the reason.",
	})
	defer cancel()
	start, said := time.Now(), false
	for ctx.Err() == nil {
		if !said && time.Since(start) > slowEnd {
			said = true
			reason, remedy := config.Halted(d.pid)
			if reason == "" {
				reason = "a disk may be busy"
			}
			fmt.Fprintf(stderr, "milkweed: waiting for the daemon (process %d) to end; %s\n", d.pid, reason)
			if remedy != "" {
				fmt.Fprintf(stderr, "  %s\n", remedy)
			}
		}
		if ended, err := d.ended(20 * time.Millisecond); ended || err != nil {
			return err
		}
		if pid, err := d.client.PID(ctx); err == nil && pid == d.pid {
			continue
		}
		if ctx.Err() == nil { // the socket has gone
			return d.waitForEnd(ctx)
		}
	}
	return context.Cause(ctx)
}

// waitForEnd waits until the daemon, which has released the mount, has ended or drains. It does not
// wait for long: a disk may prevent the end.
func (d process) waitForEnd(ctx context.Context) error {
	for range 50 {
		if ended, err := d.ended(20 * time.Millisecond); ended || err != nil {
			return err
		}
		if d.drains(ctx) {
			return nil
		}
	}
	return nil
}

// ended reports whether the process has ended, or ends within a time.
func (d process) ended(within time.Duration) (bool, error) {
	poll := []unix.PollFd{{Fd: int32(d.pidfd), Events: unix.POLLIN}} // readable when the process has ended
	n, err := unix.Poll(poll, int(within.Milliseconds()))
	if err != nil && !errors.Is(err, unix.EINTR) {
		return false, &os.PathError{Op: "poll", Path: "pidfd", Err: err}
	}
	return n > 0, nil
}

// drains reports whether the daemon serves other mount namespaces.
func (d process) drains(ctx context.Context) (found bool) {
	for _, c := range control.Draining(ctx) {
		pid, err := c.PID(ctx)
		found = found || err == nil && pid == d.pid && d.pidfd >= 0
		c.Close()
	}
	return found
}
