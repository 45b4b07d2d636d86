package check

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// RaiseLimits is the remedy for a limit of Limits.
const RaiseLimits = "Raise the hard limit, as in limits.conf or by LimitCPU= and the like in a unit file, or mount from a shell that does not have it."

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

// Limits describes the hard limits at which the daemon with a process ID ends, or does less; 0 is this process. A
// daemon raises its soft limits to them.
func Limits(pid int) (all []string, err error) {
	for _, h := range harmful {
		var l unix.Rlimit
		if err := unix.Prlimit(pid, h.resource, nil, &l); err != nil {
			return nil, os.NewSyscallError("prlimit", err)
		}
		if l.Max < h.enough {
			all = append(all, h.describe(l.Max))
		}
	}
	return all, nil
}

// LimitsName is the name of the findings about Limits.
const LimitsName = "limits"

// resources reports on hard limits of this process, which a daemon inherits.
func (h host) resources() (findings []Finding) {
	all, err := h.limits()
	if err != nil {
		return warning(LimitsName, `Check "ulimit -Ha".`, "not known: %v", reason(err))
	}
	for _, text := range all {
		findings = append(findings, warning(LimitsName, RaiseLimits, "%s", text)...)
	}
	return findings
}
