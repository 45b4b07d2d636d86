package main

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// newPythonSite returns a site whose commands find the Python module and the program, in a mount
// namespace of its own, in which they are root or nobody. setup is that of inNamespace.
func newPythonSite(t *testing.T, user, setup string) *site {
	t.Helper()
	s := newSite(t)
	s.inNamespace(setup)
	s.env = append(s.env, "PYTHONPATH="+pythonModule(t), "PATH="+filepath.Dir(s.program)+":"+os.Getenv("PATH"), "MILKWEED_MOUNTS="+s.dir+"/mounts")
	s.write("f", 3_000_000)
	if user == "nobody" {
		s.giveToNobody()
	}
	return s
}

// mountingWords returns the words of a command of testdata/mounting.py.
func (s *site) mountingWords(command string) []string {
	s.t.Helper()
	script, err := filepath.Abs("testdata/mounting.py")
	s.check(err)
	return []string{python, "-B", "-W", "error", script, command, s.source, s.tier(1), "f"}
}

// mounting runs a command of testdata/mounting.py, and returns what it prints.
func (s *site) mounting(command string) string {
	s.t.Helper()
	return s.must(s.mountingWords(command)...)
}

// forEachUser runs a test as root and as nobody.
func forEachUser(t *testing.T, f func(t *testing.T, s *site)) {
	for _, user := range []string{"root", "nobody"} {
		t.Run(user, func(t *testing.T) { f(t, newPythonSite(t, user, fuseForAll)) })
	}
}

// A job that mounts by the Python module reads the bytes of the source. The dataset is unmounted at the end of
// the block, or by unmount().
func TestPythonMount(t *testing.T) {
	forEachUser(t, func(t *testing.T, s *site) {
		for _, command := range []string{"with_block", "notebook", "open_file", "crash", "pickled"} {
			s.mounting(command)
			s.wantUnmounted()
			s.wantNothing()
		}
	})
}

// When all processes that use a mount were killed, it is unmounted, and not before.
func TestPythonMountIsShared(t *testing.T) {
	forEachUser(t, func(t *testing.T, s *site) {
		first := s.startLine(s.mountingWords("stay")...)
		second := s.startLine(s.mountingWords("stay")...)
		if got := s.mounts(); len(got) != 1 {
			t.Errorf("mounts: %q, want one", got)
		}
		killGroup(first)
		s.stays()
		s.mounting("use")
		s.stays()
		killGroup(second)
		s.wantUnmounted()
		s.wantNothing()
	})
}

// Workers that were forked or spawned by a process use its mount, also when that process was killed.
func TestPythonMountOfWorkers(t *testing.T) {
	for _, command := range []string{"fork", "spawn"} {
		t.Run(command, func(t *testing.T) {
			s := newPythonSite(t, "nobody", fuseForAll)
			job := s.startLine(s.mountingWords(command)...)
			s.check(job.Process.Kill())
			s.stays()
			killGroup(job)
			s.wantUnmounted()
			s.wantNothing()
		})
	}
}

// The end of a block does not unmount what a forked process still uses.
func TestPythonMountOfForked(t *testing.T) {
	s := newPythonSite(t, "nobody", fuseForAll)
	job := s.startLine(s.mountingWords("fork_in_block")...)
	s.check(job.Wait())
	s.stays()
	killGroup(job)
	s.wantUnmounted()
}

// Processes that mount at the same time get one mount.
func TestPythonMountAtOnce(t *testing.T) {
	s := newPythonSite(t, "nobody", fuseForAll)
	var jobs sync.WaitGroup
	for range 6 {
		jobs.Go(func() {
			cmd := s.command(s.mountingWords("use")...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	jobs.Wait()
	s.wantUnmounted()
	s.wantNothing()
}

// A mount that another program has made is used, and stays. One whose daemon has died is replaced.
func TestPythonMountOfOthers(t *testing.T) {
	forEachUser(t, func(t *testing.T, s *site) {
		s.mount("64MiB")
		if got := s.mounting("use"); got != s.point+"\n" {
			t.Errorf("it reads from %q, want %q", got, s.point)
		}
		if len(s.mounts()) != 1 {
			t.Error("the mount of another program is unmounted")
		}
		s.umount()

		job := s.startLine(s.mountingWords("stay")...)
		pid := s.status().PID
		s.check(unix.Kill(pid, unix.SIGKILL))
		s.eventually("the daemon has ended", func() bool { return unix.Kill(pid, 0) != nil })
		s.mounting("use")
		killGroup(job)
		s.wantUnmounted()
	})
}

// Without /dev/fuse, there is one error that says what to do.
func TestPythonMountRefused(t *testing.T) {
	const noFuse = `mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9`
	s := newPythonSite(t, "nobody", noFuse)
	got := s.mounting("refused")
	for _, want := range []string{"6 cannot mount " + s.source + "\n", "/dev/fuse", "docker run --cap-add SYS_ADMIN --device /dev/fuse", "CSI driver", "read " + s.source + " itself"} {
		if !strings.Contains(got, want) {
			t.Errorf("got %q, want %q in it", got, want)
		}
	}
	if strings.Contains(got, "Traceback") {
		t.Error(got)
	}
}

// With a generation, a mount of another one is not used.
func TestPythonMountOfGenerations(t *testing.T) {
	s := newPythonSite(t, "root", fuseForAll)
	s.sh(`mkdir "$1/v1" "$1/v2" && echo one >"$1/v1/f" && echo two >"$1/v2/f" && ln -s v1 "$1/current"`, s.source)
	s.source += "/current"
	if got := s.mounting("generations"); got != "one\n" {
		t.Errorf("got %q", got)
	}
	s.wantUnmounted()
}
