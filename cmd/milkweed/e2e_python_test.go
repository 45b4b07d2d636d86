package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A pythonSite is a site whose dataset is mounted by the Python module.
type pythonSite struct{ lockSite }

// newPythonSite returns a site of root, or of nobody. setup is that of inNamespace.
func newPythonSite(t *testing.T, root bool, setup string) pythonSite {
	t.Helper()
	drivertest.Need(t, python)
	parallel(t)
	s := newSite(t)
	s.inNamespace(setup)
	s.sh(`install -D -m 644 -t "$1" testdata/mounting.py ../../examples/pytorch/milkweed.py`, s.dir+"/module")
	s.env = append(s.env, "PATH="+filepath.Dir(s.program)+":"+os.Getenv("PATH"), "MILKWEED_MOUNTS="+s.dir+"/mounts")
	s.write("f", 3_000_000)
	if !root {
		s.giveToNobody()
	}
	return pythonSite{lockSite{site: s}}
}

// forEachUser runs a test as root and as nobody.
func forEachUser(t *testing.T, f func(t *testing.T, s pythonSite)) {
	for name, root := range map[string]bool{"root": true, "nobody": false} {
		t.Run(name, func(t *testing.T) { f(t, newPythonSite(t, root, fuseForAll)) })
	}
}

// pythonWords returns the words of a command of testdata/mounting.py.
func (s pythonSite) pythonWords(command string) []string {
	return s.pythonWordsWith(command, s.tier(1))
}

func (s pythonSite) pythonWordsWith(command, tier string) []string {
	return []string{python, "-B", "-W", "error", s.dir + "/module/mounting.py", command, s.source, tier, "f"}
}

// python runs a command of testdata/mounting.py, and returns what it prints.
func (s pythonSite) python(command string) string {
	s.t.Helper()
	return s.must(s.pythonWords(command)...)
}

// job starts a command of testdata/mounting.py, and waits until it has read from the mount. kill kills its first
// process; end ends all of its processes.
func (s pythonSite) job(command string) (kill, end func()) {
	s.t.Helper()
	cmd := s.command(s.pythonWords(command)...)
	in, err := cmd.StdinPipe()
	s.check(err)
	out, err := cmd.StdoutPipe()
	s.check(err)
	cmd.Stderr = os.Stderr
	s.check(cmd.Start())
	kill = sync.OnceFunc(func() {
		cmd.Process.Kill()
		cmd.Process.Wait()
	})
	end = sync.OnceFunc(func() {
		in.Close()
		_, err := io.Copy(io.Discard, out) // until the last has ended
		s.check(err)
		cmd.Wait()
	})
	s.t.Cleanup(end)
	_, err = out.Read(make([]byte, 1))
	s.check(err)
	return kill, end
}

// stays fails the test unless the dataset is mounted once, also after the daemon has looked.
func (s pythonSite) stays() {
	s.t.Helper()
	time.Sleep(3 * lockPause)
	if got := s.mounts(); len(got) != 1 {
		s.t.Fatalf("mounted are %q, want one", got)
	}
}

// A job that mounts by the Python module reads the bytes of the source. The dataset is unmounted at the end of the
// block, by unmount(), and at the end of the process.
func TestPythonMount(t *testing.T) {
	forEachUser(t, func(t *testing.T, s pythonSite) {
		for _, command := range []string{"with_block", "notebook", "open_file", "crash", "pickled", "ending"} {
			s.python(command)
			s.ended()
		}
	})
}

// When all processes that use a mount were killed, it is unmounted, and not before.
func TestPythonMountIsShared(t *testing.T) {
	forEachUser(t, func(t *testing.T, s pythonSite) {
		first, _ := s.job("stay")
		second, _ := s.job("stay")
		first()
		s.stays()
		s.python("use")
		s.stays()
		second()
		s.ended()
	})
}

// A forked process uses the mount, also if its parent was killed, or has left the block.
func TestPythonMountOfForked(t *testing.T) {
	s := newPythonSite(t, false, fuseForAll)
	kill, end := s.job("fork")
	kill()
	s.stays()
	end()
	s.ended()
	_, end = s.job("fork_in_block")
	s.stays()
	end()
	s.ended()
}

// Processes that mount at the same time get one mount.
func TestPythonMountAtOnce(t *testing.T) {
	s := newPythonSite(t, false, fuseForAll)
	var jobs sync.WaitGroup
	var points [6]string
	for i := range points {
		jobs.Go(func() {
			out, err := s.command(s.pythonWords("use")...).CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			points[i] = string(out)
		})
	}
	jobs.Wait()
	if got := slices.Compact(points[:]); len(got) != 1 {
		t.Errorf("got %q", got)
	}
	s.ended()
}

// A process that is killed while it mounts or unmounts leaves a mount that others may use, or none.
func TestPythonMountKilled(t *testing.T) {
	for _, command := range []string{"mount", "umount"} {
		t.Run(command, func(t *testing.T) {
			s := newPythonSite(t, false, fuseForAll)
			script := fmt.Sprintf("#!/bin/sh\nif [ $1 = %s ] && mkdir \"$STARTED\" 2>/dev/null; then sleep 1; fi\nexec %s \"$@\"\n", command, s.program)
			s.check(os.Mkdir(s.dir+"/bin", 0o755))
			s.check(os.WriteFile(s.dir+"/bin/milkweed", []byte(script), 0o755))
			s.must(append([]string{"env", "PATH=" + s.dir + "/bin:/bin:/usr/bin", "STARTED=" + s.dir + "/started"}, s.pythonWords("killed")...)...)
			s.ended()
		})
	}
}

// A process keeps the mount that it uses if the lock file was removed.
func TestPythonMountWithoutLock(t *testing.T) {
	s := newPythonSite(t, true, fuseForAll)
	first, _ := s.job("stay")
	s.sh(`rm "$1"/mounts/*.lock`, s.dir)
	second, _ := s.job("stay")
	first()
	s.stays()
	second()
	s.ended()
}

// A mount that another program has made is used, and stays; its source may have been given by another path. One whose
// daemon has died is replaced.
func TestPythonMountOfOthers(t *testing.T) {
	s := newPythonSite(t, true, fuseForAll)
	s.sh(`ln -s . "$1/link"`, s.dir)
	s.mount("64MiB")
	s.source = s.dir + "/link/source"
	if got := s.python("use"); got != s.point+"\n" {
		t.Errorf("it reads from %q, want %q", got, s.point)
	}
	s.stays()
	s.must("mount", "-t", "tmpfs", "none", s.point) // hides it
	if got := s.must(s.pythonWordsWith("use", s.tier(2))...); !strings.HasPrefix(got, s.dir+"/mounts/") {
		t.Errorf("it reads from %q", got)
	}
	s.must("umount", s.point)
	s.umount()

	kill, _ := s.job("stay")
	pid := s.status().PID
	s.check(unix.Kill(pid, unix.SIGKILL))
	s.eventually("the daemon has ended", func() bool { return unix.Kill(pid, 0) != nil })
	s.python("use")
	kill()
	s.ended()
}

// A mount of another user is used only if the job names its mount point: that user may say anything of its content.
func TestPythonMountOfUntrusted(t *testing.T) {
	s := newPythonSite(t, true, fuseForAll+` && echo user_allow_other >"$1/fuse.conf" && mount --bind "$1/fuse.conf" /etc/fuse.conf`)
	asRoot := s.wrapper
	s.giveToNobody()
	s.mountWith("allow_other", "64MiB")
	asNobody := s.wrapper
	s.wrapper = asRoot
	const job = `
import sys
import milkweed
for point in sys.argv[3], None:
    with milkweed.mount(sys.argv[1], point, tiers="ssd:" + sys.argv[2] + ":64MiB") as path:
        print(path, len(open(path + "/f", "rb").read()))
`
	s.sh(`mkdir -m 700 "$1/mounts" "$1/run-of-root"`, s.dir)
	lines := strings.Split(s.must("env", control.FolderEnv+"="+s.dir+"/run-of-root", "PYTHONPATH="+s.dir+"/module", python, "-B", "-c", job, s.source, s.tier(2), s.point), "\n")
	if lines[0] != s.point+" 3000000" || !strings.HasPrefix(lines[1], s.dir+"/mounts/source-") {
		t.Errorf("got %q", lines)
	}
	s.wrapper = asNobody
	s.umount()
	s.ended()
}

// Without /dev/fuse, there is one error that says what to do.
func TestPythonMountRefused(t *testing.T) {
	const noFuse = `mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9`
	s := newPythonSite(t, false, noFuse)
	s.check(os.Symlink(python, s.dir+"/python3")) // the program may be beside the interpreter
	want := "6 fuse: there is no /dev/fuse\n"
	if got := s.python("refused"); !strings.HasPrefix(got, want) || !strings.Contains(got, "--device /dev/fuse") {
		t.Errorf("got %q, want %q and a remedy", got, want)
	}
	if got, want := s.must(append([]string{"env", "PATH=/nowhere", s.dir + "/python3"}, s.pythonWords("refused")[1:]...)...), "127 the program milkweed is not in $PATH\n"; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	s.check(os.Chmod(s.dir+"/mounts", 0o777))
	want = "4 no place for mount points: " + s.dir + "/mounts is not a directory that only this user may change\n"
	if got := s.python("refused"); !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// With a generation, a mount of another one is not used.
func TestPythonMountOfGenerations(t *testing.T) {
	s := newPythonSite(t, true, fuseForAll)
	s.sh(`mkdir "$1/v1" "$1/v2" && echo one >"$1/v1/f" && echo two >"$1/v2/f" && ln -s v1 "$1/current"`, s.source)
	s.source += "/current"
	if got, want := s.python("generations"), "one\ntwo\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	s.ended()
}

// The mount of a bucket is used again, too.
func TestPythonMountOfBucket(t *testing.T) {
	s := newPythonSite(t, true, fuseForAll)
	b := newBucket(s.site)
	const job = `
import os, sys
import milkweed
with milkweed.mount(sys.argv[1], tiers=["ssd:" + sys.argv[2] + ":64MiB"], mode="cached") as path:
    with milkweed.mount(sys.argv[1]) as again:
        assert again == path, again
    print(milkweed.status(path)["mode"], os.path.getsize(path + "/f"), os.path.basename(path))
`
	got := s.must("env", "PYTHONPATH="+s.dir+"/module", python, "-B", "-W", "error", "-c", job, b.at(), s.tier(1))
	if want := "cached 3000000 set_1"; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	s.ended()
}
