package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// disinherit gives up what a process of a mount, which lives long, has inherited from the program that
// has started it:
//
//   - Descriptors above 2, except keep and those that an argument or the environment names, such as
//     /dev/fd/63. Otherwise a lock that the caller holds would last as long as the mount, a pipe would
//     not end, and a disk could not be unmounted.
//   - A umask that denies this process its own files.
//   - Soft resource limits, which are raised to the hard ones.
//
// The descriptors of this process itself have the flag close-on-exec, which inherited ones do not have.
func disinherit(keep ...int) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("descriptors of the caller: %w", err)
	}
	keep = append(keep, namedDescriptors(append(os.Environ(), os.Args...))...)
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= 2 || slices.Contains(keep, fd) {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
	unix.Umask(unix.Umask(0o777) &^ 0o700)
	for _, resource := range []int{
		unix.RLIMIT_AS, unix.RLIMIT_CPU, unix.RLIMIT_DATA, unix.RLIMIT_FSIZE, unix.RLIMIT_MEMLOCK, unix.RLIMIT_NPROC,
	} { // package os has raised RLIMIT_NOFILE
		var l unix.Rlimit
		if unix.Getrlimit(resource, &l) == nil && l.Cur < l.Max {
			l.Cur = l.Max
			unix.Setrlimit(resource, &l) // if that fails, the limit is what it was
		}
	}
	return nil
}

// namedDescriptors returns the descriptors that texts name by their paths.
func namedDescriptors(texts []string) (fds []int) {
	for _, m := range descriptorPath.FindAllStringSubmatch(strings.Join(texts, "\n"), -1) {
		if fd, err := strconv.Atoi(m[1]); err == nil {
			fds = append(fds, fd)
		}
	}
	return fds
}
