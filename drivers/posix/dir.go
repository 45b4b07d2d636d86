package posix

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

var (
	_ drivers.Driver     = (*Dir)(nil)
	_ drivers.Readlinker = (*Dir)(nil)
	_ drivers.Xattrer    = (*Dir)(nil)
	_ drivers.Statfser   = (*Dir)(nil)
	_ drivers.Sampler    = (*Dir)(nil)
)

// A Dir reads a folder. It cannot write to it. All methods may be called
// concurrently; Close is called once, after the last of them has returned.
// Objects stay readable after Close.
type Dir struct {
	root    int         // O_PATH descriptor of the folder
	fsType  string      // the kind of file system that it is on
	noatime atomic.Bool // reads can leave access times alone
	cache   cache
}

// OpenDir opens the folder at path, which may itself be a symbolic link.
func OpenDir(path string) (*Dir, error) {
	fd := -1
	err := retry(func() (err error) {
		fd, err = unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, pathError("open", path, err)
	}
	d, err := newDir(fd)
	if err != nil {
		return nil, pathError("open", path, err)
	}
	return d, nil
}

// newDir is the Dir at fd, which it takes over.
func newDir(fd int) (*Dir, error) {
	self, err := openat2(fd, ".", unix.O_PATH)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("openat2, which needs Linux 5.6 and may be forbidden in a container: %w", err)
	}
	unix.Close(self)
	kind := fsType(fd)
	d := &Dir{root: fd, fsType: kind, cache: cache{memory: isMemory(kind)}}
	d.noatime.Store(true)
	return d, nil
}

// Close releases the folder.
func (d *Dir) Close() error { return unix.Close(d.root) }

// FSType is the kind of file system that the folder is on, such as "tmpfs" or
// "lustre".
func (d *Dir) FSType() string { return d.fsType }

// Open implements drivers.Driver. O_NONBLOCK keeps a FIFO from holding it up.
func (d *Dir) Open(ctx context.Context, name string) (drivers.Object, error) {
	if err := begin(ctx, "open", name); err != nil {
		return nil, err
	}
	fd, err := d.openRead(name, unix.O_NONBLOCK)
	if err != nil {
		return nil, pathError("open", name, absent(err))
	}
	o, err := d.newObject(fd, name)
	if err != nil {
		unix.Close(fd)
		return nil, pathError("open", name, err)
	}
	return o, nil
}

// openRead opens name for reading, without a trace in its access time if this
// process may. Who may not for one file, because somebody else owns it, may
// not for its neighbours either, so that one is enough to give up.
func (d *Dir) openRead(name string, flags int) (int, error) {
	if d.noatime.Load() {
		fd, err := openBelow(d.root, name, flags|unix.O_NOATIME)
		if err != unix.EPERM {
			return fd, err
		}
	}
	fd, err := openBelow(d.root, name, flags)
	if err == nil {
		d.noatime.Store(false)
	}
	return fd, err
}

// Stat implements drivers.Driver. A descriptor of the name itself costs no
// more than one of its folder, and is one resolution instead of two.
func (d *Dir) Stat(ctx context.Context, name string) (drivers.Info, error) {
	var st unix.Stat_t
	err := d.withPath(ctx, "stat", name, func(fd int) error { return unix.Fstat(fd, &st) })
	if err != nil {
		return drivers.Info{}, err
	}
	return describe(name, &st), nil
}

// withPath calls f with an O_PATH descriptor of name, which may be a link.
func (d *Dir) withPath(ctx context.Context, op, name string, f func(fd int) error) error {
	if err := begin(ctx, op, name); err != nil {
		return err
	}
	fd, err := openBelow(d.root, name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return pathError(op, name, absent(err))
	}
	defer unix.Close(fd)
	if err := retry(func() error { return f(fd) }); err != nil {
		return pathError(op, name, err)
	}
	return nil
}

// ReadDir implements drivers.Driver. ctx is watched between elements.
func (d *Dir) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	if err := begin(ctx, "readdir", dir); err != nil {
		return nil, err
	}
	fd, err := d.openRead(dir, unix.O_DIRECTORY)
	if err != nil {
		return nil, pathError("readdir", dir, err)
	}
	defer unix.Close(fd)
	names, err := readNames(ctx, fd)
	if err != nil {
		return nil, pathError("readdir", dir, err)
	}
	infos, err := statAll(ctx, fd, names)
	if err != nil {
		return nil, pathError("readdir", dir, err)
	}
	return infos, nil
}

// readNames returns the names in the folder fd.
func readNames(ctx context.Context, fd int) ([]string, error) {
	var names []string
	buf := make([]byte, 64<<10)
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		n, err := unix.ReadDirent(fd, buf)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, err
		case n == 0:
			return names, nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// On a parallel file system each operation is a round trip, so that many are
// made several at a time.
const (
	workers      = 8
	statParallel = 64 // elements up to which one worker is quicker
)

// statAll describes those of names that are still in the folder fd.
func statAll(ctx context.Context, fd int, names []string) ([]drivers.Info, error) {
	infos := make([]drivers.Info, len(names)) // no Name: vanished
	n := workers
	if len(names) <= statParallel {
		n = 1
	}
	err := parallel(ctx, n, len(names), func(i int) error {
		if err := statAt(fd, names[i], &infos[i]); err != nil && !gone(err) {
			return fmt.Errorf("%q: %w", names[i], err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(infos, func(i drivers.Info) bool { return i.Name == "" }), nil
}

// parallel calls f with each number below n, on so many goroutines, until ctx
// is done or f returns an error.
func parallel(ctx context.Context, goroutines, n int, f func(i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(goroutines, n) {
		group.Go(func() error {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := f(int(i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func statAt(fd int, name string, info *drivers.Info) error {
	var st unix.Stat_t
	err := retry(func() error {
		return unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
	})
	if err == nil {
		*info = describe(name, &st)
	}
	return err
}

// Readlink implements drivers.Readlinker. What is not a link gives EINVAL.
func (d *Dir) Readlink(ctx context.Context, name string) (string, error) {
	buf := make([]byte, unix.PathMax) // no link is longer
	var n int
	err := d.withPath(ctx, "readlink", name, func(fd int) (err error) {
		n, err = unix.Readlinkat(fd, "", buf)
		if err == unix.ENOENT {
			err = unix.EINVAL // what readlinkat(2) says of a descriptor that is no link
		}
		return err
	})
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// Listxattr implements drivers.Xattrer. A file system without attributes has
// an empty list of them.
func (d *Dir) Listxattr(ctx context.Context, name string) ([]string, error) {
	var list []byte
	err := d.withPath(ctx, "listxattr", name, func(fd int) (err error) {
		list, err = grow(func(buf []byte) (int, error) { return unix.Listxattr(self(fd), buf) })
		if err == unix.ENOTSUP {
			err = nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var attrs []string
	for attr := range strings.SplitSeq(string(list), "\x00") {
		if userAttr(attr) {
			attrs = append(attrs, attr)
		}
	}
	return attrs, nil
}

// Getxattr implements drivers.Xattrer.
func (d *Dir) Getxattr(ctx context.Context, name, attr string) ([]byte, error) {
	var value []byte
	err := d.withPath(ctx, "getxattr", name, func(fd int) (err error) {
		if !userAttr(attr) {
			return unix.ENODATA
		}
		value, err = grow(func(buf []byte) (int, error) { return unix.Getxattr(self(fd), attr, buf) })
		if err == unix.ENOTSUP {
			err = unix.ENODATA
		}
		return err
	})
	return value, err
}

func userAttr(attr string) bool { return strings.HasPrefix(attr, "user.") }

// self is a path to what fd is open on. The calls for attributes take no
// O_PATH descriptor.
func self(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// grow calls get with a buffer that is large enough, which get says with
// ERANGE that it is not, and returns what it filled in.
func grow(get func(buf []byte) (int, error)) ([]byte, error) {
	for size := 1 << 10; ; size *= 4 {
		buf := make([]byte, size)
		n, err := get(buf)
		if err == unix.ERANGE && size < 1<<20 { // the kernel's bound is 64 KiB
			continue
		}
		return buf[:max(n, 0)], err
	}
}

// Statfs implements drivers.Statfser.
func (d *Dir) Statfs(ctx context.Context) (drivers.Statfs, error) {
	if err := begin(ctx, "statfs", "."); err != nil {
		return drivers.Statfs{}, err
	}
	return statfs(d.root)
}
