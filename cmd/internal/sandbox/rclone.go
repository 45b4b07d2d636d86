package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/child"
)

// RcloneOptions are the options of `rclone mount`; all others have their default
// values. Without --vfs-fast-fingerprint, rclone reads each file of a local
// folder a second time, for a checksum.
const RcloneOptions = "--vfs-cache-mode full --vfs-fast-fingerprint --read-only"

// RcloneVersion returns the version of rclone, or an error if it is not
// installed.
func RcloneVersion(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "rclone", "version").Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", errors.New("it is not installed")
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimPrefix(first, "rclone "), err
}

// A RcloneMount is a mount made by `rclone mount`, with an empty cache.
type RcloneMount struct {
	Point string

	cache  string // folder
	cmd    *exec.Cmd
	stderr bytes.Buffer
	ended  chan error
}

// MountRclone mounts a source in rclone's notation, such as ":local:/data". config
// is a configuration file, or "" for none. The caller must call Remove.
func (s *Sandbox) MountRclone(ctx context.Context, source, config string) (*RcloneMount, error) {
	point, err := s.Mkdir("mnt-rclone")
	if err != nil {
		return nil, err
	}
	cache, err := s.Mkdir("rclone-cache")
	if err != nil {
		return nil, err
	}
	args := append([]string{"mount", source, point, "--config", config, "--cache-dir", cache}, strings.Fields(RcloneOptions)...)
	m := &RcloneMount{cmd: exec.Command("rclone", args...), Point: point, cache: cache, ended: make(chan error, 1)}
	m.cmd.Stderr = &m.stderr
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := m.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { m.ended <- m.cmd.Wait() }()
	if err := m.wait(ctx); err != nil {
		err = errors.Join(err, m.Remove())
		return nil, fmt.Errorf("rclone mount: %w: %s", err, &m.stderr)
	}
	return m, nil
}

// wait waits until the mount is ready.
func (m *RcloneMount) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, child.StopTimeout,
		fmt.Errorf("not mounted after %v", child.StopTimeout))
	defer cancel()
	for {
		if mounted, err := isMounted(m.Point); err != nil || mounted {
			return err
		}
		select {
		case err := <-m.ended:
			m.ended <- err // for Remove
			return fmt.Errorf("the process ended: %w", err)
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Remove unmounts the mount, ends the process and removes the folders.
func (m *RcloneMount) Remove() error {
	m.cmd.Process.Signal(syscall.SIGTERM) // rclone unmounts
	kill := time.AfterFunc(child.StopTimeout, func() { m.cmd.Process.Kill() })
	defer kill.Stop()
	<-m.ended
	mounted, err := isMounted(m.Point)
	if err == nil && mounted {
		var out []byte
		if out, err = exec.Command("fusermount3", "-u", "-z", m.Point).CombinedOutput(); err != nil {
			err = fmt.Errorf("fusermount3: %w: %s", err, out)
		}
	}
	if err != nil {
		return err
	}
	return removeAll([]string{m.Point, m.cache})
}
