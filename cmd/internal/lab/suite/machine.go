package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
)

// A machine finds what steps leave behind. All steps have their temporary files below its folder,
// which is in the environment of their processes.
type machine struct {
	dir    string        // the folder
	repo   string        // the checkout
	settle time.Duration // how long a step may take to end its last processes and loop devices
	alone  bool          // no other program on the machine uses Milkweed's names
	lock   *os.File
}

// settleTime is the settle of a machine that is busy: the kernel detaches a loop device a moment after
// its last user has ended.
const settleTime = 10 * time.Second

// shared are folders for files of all programs, in which a step may leave nothing of Milkweed's. Other
// tests of Milkweed may use the folders for temporary files at the same time, unless alone.
func shared(alone bool) []string {
	folders := []string{"/dev/shm", "/run", "/run/netns"}
	if alone {
		folders = append(folders, os.TempDir(), "/tmp", "/var/tmp")
	}
	for _, f := range []func() (string, error){os.UserHomeDir, os.UserCacheDir} {
		if dir, err := f(); err == nil {
			folders = append(folders, dir, filepath.Join(dir, ".local/state"))
		}
	}
	slices.Sort(folders)
	return slices.Compact(folders)
}

// temp is the folder for temporary files of the steps.
func (m *machine) temp() string { return filepath.Join(m.dir, "tmp") }

// programs is the folder of the programs that steps build.
func (m *machine) programs() string { return filepath.Join(m.dir, "programs") }

// open makes the folder, empty, and locks it. It refuses a folder that is not this user's, or that
// another run uses.
func (m *machine) open() error {
	if err := os.Mkdir(m.dir, 0o755); err != nil {
		var stat unix.Stat_t
		if err := unix.Lstat(m.dir, &stat); err != nil {
			return fmt.Errorf("%s: %w", m.dir, err)
		}
		if stat.Mode&unix.S_IFMT != unix.S_IFDIR || int(stat.Uid) != os.Geteuid() {
			return fmt.Errorf("%s is not a folder of this user; remove it, or set TMPDIR", m.dir)
		}
	}
	var err error
	if m.lock, err = os.Open(m.dir); err != nil {
		return err
	}
	if err := unix.Flock(int(m.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another run of this checkout uses %s: %w", m.dir, err)
	}
	if err := m.clean(); err != nil { // after a run that was killed
		return err
	}
	for _, dir := range []string{m.temp(), m.programs(), filepath.Join(m.dir, "go")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return os.Chmod(m.temp(), 0o1777) // for other users, as /tmp
}

// close removes the folder.
func (m *machine) close() error {
	defer m.lock.Close()
	if err := m.clean(); err != nil {
		return err
	}
	return os.RemoveAll(m.dir)
}

// A state is what a step may change on the machine and not leave changed.
type state map[string]bool

// look returns the state. Its elements are texts for people.
func (m *machine) look() (state, error) {
	found := make(state)
	points, err := mounts.Read(mounts.Self)
	if err != nil {
		return nil, err
	}
	for _, p := range points {
		if strings.HasPrefix(p.Point, m.dir+"/") || strings.HasPrefix(p.Source, m.dir+"/") {
			found["mount "+p.Point] = true
		}
	}
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, file := range loops {
		backing, err := os.ReadFile(file) // an error if it has just been detached
		if err == nil && bytes.HasPrefix(backing, []byte(m.dir+"/")) {
			found[fmt.Sprintf("loop device %s of %s", strings.Split(file, "/")[3], bytes.TrimSpace(backing))] = true
		}
	}
	links, err := os.ReadDir("/sys/class/net")
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		found["network interface "+l.Name()] = true
	}
	for _, dir := range shared(m.alone) {
		names, err := os.ReadDir(dir)
		if err != nil {
			continue // it does not exist
		}
		for _, n := range names {
			if strings.Contains(n.Name(), "milkweed") || dir == "/run/netns" {
				found["file "+filepath.Join(dir, n.Name())] = true
			}
		}
	}
	temp, err := os.ReadDir(m.temp())
	if err != nil {
		return nil, err
	}
	for _, n := range temp {
		found["file "+filepath.Join(m.temp(), n.Name())] = true
	}
	for pid, words := range m.processes() {
		found[fmt.Sprintf("process %d: %s", pid, words)] = true
	}
	untracked, err := m.untracked()
	if err != nil {
		return nil, err
	}
	for _, name := range untracked {
		found["file "+filepath.Join(m.repo, name)] = true
	}
	return found, nil
}

// untracked returns the files of the checkout that git neither tracks nor ignores. It returns none if
// the folder is not a checkout.
func (m *machine) untracked() ([]string, error) {
	if _, err := os.Stat(filepath.Join(m.repo, ".git")); err != nil {
		return nil, nil
	}
	cmd := exec.Command("git", "ls-files", "--others", "--exclude-standard")
	cmd.Dir = m.repo
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
}

// processes returns the command lines of the processes of the steps: those that have the folder in
// their environment or arguments.
func (m *machine) processes() map[int]string {
	found := make(map[int]string)
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// Both are empty if the process has ended, and environ if it is another user's.
		environ, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		words, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if bytes.Contains(environ, []byte(m.dir)) || bytes.Contains(words, []byte(m.dir)) {
			found[pid] = string(bytes.ReplaceAll(bytes.TrimRight(words, "\x00"), []byte{0}, []byte{' '}))
		}
	}
	return found
}

// left returns what is there and was not before.
func (m *machine) left(before state) ([]string, error) {
	for deadline := time.Now().Add(m.settle); ; time.Sleep(50 * time.Millisecond) {
		now, err := m.look()
		if err != nil {
			return nil, err
		}
		var left []string
		for what := range now {
			if !before[what] {
				left = append(left, what)
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			slices.Sort(left)
			return left, nil
		}
	}
}

// clean ends the processes of the steps, and removes their mounts and temporary files.
func (m *machine) clean() error {
	for pid := range m.processes() {
		unix.Kill(pid, unix.SIGKILL)
	}
	if err := mounts.End(m.dir); err != nil {
		return err // no file is removed through a mount
	}
	if err := os.RemoveAll(m.temp()); err != nil {
		return err
	}
	if err := os.MkdirAll(m.temp(), 0o755); err != nil {
		return err
	}
	return os.Chmod(m.temp(), 0o1777)
}
