package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
)

// A benchUser is another user, who mounts and reads; nil is this one.
type benchUser = syscall.Credential

// nobodyID is the user without rights, where root runs the benchmark.
const nobodyID = 65534

// unprivileged returns that user, or why there is none.
func unprivileged() (*benchUser, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("without root every mount is one without privilege")
	}
	if _, err := exec.LookPath("fusermount3"); err != nil {
		return nil, err
	}
	var s unix.Stat_t
	if err := unix.Stat("/dev/fuse", &s); err != nil {
		return nil, fmt.Errorf("/dev/fuse: %w", err)
	}
	if s.Mode&0o006 != 0o006 {
		return nil, fmt.Errorf("/dev/fuse may not be opened by uid %d", nobodyID)
	}
	return &benchUser{Uid: nobodyID, Gid: nobodyID}, nil
}

// A benchMount is a mount of `milkweed mount`, which is asked things as a user
// asks them, by commands.
type benchMount struct {
	point string
	run   string   // the folder of its socket and its log
	tiers []string // their folders
	user  *benchUser
	mode  string // in which the kernel is served
}

// A benchTier is a tier of such a mount.
type benchTier struct {
	name, folder string
	quota        int64
}

// mountFor mounts source in a mode. The folders of the tiers are to be there.
func (p *benchPlaces) mountFor(ctx context.Context, name, mode, source string, tiers []benchTier, user *benchUser) (*benchMount, error) {
	point, err := p.make("mnt-"+name, user)
	if err != nil {
		return nil, err
	}
	m := &benchMount{point: point, user: user}
	if m.run, err = p.make("run-"+name, user); err != nil {
		return nil, err
	}
	if err := os.Chmod(m.run, 0o700); err != nil { // as a folder of sockets has to be
		return nil, err
	}
	words := []string{"mount", "--log-file", filepath.Join(m.run, "log"), "-o", "mode=" + mode}
	for _, t := range tiers {
		m.tiers = append(m.tiers, t.folder)
		words = append(words, "--tier", fmt.Sprintf("%s:%s:%d", t.name, t.folder, t.quota))
	}
	cmd := m.command(ctx, append(words, source, point)...)
	// It ends its daemon first.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = termTimeout + time.Second
	_, err = m.output(cmd)
	if err == nil {
		err = m.wantMode(ctx, mode)
	}
	if err != nil {
		return nil, errors.Join(interruption(ctx, err), m.remove())
	}
	return m, nil
}

// wantMode notes the mode in which the kernel is served, and is an error if
// another was asked for.
func (m *benchMount) wantMode(ctx context.Context, mode string) error {
	s, err := m.status(ctx)
	m.mode = s.Mode
	if err == nil && mode != "auto" && s.Mode != mode {
		err = fmt.Errorf("the mount serves %s, where %s was asked for", s.Mode, mode)
	}
	return err
}

// command is this program, run by the mount's user.
func (m *benchMount) command(ctx context.Context, words ...string) *exec.Cmd {
	cmd := self(ctx, words...)
	cmd.Env = append(os.Environ(), control.FolderEnv+"="+m.run)
	cmd.Dir = "/"
	cmd.SysProcAttr.Credential = m.user
	return cmd
}

// output runs a command, and returns what it prints. The error is what it says.
func (m *benchMount) output(cmd *exec.Cmd) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		said, _, _ := strings.Cut(strings.TrimPrefix(stderr.String(), "milkweed: "), "\n")
		return nil, fmt.Errorf("milkweed %s: %w: %s", cmd.Args[1], err, said)
	}
	return stdout.Bytes(), nil
}

func (m *benchMount) status(ctx context.Context) (control.Status, error) {
	out, err := m.output(m.command(ctx, "status", "--json", m.point))
	if err != nil {
		return control.Status{}, err
	}
	return control.DecodeStatus(out)
}

// settle waits until no copy is under way, and returns the bytes that the tiers
// have been given.
func (m *benchMount) settle(ctx context.Context) (placed int64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, settleTimeout, errors.New("the copies do not end"))
	defer cancel()
	for ctx.Err() == nil {
		s, err := m.status(ctx)
		if err != nil || s.Fills.InFlight == 0 {
			return s.Placement.PlacedBytes, err
		}
	}
	return 0, context.Cause(ctx)
}

// warm has every file copied to the tiers.
func (m *benchMount) warm(ctx context.Context) error {
	out, err := m.output(m.command(ctx, "warmup", "--json", m.point))
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

// remove unmounts, and removes the copies.
func (m *benchMount) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*termTimeout)
	defer cancel()
	mounted, err := mountedOn(m.point)
	if err == nil && mounted {
		_, err = m.output(m.command(ctx, "umount", m.point))
	}
	if err != nil {
		return err // nothing is removed through a mount
	}
	return removeAll(append([]string{m.point, m.run}, m.tiers...))
}

func mountedOn(point string) (bool, error) {
	points, err := mounts.Below(filepath.Dir(point))
	return slices.Contains(points, point), err
}

// An rcloneMount is a mount of `rclone mount` with a full cache.
type rcloneMount struct {
	cmd          *exec.Cmd
	point, cache string
	ended        chan error
}

// rcloneWords are its options; all others have their defaults. Without the second
// it reads each file of a local folder once more, for a checksum.
const rcloneWords = "--vfs-cache-mode full --vfs-fast-fingerprint --read-only"

// mountRclone mounts what rclone calls source, with a configuration, "" for none,
// and returns when it can be read.
func (p *benchPlaces) mountRclone(ctx context.Context, source, config string) (*rcloneMount, error) {
	point, err := p.make("mnt-rclone", nil)
	if err != nil {
		return nil, err
	}
	cache, err := p.make("rclone-cache", nil)
	if err != nil {
		return nil, err
	}
	words := append([]string{"mount", source, point, "--config", config, "--cache-dir", cache}, strings.Fields(rcloneWords)...)
	r := &rcloneMount{cmd: exec.Command("rclone", words...), point: point, cache: cache, ended: make(chan error, 1)}
	var said bytes.Buffer
	r.cmd.Stderr = &said
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { r.ended <- r.cmd.Wait() }()
	if err := r.wait(ctx); err != nil {
		err = errors.Join(err, r.remove())
		return nil, fmt.Errorf("rclone mount: %w: %s", err, said.String())
	}
	return r, nil
}

// wait waits until it is mounted.
func (r *rcloneMount) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, termTimeout, errors.New("it does not mount"))
	defer cancel()
	for {
		if mounted, err := mountedOn(r.point); err != nil || mounted {
			return err
		}
		select {
		case err := <-r.ended:
			r.ended <- err
			return fmt.Errorf("it ended: %w", err)
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// remove unmounts, ends the process and removes the cache.
func (r *rcloneMount) remove() error {
	r.cmd.Process.Signal(syscall.SIGTERM) // it unmounts
	kill := time.AfterFunc(termTimeout, func() { r.cmd.Process.Kill() })
	defer kill.Stop()
	<-r.ended
	if mounted, err := mountedOn(r.point); err != nil || mounted {
		return errors.Join(err, unmount(context.Background(), r.point, true))
	}
	return removeAll([]string{r.point, r.cache})
}

// rcloneVersion returns the version of rclone, or why it is left out.
func rcloneVersion(ctx context.Context, wanted string) (version string, err error) {
	if wanted == "off" {
		return "", errors.New("by --rclone off")
	}
	out, err := exec.CommandContext(ctx, "rclone", "version").Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", errors.New("it is not installed")
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimPrefix(first, "rclone "), err
}
