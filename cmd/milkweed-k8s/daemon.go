package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// The descriptors of a daemon.
const (
	fuseFD   = 3 + iota // of /dev/fuse
	readyFD             // the daemon writes its verdict there, as to `milkweed mount`
	configFD            // the configuration
	googleFD            // the credentials of Google
)

// readyEnv tells milkweed that readyFD is the pipe for its verdict.
const readyEnv = "MILKWEED_READY_FD"

// stopTime is the time between SIGTERM and SIGKILL.
const stopTime = 10 * time.Second

// A daemon is the process milkweed of a volume.
type daemon struct {
	key    string
	source string
	device uint64 // of the file system; 0: it has ended, and another one has the number. mounter.mu guards it
	log    *slog.Logger

	cmd     *exec.Cmd
	verdict chan *failure // gets nil when the mount is ready, or the reason why it is not
	ready   atomic.Bool
	ended   chan struct{} // closed when the process has ended, or has not started
	lost    chan struct{} // closed when the process has ended, or was killed and does not end
}

func newDaemon(r request, log *slog.Logger) *daemon {
	return &daemon{key: r.Key, source: r.Volume.Source, device: r.Device, log: log, verdict: make(chan *failure, 1), ended: make(chan struct{}), lost: make(chan struct{})}
}

// isReady reports whether the daemon serves.
func (d *daemon) isReady() bool {
	select {
	case <-d.lost:
		return false
	default:
		return d.ready.Load()
	}
}

// pid returns the process ID of a daemon that was started.
func (d *daemon) pid() int { return d.cmd.Process.Pid }

// start starts the process. It calls gone before it closes d.ended, if it returns no error.
func (d *daemon) start(program string, words []string, v volume, device *os.File, stderr io.Writer, gone func()) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	files := []*os.File{device, w}
	defer func() {
		for _, f := range files[1:] {
			f.Close()
		}
	}()
	d.cmd = exec.Command(program, words...)
	d.cmd.Dir = "/"
	d.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", readyEnv, readyFD))
	for name, value := range v.Secrets {
		if name != googleCredentials {
			d.cmd.Env = append(d.cmd.Env, name+"="+value)
		}
	}
	for _, text := range []string{v.Configuration, v.Secrets[googleCredentials]} {
		f, err := inMemory(text)
		if err != nil {
			r.Close()
			return err
		}
		files = append(files, f)
	}
	if v.Secrets[googleCredentials] != "" {
		d.cmd.Env = append(d.cmd.Env, fmt.Sprintf("GOOGLE_APPLICATION_CREDENTIALS=/proc/self/fd/%d", googleFD))
	}
	d.cmd.Stderr, d.cmd.ExtraFiles = stderr, files
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGTERM}
	started := make(chan error)
	go func() {
		defer panics.Contain()
		// The kernel sends Pdeathsig when the thread ends that has started the process.
		runtime.LockOSThread()
		err := d.cmd.Start()
		started <- err
		if err == nil {
			d.wait(gone)
		}
	}()
	if err := <-started; err != nil {
		r.Close()
		return &exit.Error{Code: exit.Failure, Err: err, Remedy: "--milkweed of the mounter is the path of the program."}
	}
	go func() {
		defer panics.Contain()
		defer r.Close()
		d.verdict <- readVerdict(r)
	}()
	return nil
}

// wait waits for the end of the process.
func (d *daemon) wait(gone func()) {
	defer close(d.ended)
	defer gone()
	go func() {
		defer panics.Contain()
		defer close(d.lost)
		d.watch()
	}()
	err := d.cmd.Wait()
	if d.ready.Load() && err != nil {
		d.log.Error("a daemon has died: its mount fails with ENOTCONN until the plugin mounts it again", "err", err)
	} else {
		d.log.Info("a daemon has ended", "pid", d.pid(), "err", err)
	}
}

// watch returns when the process has ended, or was killed and does not end: a thread of it waits for a reply
// that only the daemon could give. The plugin aborts the connection then.
func (d *daemon) watch() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-d.ended:
			return
		case <-tick.C:
		}
		if procs.Dying(d.pid()) {
			d.log.Warn("a daemon was killed, and has not ended", "pid", d.pid())
			return
		}
	}
}

// inMemory returns an open file in memory with a content.
func inMemory(content string) (*os.File, error) {
	fd, err := unix.MemfdCreate("milkweed", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "memfd")
	if _, err := io.Copy(f, strings.NewReader(content)); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// readVerdict reads what milkweed reports when it is ready or has failed.
func readVerdict(r io.Reader) *failure {
	var v struct {
		Ready   bool     `json:"ready"`
		Failure *failure `json:"failure"`
	}
	switch err := json.NewDecoder(r).Decode(&v); {
	case err == nil && v.Ready:
		return nil
	case err == nil && v.Failure != nil:
		return v.Failure
	}
	return &failure{Code: exit.Failure, Message: "milkweed has ended before the mount was ready", Remedy: "The log of the mounter has its last messages."}
}

// awaitReady waits until the mount is ready. An error is that of milkweed.
func (d *daemon) awaitReady(ctx context.Context) error {
	select {
	case f := <-d.verdict:
		if f != nil {
			return f.err()
		}
		d.ready.Store(true)
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("the mount was not ready in time"), ctx.Err())
	}
}

// stop ends the process, and returns when it has ended, or ctx is done.
func (d *daemon) stop(ctx context.Context) {
	d.cmd.Process.Signal(unix.SIGTERM)
	kill := time.AfterFunc(stopTime, func() { defer panics.Contain(); d.cmd.Process.Kill() })
	defer kill.Stop()
	select {
	case <-d.ended:
	case <-ctx.Done():
	}
}
