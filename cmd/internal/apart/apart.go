// Package apart runs commands in a process of their own. A process with a thread in a system call of a
// file system that hangs cannot be ended, also by SIGKILL: it stays, with its open files, until the file
// system answers. The process that the user has started must not be that one.
package apart

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// variable is set in the environment of a child. reportFD is its descriptor for what it reports: opened, once,
// if it calls Opened, and then its exit code.
const (
	variable = "MILKWEED_APART"
	reportFD = 3
	opened   = '+'
)

// Inside reports whether this process is a child of Run. Its own children are not.
var Inside = sync.OnceValue(func() bool {
	inside := os.Getenv(variable) != ""
	if inside {
		os.Unsetenv(variable)
		unix.CloseOnExec(reportFD)
	}
	return inside
})

// Opened ends the limit of Run, if this process is a child: the file systems have answered, and what follows
// may take long.
func Opened() {
	if Inside() {
		unix.Write(reportFD, []byte{opened})
	}
}

// Exit ends this process. If it is a child, its parent need not wait for the end.
func Exit(code int) {
	if Inside() {
		os.Stdout.Close() // the files of a process that cannot end stay open
		os.Stderr.Close()
		report := os.NewFile(reportFD, "exit code")
		fmt.Fprint(report, code)
		report.Close()
	}
	os.Exit(code)
}

// grace is how long a child may take to end when its parent was asked to.
const grace = 2 * time.Second

// ErrHangs is the error of a child that did not end in time.
var ErrHangs = errors.New("a file system hangs")

// Run runs this program again, with its arguments and standard files, in a child whose main function calls
// Exit, and returns the exit code. When ctx is done, the child gets SIGTERM, and grace later Run returns the
// cause of ctx, whether or not the child has ended. The same happens after limit, with the error ErrHangs,
// unless the child has called Opened.
func Run(ctx context.Context, limit time.Duration) (code int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(limit, func() { cancel(ErrHangs) })
	defer timer.Stop()
	runtime.LockOSThread() // Pdeathsig is sent when the thread ends
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), variable+"=1")
	cmd.Stdin = os.Stdin
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	report, reportEnd, err := os.Pipe()
	if err != nil {
		return 1, err
	}
	defer report.Close()
	cmd.ExtraFiles = []*os.File{reportEnd}
	var output relay
	cmd.Stdout, cmd.Stderr = output.add(os.Stdout), output.add(os.Stderr)
	err = cmd.Start()
	reportEnd.Close()
	output.started()
	if err != nil {
		return 1, fmt.Errorf("start %s: %w", os.Args[0], err)
	}
	ended := make(chan string, 1)
	go func() {
		defer panics.Contain()
		from := bufio.NewReader(report)
		if first, _ := from.ReadByte(); first == opened {
			timer.Stop()
		} else {
			from.UnreadByte()
		}
		text, _ := io.ReadAll(from) // without text, the child has died
		output.copying.Wait()
		ended <- string(text)
	}()
	var expired <-chan time.Time
	interrupted := ctx.Done()
	for {
		select {
		case text := <-ended:
			code, err := strconv.Atoi(strings.TrimSpace(text))
			if context.Cause(ctx) == ErrHangs { // it ended because it was asked to
				code, err = 1, ErrHangs
			} else if err != nil {
				return 1, cmd.Wait()
			}
			awaitEnd(cmd)
			return code, err
		case <-interrupted:
			interrupted = nil
			cmd.Process.Signal(syscall.SIGTERM)
			timer := time.NewTimer(grace)
			defer timer.Stop()
			expired = timer.C
		case <-expired:
			cmd.Process.Kill()
			return 1, context.Cause(ctx)
		}
	}
}

// awaitEnd waits until a child that has called Exit has ended, for grace at most: a thread of it may be in
// a system call that hangs.
func awaitEnd(cmd *exec.Cmd) {
	ended := make(chan struct{})
	go func() {
		defer panics.Contain()
		defer close(ended)
		cmd.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(grace):
	}
}

// A relay copies the output of a child to pipes and sockets: their readers wait for the end of the output,
// and so until no process has them open. A terminal or a file is given to the child.
type relay struct {
	ends    []*os.File // for the child
	copying sync.WaitGroup
}

// add returns the file that the child gets in place of f.
func (r *relay) add(f *os.File) *os.File {
	info, err := f.Stat()
	if err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		return f
	}
	from, end, err := os.Pipe()
	if err != nil {
		return f
	}
	r.ends = append(r.ends, end)
	r.copying.Go(func() {
		defer panics.Contain()
		defer from.Close()
		io.Copy(f, from)
	})
	return end
}

// started closes the files that the child has got.
func (r *relay) started() {
	for _, end := range r.ends {
		end.Close()
	}
}
