package fs

import (
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// requestTimeout is the time-out of requests that a mount chooses if the kernel would choose one, in seconds: the
// longest. The source may not answer for minutes, and the kernel ends the whole mount for one request. What
// only a fault of the daemon causes, its watchdog ends.
const requestTimeout = 1<<16 - 1

// newPatientServer is fuse.NewServer for a descriptor of /dev/fuse, which f.conn has, too. It chooses requestTimeout,
// which go-fuse cannot. For the first request, INIT, the number fd, by which go-fuse reads and writes, is that of a
// socket, whose other end changes the reply. After an error, fd is closed.
func newPatientServer(f *fileSystem, fd int, opts *fuse.MountOptions) (*fuse.Server, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("socketpair", err)
	}
	socket := os.NewFile(uintptr(pair[0]), "socket")
	defer socket.Close()
	message := make([]byte, 64<<10)
	n, err := f.conn.file.Read(message)
	if err == nil {
		_, err = socket.Write(message[:n])
	}
	if err == nil {
		err = unix.Dup3(pair[1], fd, unix.O_CLOEXEC)
	}
	unix.Close(pair[1])
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("init: %w", err)
	}
	opts.ExtraCapabilities |= fuse.CAP_REQUEST_TIMEOUT
	server, err := fuse.NewServer(f, deviceName(fd), opts)
	if err != nil {
		return nil, err
	}
	if n, err = socket.Read(message); err == nil {
		setRequestTimeout(message[:n])
		_, err = f.conn.file.Write(message[:n])
	}
	if err == nil {
		err = unix.Dup3(int(f.conn.file.Fd()), fd, unix.O_CLOEXEC)
	}
	if err != nil { // with the server, go-fuse drops its file, which closes fd
		return nil, fmt.Errorf("init: %w", err)
	}
	return server, nil
}

// setRequestTimeout sets the time-out in a reply to INIT. The kernel ignores it if the reply lacks
// fuse.CAP_REQUEST_TIMEOUT.
func setRequestTimeout(reply []byte) {
	const at = unsafe.Sizeof(fuse.OutHeader{}) + unsafe.Offsetof(fuse.InitOut{}.RequestTimeout)
	if len(reply) >= int(at+2) { // otherwise it is an error
		binary.NativeEndian.PutUint16(reply[at:], requestTimeout)
	}
}

// deviceName is the mount point by which go-fuse serves a descriptor.
func deviceName(fd int) string { return fmt.Sprintf("/dev/fd/%d", fd) }
