package main

import (
	"fmt"
	"os/exec"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"
)

// descriptors are opened for the calls with a descriptor.
var descriptors = []struct {
	name  string
	path  string
	flags int
}{
	{"regular", "regular", unix.O_RDONLY},
	{"empty", "empty", unix.O_RDONLY},
	{"sparse", "sparse", unix.O_RDONLY},
	{"dir", "dir", unix.O_RDONLY},
	{"fifo", "fifo", unix.O_RDONLY | unix.O_NONBLOCK},
	{"regular|O_DIRECT", "regular", unix.O_RDONLY | unix.O_DIRECT},
	{"regular|O_PATH", "regular", unix.O_PATH},
	{"dir|O_PATH", "dir", unix.O_PATH},
	{"link|O_PATH", "link", unix.O_PATH | unix.O_NOFOLLOW},
	{"socket|O_PATH", "socket", unix.O_PATH},
}

// badAddress is not mapped.
const badAddress = 1

// A fileCall is a system call with a descriptor. Its result is that of do.
type fileCall struct {
	name string
	do   func(fd int) (int, error)
}

// alter returns a call that has no result but its error.
func alter(name string, do func(fd int) error) fileCall {
	return fileCall{name, func(fd int) (int, error) { return 0, do(fd) }}
}

// raw returns a call with these arguments after the descriptor.
func raw(name string, call uintptr, args ...uintptr) fileCall {
	return fileCall{name, func(fd int) (int, error) {
		var a [5]uintptr
		copy(a[:], args)
		n, _, errno := unix.Syscall6(call, uintptr(fd), a[0], a[1], a[2], a[3], a[4])
		return int(n), errnoOf(0, 0, errno)
	}}
}

const minusOne = ^uintptr(0)

var fileCalls = []fileCall{
	{"read", func(fd int) (int, error) { return unix.Read(fd, page()) }},
	{"read of 0 bytes", func(fd int) (int, error) { return unix.Read(fd, nil) }},
	raw("read to a bad address", unix.SYS_READ, badAddress, 100),
	raw("pread to a bad address", unix.SYS_PREAD64, badAddress, 100, 4096),
	raw("read of 2^63 bytes", unix.SYS_READ, badAddress, 1<<63),
	{"pread at 4096", func(fd int) (int, error) { return unix.Pread(fd, page(), 4096) }},
	{"pread at an odd offset", func(fd int) (int, error) { return unix.Pread(fd, page(), 4097) }},
	{"pread at 299008", func(fd int) (int, error) { return unix.Pread(fd, page(), 299_008) }},
	{"pread at the end", func(fd int) (int, error) { return unix.Pread(fd, page(), 300_000) }},
	{"pread beyond the end", func(fd int) (int, error) { return unix.Pread(fd, page(), 1<<30) }},
	{"pread at -1", func(fd int) (int, error) { return unix.Pread(fd, page(), -1) }},
	{"pread at 2^63-1", func(fd int) (int, error) { return unix.Pread(fd, page(), 1<<63-1) }},
	{"preadv2 0", preadv2(0)},
	{"preadv2 HIPRI", preadv2(unix.RWF_HIPRI)},
	{"preadv2 NOWAIT", preadv2(unix.RWF_NOWAIT)},
	{"preadv2 DSYNC", preadv2(unix.RWF_DSYNC)},
	{"preadv2 APPEND", preadv2(unix.RWF_APPEND)},
	{"preadv2 NOAPPEND", preadv2(0x20)},
	{"preadv2 ATOMIC", preadv2(0x40)},
	{"preadv2 DONTCACHE", preadv2(0x80)},
	{"write", func(fd int) (int, error) { return unix.Write(fd, page()) }},
	{"write of 0 bytes", func(fd int) (int, error) { return unix.Write(fd, nil) }},
	{"pwrite", func(fd int) (int, error) { return unix.Pwrite(fd, page(), 0) }},
	alter("ftruncate", func(fd int) error { return unix.Ftruncate(fd, 0) }),
	alter("ftruncate -1", func(fd int) error { return unix.Ftruncate(fd, -1) }),
	alter("fallocate", func(fd int) error { return unix.Fallocate(fd, 0, 0, 4096) }),
	alter("fallocate 0 bytes", func(fd int) error { return unix.Fallocate(fd, 0, 0, 0) }),
	alter("fallocate PUNCH_HOLE", func(fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096)
	}),
	alter("fchmod", func(fd int) error { return unix.Fchmod(fd, 0o600) }),
	alter("fchown", func(fd int) error { return unix.Fchown(fd, nobody, nobody) }),
	raw("futimens", unix.SYS_UTIMENSAT, 0, 0, 0),
	alter("fsetxattr", func(fd int) error { return unix.Fsetxattr(fd, "user.x", nil, 0) }),
	alter("fremovexattr", func(fd int) error { return unix.Fremovexattr(fd, "user.x") }),
	{"fgetxattr", func(fd int) (int, error) { return unix.Fgetxattr(fd, "user.x", nil) }},
	{"flistxattr", func(fd int) (int, error) { return unix.Flistxattr(fd, nil) }},
	alter("fsync", unix.Fsync),
	alter("fdatasync", unix.Fdatasync),
	alter("syncfs", unix.Syncfs),
	alter("sync_file_range", func(fd int) error { return unix.SyncFileRange(fd, 0, 0, unix.SYNC_FILE_RANGE_WRITE) }),
	alter("fadvise WILLNEED", func(fd int) error { return unix.Fadvise(fd, 0, 0, unix.FADV_WILLNEED) }),
	alter("fadvise 99", func(fd int) error { return unix.Fadvise(fd, 0, 0, 99) }),
	raw("readahead", unix.SYS_READAHEAD, 0, 4096),
	{"lseek SET 10", lseek(10, unix.SEEK_SET)},
	{"lseek SET -1", lseek(-1, unix.SEEK_SET)},
	{"lseek CUR -1", lseek(-1, unix.SEEK_CUR)},
	{"lseek SET 1<<40", lseek(1<<40, unix.SEEK_SET)},
	{"lseek END 0", lseek(0, unix.SEEK_END)},
	{"lseek DATA 0", lseek(0, unix.SEEK_DATA)},
	{"lseek DATA 1<<40", lseek(1<<40, unix.SEEK_DATA)},
	{"lseek HOLE 0", lseek(0, unix.SEEK_HOLE)},
	{"lseek HOLE 1<<40", lseek(1<<40, unix.SEEK_HOLE)},
	{"lseek 99", lseek(0, 99)},
	raw("getdents to 1 byte", unix.SYS_GETDENTS64, badAddress, 1),
	raw("getdents to a bad address", unix.SYS_GETDENTS64, badAddress, 4096),
	alter("flock SH", func(fd int) error { return unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) }),
	alter("flock EX", func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }),
	alter("flock UN", func(fd int) error { return unix.Flock(fd, unix.LOCK_UN) }),
	alter("flock 0", func(fd int) error { return unix.Flock(fd, 0) }),
	{"flock EX by two", func(fd int) (int, error) {
		return second(fd, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	}},
	alter("SETLK read", lock(unix.F_SETLK, unix.F_RDLCK)),
	alter("SETLK write", lock(unix.F_SETLK, unix.F_WRLCK)),
	alter("SETLKW read", lock(unix.F_SETLKW, unix.F_RDLCK)),
	alter("GETLK write", lock(unix.F_GETLK, unix.F_WRLCK)),
	alter("OFD_SETLK read", lock(unix.F_OFD_SETLK, unix.F_RDLCK)),
	alter("OFD_SETLK write", lock(unix.F_OFD_SETLK, unix.F_WRLCK)),
	{"SETLEASE read", fcntl(unix.F_SETLEASE, unix.F_RDLCK)},
	{"SETLEASE write", fcntl(unix.F_SETLEASE, unix.F_WRLCK)},
	{"GETLEASE", fcntl(unix.F_GETLEASE, 0)},
	{"NOTIFY", fcntl(unix.F_NOTIFY, 0x4)},
	{"SETFL O_DIRECT", fcntl(unix.F_SETFL, unix.O_DIRECT)},
	{"SETFL O_APPEND", fcntl(unix.F_SETFL, unix.O_APPEND)},
	{"SETFL O_NOATIME", fcntl(unix.F_SETFL, unix.O_NOATIME)},
	{"SETFL O_ASYNC", fcntl(unix.F_SETFL, unix.O_ASYNC)},
	{"GET_SEALS", fcntl(unix.F_GET_SEALS, 0)},
	{"ADD_SEALS", fcntl(unix.F_ADD_SEALS, unix.F_SEAL_WRITE)},
	{"GET_RW_HINT", func(fd int) (int, error) {
		var hint uint64
		_, _, errno := unix.Syscall(unix.SYS_FCNTL, uintptr(fd), unix.F_GET_RW_HINT, uintptr(unsafe.Pointer(&hint)))
		return int(hint), errnoOf(0, 0, errno)
	}},
	raw("ioctl TCGETS", unix.SYS_IOCTL, unix.TCGETS, badAddress),
	raw("ioctl FIONREAD to a bad address", unix.SYS_IOCTL, unix.TIOCINQ, badAddress),
	{"ioctl FIONREAD", ioctl(unix.TIOCINQ)},
	{"ioctl FIBMAP", ioctl(1)},
	{"ioctl FIGETBSZ", ioctl(2)},
	{"ioctl FIFREEZE", ioctl(0xc0045877)},
	{"ioctl FITRIM", ioctl(0xc0185879)},
	{"ioctl FS_IOC_FIEMAP", ioctl(0xc020660b)},
	{"ioctl FS_IOC_GETFLAGS", ioctl(unix.FS_IOC_GETFLAGS)},
	{"ioctl FS_IOC_SETFLAGS", ioctl(unix.FS_IOC_SETFLAGS)},
	{"ioctl FS_IOC_GETVERSION", ioctl(0x80087601)},
	{"ioctl FS_IOC_FSGETXATTR", ioctl(0x801c581f)},
	{"ioctl FS_IOC_GETFSLABEL", ioctl(0x81009431)},
	{"ioctl FS_IOC_GETFSUUID", ioctl(0x80111500)},
	{"ioctl BLKGETSIZE64", ioctl(unix.BLKGETSIZE64)},
	{"ioctl 0xdead", ioctl(0xdead)},
	raw("ioctl FICLONE of -1", unix.SYS_IOCTL, unix.FICLONE, minusOne),
	{"epoll_ctl", func(fd int) (int, error) {
		ep, err := unix.EpollCreate1(0)
		if err != nil {
			return 0, err
		}
		defer unix.Close(ep)
		return 0, unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN})
	}},
	{"poll", func(fd int) (int, error) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLOUT | unix.POLLPRI}}
		_, err := unix.Poll(fds, 0)
		return int(fds[0].Revents), err
	}},
	alter("fchdir", func(fd int) error {
		defer unix.Chdir("/")
		return unix.Fchdir(fd)
	}),
	raw("fexecve with bad arguments", unix.SYS_EXECVEAT, emptyPath, badAddress, badAddress, unix.AT_EMPTY_PATH),
	{"openat", func(fd int) (int, error) { return closed(unix.Openat(fd, "file", unix.O_RDONLY, 0)) }},
	{"reopen for writing", func(fd int) (int, error) {
		return closed(unix.Open(fmt.Sprint("/proc/self/fd/", fd), unix.O_RDWR|unix.O_NONBLOCK, 0))
	}},
	{"reopen for reading", func(fd int) (int, error) {
		return closed(unix.Open(fmt.Sprint("/proc/self/fd/", fd), unix.O_RDONLY|unix.O_NONBLOCK, 0))
	}},
	alter("mkdirat", func(fd int) error { return unix.Mkdirat(fd, "new", 0o755) }),
	alter("unlinkat", func(fd int) error { return unix.Unlinkat(fd, "file", 0) }),
	alter("linkat EMPTY_PATH", func(fd int) error { return unix.Linkat(fd, "", fd, "new", unix.AT_EMPTY_PATH) }),
	alter("fchownat EMPTY_PATH", func(fd int) error { return unix.Fchownat(fd, "", nobody, nobody, unix.AT_EMPTY_PATH) }),
	{"fstatfs", func(fd int) (int, error) {
		var s unix.Statfs_t
		return int(s.Namelen), unix.Fstatfs(fd, &s)
	}},
	{"fstat", func(fd int) (int, error) {
		var s unix.Stat_t
		err := unix.Fstat(fd, &s)
		return int(s.Size), err
	}},
	{"copy_file_range out", func(fd int) (int, error) {
		return withFile(func(other int) (int, error) { return unix.CopyFileRange(fd, nil, other, nil, 5000, 0) })
	}},
	{"copy_file_range in", func(fd int) (int, error) {
		return withFile(func(other int) (int, error) { return unix.CopyFileRange(other, nil, fd, nil, 5000, 0) })
	}},
	{"copy_file_range to itself", func(fd int) (int, error) { return unix.CopyFileRange(fd, nil, fd, nil, 10, 0) }},
	{"sendfile", func(fd int) (int, error) {
		return withFile(func(other int) (int, error) { return unix.Sendfile(other, fd, nil, 5000) })
	}},
	{"sendfile in", func(fd int) (int, error) {
		return withFile(func(other int) (int, error) { return unix.Sendfile(fd, other, nil, 5000) })
	}},
	{"splice to a pipe", func(fd int) (int, error) {
		return withPipe(func(_, w int) (int64, error) { return unix.Splice(fd, nil, w, nil, 5000, unix.SPLICE_F_NONBLOCK) })
	}},
	{"splice from a pipe", func(fd int) (int, error) {
		return withPipe(func(r, _ int) (int64, error) { return unix.Splice(r, nil, fd, nil, 5000, unix.SPLICE_F_NONBLOCK) })
	}},
	{"tee", func(fd int) (int, error) {
		return withPipe(func(_, w int) (int64, error) { return unix.Tee(fd, w, 5000, unix.SPLICE_F_NONBLOCK) })
	}},
	{"mmap SHARED", mmap(4096, 0, unix.PROT_READ, unix.MAP_SHARED)},
	{"mmap SHARED for writing", mmap(4096, 0, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)},
	{"mmap SHARED_VALIDATE|SYNC", mmap(4096, 0, unix.PROT_READ, unix.MAP_SHARED_VALIDATE|unix.MAP_SYNC)},
	{"mmap PRIVATE for writing", mmap(4096, 0, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)},
	{"mmap PRIVATE to execute", mmap(4096, 0, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)},
	{"mmap of 0 bytes", mmap(0, 0, unix.PROT_READ, unix.MAP_SHARED)},
	{"mmap at an odd offset", mmap(4096, 1, unix.PROT_READ, unix.MAP_SHARED)},
	{"mmap beyond the end", mmap(4096, 1<<30, unix.PROT_READ, unix.MAP_SHARED)},
}

var empty = [1]byte{}
var emptyPath = uintptr(unsafe.Pointer(&empty))

// page returns a page at a page boundary, as O_DIRECT requires.
func page() []byte {
	buffer := make([]byte, 2*4096)
	return buffer[4096-uintptr(unsafe.Pointer(&buffer[0]))%4096:][:4096]
}

func preadv2(flags int) func(fd int) (int, error) {
	return func(fd int) (int, error) { return unix.Preadv2(fd, [][]byte{page()}, 0, flags) }
}

func lseek(offset int64, whence int) func(fd int) (int, error) {
	return func(fd int) (int, error) {
		n, err := unix.Seek(fd, offset, whence)
		return int(n), err
	}
}

func fcntl(command, arg int) func(fd int) (int, error) {
	return func(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), command, arg) }
}

func lock(command int, kind int16) func(fd int) error {
	return func(fd int) error { return unix.FcntlFlock(uintptr(fd), command, &unix.Flock_t{Type: kind, Len: 10}) }
}

// ioctl passes the address of a zeroed buffer, and returns nothing but the error.
func ioctl(request uint) func(fd int) (int, error) {
	return func(fd int) (int, error) {
		var buffer [512]byte
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&buffer)))
		return 0, errnoOf(0, 0, errno)
	}
}

// second does the same with fd and with another description of its file.
func second(fd int, do func(fd int) error) (int, error) {
	other, err := unix.Open(fmt.Sprint("/proc/self/fd/", fd), unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(other)
	if err := do(fd); err != nil {
		return 0, err
	}
	return 0, do(other)
}

func closed(fd int, err error) (int, error) {
	if err == nil {
		unix.Close(fd)
	}
	return 0, err
}

// withFile passes a file of another file system, which has 10 bytes.
func withFile(do func(fd int) (int, error)) (int, error) {
	fd, err := unix.MemfdCreate("posixops", 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	unix.Write(fd, make([]byte, 10))
	unix.Seek(fd, 0, unix.SEEK_SET)
	return do(fd)
}

func withPipe(do func(r, w int) (int64, error)) (int, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], 0); err != nil {
		return 0, err
	}
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	n, err := do(ends[0], ends[1])
	return int(n), err
}

// mmap reads the first byte of the mapping. Where there is none, that is SIGBUS.
func mmap(length uintptr, offset int64, protection, flags int) func(fd int) (int, error) {
	return func(fd int) (n int, err error) {
		address, err := unix.MmapPtr(fd, offset, nil, length, protection, flags)
		if err != nil {
			return 0, err
		}
		defer unix.MunmapPtr(address, length)
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() {
			if recover() != nil {
				err = fmt.Errorf("SIGBUS")
			}
		}()
		return int(*(*byte)(address)), nil
	}
}

// files performs the calls with a descriptor, each with a fresh one.
func (p *probe) files() {
	for _, d := range descriptors {
		for _, c := range fileCalls {
			fd, err := unix.Open(p.in(d.path), d.flags, 0)
			if err != nil {
				p.print("open", d.name, "", err)
				break
			}
			n, err := c.do(fd)
			p.print(c.name, d.name, fmt.Sprint(n), err)
			unix.Close(fd)
		}
	}
}

// memory performs calls with bad addresses, and changes a program that is being executed.
func (p *probe) memory() {
	dir := p.dir
	for name, call := range map[string]uintptr{
		"openat": unix.SYS_OPENAT, "mkdirat": unix.SYS_MKDIRAT, "unlinkat": unix.SYS_UNLINKAT, "faccessat": unix.SYS_FACCESSAT,
		"readlinkat": unix.SYS_READLINKAT, "fchmodat": unix.SYS_FCHMODAT, "mknodat": unix.SYS_MKNODAT, "utimensat": unix.SYS_UTIMENSAT,
	} {
		p.print(name, "a bad address", "done", errnoOf(unix.Syscall6(call, uintptr(dir), badAddress, 0, 0, 0, 0)))
	}
	path, _ := unix.BytePtrFromString(p.in("link"))
	p.print("readlink to a bad address", "link", "done", errnoOf(unix.Syscall(unix.SYS_READLINK, uintptr(unsafe.Pointer(path)), badAddress, 100)))
	p.print("stat to a bad address", "link", "done", errnoOf(unix.Syscall(unix.SYS_STAT, uintptr(unsafe.Pointer(path)), badAddress, 0)))
	p.print("statfs to a bad address", "link", "done", errnoOf(unix.Syscall(unix.SYS_STATFS, uintptr(unsafe.Pointer(path)), badAddress, 0)))
	p.running()
}

// running changes a program that is being executed.
func (p *probe) running() {
	path := p.in("program")
	cat := exec.Command(path)
	in, err := cat.StdinPipe()
	if err == nil {
		err = cat.Start()
	}
	if err != nil {
		p.print("execve", "program", "", err)
		return
	}
	for name, flags := range map[string]int{"O_WRONLY": unix.O_WRONLY, "O_RDWR|O_TRUNC": unix.O_RDWR | unix.O_TRUNC} {
		fd, err := unix.Open(path, flags, 0)
		p.opened("open "+name+" while it runs", "program", fd, err)
	}
	p.print("truncate while it runs", "program", "done", unix.Truncate(path, 0))
	p.print("unlink while it runs", "program", "done", unix.Unlink(path))
	in.Close()
	p.print("execve", "program", "done", cat.Wait())
}
