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
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// The demo and the benchmark are families of processes. Each child is in a
// process group of its own: Ctrl-C is for the parent, which ends the others in
// the order in which that works.

// self is a command that starts this program again.
func self(ctx context.Context, words ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", words...)
	cmd.Args[0] = "milkweed"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// A peer is a child that is told things and answers in JSON.
type peer struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// startPeer starts a process with pipes to it and from it.
func startPeer(cmd *exec.Cmd, stderr io.Writer) (*peer, error) {
	cmd.Stderr = stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &peer{cmd, in, json.NewDecoder(out)}, cmd.Start()
}

// stop ends the process by ending its input, and makes it when it does not.
func (p *peer) stop() error {
	p.in.Close()
	kill := time.AfterFunc(termTimeout, func() { p.cmd.Process.Kill() })
	defer kill.Stop()
	return p.cmd.Wait()
}

// mountError is the error of a command that has said what is wrong.
func mountError(err error) error {
	if ended, ok := errors.AsType[*exec.ExitError](err); ok && ended.Exited() {
		return &reported{&exit.Error{Code: exit.Code(ended.ExitCode()), Err: err}}
	}
	return fmt.Errorf("milkweed mount: %w", err)
}

// also calls f, and joins what it returns to an error that is being returned.
func also(err *error, f func() error) { *err = errors.Join(*err, f()) }

// interruption is the error of what failed because ctx is done: that alone.
func interruption(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// survivePipes makes a standard output that is closed on us, as by
// `milkweed demo | head`, an error to clean up after, not the end, until stop
// is called.
func survivePipes() (stop func()) {
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	return func() { signal.Stop(pipes) }
}
