// Package child runs this program in child processes: a command to its end, or a
// server that answers requests in JSON on its standard input and output.
package child

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// StopTimeout is how long a process may take to end after its input was closed.
const StopTimeout = 10 * time.Second

// Command returns a command that runs this program with the arguments, in the
// folder "/". When ctx is done, the process is killed.
//
// The process has a process group of its own. Ctrl-C in a terminal therefore
// reaches only the parent, which ends its children in the right order.
func Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Args[0] = programName
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second
	return cmd
}

// Run runs a command to its end and returns what it printed. If the command
// fails, the error has its exit code and its message.
func Run(cmd *exec.Cmd) (stdout, stderr []byte, err error) {
	var out bytes.Buffer
	var errs head
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, nil, failure(cmd, err, errs.data)
	}
	return out.Bytes(), errs.data, nil
}

// A Process is a child process that answers requests, as Serve does. Only one
// goroutine at a time may use it.
type Process struct {
	cmd      *exec.Cmd
	in       io.WriteCloser
	requests *json.Encoder
	replies  *json.Decoder
	stderr   head
	wait     func() error // ends the process at the first call
}

// Start starts a process.
func Start(cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd}
	cmd.Stderr = &p.stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in, p.requests, p.replies = in, json.NewEncoder(in), json.NewDecoder(out)
	p.wait = sync.OnceValue(p.end)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return p, nil
}

// Send sends a request. Several requests may be sent before the first reply is
// received.
func (p *Process) Send(request any) error {
	if err := p.requests.Encode(request); err != nil {
		return p.broken(err)
	}
	return nil
}

// Receive waits for the next reply and decodes it.
func (p *Process) Receive(reply any) error {
	if err := p.replies.Decode(reply); err != nil {
		return p.broken(err)
	}
	return nil
}

// broken ends the process, whose pipe failed with err, and returns the reason.
func (p *Process) broken(err error) error {
	if reason := p.Stop(); reason != nil {
		return reason
	}
	return failure(p.cmd, err, p.stderr.data)
}

// CloseInput makes the process end, and does not wait for that.
func (p *Process) CloseInput() { p.in.Close() }

// Stop ends the process and waits. It closes the standard input of the process,
// and kills the process after StopTimeout. It may be called more than once.
func (p *Process) Stop() error { return p.wait() }

func (p *Process) end() error {
	p.in.Close()
	kill := time.AfterFunc(StopTimeout, func() { p.cmd.Process.Kill() })
	defer kill.Stop()
	if err := p.cmd.Wait(); err != nil {
		return failure(p.cmd, err, p.stderr.data)
	}
	return nil
}

// Serve is the other end of a Process: it calls handle with each request that it
// decodes from in, until in ends. handle sends its replies with reply.
func Serve[Request any](in io.Reader, out io.Writer, handle func(r Request, reply func(any) error) error) error {
	requests, replies := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var r Request
		if err := requests.Decode(&r); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := handle(r, replies.Encode); err != nil {
			return err
		}
	}
}

const programName = "milkweed"

// failure is the error of a command that failed with err. The program reports an
// error as a line "milkweed: MESSAGE", which a remedy may follow. Only then is
// its exit code a documented one: the Go runtime exits with 2 after a panic.
func failure(cmd *exec.Cmd, err error, stderr []byte) error {
	command := strings.Join(cmd.Args[:min(2, len(cmd.Args))], " ")
	text := "\n" + strings.TrimSpace(string(stderr))
	_, message, reported := strings.Cut(text, "\n"+programName+": ")
	ended, exited := errors.AsType[*exec.ExitError](err)
	if reported && exited && ended.Exited() {
		first, remedy, _ := strings.Cut(message, "\n")
		return &exit.Error{
			Code:   exit.Code(ended.ExitCode()),
			Err:    fmt.Errorf("%s: %s", command, first),
			Remedy: strings.TrimSpace(remedy),
		}
	}
	if text != "\n" {
		return fmt.Errorf("%s: %w%s", command, err, text)
	}
	return fmt.Errorf("%s: %w", command, err)
}

// A head is a writer that keeps the first bytes, which are the important ones of
// an error message and of a panic.
type head struct{ data []byte }

const headSize = 8 << 10

func (h *head) Write(p []byte) (int, error) {
	h.data = append(h.data, p[:min(len(p), headSize-len(h.data))]...)
	return len(p), nil
}
