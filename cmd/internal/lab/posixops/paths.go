package main

import (
	"fmt"
	"os/exec"
	"sort"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A pathCall is a system call with a path. Its result is that of do.
type pathCall struct {
	name string
	do   func(path string) (string, error)
}

// change returns a call that would change something. It has no result but its error.
func change(name string, do func(path string) error) pathCall {
	return pathCall{name, func(path string) (string, error) { return "done", do(path) }}
}

// Closing such a descriptor takes milliseconds, so that all calls share them.
var (
	inotify, _  = unix.InotifyInit1(0)
	fanotify, _ = unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_REPORT_FID, 0)
)

// pathCalls are performed with each target.
var pathCalls = []pathCall{
	{"readlink", func(path string) (string, error) {
		target := make([]byte, 100)
		n, err := unix.Readlink(path, target)
		return string(target[:max(n, 0)]), err
	}},
	{"readlink of 3 bytes", func(path string) (string, error) {
		target := make([]byte, 3)
		n, err := unix.Readlink(path, target)
		return string(target[:max(n, 0)]), err
	}},
	{"list", list},
	{"statfs", func(path string) (string, error) {
		var s unix.Statfs_t
		err := unix.Statfs(path, &s)
		return fmt.Sprintf("flags %#x, names of %d", s.Flags&^unix.ST_RELATIME, s.Namelen), err
	}},
	{"statfs sizes", func(path string) (string, error) {
		var s unix.Statfs_t
		err := unix.Statfs(path, &s)
		return fmt.Sprint(s.Bsize, s.Frsize, s.Blocks, s.Bfree, s.Bavail, s.Files, s.Ffree), err
	}},
	{"execve", func(path string) (string, error) {
		cmd := exec.Cmd{Path: path, Args: []string{"posixops"}}
		return "done", cmd.Run()
	}},
	change("chdir", func(path string) error {
		defer unix.Chdir("/")
		return unix.Chdir(path)
	}),
	change("inotify_add_watch", func(path string) error {
		_, err := unix.InotifyAddWatch(inotify, path, unix.IN_ALL_EVENTS)
		return err
	}),
	change("fanotify_mark", func(path string) error {
		return unix.FanotifyMark(fanotify, unix.FAN_MARK_ADD, unix.FAN_MODIFY, unix.AT_FDCWD, path)
	}),
	change("connect", func(path string) error {
		return withSocket(func(fd int) error { return unix.Connect(fd, &unix.SockaddrUnix{Name: path}) })
	}),
	change("bind", func(path string) error {
		return withSocket(func(fd int) error { return unix.Bind(fd, &unix.SockaddrUnix{Name: path}) })
	}),
	{"open_by_handle_at", func(path string) (string, error) {
		handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, path, 0)
		if err != nil {
			return "", err
		}
		mount, err := unix.Open("/proc/self/cwd", unix.O_RDONLY, 0)
		if err != nil {
			return "", err
		}
		defer unix.Close(mount)
		fd, err := unix.OpenByHandleAt(mount, handle, unix.O_RDONLY|unix.O_NONBLOCK)
		if err == nil {
			unix.Close(fd)
		}
		return "opened", err
	}},

	change("mkdir", func(path string) error { return unix.Mkdir(path, 0o755) }),
	change("mkfifo", func(path string) error { return unix.Mkfifo(path, 0o644) }),
	change("mknod regular", func(path string) error { return unix.Mknod(path, unix.S_IFREG|0o644, 0) }),
	change("mknod socket", func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o644, 0) }),
	change("mknod char", func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o644, int(unix.Mkdev(1, 3))) }),
	change("mknod block", func(path string) error { return unix.Mknod(path, unix.S_IFBLK|0o644, int(unix.Mkdev(7, 0))) }),
	change("mknod directory", func(path string) error { return unix.Mknod(path, unix.S_IFDIR|0o755, 0) }),
	change("symlink", func(path string) error { return unix.Symlink("regular", path) }),
	change("symlink to nothing", func(path string) error { return unix.Symlink("", path) }),
	change("symlink to 4096 bytes", func(path string) error { return unix.Symlink(strings.Repeat("x", unix.PathMax), path) }),
	change("unlink", unix.Unlink),
	change("rmdir", unix.Rmdir),
	change("unlinkat 1", func(path string) error { return unix.Unlinkat(unix.AT_FDCWD, path, 1) }),
	change("truncate 0", func(path string) error { return unix.Truncate(path, 0) }),
	change("truncate 1 GiB", func(path string) error { return unix.Truncate(path, 1<<30) }),
	change("truncate -1", func(path string) error { return unix.Truncate(path, -1) }),
	change("chmod", func(path string) error { return unix.Chmod(path, 0o600) }),
	change("fchmodat NOFOLLOW", func(path string) error {
		return unix.Fchmodat(unix.AT_FDCWD, path, 0o600, unix.AT_SYMLINK_NOFOLLOW)
	}),
	change("chown", func(path string) error { return unix.Chown(path, nobody, nobody) }),
	change("chown nothing", func(path string) error { return unix.Chown(path, -1, -1) }),
	change("lchown", func(path string) error { return unix.Lchown(path, nobody, nobody) }),
	change("utimensat now", func(path string) error { return utimensat(path, nil, 0) }),
	change("utimensat NOFOLLOW", func(path string) error {
		return utimensat(path, &[2]unix.Timespec{{Sec: 1}, {Sec: 2}}, unix.AT_SYMLINK_NOFOLLOW)
	}),
	change("utimensat 1970", func(path string) error { return utimensat(path, &[2]unix.Timespec{}, 0) }),
	change("utimensat OMIT", func(path string) error {
		return utimensat(path, &[2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_OMIT}}, 0)
	}),
	change("utimensat 10^9 ns", func(path string) error { return utimensat(path, &[2]unix.Timespec{{Nsec: 1e9}, {}}, 0) }),
	change("utimensat flag", func(path string) error { return utimensat(path, nil, 1<<30) }),
}

func init() {
	for _, a := range []struct {
		name string
		mode uint32
	}{{"F_OK", 0}, {"R_OK", unix.R_OK}, {"W_OK", unix.W_OK}, {"X_OK", unix.X_OK}, {"R_OK|W_OK|X_OK", 7}, {"8", 8}} {
		pathCalls = append(pathCalls,
			change("access "+a.name, func(path string) error { return unix.Access(path, a.mode) }),
			change("faccessat2 EACCESS "+a.name, func(path string) error { return faccessat2(path, a.mode, unix.AT_EACCESS) }),
			change("faccessat2 NOFOLLOW "+a.name, func(path string) error { return faccessat2(path, a.mode, unix.AT_SYMLINK_NOFOLLOW) }))
	}
	for _, name := range []string{"user.x", "security.x", "trusted.x", "system.posix_acl_access", "system.posix_acl_default", "x", "", strings.Repeat("u", 256)} {
		label := strings.ReplaceAll(name, strings.Repeat("u", 256), "(256)")
		pathCalls = append(pathCalls,
			pathCall{"getxattr " + label, func(path string) (string, error) {
				value := make([]byte, 100)
				n, err := unix.Getxattr(path, name, value)
				return fmt.Sprintf("%x", value[:max(n, 0)]), err
			}},
			change("setxattr "+label, func(path string) error { return unix.Setxattr(path, name, []byte("x"), 0) }),
			change("lsetxattr "+label, func(path string) error { return unix.Lsetxattr(path, name, []byte("x"), unix.XATTR_CREATE) }),
			change("removexattr "+label, func(path string) error { return unix.Removexattr(path, name) }))
	}
	pathCalls = append(pathCalls, pathCall{"listxattr", func(path string) (string, error) {
		names := make([]byte, 1000)
		n, err := unix.Listxattr(path, names)
		return fmt.Sprintf("%q", names[:max(n, 0)]), err
	}})
}

func utimensat(path string, times *[2]unix.Timespec, flags int) error {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	dir := unix.AT_FDCWD
	return errnoOf(unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(dir), uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(times)), uintptr(flags), 0, 0))
}

// faccessat2 is not emulated, as that of package unix may be.
func faccessat2(path string, mode uint32, flags int) error {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	dir := unix.AT_FDCWD
	return errnoOf(unix.Syscall6(unix.SYS_FACCESSAT2, uintptr(dir), uintptr(unsafe.Pointer(name)), uintptr(mode), uintptr(flags), 0, 0))
}

// errnoOf returns the error of a system call.
func errnoOf(_, _ uintptr, errno unix.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}

func withSocket(do func(fd int) error) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return do(fd)
}

// list returns the names of a directory with their types.
func list(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var names []string
	buffer := make([]byte, 4096)
	for {
		n, err := unix.Getdents(fd, buffer)
		if err != nil {
			return "", err
		}
		if n == 0 {
			sort.Strings(names)
			return strings.Join(names, " "), nil
		}
		for rest := buffer[:n]; len(rest) > 0; {
			d := (*unix.Dirent)(unsafe.Pointer(&rest[0]))
			name := unix.ByteSliceToString(rest[unsafe.Offsetof(d.Name):d.Reclen])
			names = append(names, fmt.Sprintf("%s:%d", short(name), d.Type))
			rest = rest[d.Reclen:]
		}
	}
}

// openFlags are the flags of open(2). O_NONBLOCK, which is always added, keeps a FIFO from blocking.
var openFlags = map[string]int{
	"0": 0, "O_APPEND": unix.O_APPEND, "O_CREAT": unix.O_CREAT, "O_CREAT|O_EXCL": unix.O_CREAT | unix.O_EXCL,
	"O_CREAT|O_DIRECTORY": unix.O_CREAT | unix.O_DIRECTORY, "O_CREAT|O_TRUNC": unix.O_CREAT | unix.O_TRUNC,
	"O_CREAT|O_NOFOLLOW": unix.O_CREAT | unix.O_NOFOLLOW, "O_EXCL": unix.O_EXCL, "O_TRUNC": unix.O_TRUNC,
	"O_DIRECT": unix.O_DIRECT, "O_DIRECTORY": unix.O_DIRECTORY, "O_DSYNC": unix.O_DSYNC, "O_SYNC": unix.O_SYNC,
	"O_NOATIME": unix.O_NOATIME, "O_NOCTTY": unix.O_NOCTTY, "O_NOFOLLOW": unix.O_NOFOLLOW, "O_PATH": unix.O_PATH,
	"O_PATH|O_NOFOLLOW": unix.O_PATH | unix.O_NOFOLLOW, "O_PATH|O_DIRECTORY": unix.O_PATH | unix.O_DIRECTORY,
	"O_TMPFILE": unix.O_TMPFILE, "O_TMPFILE|O_EXCL": unix.O_TMPFILE | unix.O_EXCL, "O_ASYNC": unix.O_ASYNC,
}

var accessModes = map[string]int{"O_RDONLY": unix.O_RDONLY, "O_WRONLY": unix.O_WRONLY, "O_RDWR": unix.O_RDWR, "3": 3}

var resolveFlags = map[string]uint64{
	"RESOLVE_BENEATH": unix.RESOLVE_BENEATH, "RESOLVE_IN_ROOT": unix.RESOLVE_IN_ROOT, "RESOLVE_NO_SYMLINKS": unix.RESOLVE_NO_SYMLINKS,
	"RESOLVE_NO_MAGICLINKS": unix.RESOLVE_NO_MAGICLINKS, "RESOLVE_NO_XDEV": unix.RESOLVE_NO_XDEV, "1<<40": 1 << 40,
}

// paths performs the calls with one path.
func (p *probe) paths() {
	unix.Chdir(p.root) // for open_by_handle_at
	for _, target := range targets {
		path, name := p.in(target), short(target)
		p.stat(target)
		for _, c := range pathCalls {
			unix.Chdir(p.root)
			result, err := c.do(path)
			p.print(c.name, name, result, err)
		}
		for access, mode := range accessModes {
			for flag, bits := range openFlags {
				fd, err := unix.Open(path, mode|bits|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o644)
				p.opened(fmt.Sprintf("open %s|%s", access, flag), name, fd, err)
			}
		}
		for flag, bits := range resolveFlags {
			fd, err := -1, error(unix.EAGAIN)
			for err == unix.EAGAIN { // after a mount or rename anywhere, ".." is resolved again
				fd, err = unix.Openat2(p.dir, target, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK, Resolve: bits})
			}
			p.opened("openat2 "+flag, name, fd, err)
		}
	}
}

// opened prints the result of an open, with the flags of the description.
func (p *probe) opened(call, path string, fd int, err error) {
	flags := 0
	if err == nil {
		flags, err = unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		unix.Close(fd)
	}
	p.print(call, path, fmt.Sprintf("flags %#x", flags), err)
}

// stat prints the attributes of a target, without those that each file system numbers itself.
func (p *probe) stat(target string) {
	for call, flags := range map[string]int{"stat": 0, "lstat": unix.AT_SYMLINK_NOFOLLOW} {
		var s unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, p.in(target), flags, unix.STATX_BASIC_STATS|unix.STATX_BTIME|unix.STATX_DIOALIGN, &s)
		if err != nil {
			p.print(call, short(target), "", err)
			continue
		}
		when := func(t unix.StatxTimestamp) string {
			return time.Unix(t.Sec, int64(t.Nsec)).UTC().Format(time.RFC3339Nano)
		}
		for field, value := range map[string]any{
			"mode": fmt.Sprintf("%o", s.Mode), "nlink": s.Nlink, "uid": s.Uid, "gid": s.Gid, "size": s.Size,
			"blocks": s.Blocks, "blksize": s.Blksize, "atime": when(s.Atime), "mtime": when(s.Mtime), "ctime": when(s.Ctime),
			"btime": s.Mask & unix.STATX_BTIME, "rdev": fmt.Sprint(s.Rdev_major, ":", s.Rdev_minor),
			"attributes": fmt.Sprintf("%#x of %#x", s.Attributes, s.Attributes_mask), "dioalign": s.Mask & unix.STATX_DIOALIGN,
		} {
			p.print(call+" "+field, short(target), fmt.Sprint(value), nil)
		}
	}
}

// others are the second paths of calls with two.
var others = []string{"new", "regular", "dir", "link", "missing/new", "regular/new", "closed/new", "dir/sub/new"}

// pairs performs the calls with two paths, in both orders, and with a path of another file system.
func (p *probe) pairs() {
	calls := map[string]func(from, to string) error{
		"link": unix.Link,
		"linkat FOLLOW": func(from, to string) error {
			return unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.AT_SYMLINK_FOLLOW)
		},
		"rename":              unix.Rename,
		"renameat2 NOREPLACE": renameat2(unix.RENAME_NOREPLACE),
		"renameat2 EXCHANGE":  renameat2(unix.RENAME_EXCHANGE),
		"renameat2 WHITEOUT":  renameat2(unix.RENAME_WHITEOUT),
		"renameat2 1<<20":     renameat2(1 << 20),
	}
	for call, do := range calls {
		for _, target := range targets {
			for _, other := range others {
				p.print(call+" (to "+other+")", short(target), "done", do(p.in(target), p.in(other)))
				p.print(call+" (from "+other+")", short(target), "done", do(p.in(other), p.in(target)))
			}
			p.print(call+" (to elsewhere)", short(target), "done", do(p.in(target), p.scratch+"/new"))
		}
	}
}

func renameat2(flags uint) func(from, to string) error {
	return func(from, to string) error { return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, flags) }
}
