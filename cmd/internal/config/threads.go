package config

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ThreadsOf returns how many more threads a process may have, and describes the limit. Without a limit,
// left is math.MaxInt64 and limit is "".
func ThreadsOf(pid int) (left int64, limit string) {
	left, limit = host{root: "/"}.pidsLeft(strconv.Itoa(pid))
	var l unix.Rlimit
	var st unix.Stat_t
	if unix.Prlimit(pid, unix.RLIMIT_NPROC, nil, &l) != nil || l.Max == unix.RLIM_INFINITY ||
		unix.Stat(filepath.Join("/proc", strconv.Itoa(pid)), &st) != nil || st.Uid == 0 { // it does not concern root
		return left, limit
	}
	// The kernel tells how many threads the machine has; those of a user must be added up.
	used := threadsOfMachine()
	if used < 0 || int64(l.Max)-used < plentyOfThreads {
		used = threadsOfUser(st.Uid)
	}
	if n := int64(l.Max) - used; n < left {
		left, limit = max(0, n), fmt.Sprintf("its user may have %d processes and threads (ulimit -Hu)", l.Max)
	}
	return left, limit
}

// plentyOfThreads is a number of threads that suffices for any daemon.
const plentyOfThreads = 4096

// threadsOfMachine returns how many threads there are, or -1 if that is not known.
func threadsOfMachine() int64 {
	data, _ := os.ReadFile("/proc/loadavg") // such as 0.20 0.18 0.12 1/80 11206
	if f := strings.Fields(string(data)); len(f) > 3 {
		if _, all, ok := strings.Cut(f[3], "/"); ok {
			if n, err := strconv.ParseInt(all, 10, 64); err == nil {
				return n
			}
		}
	}
	return -1
}

// pidsLeft is ThreadsOf by the limits of control groups.
func (h host) pidsLeft(process string) (left int64, limit string) {
	left = math.MaxInt64
	h.eachGroup(process, func(_ cgroupVersion, dir string) {
		most, err1 := readInt(filepath.Join(dir, "pids.max"))
		used, err2 := readInt(filepath.Join(dir, "pids.current"))
		if err1 == nil && err2 == nil && most-used < left {
			left, limit = max(0, most-used), fmt.Sprintf("pids.max of its control group is %d", most)
		}
	})
	return left, limit
}

// threadsOfUser returns how many threads a user has, as far as this process sees them.
func threadsOfUser(uid uint32) (n int64) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		data, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "status")) // empty if it has ended
		var uids, threads string
		for line := range strings.Lines(string(data)) {
			switch name, value, _ := strings.Cut(line, ":"); name {
			case "Uid":
				uids = value
			case "Threads":
				threads = strings.TrimSpace(value)
			}
		}
		if f := strings.Fields(uids); len(f) > 0 && f[0] == strconv.Itoa(int(uid)) {
			count, _ := strconv.ParseInt(threads, 10, 64)
			n += count
		}
	}
	return n
}
