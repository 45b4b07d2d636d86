// Package fusectl controls FUSE file systems through files of the kernel, also those of other processes. See
// Documentation/filesystems/fuse.rst of the kernel.
package fusectl

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A Connection is that of one FUSE file system. It never becomes that of another, although the kernel
// gives the device number of a file system that has ended to the next one. Its methods may be called
// concurrently, except Close. Errors of a nil Connection are ErrNone.
type Connection struct {
	dir int // a descriptor of the directory that the kernel has for the connection
}

// ErrNone is the error of a nil Connection.
var ErrNone = errors.New("the FUSE connection cannot be controlled")

// Open returns the connection of the FUSE file system with a device number, wherever it is mounted. The
// caller must see afterwards that it is still mounted, and closes the connection. Root needs no mount
// of fusectl, another user needs it on /sys/fs/fuse/connections.
func Open(dev uint64) (*Connection, error) {
	const connections = "/sys/fs/fuse/connections" // read-only in many containers
	root, mountErr := mountNowhere("fusectl")
	if mountErr != nil {
		var err error
		if root, err = unix.Open(connections, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return nil, errors.Join(fmt.Errorf("mount fusectl: %w", mountErr), &fs.PathError{Op: "open", Path: connections, Err: err})
		}
	}
	defer unix.Close(root)
	name := strconv.FormatUint(uint64(unix.Minor(dev)), 10)
	dir, err := unix.Openat(root, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: connections + "/" + name, Err: err}
	}
	return &Connection{dir}, nil
}

// Close gives the connection back. The file system goes on.
func (c *Connection) Close() error {
	if c == nil {
		return ErrNone
	}
	return unix.Close(c.dir)
}

// Abort ends the connection: requests in flight and later ones fail with ECONNABORTED or ENOTCONN. The
// end of the daemon has the same effect. If the connection has ended, the error is nil or matches
// fs.ErrNotExist.
func (c *Connection) Abort() error {
	fd, err := c.open("abort", unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte("1"))
	return err
}

// Live reports whether the connection is that of a file system that is mounted somewhere. It is true if
// that cannot be known.
func (c *Connection) Live() bool {
	_, err := c.Waiting()
	return !errors.Is(err, fs.ErrNotExist)
}

// Waiting returns the number of requests for whose reply the kernel waits. If the connection has ended,
// the error matches fs.ErrNotExist.
func (c *Connection) Waiting() (int, error) {
	fd, err := c.open("waiting", unix.O_RDONLY)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var buf [32]byte
	n, err := unix.Read(fd, buf[:])
	if err == nil && n == 0 { // it has ended since the open
		err = fs.ErrNotExist
	}
	if err != nil {
		return 0, fmt.Errorf("read the number of requests: %w", err)
	}
	return strconv.Atoi(string(bytes.TrimSpace(buf[:n])))
}

// open opens a file of the connection.
func (c *Connection) open(file string, flags int) (int, error) {
	if c == nil {
		return -1, ErrNone
	}
	fd, err := unix.Openat(c.dir, file, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: file + " of a FUSE connection", Err: err}
	}
	return fd, nil
}

// DefaultRequestTimeout returns the sysctl fs.fuse.default_request_timeout: when a request of a FUSE file system has no
// reply for so long, or up to 15 s longer, the kernel ends the connection. A file system may choose another time. Zero
// is no limit, as before Linux 6.15.
func DefaultRequestTimeout() time.Duration { return seconds("default_request_timeout") }

// MaxRequestTimeout returns the sysctl fs.fuse.max_request_timeout: the longest time that a file system may choose. Zero
// is no limit.
func MaxRequestTimeout() time.Duration { return seconds("max_request_timeout") }

// seconds returns the value of a sysctl of FUSE, or 0 if the kernel does not have it.
func seconds(name string) time.Duration {
	text, err := os.ReadFile("/proc/sys/fs/fuse/" + name)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 16)
	return time.Duration(n) * time.Second
}

// SetReadAhead sets how many bytes the kernel reads ahead of a sequential reader on the FUSE file system with a
// device number, which must be mounted; the kernel's default is 128 KiB. Only root may set it. In a container whose
// /sys is read-only, or missing, that requires CAP_SYS_ADMIN.
func SetReadAhead(dev uint64, size int) error {
	name := fmt.Sprintf("class/bdi/%d:%d/read_ahead_kb", unix.Major(dev), unix.Minor(dev))
	text := []byte(strconv.Itoa(size >> 10))
	err := write(unix.AT_FDCWD, "/sys/"+name, text)
	if err == nil || !errors.Is(err, unix.EROFS) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	sys, mountErr := mountSys()
	if mountErr != nil {
		return errors.Join(err, fmt.Errorf("mount sysfs: %w", mountErr))
	}
	defer unix.Close(sys)
	return write(sys, name, text)
}

// write writes to a file of the kernel, whose path is relative to the directory dir.
func write(dir int, path string, text []byte) error {
	fd, err := unix.Openat(dir, path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		_, err = unix.Write(fd, text)
	}
	if err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// mountSys mounts a sysfs that can be written to, and returns its root. There is one sysfs for each network
// namespace, and a container runtime has mounted that of a pod read-only. So mountSys makes another namespace,
// which ends with the descriptor. Block devices and file systems are in all of them.
func mountSys() (root int, err error) {
	runtime.LockOSThread() // a namespace is that of a thread
	own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return -1, err
	}
	defer unix.Close(own)
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return -1, err
	}
	root, err = mountNowhere("sysfs")
	if unix.Setns(own, unix.CLONE_NEWNET) == nil { // otherwise no other goroutine gets the thread
		runtime.UnlockOSThread()
	}
	return root, err
}

// mountNowhere mounts a file system of the kernel at no path, and returns its root. The mount ends with the
// descriptor.
func mountNowhere(fsType string) (root int, err error) {
	config, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(config)
	if err := unix.FsconfigCreate(config); err != nil {
		return -1, err
	}
	return unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
}
