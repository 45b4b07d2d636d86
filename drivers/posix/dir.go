package posix

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

var (
	_ drivers.Driver     = (*Dir)(nil)
	_ drivers.Readlinker = (*Dir)(nil)
	_ drivers.Xattrer    = (*Dir)(nil)
	_ drivers.ACLer      = (*Dir)(nil)
	_ drivers.HoleFinder = (*Dir)(nil)
	_ drivers.Statfser   = (*Dir)(nil)
	_ drivers.Namer      = (*Dir)(nil)
	_ drivers.Profiler   = (*Dir)(nil)
	_ drivers.Sampler    = (*Dir)(nil)
	_ drivers.Comparer   = (*Dir)(nil)
	_ drivers.Permitter  = (*Dir)(nil)
)

// A Dir is a Driver that reads a folder. It cannot write to it. All methods may be called
// concurrently. Close is called once, after all other methods have returned. Objects stay
// readable after Close.
//
// Stat of the root opens the path of the folder again. If another folder has the path by then, the Dir
// reads that one from then on: see root.go.
type Dir struct {
	path    string               // of the folder; "": it is read by its descriptor, whatever has its path
	root    atomic.Pointer[root] // the folder that is read now
	avoided atomic.Uint64        // see Avoid; 0: none
	user    user                 // the user of this process
	noatime atomic.Bool          // files may be opened with O_NOATIME
	stats   *drivers.StatPool
}

// OpenDir opens the folder at path, which may itself be a symbolic link.
func OpenDir(path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	fd, err := openFolder(path)
	if err != nil {
		return nil, pathError("open", path, err)
	}
	d, err := newDir(fd)
	if err != nil {
		return nil, pathError("open", path, err)
	}
	d.path = path
	d.root.Load().resolve()
	return d, nil
}

// newDir returns a Dir that reads the folder fd. It takes over fd, also if it fails.
func newDir(fd int) (*Dir, error) {
	probe, err := openat2(fd, ".", unix.O_PATH)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("openat2, which needs Linux 5.6 and is forbidden in some containers: %w", err)
	}
	unix.Close(probe)
	d := &Dir{user: currentUser(), stats: drivers.NewStatPool()}
	d.root.Store(newRoot(fd))
	d.noatime.Store(true)
	return d, nil
}

// Close releases the folder. Operations that come later, such as those that nobody waits for, fail.
func (d *Dir) Close() error {
	closed := &root{fd: -1, fsType: d.FSType()}
	d.root.Swap(closed).release()
	return nil
}

// FSType returns the type of the file system of the folder, such as "tmpfs" or "lustre".
func (d *Dir) FSType() string { return d.root.Load().fsType }

// Profile implements drivers.Profiler.
func (d *Dir) Profile() drivers.Profile {
	return drivers.Profile{Local: isLocal(d.FSType()), ReadsAhead: readsAhead(d.FSType())}
}

// Open implements drivers.Driver. Because of O_NONBLOCK, the open of a FIFO does not block. On a
// remote file system, Open opens the file that Stat has described under the name in the last
// second, if there is one and it was not removed.
func (d *Dir) Open(ctx context.Context, name string) (drivers.Object, error) {
	if err := checkRequest(ctx, "open", name); err != nil {
		return nil, err
	}
	r := d.acquire()
	defer r.release()
	if o := d.reopen(r, name); o != nil {
		return o, nil
	}
	fd, err := d.openRead(r, name, unix.O_NONBLOCK)
	if err != nil {
		return nil, pathError("open", name, asMissing(err))
	}
	o, err := r.newObject(fd, name)
	if err != nil {
		unix.Close(fd)
		return nil, pathError("open", name, err)
	}
	return o, nil
}

// reopen opens a file that Stat has described a short time ago by its descriptor. It returns nil if
// there is none, or if that fails: the file may have been removed, or /proc may not be mounted.
func (d *Dir) reopen(r *root, name string) *object {
	if r.names == nil {
		return nil
	}
	k := r.names.take(name)
	if k == nil {
		return nil
	}
	defer r.names.release(k)
	fd, err := d.withoutAtime(unix.O_NONBLOCK, func(flags int) (fd int, err error) {
		err = ignoringEINTR(func() error {
			fd, err = unix.Open(procPath(k.fd), flags|unix.O_CLOEXEC, 0)
			return err
		})
		return fd, err
	})
	if err != nil {
		return nil
	}
	o, err := r.newObject(fd, name)
	if err != nil || o.info.Nlink == 0 {
		unix.Close(fd)
		return nil
	}
	return o
}

// openRead opens name below r for reading.
func (d *Dir) openRead(r *root, name string, flags int) (int, error) {
	return d.withoutAtime(flags, func(flags int) (int, error) { return r.open(name, flags) })
}

// withoutAtime calls open with O_NOATIME where that is permitted. Only the owner of a file may use
// O_NOATIME. If it is refused for one file, it probably is for the others as well, and it is no
// longer tried.
func (d *Dir) withoutAtime(flags int, open func(flags int) (int, error)) (int, error) {
	if d.noatime.Load() {
		fd, err := open(flags | unix.O_NOATIME)
		if err != unix.EPERM {
			return fd, err
		}
	}
	fd, err := open(flags)
	if err == nil {
		d.noatime.Store(false)
	}
	return fd, err
}

// Stat implements drivers.Driver. It opens the name itself, not its folder: both opens cost
// the same, and the name is resolved once instead of twice.
func (d *Dir) Stat(ctx context.Context, name string) (drivers.Info, error) {
	if name == "." && d.path != "" {
		if err := d.follow(); err != nil {
			return drivers.Info{}, pathError("stat", name, err)
		}
	}
	r := d.acquire()
	defer r.release()
	var st unix.Stat_t
	if r.names == nil {
		if err := d.withPath(ctx, "stat", name, func(fd int) error { return unix.Fstat(fd, &st) }); err != nil {
			return drivers.Info{}, err
		}
	} else {
		if err := checkRequest(ctx, "stat", name); err != nil {
			return drivers.Info{}, err
		}
		if err := r.names.stat(name, &st); err != nil {
			return drivers.Info{}, pathError("stat", name, asMissing(err))
		}
	}
	info := infoOf(name, &st)
	r.mark(&info, r.fd, name)
	return info, nil
}

// withPath calls f with an O_PATH descriptor of name, which may be a symbolic link.
func (d *Dir) withPath(ctx context.Context, op, name string, f func(fd int) error) error {
	if err := checkRequest(ctx, op, name); err != nil {
		return err
	}
	r := d.acquire()
	defer r.release()
	fd, err := r.open(name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return pathError(op, name, asMissing(err))
	}
	defer unix.Close(fd)
	if err := ignoringEINTR(func() error { return f(fd) }); err != nil {
		return pathError(op, name, err)
	}
	return nil
}

// ReadDir implements drivers.Driver. It checks ctx between entries.
func (d *Dir) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	if err := checkRequest(ctx, "readdir", dir); err != nil {
		return nil, err
	}
	fd, infos, err := d.list(ctx, dir)
	if err != nil {
		return nil, pathError("readdir", dir, err)
	}
	unix.Close(fd)
	return infos, nil
}

// list returns a descriptor of the folder dir, which the caller closes, and its content.
func (d *Dir) list(ctx context.Context, dir string) (int, []drivers.Info, error) {
	r := d.acquire()
	defer r.release()
	fd, err := d.openRead(r, dir, unix.O_DIRECTORY)
	if err != nil {
		return -1, nil, err
	}
	entries, err := readEntries(ctx, fd)
	if err != nil {
		unix.Close(fd)
		return -1, nil, err
	}
	infos, err := statAll(ctx, fd, entries)
	if err != nil {
		unix.Close(fd)
		return -1, nil, err
	}
	for i := range infos {
		r.mark(&infos[i], fd, infos[i].Name)
	}
	return fd, infos, nil
}

// Names implements drivers.Namer.
func (d *Dir) Names(ctx context.Context, dir string) ([]drivers.Info, error) {
	if err := checkRequest(ctx, "readdir", dir); err != nil {
		return nil, err
	}
	r := d.acquire()
	defer r.release()
	fd, err := d.openRead(r, dir, unix.O_DIRECTORY)
	if err != nil {
		return nil, pathError("readdir", dir, err)
	}
	defer unix.Close(fd)
	entries, err := readEntries(ctx, fd)
	if err != nil {
		return nil, pathError("readdir", dir, err)
	}
	infos := make([]drivers.Info, len(entries))
	for i, e := range entries {
		infos[i] = drivers.Info{Name: e.name, Mode: e.mode(), Err: drivers.ErrNoAttributes}
	}
	return infos, nil
}

// StatNames implements drivers.Namer.
func (d *Dir) StatNames(ctx context.Context, dir string, names []string) ([]drivers.Info, error) {
	if err := checkRequest(ctx, "stat", dir); err != nil {
		return nil, err
	}
	r := d.acquire()
	defer r.release()
	if r.names != nil {
		return d.stats.Stats(ctx, names, func(name string) (drivers.Info, error) {
			return d.Stat(ctx, path.Join(dir, name))
		}, func() {}), nil
	}
	fd, err := openBelow(r.fd, dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, pathError("stat", dir, asMissing(err))
	}
	return d.stats.Stats(ctx, names, func(name string) (info drivers.Info, err error) {
		if err = statAt(fd, name, &info); err != nil {
			return info, pathError("stat", name, err)
		}
		r.mark(&info, fd, name)
		return info, nil
	}, func() { unix.Close(fd) }), nil
}

// readEntries returns the entries of the folder fd.
func readEntries(ctx context.Context, fd int) ([]entry, error) {
	var entries []entry
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
			return entries, nil
		}
		entries = append(entries, parseEntries(buf[:n])...)
	}
}

// On a parallel file system each operation is a round trip. Several are in flight at once.
const (
	workers   = 8
	statAlone = 64 // up to this number of names, one worker is faster
)

// statAll returns the Infos of entries of the folder fd. It omits names that have disappeared.
// The Info of a name whose attributes cannot be read has the error: the other names can be used.
func statAll(ctx context.Context, fd int, entries []entry) ([]drivers.Info, error) {
	infos := make([]drivers.Info, len(entries)) // without Name: disappeared
	stat := func(i int) error {
		e := entries[i]
		if err := statAt(fd, e.name, &infos[i]); err != nil && err != unix.ENOENT {
			infos[i] = drivers.Info{Name: e.name, Mode: e.mode(), Err: pathError("stat", e.name, err)}
		}
		return nil
	}
	for begin, end := 0, 0; begin < len(entries); begin = end {
		n := 1
		end = min(begin+statAlone, len(entries))
		if end < len(entries) && helpers.TryAcquire(workers-1) {
			n, end = workers, len(entries)
			defer helpers.Release(workers - 1)
		}
		if err := parallel(ctx, n, end-begin, func(i int) error { return stat(begin + i) }); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(infos, func(i drivers.Info) bool { return i.Name == "" }), nil
}

// parallel calls f with each number below n, in the given number of goroutines. It stops
// when ctx is done or f returns an error.
func parallel(ctx context.Context, goroutines, n int, f func(i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(goroutines, n) {
		group.Go(func() (err error) {
			defer panics.Catch(&err)
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

// fstatat is unix.Fstatat, except in a test.
var fstatat = unix.Fstatat

// statAt stores the Info of name in the folder dirfd.
func statAt(dirfd int, name string, info *drivers.Info) error {
	var st unix.Stat_t
	err := ignoringEINTR(func() error {
		return fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
	})
	if err == nil {
		*info = infoOf(name, &st)
	}
	return err
}

// Readlink implements drivers.Readlinker. The error for a name that is not a link is EINVAL.
func (d *Dir) Readlink(ctx context.Context, name string) (string, error) {
	buf := make([]byte, unix.PathMax) // no link is longer
	var n int
	err := d.withPath(ctx, "readlink", name, func(fd int) (err error) {
		n, err = unix.Readlinkat(fd, "", buf)
		if err == unix.ENOENT {
			err = unix.EINVAL // readlinkat(2) returns ENOENT for a descriptor that is not of a link
		}
		return err
	})
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// Listxattr implements drivers.Xattrer. On a file system without attributes the list is
// empty.
func (d *Dir) Listxattr(ctx context.Context, name string) ([]string, error) {
	var list []byte
	err := d.withPath(ctx, "listxattr", name, func(fd int) (err error) {
		list, err = withBuffer(func(buf []byte) (int, error) { return unix.Listxattr(procPath(fd), buf) })
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
		value, err = withBuffer(func(buf []byte) (int, error) { return unix.Getxattr(procPath(fd), attr, buf) })
		if err == unix.ENOTSUP {
			err = unix.ENODATA
		}
		return err
	})
	return value, err
}

// ACL implements drivers.ACLer.
func (d *Dir) ACL(ctx context.Context, name string) (acl []byte, info drivers.Info, err error) {
	err = d.withPath(ctx, "getxattr", name, func(fd int) error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		info = infoOf(name, &st)
		d.root.Load().mark(&info, fd, "")
		acl, err = withBuffer(func(buf []byte) (int, error) { return unix.Getxattr(procPath(fd), drivers.ACLXattr, buf) })
		if err == unix.ENODATA {
			acl, err = nil, nil
		}
		return err
	})
	return acl, info, err
}

func userAttr(attr string) bool { return strings.HasPrefix(attr, "user.") }

// procPath returns a path to the file of fd. The system calls for attributes do not accept
// an O_PATH descriptor.
func procPath(fd int) string { return fmt.Sprintf("%s/%d", procFDs, fd) }

// procFDs is the folder of the descriptors of this process, except in a test.
var procFDs = "/proc/self/fd"

// withBuffer calls get, with larger buffers as long as it returns ERANGE, and returns the
// part of the buffer that get filled.
func withBuffer(get func(buf []byte) (int, error)) ([]byte, error) {
	for size := 1 << 10; ; size *= 4 {
		buf := make([]byte, size)
		n, err := get(buf)
		if err == unix.ERANGE && size < 1<<20 { // the limit of the kernel is 64 KiB
			continue
		}
		return buf[:max(n, 0)], err
	}
}

// HaveSameContent implements drivers.Comparer: the names are hard links of one file. It requests the
// attributes of both names, because files of two file systems may have the same inode number and times,
// as in reproducible images, and the device number of a file system is not stable: cached attributes
// have none.
func (d *Dir) HaveSameContent(ctx context.Context, names [2]string, infos [2]drivers.Info) bool {
	if !infos[0].IsRegular() || !infos[0].SameVersion(infos[1]) || infos[0].Nlink < 2 && infos[1].Nlink < 2 {
		return false
	}
	var now [2]drivers.Info
	for i, name := range names {
		var err error
		if now[i], err = d.Stat(ctx, name); err != nil || !now[i].SameContent(infos[i]) {
			return false
		}
	}
	return now[0].Dev == now[1].Dev && now[0].Inode == now[1].Inode
}

// Statfs implements drivers.Statfser.
func (d *Dir) Statfs(ctx context.Context) (drivers.Statfs, error) {
	if err := checkRequest(ctx, "statfs", "."); err != nil {
		return drivers.Statfs{}, err
	}
	r := d.acquire()
	defer r.release()
	st, err := statfs(r.fd)
	st.Device = r.file.dev
	return st, err
}
