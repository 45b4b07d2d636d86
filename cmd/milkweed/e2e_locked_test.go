package main

import (
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A lockSite is a site whose mount ends when no process has the lock.
type lockSite struct {
	*site
	path string // of the lock file
}

// newLockSite returns a site of root, or of nobody.
func newLockSite(t *testing.T, root bool) lockSite {
	t.Helper()
	s := lockSite{site: newSite(t)}
	s.inNamespace(fuseForAll)
	s.path = s.dir + "/job.lock"
	s.write("f", 10_000)
	s.check(os.WriteFile(s.path, nil, 0o644))
	if !root {
		s.giveToNobody()
	}
	return s
}

// job starts a process that has a shared lock, and returns a function that kills it.
func (s lockSite) job() (kill func()) {
	s.t.Helper()
	return s.start("flock", "--no-fork", "--shared", s.path, "sh", "-c", "echo; exec sleep 600")
}

// reader starts a process that has a file of the mount open, and returns a function that kills it.
func (s lockSite) reader() (kill func()) {
	s.t.Helper()
	return s.start("sh", "-c", `exec 3<"$1"; echo; exec sleep 600`, "sh", s.point+"/f")
}

// start starts a process, waits until it prints something, and returns a function that kills it.
func (s lockSite) start(words ...string) (kill func()) {
	s.t.Helper()
	cmd := s.command(words...)
	out, err := cmd.StdoutPipe()
	s.check(err)
	s.check(cmd.Start())
	kill = sync.OnceFunc(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	s.t.Cleanup(kill)
	_, err = out.Read(make([]byte, 1))
	s.check(err)
	return kill
}

// mountAlone mounts while a job is there, and returns what kills the job.
func (s lockSite) mountAlone(flags ...string) (kill func()) {
	s.t.Helper()
	kill = s.job()
	s.milkweed(s.lockWords(flags...)...)
	return kill
}

func (s lockSite) lockWords(more ...string) []string {
	return append(append(s.mountWords("64MiB"), "--while-locked", s.path), more...)
}

// gone waits until nothing is mounted, and no process is left.
func (s lockSite) gone() {
	s.t.Helper()
	s.eventually("it has ended", func() bool { return len(s.mounts()) == 0 && len(s.processes()) == 0 })
}

// ended waits until the mount has ended, and has left nothing.
func (s lockSite) ended() {
	s.t.Helper()
	s.gone()
	s.wantNothing()
}

// logged waits until the log has a text.
func (s lockSite) logged(text string) {
	s.t.Helper()
	s.eventually(text, func() bool { return strings.Contains(s.logs(), text) })
}

const staysUnlocked = "the mount stays, although no process has a lock"

// A mount with --while-locked ends when its last job was killed, and not before. While a file is open, it stays, and
// another job may use it.
func TestWhileLocked(t *testing.T) {
	drivertest.Need(t, "flock")
	for name, root := range map[string]bool{"root": true, "nobody": false} {
		t.Run(name, func(t *testing.T) {
			parallel(t)
			s := newLockSite(t, root)
			first, second := s.job(), s.job()
			s.milkweed(s.lockWords()...)
			if got := s.status().WhileLocked; got != s.path {
				t.Errorf("the status has the lock %q, want %q", got, s.path)
			}
			if got, want := s.milkweed("status", s.point), "ends when no process has a lock on "+s.path; !strings.Contains(got, want) {
				t.Errorf("no %q in\n%s", want, got)
			}
			first()
			time.Sleep(3 * lockPause) // the daemon looks meanwhile
			reader := s.reader()
			second()
			s.logged(staysUnlocked)
			third := s.job()
			reader()
			time.Sleep(4 * lockPause)
			if got := s.must("wc", "-c", s.point+"/f"); !strings.HasPrefix(got, "10000 ") {
				t.Errorf("got %q", got)
			}
			third()
			s.ended()
			s.logged("unmounted, because no process has a lock")

			again := s.mountAlone()
			again()
			s.ended()
		})
	}
}

// The daemon is killed when no job is left: its supervisor does not mount again, and ends.
func TestWhileLockedCrash(t *testing.T) {
	drivertest.Need(t, "flock")
	parallel(t)
	s := newLockSite(t, true)
	kill := s.mountAlone("--supervise")
	pid := s.status().PID
	s.check(unix.Kill(pid, unix.SIGSTOP)) // it cannot unmount
	kill()
	s.check(unix.Kill(pid, unix.SIGKILL))
	s.gone()
}

// The daemon crashes after the lock file was removed, and a job may still have its lock: the mount comes back, and stays.
func TestWhileLockedFileRemoved(t *testing.T) {
	drivertest.Need(t, "flock")
	parallel(t)
	s := newLockSite(t, true)
	kill := s.mountAlone("--supervise")
	s.check(os.Remove(s.path))
	s.kill(s.status().PID, "f", s.write("f", 10_000))
	kill()
	s.umount()
	s.gone()
}

// A daemon that serves other mount namespaces has given up the lock: another job does not wait for it.
func TestWhileLockedDrain(t *testing.T) {
	drivertest.Need(t, "flock")
	parallel(t)
	s := newLockSite(t, true)
	kill := s.mountAlone()
	c := s.inContainer() // has a copy of the mount, and no open file
	kill()
	s.eventually("it is unmounted", func() bool { return len(s.mounts()) == 0 })
	again := s.mountAlone() // waits for the lock
	if got := s.milkweed("status"); !strings.Contains(got, "draining") {
		t.Errorf("the first daemon does not drain:\n%s", got)
	}
	c.end()
	again()
	s.ended()
}

// A mount that is in use keeps all its mount points. One whose point another mount hides does not keep the lock.
func TestWhileLockedPoints(t *testing.T) {
	drivertest.Need(t, "flock")
	parallel(t)
	s := newLockSite(t, true)
	second := s.dir + "/second"
	s.check(os.Mkdir(second, 0o755))
	kill := s.mountAlone()
	s.must("mount", "--bind", s.point, second)
	reader := s.reader()
	kill()
	s.logged(staysUnlocked)
	if got := s.mounts(); len(got) != 2 {
		t.Errorf("mounted are %q", got)
	}
	kill = s.job()
	reader()
	s.must("mount", "-t", "tmpfs", "none", s.point)
	kill()
	s.eventually("the second mount point is gone", func() bool { return len(s.mounts()) == 2 })
	kill = s.job() // gets the lock
	s.must("umount", s.point)
	s.must("cat", s.point+"/f")
	kill()
	s.ended()
}

// Nothing is mounted if no process has the lock, or there can be none.
func TestWhileLockedRefused(t *testing.T) {
	drivertest.Need(t, "flock")
	parallel(t)
	s := newLockSite(t, false)
	words := func(file string) []string { return append(s.mountWords("64MiB"), "--while-locked", file) }
	for _, c := range []struct {
		words []string
		code  exit.Code
		says  string
	}{
		{words(s.path), exit.NotMounted, "no process has a lock on " + s.path},
		{words(s.dir + "/missing"), exit.Usage, s.dir + "/missing: no such file"},
		{words("/proc/1/mem"), exit.Usage, "permission denied"},
		{words("/dev/fd/3"), exit.Usage, "/dev/fd/3 is a descriptor"},
		{append(s.lockWords(), "-f", "--fuse-fd=3"), exit.Usage, "--fuse-fd and --while-locked exclude each other"},
	} {
		if r := s.try(c.words...); r.code != c.code || !strings.Contains(r.stderr, c.says) {
			t.Errorf("%q: exit code %d, %s", c.words, r.code, r.stderr)
		}
		s.wantNothing()
	}
}
