package procs

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Dying reports whether a process was killed, or ends itself, and has not ended: a thread of it waits
// in the kernel. Meanwhile all of its files and sockets stay open.
func Dying(pid int) bool {
	status, err := os.ReadFile(filepath.Join(Process{PID: pid}.dir(), "status"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch name {
		case "State": // of the first thread, which may end before others
			if strings.HasPrefix(value, "Z") || strings.HasPrefix(value, "X") {
				return true
			}
		case "SigPnd": // the end of a process sends SIGKILL to each of its threads
			pending, _ := strconv.ParseUint(value, 16, 64)
			return pending&(1<<(unix.SIGKILL-1)) != 0
		}
	}
	return false
}

// An Ending tells a process that cannot end from one that is about to: it is asked about once a second.
type Ending struct {
	PID   int
	dying bool // when Hangs was last called
}

// Hangs reports whether the process was dying at the last call, and still is.
func (d *Ending) Hangs() bool {
	was := d.dying
	d.dying = Dying(d.PID)
	return was && d.dying
}

// Listener returns the ID of the process that listens on the socket to which conn is connected, or 0 if
// that is no Unix socket, or this process cannot see the other one.
func Listener(conn net.Conn) (pid int) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}
