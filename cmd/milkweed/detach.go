package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/automount"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// The command `milkweed mount` returns when the mount is ready:
//
//  1. The command starts this program again, with the same arguments, in a new session. The
//     child inherits the write end of a pipe; readyEnv has its file descriptor. The command
//     reads from the pipe. Under an automounter, the session begins later: see package automount.
//  2. The child, which is the daemon, mounts. It has the standard error of the command, so that
//     the user sees its warnings.
//  3. When the mount is ready or has failed, the daemon writes a verdict to the pipe. If the
//     mount is ready, the daemon first closes the standard error and changes its working
//     directory: another program may read the standard error to its end, and the working
//     directory may be in a file system that is to be unmounted.
//  4. The command exits with the code of the verdict. If the pipe ends without a verdict, the
//     daemon has died.

// readyEnv is the environment variable with the file descriptor of the pipe.
const readyEnv = "MILKWEED_READY_FD"

// termTimeout is the time between SIGTERM and SIGKILL.
const termTimeout = 10 * time.Second

// passTime is the time in which a daemon gets one signal more than once: a service manager sends it to all
// processes, and the command or the supervisor passes it on.
const passTime = 2 * time.Second

// A verdict is the message of the daemon to the command that started it.
type verdict struct {
	Ready   bool             `json:"ready"`
	Failure *control.Failure `json:"failure,omitempty"` // nil if Ready
}

// startDaemon starts this program again as a daemon, and returns when the daemon is ready or has
// failed. point is the mount point, or "". If ctx is done before, startDaemon ends the daemon.
func startDaemon(ctx context.Context, point string) error {
	cmd, verdicts, err := spawn("", point)
	if err != nil {
		return err
	}
	select {
	case v := <-verdicts:
		if ctx.Err() == nil {
			return follow(cmd, v)
		}
	case <-ctx.Done():
	}
	end(cmd)
	return ctx.Err()
}

// spawn starts this program again, as a daemon that mounts on point, in the directory dir and with
// additions to the environment. The channel gets the verdict of the child, or nil if the child ends
// without one.
func spawn(dir, point string, env ...string) (*exec.Cmd, <-chan *verdict, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command("/proc/self/exe") // this program, even if its file was replaced
	cmd.Args = os.Args
	cmd.Dir = dir
	attributes, more := automount.Attributes(point)
	cmd.Env = slices.Concat(os.Environ(), []string{readyEnv + "=3"}, env, more)
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{w} // descriptor 3 of the child
	cmd.SysProcAttr = attributes
	err = cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		return nil, nil, err
	}
	verdicts := make(chan *verdict, 1)
	go func() {
		defer r.Close()
		verdicts <- readVerdict(r)
	}()
	return cmd, verdicts, nil
}

// readVerdict reads a verdict. It returns nil if the pipe ends without one.
func readVerdict(r io.Reader) *verdict {
	var v verdict
	if err := json.NewDecoder(r).Decode(&v); err != nil {
		return nil
	}
	return &v
}

// follow returns the result of a daemon that wrote the verdict v, which may be nil.
func follow(cmd *exec.Cmd, v *verdict) error {
	if v != nil && v.Ready {
		return cmd.Process.Release()
	}
	return failure(v, cmd.Wait())
}

// failure returns the error of a daemon that was not ready when it ended with err. Its verdict v
// may be nil.
func failure(v *verdict, err error) error {
	if v != nil && v.Failure != nil {
		return v.Failure.Err()
	}
	if err == nil {
		err = errors.New("exit status 0")
	}
	return &exit.Error{
		Code:   exit.Failure,
		Err:    fmt.Errorf("the daemon died before the mount was ready: %w", err),
		Remedy: "Its last messages are above. `milkweed mount --foreground` shows more.",
	}
}

// end sends SIGTERM to a daemon and waits for its end. After termTimeout it sends SIGKILL.
func end(cmd *exec.Cmd) {
	cmd.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(termTimeout, func() { cmd.Process.Kill() })
	defer kill.Stop()
	cmd.Wait()
}

// A starter is the daemon's end of the pipe to the command that started it.
type starter struct {
	pipe *os.File // nil after the verdict was written
}

// asDaemon returns the starter of this process, or nil if this process is not a daemon that
// startDaemon started.
func asDaemon() (*starter, error) {
	value, ok := os.LookupEnv(readyEnv)
	if !ok {
		return nil, nil
	}
	os.Unsetenv(readyEnv) // child processes of the daemon do not inherit it
	fd, err := strconv.Atoi(value)
	if err != nil || fd <= 2 {
		return nil, fmt.Errorf("%s is %q, not the file descriptor of a pipe", readyEnv, value)
	}
	unix.CloseOnExec(fd)
	signal.Ignore(syscall.SIGTTOU) // with `stty tostop`, it would be stopped for its warnings
	// pgrep and top show this name. Without it, that is "exe". It does not matter if it cannot be set.
	os.WriteFile("/proc/self/comm", []byte("milkweed"), 0)
	return &starter{os.NewFile(uintptr(fd), "ready")}, nil
}

// ready reports that the mount is ready. parentEnds is whether the process that gets the report ends then.
func (s *starter) ready(parentEnds bool) {
	s.write(verdict{Ready: true})
	automount.NewSession(parentEnds)
}

// leave closes the descriptors that were inherited from the command. The standard output and the
// standard error become the log file, or /dev/null if log is nil: the Go runtime writes the message
// of a panic there.
func (s *starter) leave(log *os.File) {
	config.LeaveDirectory() // after an error, the process stays where it is
	if null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0); err == nil {
		defer null.Close()
		if log == nil {
			log = null
		}
	}
	if log != nil {
		unix.Dup3(int(log.Fd()), 1, 0)
		unix.Dup3(int(log.Fd()), 2, 0)
	}
}

// end reports the error of a daemon that ended before it was ready. It returns an error that
// matches errReported, because the command prints it. After ready, end returns err.
func (s *starter) end(err error) error {
	if s.pipe == nil {
		return err
	}
	if err == nil {
		err = errors.New("the mount ended before it was ready")
	}
	f := control.Fail(err)
	s.write(verdict{Failure: &f})
	return &reported{err}
}

// write writes the verdict and closes the pipe. It ignores errors: after one, the command has
// ended.
func (s *starter) write(v verdict) {
	json.NewEncoder(s.pipe).Encode(v)
	s.pipe.Close()
	s.pipe = nil
}

// A reported is an error that another process prints.
type reported struct{ error }

func (r *reported) Unwrap() error { return r.error }

func (r *reported) Is(target error) bool { return target == errReported }
