package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// holdLock starts a process that has a shared lock on the file of s.lock, and returns when it has it.
func (s *site) holdLock() *exec.Cmd {
	s.t.Helper()
	return s.startLine("flock", "--shared", s.lock(), "sh", "-c", "echo; exec sleep 600")
}

// lock returns the path of a lock file.
func (s *site) lock() string { return s.dir + "/lock" }

// startLine starts a process that prints a line when it is ready. It ends with the test.
func (s *site) startLine(words ...string) *exec.Cmd {
	s.t.Helper()
	cmd := s.command(words...)
	out, err := cmd.StdoutPipe()
	s.check(err)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	s.check(cmd.Start())
	s.t.Cleanup(func() { killGroup(cmd) })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		s.t.Fatalf("%q: %v", words, err)
	}
	return cmd
}

// killGroup kills a process of startLine and its children.
func killGroup(cmd *exec.Cmd) {
	unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	cmd.Wait()
}

// wantUnmounted waits until nothing is mounted, and the daemon has ended.
func (s *site) wantUnmounted() {
	s.t.Helper()
	s.eventually("it is unmounted", func() bool { return len(s.mounts()) == 0 && len(s.sockets()) == 0 })
}

// stays fails the test if the mount ends while its daemon looks a few times whether it is used.
func (s *site) stays() {
	s.t.Helper()
	time.Sleep(3 * lockPause)
	if len(s.mounts()) == 0 {
		s.t.Error("it is unmounted")
	}
}

// A mount with --while-locked ends when its last user was killed, and not before. It stays while files are
// open, and while a process has the lock in its environment.
func TestWhileLocked(t *testing.T) {
	drivertest.Need(t, "flock")
	for _, user := range []string{"root", "nobody"} {
		t.Run(user, func(t *testing.T) {
			s := newSite(t)
			if user == "nobody" {
				s.inNamespace(fuseForAll)
				s.giveToNobody()
			}
			s.write("f", 10_000)
			s.check(os.WriteFile(s.lock(), nil, 0o666))
			s.check(os.Chmod(s.lock(), 0o666))
			words := append([]string{"mount", "--while-locked", s.lock()}, s.mountWords("64MiB")[1:]...)

			first, second := s.holdLock(), s.holdLock()
			s.milkweed(words...)
			if got := s.must("getfattr", "--only-values", "-n", "user.milkweed.lock", s.point); got != s.lock() {
				t.Errorf("the attribute is %q, want %q", got, s.lock())
			}
			reader := s.startLine("sh", "-c", `exec 3<"$1"; echo; exec sleep 600`, "sh", s.point+"/f")
			killGroup(first)
			s.stays()
			killGroup(second)
			s.stays()
			killGroup(reader)
			s.wantUnmounted()

			// It can be mounted again at once. The environment counts as a lock.
			first = s.holdLock()
			s.milkweed(words...)
			s.env = append(s.env, usesEnv+"=/other:"+s.lock())
			worker := s.startLine("sh", "-c", "echo; exec sleep 600")
			killGroup(first)
			s.stays()
			killGroup(worker)
			s.wantUnmounted()

			// A daemon with the environment of such a process does not wait for itself.
			first = s.holdLock()
			s.milkweed(words...)
			s.env = s.env[:len(s.env)-1]
			killGroup(first)
			s.wantUnmounted()
			s.wantNothing()
		})
	}
}

// A lock file that does not exist, and one that nobody has locked.
func TestWhileLockedWithoutLock(t *testing.T) {
	s := newSite(t)
	s.write("f", 10_000)
	words := append([]string{"mount", "--while-locked", s.lock()}, s.mountWords("64MiB")[1:]...)
	if r := s.try(words...); r.code != 2 || !strings.Contains(r.stderr, "--while-locked: ") {
		t.Errorf("without the file: exit code %d, %s", r.code, r.stderr)
	}
	s.check(os.WriteFile(s.lock(), nil, 0o600))
	s.milkweed(words...)
	s.wantUnmounted()
	s.wantNothing()
}
