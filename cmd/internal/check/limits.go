package check

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/fs/fusectl"
)

// A Limit is one at which a daemon ends, or does less.
type Limit struct {
	Effect string // what happens at the limit, and which it is
	Remedy string // sentences
}

const raiseLimits = "Raise the hard limit, as in limits.conf or by LimitCPU= and the like in a unit file, or mount from a shell that does not have it."

// enoughTime is how long storage may take to answer after a failure, as during a failover of Lustre. The kernel
// should wait for so long.
const enoughTime = 10 * time.Minute

// enoughMemory is the limit of memory, or of addresses, from which on a daemon does not reach it.
const enoughMemory = 64 << 30

// harmful are the resources that a daemon needs, with what happens at a hard limit. Open files and threads are not
// among them: they have findings of their own.
var harmful = []struct {
	resource int
	enough   uint64 // a limit of so much is harmless
	describe func(limit uint64) string
}{
	{unix.RLIMIT_CPU, unix.RLIM_INFINITY, func(n uint64) string {
		return fmt.Sprintf("the kernel kills the daemon when it has used the CPU for %v (ulimit -Ht)", time.Duration(n)*time.Second)
	}},
	{unix.RLIMIT_FSIZE, unix.RLIM_INFINITY, func(n uint64) string {
		return fmt.Sprintf("files of more than %s get no copy, and the log does not grow beyond (ulimit -Hf)", size(int64(n)))
	}},
	{unix.RLIMIT_AS, enoughMemory, func(n uint64) string {
		return fmt.Sprintf("the daemon ends when it needs more than %s of addresses (ulimit -Hv)", size(int64(n)))
	}},
	{unix.RLIMIT_DATA, enoughMemory, func(n uint64) string {
		return fmt.Sprintf("the daemon ends when it needs more than %s of memory (ulimit -Hd)", size(int64(n)))
	}},
}

// Limits returns the hard limits of the daemon with a process ID, and the limits of the kernel for all mounts. The ID 0 is
// that of this process. A daemon raises its soft limits to the hard ones.
func Limits(pid int) (all []Limit, err error) {
	for _, h := range harmful {
		var l unix.Rlimit
		if err := unix.Prlimit(pid, h.resource, nil, &l); err != nil {
			return nil, os.NewSyscallError("prlimit", err)
		}
		if l.Max < h.enough {
			all = append(all, Limit{h.describe(l.Max), raiseLimits})
		}
	}
	if t := fusectl.MaxRequestTimeout(); t > 0 && t < enoughTime {
		all = append(all, Limit{
			fmt.Sprintf("the kernel ends the mount when a request takes longer than %v, as while the source does not answer (sysctl fs.fuse.max_request_timeout)", t),
			fmt.Sprintf("As root, run `sysctl fs.fuse.max_request_timeout=%d`, or 0 for no limit, and mount again.", int(enoughTime.Seconds())),
		})
	}
	return all, nil
}

// LimitsName is the name of the findings about Limits.
const LimitsName = "limits"

// resources reports on limits of this process, which a daemon inherits, and of the kernel.
func (h host) resources() (findings []Finding) {
	all, err := h.limits()
	if err != nil {
		return warning(LimitsName, `Check "ulimit -Ha".`, "not known: %v", reason(err))
	}
	for _, l := range all {
		findings = append(findings, warning(LimitsName, l.Remedy, "%s", l.Effect)...)
	}
	return findings
}
