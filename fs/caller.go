package fs

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// This file has what idmapped mounts take. (See mount_setattr(2). Container runtimes make them for user namespaces.)
// If a mount may be idmapped, the kernel does not say which user makes a request: the user has another ID in each of
// its idmapped mounts. It does say which thread does, and /proc knows the user.

// unknownUser is the ID that no user has.
const unknownUser = ^uint32(0)

// A caller is who makes a request.
type caller struct{ uid, tid uint32 }

// callerOf returns who makes a request.
func callerOf(in *fuse.InHeader) caller { return caller{in.Uid, in.Pid} }

// user returns the ID of the user, or unknownUser if this process cannot see the thread. The thread must wait for the
// reply to its request.
func (c caller) user() uint32 {
	if c.uid != unknownUser || c.tid == 0 {
		return c.uid
	}
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.tid))
	for line := range strings.Lines(string(status)) {
		if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
			words := strings.Fields(ids)
			if uid, err := strconv.ParseUint(words[len(words)-1], 10, 32); err == nil { // the one for accesses to files
				return uint32(uid)
			}
		}
	}
	return unknownUser
}

// isMappable reports whether a mount may be idmapped: other users may read it, the kernel checks the modes of files, and
// the users are known nevertheless. Those of a mount of another process are not asked for.
func isMappable(cfg Config) bool {
	if cfg.Device != 0 {
		return cfg.AllowOther && cfg.DefaultPermissions
	}
	return cfg.AllowOther && seesProcesses()
}

// seesProcesses reports whether /proc is that of the PID namespace of this process, and shows the processes of other
// users.
func seesProcesses() bool {
	self, err := os.Readlink("/proc/self")
	if err != nil || self != strconv.Itoa(os.Getpid()) {
		return false
	}
	_, err = os.Stat("/proc/1/status")
	return err == nil
}
