package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// A run has three processes before it has any other:
//
//	torture          starts init in a mount namespace and a PID namespace, and removes the
//	                 folder of the run when all its processes have ended
//	torture init     is process 1 of the namespace: it collects the processes that end
//	torture inside   does the run
//
// When the run ends, also by SIGKILL, init kills all processes of the namespace, and with
// them its mounts and loop devices go. init must be the last one: the kernel unmounts the
// file systems of a mount namespace in its last process. In the process that serves their
// disk, that would wait for itself for ever.

// folderEnv is the folder of the run.
const folderEnv = "MILKWEED_TORTURE_FOLDER"

// enter is the first process. It returns the exit code of the run.
func enter(args []string) (code int, err error) {
	runtime.LockOSThread() // Pdeathsig is sent when the thread ends
	dir, err := os.MkdirTemp("", "milkweed-torture-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cmd := exec.Command("/proc/self/exe", append([]string{"init"}, args...)...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), folderEnv+"="+dir)
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

// forward forwards the signals that end the run.
func forward(to *os.Process) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	for s := range signals {
		to.Signal(s)
	}
}

// initialize is process 1 of the PID namespace. It returns the exit code of the run.
func initialize(args []string) (code int, err error) {
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return 1, fmt.Errorf("mount /proc: %w", err)
	}
	run, err := os.StartProcess("/proc/self/exe", append([]string{os.Args[0], "inside"}, args...), &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return 1, err
	}
	go forward(run)
	status, err := waitFor(run.Pid)
	if err != nil {
		return 1, err
	}
	unix.Kill(-1, unix.SIGKILL) // all processes but this one
	waitFor(-1)
	if status.Signaled() {
		return 1, fmt.Errorf("the run was ended by a signal: %v", status.Signal())
	}
	return status.ExitStatus(), nil
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
