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
func ThreadsOf(pid int) (left int64, limit string) { return ThreadsBeside(pid, 0) }

// ThreadsBeside is ThreadsOf if the user of the process has more threads, which this process does not see: see
// SeesAllThreads.
func ThreadsBeside(pid int, hidden int64) (left int64, limit string) {
	left, limit = host{root: "/"}.pidsLeft(strconv.Itoa(pid))
	n, most := UserThreads(pid)
	if n = max(0, n-hidden); n < left && most != math.MaxInt64 {
		left, limit = n, fmt.Sprintf("its user may have %d processes and threads (ulimit -Hu)", most)
	}
	return left, limit
}

// UserThreads returns how many more threads the user of a process may have, and how many in all. Without a limit,
// both are math.MaxInt64.
func UserThreads(pid int) (left, most int64) {
	var l unix.Rlimit
	var st unix.Stat_t
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	if unix.Prlimit(pid, unix.RLIMIT_NPROC, nil, &l) != nil || l.Max == unix.RLIM_INFINITY || unix.Stat(proc, &st) != nil ||
		st.Uid == 0 && isIn(firstUserNamespace, filepath.Join(proc, "ns/user")) { // it does not concern root
		return math.MaxInt64, math.MaxInt64
	}
	// The kernel tells how many threads the machine has; those of a user must be added up.
	used := threadsOfMachine()
	if used < 0 || int64(l.Max)-used < plentyOfThreads {
		used = threadsOfUser(st.Uid)
	}
	return max(0, int64(l.Max)-used), int64(l.Max)
}

// The inode numbers of the first namespaces of a machine: PROC_USER_INIT_INO and PROC_PID_INIT_INO of the kernel.
const (
	firstUserNamespace = 0xEFFFFFFD
	firstPIDNamespace  = 0xEFFFFFFC
)

// isIn reports whether a link in /proc leads to a namespace. It is true in a kernel that has none of the kind.
func isIn(namespace uint64, link string) bool {
	var st unix.Stat_t
	return unix.Stat(link, &st) != nil || st.Ino == namespace
}

// SeesAllThreads reports whether this process sees all threads of a user. Those outside of a PID namespace are not
// seen, and count for the limit of the user nevertheless.
func SeesAllThreads() bool { return isIn(firstPIDNamespace, "/proc/self/ns/pid") }

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
	h.eachGroup(process, "pids", func(_ cgroupVersion, dir string) {
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
