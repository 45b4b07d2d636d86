package fs

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// This file finds out who makes a request of a mount that may be idmapped. (See mount_setattr(2). Container runtimes make
// idmapped mounts for user namespaces.) A user has another ID in each idmapped mount, so that the kernel names none. It
// does name the thread, of which /proc has the user.

// unknownUser is the ID that no user has.
const unknownUser = ^uint32(0)

// A caller is who makes a request.
type caller struct{ uid, tid uint32 }

// callerOf returns who makes a request.
func callerOf(in *fuse.InHeader) caller { return caller{in.Uid, in.Pid} }

// user returns the ID of the user, or unknownUser if this process cannot see the thread. It is that of the request as
// long as the thread waits for the reply, as it does for all but readahead.
func (c caller) user() uint32 {
	if c.uid != unknownUser || c.tid == 0 {
		return c.uid
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", c.tid))
	if err != nil {
		return unknownUser
	}
	defer f.Close()
	buf := make([]byte, 512) // the line comes after some short ones
	n, _ := f.Read(buf)
	_, line, _ := strings.Cut(string(buf[:n]), "\nUid:")
	line, _, isWhole := strings.Cut(line, "\n")
	ids := strings.Fields(line)
	if !isWhole || len(ids) != 4 {
		return unknownUser
	}
	uid, err := strconv.ParseUint(ids[3], 10, 32) // the one for accesses to files
	if err != nil {
		return unknownUser
	}
	return uint32(uid)
}

// knowsCallers returns an error if caller.user may be wrong, or not known. For a mount that this process has made
// itself, it must be in the PID namespace that has all processes, and must be permitted to read about them.
func knowsCallers() error {
	const all = "pid:[4026531836]" // PROC_PID_INIT_INO
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err == nil && namespace != all {
		return errors.New("the daemon does not see the processes outside of its PID namespace")
	}
	var caps [2]unix.CapUserData
	if err == nil {
		err = unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0])
	}
	if err == nil && caps[0].Effective&(1<<unix.CAP_SYS_PTRACE) == 0 { // /proc may be mounted with hidepid
		err = errors.New("the daemon does not have CAP_SYS_PTRACE")
	}
	return err
}
