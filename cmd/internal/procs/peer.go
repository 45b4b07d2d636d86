package procs

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A User is the user of a process, as the user namespace of this process sees that user.
type User struct {
	UID    int
	Groups []uint32 // the effective one and all others
}

// PeerUser returns the ID of the user of the process that has connected to a Unix socket.
func PeerUser(conn *net.UnixConn) (uid int, err error) {
	u, err := Peer(conn)
	return u.UID, err
}

// Peer returns the user of the process that has connected to a Unix socket, as it was then.
func Peer(conn *net.UnixConn) (u User, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return u, err
	}
	if e := raw.Control(func(fd uintptr) { u, err = peerOf(int(fd)) }); e != nil {
		return u, e
	}
	return u, err
}

// peerOf is Peer for a descriptor.
func peerOf(fd int) (u User, err error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return u, os.NewSyscallError("getsockopt", err)
	}
	u = User{int(cred.Uid), []uint32{cred.Gid}}
	const word = uint32(unsafe.Sizeof(u.Groups[0]))
	for groups := make([]uint32, 32); ; {
		size := uint32(len(groups)) * word
		_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case e == unix.ERANGE && size > uint32(len(groups))*word:
			groups = make([]uint32, size/word)
		case e != 0:
			return u, os.NewSyscallError("getsockopt", e)
		default:
			u.Groups = append(u.Groups, groups[:size/word]...)
			return u, nil
		}
	}
}

// IsMapped reports whether the user namespace of this process has the user and its groups. One that it
// does not have appears as the overflow ID, so that several users could be confused.
func (u User) IsMapped() bool {
	ids, _ := os.ReadFile("/proc/self/uid_map")
	if strings.Join(strings.Fields(string(ids)), " ") == "0 0 4294967295" {
		return true // it has all
	}
	if u.UID == overflowID {
		return false
	}
	for _, g := range u.Groups {
		if g == overflowID {
			return false
		}
	}
	return true
}

// overflowID is the default of /proc/sys/kernel/overflowuid and overflowgid.
const overflowID = 65534

// RunningUsers returns the real and the effective users of all processes, as far as this process can see
// them. A process that has ended and is not waited for does not run.
func RunningUsers() map[int]bool {
	users := make(map[int]bool)
	for _, p := range all() {
		if real, effective, err := p.users(); err == nil { // otherwise it has ended
			users[real], users[effective] = true, true
		}
	}
	return users
}

// users returns the real and the effective user of a process. It is an error if the process has ended.
func (p Process) users() (real, effective int, err error) {
	f, err := os.Open(filepath.Join(p.dir(), "status"))
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		fields := strings.Fields(value)
		switch {
		case name == "State" && len(fields) > 0 && (fields[0] == "Z" || fields[0] == "X"):
			return 0, 0, errors.New("the process has ended")
		case name == "Uid" && len(fields) > 1:
			real, err = strconv.Atoi(fields[0])
			if err != nil {
				return 0, 0, err
			}
			effective, err = strconv.Atoi(fields[1])
			return real, effective, err
		}
	}
	return 0, 0, fmt.Errorf("%s has no user", f.Name())
}
