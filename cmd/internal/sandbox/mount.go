package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/child"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
)

// A Tier is a tier of a mount, in a folder of its own.
type Tier struct {
	Name   string
	Memory bool  // the folder is in Sandbox.Memory, not in Sandbox.Root
	Quota  int64 // bytes
}

// MountConfig describes a mount of Milkweed.
type MountConfig struct {
	Name    string // part of the names of the folders; unique in a sandbox
	Source  string
	Mode    string // of the option mode; "auto" lets the daemon choose
	Tiers   []Tier
	User    *syscall.Credential // mounts and owns the folders; nil is the user of this process
	Private bool                // only the Mount finds the daemon; else `milkweed status` does too
	Stderr  io.Writer           // receives the warnings of `milkweed mount`; nil discards them
}

// A Mount is a mount made by `milkweed mount`. It talks to its daemon through the
// commands of the program, as users do.
type Mount struct {
	Point string
	Mode  string // in effect: passthrough, stateless or cached

	config  MountConfig
	run     string      // the folder of the log and, if private, of the control socket
	folders []string    // all folders: of the mount point, run, and the tiers
	daemon  *os.Process // nil until the mount is ready
}

// Mount makes the folders of a mount and mounts it. The caller must call Unmount
// or Remove.
func (s *Sandbox) Mount(ctx context.Context, config MountConfig) (*Mount, error) {
	m := &Mount{Point: s.Path("mnt-" + config.Name), run: s.Path("run-" + config.Name), config: config}
	m.folders = []string{m.Point, m.run}
	// The files of a sandbox are new, and their clock is the local one.
	args := []string{"mount", "--log-file", filepath.Join(m.run, "log"), "-o", "clock_skew=0s,mode=" + config.Mode}
	for _, t := range config.Tiers {
		parent := s.Root
		if t.Memory {
			parent = s.Memory
		}
		folder := filepath.Join(parent, "tier-"+config.Name+"-"+t.Name)
		m.folders = append(m.folders, folder)
		args = append(args, "--tier", fmt.Sprintf("%s:%s:%d", t.Name, folder, t.Quota))
	}
	if err := s.makeFolders(m); err != nil {
		return nil, errors.Join(err, m.Remove())
	}
	cmd := m.command(ctx, append(args, config.Source, m.Point)...)
	// On SIGTERM the command ends its daemon before it exits.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = child.StopTimeout + time.Second
	_, warnings, err := child.Run(cmd)
	if err == nil {
		err = m.connect(ctx)
	}
	if err != nil {
		return nil, errors.Join(cmp.Or(ctx.Err(), err), m.Remove())
	}
	if config.Stderr != nil {
		config.Stderr.Write(warnings)
	}
	return m, nil
}

// makeFolders makes the folders of a mount, for its user.
func (s *Sandbox) makeFolders(m *Mount) error {
	for _, dir := range m.folders {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(m.run, 0o700); err != nil { // required of a folder with a control socket
		return err
	}
	user := m.config.User
	if user == nil {
		return nil
	}
	for _, dir := range s.Folders() { // the user passes through them
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	for _, dir := range m.folders {
		if err := os.Chown(dir, int(user.Uid), int(user.Gid)); err != nil {
			return err
		}
	}
	return nil
}

// connect reads the status of a new mount and checks its mode.
func (m *Mount) connect(ctx context.Context) error {
	s, err := m.Status(ctx)
	if err != nil {
		return err
	}
	if m.daemon, err = os.FindProcess(s.PID); err != nil {
		return err
	}
	if m.Mode = s.Mode; m.config.Mode != "auto" && m.config.Mode != s.Mode {
		return fmt.Errorf("the mode of the mount is %s, not %s", s.Mode, m.config.Mode)
	}
	return nil
}

// command returns a command of this program that the user of the mount runs.
func (m *Mount) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := child.Command(ctx, args...)
	if m.config.Private {
		cmd.Env = append(os.Environ(), control.FolderEnv+"="+m.run)
	}
	cmd.SysProcAttr.Credential = m.config.User
	return cmd
}

// Status returns the status of the daemon.
func (m *Mount) Status(ctx context.Context) (control.Status, error) {
	out, _, err := child.Run(m.command(ctx, "status", "--json", m.Point))
	if err != nil {
		return control.Status{}, err
	}
	return control.DecodeStatus(out)
}

// copyTimeout bounds the time for which copies continue after the last read.
const copyTimeout = 10 * time.Second

// WaitCopied waits until no copy is in flight, and returns the status then.
func (m *Mount) WaitCopied(ctx context.Context) (control.Status, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, copyTimeout,
		fmt.Errorf("copies are still in flight after %v", copyTimeout))
	defer cancel()
	for {
		s, err := m.Status(ctx)
		if ctx.Err() != nil {
			return s, context.Cause(ctx)
		}
		if err != nil || s.Fills.InFlight == 0 {
			return s, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Warmup copies all files to the tiers.
func (m *Mount) Warmup(ctx context.Context) error {
	out, _, err := child.Run(m.command(ctx, "warmup", "--json", m.Point))
	if err != nil {
		return err
	}
	var p control.Progress
	if err := json.Unmarshal(out, &p); err != nil {
		return err
	}
	if p.FilesDone != p.FilesTotal {
		return fmt.Errorf("%d of %d files were placed", p.FilesDone, p.FilesTotal)
	}
	return nil
}

// Unmount unmounts the mount, if it is mounted, and ends its daemon. If a process
// uses the mount, the daemon is killed and the mount detached.
func (m *Mount) Unmount() error {
	mounted, err := isMounted(m.Point)
	if err != nil || !mounted {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*child.StopTimeout)
	defer cancel()
	_, _, err = child.Run(m.command(ctx, "umount", m.Point))
	if err == nil {
		return nil
	}
	m.kill()
	if exit.Of(err) == exit.MountPoint { // it is in use
		err = nil
	}
	return errors.Join(err, detach(m.Point))
}

// kill kills the daemon and waits until the process has gone.
func (m *Mount) kill() {
	if m.daemon == nil {
		return
	}
	m.daemon.Kill()
	for range 100 {
		if m.daemon.Signal(syscall.Signal(0)) != nil {
			return
		}
		time.Sleep(child.StopTimeout / 100)
	}
}

// Remove unmounts the mount and removes its folders.
func (m *Mount) Remove() error {
	if err := m.Unmount(); err != nil {
		return err // files could be removed through the mount
	}
	return removeAll(m.folders)
}

// isMounted reports whether a file system is mounted at a point.
func isMounted(point string) (bool, error) {
	points, err := mounts.Below(filepath.Dir(point))
	return slices.Contains(points, point), err
}
