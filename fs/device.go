package fs

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrAdopted is the error of unmounting a file system that another process has mounted. It ends when
// that process unmounts it, or when this process ends.
var ErrAdopted = errors.New("another process has mounted it")

// The reasons why a descriptor cannot be served, to be tested with errors.Is.
var (
	ErrNotDevice  = errors.New("it is not an open /dev/fuse")
	ErrNotMounted = errors.New("it is not mounted, or was unmounted")
	ErrServed     = errors.New("another process serves it already")
)

// fuseDevice is the device number of /dev/fuse, which is the same on every Linux.
var fuseDevice = unix.Mkdev(10, 229)

// CheckDevice returns nil if fd is a descriptor of /dev/fuse that is mounted and that no process has
// served: its first request is waiting. Otherwise the error matches ErrNotDevice, ErrNotMounted or
// ErrServed. CheckDevice reads nothing.
func CheckDevice(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("%w: %w", ErrNotDevice, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || uint64(st.Rdev) != fuseDevice {
		return ErrNotDevice
	}
	switch events, err := poll(fd); {
	case err != nil:
		return err
	case events&unix.POLLERR != 0:
		return ErrNotMounted
	case events&unix.POLLIN == 0:
		return ErrServed
	}
	return nil
}

// poll returns the events of a descriptor of /dev/fuse: POLLIN while a request waits, and POLLERR when the kernel has
// ended the connection.
func poll(fd int) (events int16, err error) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if _, err := unix.Poll(p, 0); err != nil {
		return 0, os.NewSyscallError("poll", err)
	}
	return p[0].Revents, nil
}

// DeviceNumber returns the device number of the file system that is mounted at a descriptor of
// /dev/fuse, or 0 if the kernel does not tell it, as before Linux 6.17.
func DeviceNumber(fd int) uint64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "fuse_connection:"); ok {
			minor, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32)
			if err != nil {
				return 0
			}
			return unix.Mkdev(0, uint32(minor))
		}
	}
	return 0
}

// A connection is a second descriptor of the connection to the kernel, for what go-fuse does not do. The zero
// value has none.
type connection struct{ file *os.File }

// dupConnection returns the connection of an open /dev/fuse. The caller closes it.
func dupConnection(fd int) (connection, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return connection{}, os.NewSyscallError("dup", err)
	}
	return connection{os.NewFile(uintptr(dup), "/dev/fuse")}, nil
}

// hasEnded reports whether the kernel has ended the connection.
func (c connection) hasEnded() (ended bool) {
	if c.file == nil {
		return false
	}
	raw, err := c.file.SyscallConn()
	if err != nil {
		return false
	}
	raw.Control(func(fd uintptr) {
		events, err := poll(int(fd))
		ended = err == nil && events&unix.POLLERR != 0
	})
	return ended
}

func (c connection) close() {
	if c.file != nil {
		c.file.Close()
	}
}
