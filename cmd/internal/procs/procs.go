// Package procs finds the processes and the mount namespaces that use a file system. It reads
// /proc only, and sends no request to the file system, which may hang.
package procs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
)

// A Process is a running process.
type Process struct {
	PID  int    `json:"pid" help:"Process ID."`
	Name string `json:"name" help:"Name of the program, at most 15 bytes, as in /proc/PID/comm."`
}

// String returns the name and the ID, as in "python3 (1234)".
func (p Process) String() string { return fmt.Sprintf("%s (%d)", p.Name, p.PID) }

// dir is the directory of a process.
func (p Process) dir() string { return filepath.Join("/proc", strconv.Itoa(p.PID)) }

// Users lists the processes that have a file of the file system dev open or mapped, or their
// working directory, root or program there. Hidden are those that this user may not inspect and
// that may have: dev is mounted in their mount namespace.
func Users(dev uint64) (users, hidden []Process) {
	for _, p := range all() {
		switch uses, err := p.uses(dev); {
		case uses:
			users = append(users, p)
		case errors.Is(err, fs.ErrPermission) && p.mounts(dev):
			hidden = append(hidden, p)
		}
	}
	return users, hidden
}

// A Namespace is a mount namespace.
type Namespace struct {
	ID        uint64    `json:"id" help:"Inode number of the namespace, as lsns shows it. 0 for processes that this user may not inspect."`
	Processes []Process `json:"processes" help:"Its processes."`
}

// String names the namespace and some of its processes.
func (n Namespace) String() string {
	const most = 3
	var names []string
	for _, p := range n.Processes[:min(most, len(n.Processes))] {
		names = append(names, p.String())
	}
	if more := len(n.Processes) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	id := "a mount namespace"
	if n.ID != 0 {
		id = fmt.Sprintf("mount namespace %d", n.ID)
	}
	return id + " with " + strings.Join(names, ", ")
}

// Namespaces lists the mount namespaces other than that of this process in which the file system
// dev is mounted, in the order of their oldest processes. It does not find one without a process.
func Namespaces(dev uint64) []Namespace {
	self := Process{PID: os.Getpid()}.namespace()
	holds := make(map[uint64]bool) // by namespace
	at := make(map[uint64]int)     // index of a namespace in the result
	var list []Namespace
	for _, p := range all() {
		id := p.namespace()
		if id == self {
			continue
		}
		held, known := holds[id]
		if !known || id == 0 {
			held = p.mounts(dev)
			holds[id] = held
		}
		if !held {
			continue
		}
		i, ok := at[id]
		if !ok {
			i = len(list)
			at[id], list = i, append(list, Namespace{ID: id})
		}
		list[i].Processes = append(list[i].Processes, p)
	}
	return list
}

// Absent lists those of some users who are the effective user of no process that runs, as far as this process can see. A
// process runs until its last thread has ended.
func Absent(uids []int) []int {
	running, err := ids()
	if err != nil {
		return nil // not known
	}
	absent := slices.Clone(uids)
	for _, pid := range running {
		if len(absent) == 0 {
			break
		}
		p := Process{PID: pid}
		var st unix.Stat_t
		switch err := unix.Stat(p.dir(), &st); {
		case err == unix.ENOENT, err == unix.ESRCH: // it has ended
		case err != nil:
			return nil // not known
		case slices.Contains(absent, int(st.Uid)) && Alive(pid):
			absent = slices.DeleteFunc(absent, func(uid int) bool { return uid == int(st.Uid) })
		}
	}
	return absent
}

// Alive reports whether a thread of a process has not ended. While one has not, the files of the process
// are open, although the process itself may be a zombie already.
func Alive(pid int) bool {
	return anyThread(pid, "stat", func(stat string) bool { // see proc_pid_stat(5)
		_, state, _ := strings.Cut(stat, ") ")
		return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
	})
}

// Dying reports whether a process was killed, or ends itself, and a thread of it has not ended, because it
// waits in the kernel. Meanwhile the files and sockets of the process stay open, and nothing serves them.
func Dying(pid int) bool {
	return anyThread(pid, "status", func(status string) bool {
		_, value, _ := strings.Cut(status, "\nSigPnd:\t")
		value, _, _ = strings.Cut(value, "\n")
		pending, _ := strconv.ParseUint(value, 16, 64)
		return pending&(1<<(unix.SIGKILL-1)) != 0 // the end of a process sends it to each thread
	})
}

// anyThread reports whether a file in /proc of a thread of a process has a content for which is returns true.
// A thread that has ended has no files.
func anyThread(pid int, name string, is func(content string) bool) bool {
	files, _ := filepath.Glob(filepath.Join(Process{PID: pid}.dir(), "task/*", name))
	return slices.ContainsFunc(files, func(file string) bool {
		content, err := os.ReadFile(file)
		return err == nil && is(string(content))
	})
}

// all lists the processes in the order of their IDs.
func all() (list []Process) {
	running, _ := ids()
	for _, pid := range running {
		p := Process{PID: pid}
		name, _ := os.ReadFile(filepath.Join(p.dir(), "comm"))
		p.Name = string(bytes.TrimSpace(name))
		list = append(list, p)
	}
	return list
}

// ids lists the IDs of the processes in their order.
func ids() (list []int, err error) {
	entries, err := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			list = append(list, pid)
		}
	}
	slices.Sort(list)
	return list, err
}

// uses reports whether the process uses a file of dev. The error is that of the first file that
// could not be examined.
func (p Process) uses(dev uint64) (bool, error) {
	links := []string{"cwd", "root", "exe"}
	fds, failed := os.ReadDir(filepath.Join(p.dir(), "fd"))
	for _, fd := range fds {
		links = append(links, filepath.Join("fd", fd.Name()))
	}
	for _, link := range links {
		found, err := device(filepath.Join(p.dir(), link))
		if err == nil && found == dev {
			return true, nil
		}
		failed = errors.Join(failed, err)
	}
	mapped, err := p.maps(dev)
	return mapped, errors.Join(failed, err)
}

// device returns the device number of the file system of the target of a link in /proc. It takes
// what the kernel has cached, so that the file system gets no request.
func device(link string) (uint64, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC, 0, &st)
	return unix.Mkdev(st.Dev_major, st.Dev_minor), err
}

// maps reports whether the process has a file of dev mapped.
func (p Process) maps(dev uint64) (bool, error) {
	f, err := os.Open(filepath.Join(p.dir(), "maps"))
	if err != nil {
		return false, err
	}
	defer f.Close()
	want := fmt.Sprintf("%02x:%02x", unix.Major(dev), unix.Minor(dev))
	lines := bufio.NewScanner(f)
	for lines.Scan() { // address, permissions, offset, device, inode number, path
		if fields := strings.Fields(lines.Text()); len(fields) > 3 && fields[3] == want {
			return true, nil
		}
	}
	return false, lines.Err()
}

// namespace returns the mount namespace of the process, or 0 if this user may not inspect it.
func (p Process) namespace() uint64 {
	target, err := os.Readlink(filepath.Join(p.dir(), "ns", "mnt")) // mnt:[4026531841]
	if err != nil {
		return 0
	}
	id, _ := strconv.ParseUint(strings.Trim(target, "mnt:[]"), 10, 64)
	return id
}

// mounts reports whether dev is mounted in the mount namespace of the process.
func (p Process) mounts(dev uint64) bool {
	t, err := mounts.Read(filepath.Join(p.dir(), "mountinfo"))
	return err == nil && t.Has(dev)
}
