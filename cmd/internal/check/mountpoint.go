package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/automount"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	milkweed "github.com/milkweedfs/milkweed/fs"
)

func (h host) mountPoint(ctx context.Context, c *config.Config) []Finding {
	point := c.Mount.Point
	if point == "" {
		return ok("mount point", "not checked, because none is given")
	}
	onTimeout := problem(exit.MountPoint, "mount point", detachRemedy(point), "%s did not respond within %s", point, h.timeout)
	if m, ok := h.mounts().At(point); ok {
		onTimeout = problem(exit.MountPoint, "mount point", detachRemedy(point),
			"%s (%s of %s) did not respond within %s", point, m.Type, m.Source, h.timeout)
	}
	return automount.Reach(func() []Finding {
		return h.withTimeout(ctx, onTimeout, func() []Finding { return h.inspectMountPoint(point) })
	})
}

func detachRemedy(point string) string {
	return fmt.Sprintf(`Detach it with "fusermount3 -uz %s", or choose another mount point.`, point)
}

func (h host) inspectMountPoint(point string) []Finding {
	const name = "mount point"
	fail := func(remedy, format string, args ...any) []Finding {
		return problem(exit.MountPoint, name, remedy, format, args...)
	}
	info, err := h.stat(point)
	m, mounted := h.mounts().At(config.RealPath(point))
	if mounted && m.Type == milkweed.Type && errors.Is(h.getxattr(point, milkweed.SocketXattr), unix.ENOTCONN) {
		err = unix.ENOTCONN // the kernel may have known the answer to stat
	}
	if errors.Is(err, unix.ENOTCONN) {
		return fail(fmt.Sprintf(`Remove it with "milkweed umount %s" or "fusermount3 -u %s".`, point, point),
			"%s is left over from a file system whose daemon has ended: %w", point, reason(err))
	}
	trigger := mounted && m.IsTrigger()
	if mounted && !trigger {
		if m.Type == milkweed.Type {
			return fail(fmt.Sprintf(`Use that mount, or unmount it with "milkweed umount %s".`, point), "%s is already a Milkweed mount of %s", point, m.Source)
		}
		return fail("Choose another mount point, such as an empty directory in it.", "%s is already a mount, %s of %s", point, m.Type, m.Source)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fail(fmt.Sprintf(`Create it with "mkdir -p %s".`, point), "%s does not exist", point)
	case errors.Is(err, fs.ErrPermission):
		return fail("Choose a mount point below a directory that you may enter.", "%s may not be reached", point)
	case errors.Is(err, unix.ENOTDIR), err == nil && !info.IsDir():
		return fail("Choose an empty directory.", "%s is not a directory", point)
	case err != nil:
		return fail("Choose another mount point.", "%s: %w", point, reason(err))
	}
	if trigger { // to open it would make the automounter mount
		return h.checkMountable(point, info, "%s is the trigger of an automounter")
	}
	switch err := checkEmpty(point); {
	case errors.Is(err, fs.ErrPermission):
		return fail("Choose a directory of your own.", "%s may not be listed", point)
	case err != nil:
		return fail("Choose an empty directory: a mount would hide the files in this one.", "%s: %w", point, reason(err))
	}
	return h.checkMountable(point, info, "%s is an empty directory")
}

var errNotEmpty = errors.New("is not empty")

// checkEmpty returns nil if dir is an empty directory, and errNotEmpty if it is not
// empty.
func checkEmpty(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	switch _, err := f.Readdirnames(1); err {
	case io.EOF:
		return nil
	case nil:
		return errNotEmpty
	default:
		return err
	}
}

// checkMountable checks the requirements of fusermount3 for ordinary users: write
// permission for the mount point, and ownership if the mount point is sticky. If they are met, it
// returns what the point is.
func (h host) checkMountable(point string, info os.FileInfo, is string) []Finding {
	const (
		name   = "mount point"
		remedy = "Choose a directory of your own: fusermount3 requires it."
	)
	if h.uid != 0 && !h.mayMountDirectly() {
		if err := unix.Faccessat(unix.AT_FDCWD, point, unix.W_OK, unix.AT_EACCESS); err != nil {
			return problem(exit.MountPoint, name, remedy, "%s: %w", point, reason(err))
		}
		if info.Mode()&fs.ModeSticky != 0 && owner(info) != h.uid {
			return problem(exit.MountPoint, name, remedy, "%s is sticky and not yours", point)
		}
	}
	return ok(name, is, point)
}

// owner returns the user ID of the owner of a file.
func owner(info os.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }
