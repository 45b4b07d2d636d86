package procs

import (
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A User is the user of a process, as the user namespace of this process sees that user.
type User struct {
	UID    int
	Groups []uint32 // the effective one and all others
	PID    int      // of the process; 0: this process cannot see it
}

// Peer returns the user of the process that has connected to a Unix socket, as it was then.
func Peer(conn *net.UnixConn) (u User, err error) {
	cred, err := peer(conn)
	if err != nil {
		return u, err
	}
	groups, err := peerGroups(conn)
	return User{int(cred.Uid), append(groups, cred.Gid), int(cred.Pid)}, err
}

// peerGroups returns the supplementary groups of the process that has connected to a Unix socket.
func peerGroups(conn *net.UnixConn) ([]uint32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	const word = uint32(unsafe.Sizeof(uint32(0)))
	for groups := make([]uint32, 64); ; {
		size := uint32(len(groups)) * word
		var errno unix.Errno
		if err := raw.Control(func(fd uintptr) {
			_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
				uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		}); err != nil {
			return nil, err
		}
		switch {
		case errno == unix.ERANGE && size > uint32(len(groups))*word: // size is what it takes
			groups = make([]uint32, size/word)
		case errno != 0:
			return nil, os.NewSyscallError("getsockopt", errno)
		default:
			return groups[:size/word], nil
		}
	}
}

// PeerUser returns the user of the process that has connected to a Unix socket, as the user namespace
// of this process sees that user.
func PeerUser(conn *net.UnixConn) (uid int, err error) {
	cred, err := peer(conn)
	if err != nil {
		return 0, err
	}
	return int(cred.Uid), nil
}

// Listener returns the ID of the process that listens on the Unix socket to which conn is connected, or 0
// if this process cannot see it.
func Listener(conn *net.UnixConn) (pid int, err error) {
	cred, err := peer(conn)
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

// peer returns the process that has connected to a Unix socket, or listens on it, as it was then.
func peer(conn *net.UnixConn) (cred *unix.Ucred, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	if e := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil {
		return nil, e
	}
	return cred, os.NewSyscallError("getsockopt", err)
}
