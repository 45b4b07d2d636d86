package procs

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

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
