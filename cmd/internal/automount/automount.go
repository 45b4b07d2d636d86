// Package automount lets a daemon mount where an automounter has asked for it, such as systemd for
// x-systemd.automount.
//
// An automounter mounts a trigger, a file system of type autofs, on a mount point. At the first access
// to it, the automounter runs mount.milkweed in its own process group. The kernel lets only this group
// reach the mount point; all other processes wait until mount.milkweed has ended. To this group, all
// triggers of the automounter are empty directories: the dataset, which may have one, too, would be
// empty. So a daemon is in this group when it reaches its mount point, and only then.
package automount

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// groupEnv is an environment variable of a daemon. It has the process group that may reach the mount
// point.
const groupEnv = "MILKWEED_AUTOMOUNT_GROUP"

var (
	mu     sync.Mutex // held while this process is in another group, or begins its session
	group  int        // the value of groupEnv; 0: none. Children get it by Attributes only.
	parent int        // if there is a group, a pidfd of the process that has started this one
)

func init() {
	group, _ = strconv.Atoi(os.Getenv(groupEnv))
	os.Unsetenv(groupEnv)
	if group == 0 {
		return
	}
	var err error
	if parent, err = unix.PidfdOpen(os.Getppid(), 0); err != nil {
		parent = -1
	}
}

// Attributes returns the attributes of a child that is to become a daemon, and additions to its
// environment. The child has a session of its own. If point, its mount point, is on a trigger, it has a
// process group only, and calls NewSession later.
func Attributes(point string) (*syscall.SysProcAttr, []string) {
	g := group
	if g == 0 && onTrigger(point) {
		g = unix.Getpgrp()
	}
	if g == 0 {
		return &syscall.SysProcAttr{Setsid: true}, nil
	}
	return &syscall.SysProcAttr{Setpgid: true}, []string{groupEnv + "=" + strconv.Itoa(g)}
}

// onTrigger reports whether path is a trigger, or a directory in one. It calls no file system: an
// automounter names its mount points without symbolic links.
func onTrigger(path string) bool {
	abs, err := filepath.Abs(path)
	if err != nil {
		return false
	}
	table, err := mounts.Read(mounts.Self)
	m, _ := table.Of(abs)
	return err == nil && m.Type == mounts.Autofs
}

// Needed reports whether Reach joins a group.
func Needed() bool {
	mu.Lock()
	defer mu.Unlock()
	return group != 0
}

// Reach calls f, which uses the mount point, and returns its result. Until f returns, the whole process is
// in the group that may reach it. f must not call this package.
func Reach[T any](f func() T) T {
	mu.Lock()
	defer mu.Unlock()
	if group != 0 && unix.Setpgid(0, group) == nil { // it fails if the group has ended, and then nothing waits for it
		defer unix.Setpgid(0, 0)
	}
	return f()
}

// NewSession begins a session of this process, if it has none. Later, Reach only calls its argument. If the
// parent of this process is to end, the session begins then: until the automounter knows that the parent
// has ended, only its group can unmount.
func NewSession(parentEnds bool) {
	if !Needed() {
		return
	}
	if !parentEnds {
		newSession()
		return
	}
	go func() {
		defer panics.Contain()
		defer newSession()
		for parent >= 0 {
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(parent), Events: unix.POLLIN}}, -1); err != unix.EINTR {
				return
			}
		}
	}()
}

func newSession() {
	mu.Lock()
	defer mu.Unlock()
	unix.Setpgid(0, group) // the first process of a group cannot begin a session
	unix.Setsid()
	unix.Close(parent)
	group = 0
}
