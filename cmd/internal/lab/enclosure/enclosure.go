// Package enclosure runs a program such that it leaves no process, mount, loop device or network
// namespace behind, also if it is killed. It needs root.
package enclosure

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/fs"
)

// An enclosed program has three processes before it has any other:
//
//	the first   starts init in a mount namespace and a PID namespace, and removes the folder
//	            when all processes of the namespace have ended
//	init        is process 1 of the namespace: it collects the processes that end
//	inside      does the work
//
// When the work ends, also by SIGKILL, init kills all processes of the namespace, and with
// them its mounts and loop devices go. init must be the last one: the kernel unmounts the
// file systems of a mount namespace in its last process. In the process that serves their
// disk, that would wait for itself for ever.

// roleEnv is the role of a process, init or inside, and the folder, separated by a colon.
const roleEnv = "MILKWEED_ENCLOSURE"

// Run calls inside in a process of its own, which has the same arguments as this one, a mount
// namespace and a PID namespace. folder is an empty temporary folder, whose name begins with
// prefix. Run returns the exit code of that process; an error of inside is returned in that
// process only. A program must do nothing that may not be done three times before it calls Run.
//
// SIGINT and SIGTERM are forwarded to the process. After SIGKILL of the first process, the folder
// is left.
func Run(prefix string, inside func(folder string) (code int, err error)) (code int, err error) {
	role, folder, _ := strings.Cut(os.Getenv(roleEnv), ":")
	os.Unsetenv(roleEnv)
	switch role {
	case "init":
		return initialize(folder)
	case "inside":
		return inside(folder)
	}
	return enter(prefix)
}

// enter is the first process.
func enter(prefix string) (code int, err error) {
	runtime.LockOSThread() // Pdeathsig is sent when the thread ends
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), roleEnv+"=init:"+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:   unix.CLONE_NEWPID,
		Unshareflags: unix.CLONE_NEWNS, // with private mounts
		Setpgid:      true,             // Ctrl-C reaches only this process
		Pdeathsig:    unix.SIGTERM,
	}
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("the namespaces need root: %w", err)
	}
	go forward(cmd.Process)
	err = cmd.Wait()
	if ended, ok := errors.AsType[*exec.ExitError](err); ok && ended.Exited() {
		return ended.ExitCode(), nil // the error is reported
	}
	if err != nil {
		return 1, err
	}
	return 0, nil
}

// forward forwards the signals that end the program.
func forward(to *os.Process) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	for s := range signals {
		to.Signal(s)
	}
}

// initialize is process 1 of the PID namespace.
func initialize(folder string) (code int, err error) {
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return 1, fmt.Errorf("mount /proc: %w", err)
	}
	if err := detachMounts(); err != nil {
		return 1, err
	}
	inside, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{
		Env:   append(os.Environ(), roleEnv+"=inside:"+folder),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return 1, err
	}
	go forward(inside)
	status, err := waitFor(inside.Pid)
	if err != nil {
		return 1, err
	}
	unix.Kill(-1, unix.SIGKILL) // all processes but this one
	waitFor(-1)
	if status.Signaled() {
		return 1, fmt.Errorf("%s was ended by a signal: %v", os.Args[0], status.Signal())
	}
	return status.ExitStatus(), nil
}

// detachMounts detaches the copies that the namespace has of mounts of Milkweed. With a copy, a
// mount would be in use after it was unmounted outside, and its daemon would not end.
func detachMounts() error {
	table, err := mounts.Read(mounts.Self)
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(table) {
		if m.Type == fs.Type {
			unix.Unmount(m.Point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}
	return nil
}

// waitFor collects processes that end until pid has ended, or until there is none.
func waitFor(pid int) (status unix.WaitStatus, err error) {
	for {
		ended, err := unix.Wait4(-1, &status, 0, nil)
		if err != unix.EINTR && (err != nil || ended == pid) {
			return status, err
		}
	}
}
