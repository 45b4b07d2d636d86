package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// A command that mounts returns when the mount is ready. What happens until
// then:
//
//  1. The command starts this program again, with the same words, in a session
//     of its own, and with the writing end of a pipe whose number is in
//     readyEnv. It then reads the pipe.
//  2. That process, the daemon, mounts. It still has the command's standard
//     error, so that its warnings are seen.
//  3. When the mount is ready, or cannot be made, the daemon writes a verdict.
//     If it is ready it first lets go of the standard error and of the folder
//     it stands in: the one may be a pipe that somebody reads to its end, the
//     other may be to be unmounted.
//  4. The command exits as the verdict says. A pipe that ends without one is a
//     daemon that died.

// readyEnv names the variable with the number of the pipe.
const readyEnv = "MILKWEED_READY_FD"

// termTimeout is how long a daemon that was asked to end is waited for.
const termTimeout = 10 * time.Second

// A verdict is what the daemon tells the command that started it, once.
type verdict struct {
	Ready   bool             `json:"ready"`
	Failure *control.Failure `json:"failure,omitempty"` // nil if it is ready
}

// startDaemon starts this program again as a daemon, and returns when that is
// ready. The end of ctx before ends the daemon too.
func startDaemon(ctx context.Context) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd := exec.Command("/proc/self/exe") // also after the file was replaced
	cmd.Args = os.Args
	cmd.Env = append(os.Environ(), readyEnv+"=3")
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{w} // the first of them is 3
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return err
	}
	heard := make(chan *verdict, 1)
	go func() { heard <- readVerdict(r) }()
	select {
	case v := <-heard:
		return follow(cmd, v)
	case <-ctx.Done():
	}
	end(cmd)
	<-heard
	return ctx.Err()
}

// readVerdict returns nil if the pipe ends without one.
func readVerdict(r io.Reader) *verdict {
	var v verdict
	if err := json.NewDecoder(r).Decode(&v); err != nil {
		return nil
	}
	return &v
}

// follow does what the verdict says.
func follow(cmd *exec.Cmd, v *verdict) error {
	if v != nil && v.Ready {
		return cmd.Process.Release()
	}
	err := cmd.Wait()
	if v != nil && v.Failure != nil {
		return v.Failure.Err()
	}
	if err == nil {
		err = errors.New("it ended")
	}
	return &exit.Error{
		Code:   exit.Failure,
		Err:    fmt.Errorf("the daemon died before the mount was ready: %w", err),
		Remedy: "What it said last stands above. `milkweed mount --foreground` shows more.",
	}
}

// end asks a daemon to end, and makes it when it does not.
func end(cmd *exec.Cmd) {
	cmd.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(termTimeout, func() { cmd.Process.Kill() })
	defer kill.Stop()
	cmd.Wait()
}

// A starter is the command that started this daemon, as the daemon sees it.
type starter struct {
	pipe *os.File // nil once the verdict is written
}

// asDaemon returns the command that started this process as a daemon, nil if
// none did.
func asDaemon() (*starter, error) {
	said, ok := os.LookupEnv(readyEnv)
	if !ok {
		return nil, nil
	}
	os.Unsetenv(readyEnv) // it is not for what the daemon starts
	fd, err := strconv.Atoi(said)
	if err != nil || fd <= 2 {
		return nil, fmt.Errorf("%s is %q, not the number of a pipe", readyEnv, said)
	}
	unix.CloseOnExec(fd)
	return &starter{os.NewFile(uintptr(fd), "ready")}, nil
}

// ready tells that the mount is ready, and lets go of what is the command's.
// From then on the standard error is the log file, for the Go runtime, which
// writes there why it panicked; or nothing, without one.
func (s *starter) ready(log *os.File) {
	os.Chdir("/")
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
	s.tell(verdict{Ready: true})
}

// end tells why the daemon ended, if it was not ready before: then the error
// it returns has been reported.
func (s *starter) end(err error) error {
	if s.pipe == nil {
		return err
	}
	if err == nil {
		err = errors.New("the mount ended before it was ready")
	}
	f := control.Fail(err)
	s.tell(verdict{Failure: &f})
	return &reported{err}
}

// tell writes the verdict. If the command has gone there is nobody to tell.
func (s *starter) tell(v verdict) {
	json.NewEncoder(s.pipe).Encode(v)
	s.pipe.Close()
	s.pipe = nil
}

// A reported is an error that the user is told by another process.
type reported struct{ error }

func (r *reported) Unwrap() error { return r.error }

func (r *reported) Is(target error) bool { return target == errReported }
