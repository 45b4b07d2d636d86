package main

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A waitingSite is a site whose mounts wait for two nodes, of which one is missing.
type waitingSite struct {
	*site
	words []string // of mount
	hosts string   // the file /etc/hosts
}

func newWaitingSite(t *testing.T) *waitingSite {
	t.Helper()
	s := &waitingSite{site: newSite(t)}
	s.hosts = s.dir + "/hosts"
	s.nodes("127.0.0.1")
	s.write("f", 10)
	s.inNamespace(`mount --bind "$2" /etc/hosts`, s.hosts)
	s.words = append([]string{"mount", "--peers", "dns:nodes.test", "-o", "peers_min=2,peers_serve=false"}, s.mountWords("64MiB")[1:]...)
	return s
}

// nodes sets the addresses of the nodes.
func (s *waitingSite) nodes(addresses ...string) {
	s.t.Helper()
	s.check(os.WriteFile(s.hosts, []byte(strings.Join(addresses, " nodes.test\n")+" nodes.test\n"), 0o644))
}

// waits waits until status says what the mount at point waits for.
func (s *waitingSite) waits(point string) {
	s.t.Helper()
	s.eventually("status names what the mount waits for", func() bool {
		r := s.try("status", point)
		return r.code == exit.NotMounted && strings.Contains(r.stderr, point+" is not mounted yet: its daemon is waiting for the other nodes: dns: nodes.test has 1 of 2 addresses\n")
	})
}

// While a mount waits for the addresses of other nodes, the log and the commands that a readiness probe runs say
// so. It ends by umount, and when it was killed, nothing is said of it.
func TestMountWaits(t *testing.T) {
	parallel(t)
	s := newWaitingSite(t)
	for name, end := range map[string]func(waiting *exec.Cmd){
		"umount":       func(*exec.Cmd) { s.milkweed("umount", s.point) },
		"umount --all": func(*exec.Cmd) { s.milkweed("umount", "--all") },
		"SIGKILL":      func(waiting *exec.Cmd) { s.check(waiting.Process.Kill()) },
	} {
		waiting := s.command(s.site.words(append(s.words, "--foreground"))...)
		log, err := os.Create(s.dir + "/stderr")
		s.check(err)
		defer log.Close()
		waiting.Stderr = log
		s.check(waiting.Start())
		s.waits(s.point)
		for _, words := range [][]string{{"status"}, {"peers"}, {"peers", s.point}, {"doctor"}, {"warmup"}, {"where", s.point + "/f"}} {
			if r := s.try(words...); r.code != exit.NotMounted || !strings.Contains(r.stderr, s.point+" is not mounted yet") {
				t.Errorf("%q: exit code %d, %s", words, r.code, r.stderr)
			}
		}
		if r := s.try(s.words...); r.code != exit.MountPoint || !strings.Contains(r.stderr, "not mounted yet") {
			t.Errorf("a second mount: exit code %d, %s", r.code, r.stderr)
		}
		s.eventually("the log has the cause", func() bool {
			text, err := os.ReadFile(log.Name())
			return err == nil && strings.Contains(string(text), "nodes.test has 1 of 2 addresses")
		})
		end(waiting)
		waiting.Wait()
		if got := waiting.ProcessState.ExitCode(); name != "SIGKILL" && got != int(exit.NotMounted) {
			t.Errorf("%s: the mount ended with exit code %d", name, got)
		}
		for _, words := range [][]string{{"status"}, {"status", s.point}} {
			if r := s.try(words...); r.code != exit.NotMounted || strings.Contains(r.stderr, "yet") {
				t.Errorf("%q after %s: exit code %d, %s", words, name, r.code, r.stderr)
			}
		}
	}
	s.nodes("127.0.0.1", "127.0.0.2")
	s.milkweed(s.words...)
	s.milkweed("status", s.point)
	s.umount()
	s.wantNothing()
}

// A descriptor that the command has inherited, such as that of a lock, is open until the mount is ready, and not longer:
// the process that has started the command may have been killed.
func TestCommandKeepsLock(t *testing.T) {
	parallel(t)
	drivertest.Need(t, "flock")
	s := newWaitingSite(t)
	lock := s.dir + "/lock"
	command := s.command(append([]string{"sh", "-c", `exec 9>"$0" && flock 9 && exec "$@"`, lock}, s.site.words(s.words)...)...)
	s.check(command.Start())
	s.waits(s.point)
	isLocked := func() bool { return s.run("flock", "--nonblock", lock, "true").code != exit.OK }
	if !isLocked() {
		t.Error("the lock was given up while the daemon was starting")
	}
	s.nodes("127.0.0.1", "127.0.0.2")
	s.check(command.Wait())
	if isLocked() {
		t.Error("the daemon has the lock")
	}
	s.umount()
	s.wantNothing()
}

// Umount ends a daemon that serves a descriptor and waits, under a name that is no path here.
func TestNamedMountWaits(t *testing.T) {
	parallel(t)
	drivertest.Need(t, "root")
	s := newWaitingSite(t)
	device := mountDevice(s.site, s.point)
	defer device.Close()
	name := s.dir + "/elsewhere/mount"
	waiting := s.command(s.site.words(append(s.words[:len(s.words)-1], name, "--foreground", "--fuse-fd", "3"))...)
	waiting.ExtraFiles = []*os.File{device}
	s.check(waiting.Start())
	s.waits(name)
	s.milkweed("umount", name)
	waiting.Wait()
	if got := waiting.ProcessState.ExitCode(); got != int(exit.NotMounted) {
		t.Errorf("the mount ended with exit code %d", got)
	}
	s.check(unix.Unmount(s.point, unix.MNT_DETACH))
	s.wantNothing()
}

// A daemon was killed, and the next one waits. Status says so, also while another dataset is mounted. Umount ends
// the supervisor, too.
func TestSupervisedMountWaits(t *testing.T) {
	parallel(t)
	s := newWaitingSite(t)
	s.nodes("127.0.0.1", "127.0.0.2")
	s.milkweed(append(s.words, "--supervise")...)
	pid := s.status().PID
	s.nodes("127.0.0.1")
	s.check(unix.Kill(pid, unix.SIGKILL))
	s.waits(s.point)
	other := s.dir + "/other"
	s.check(os.Mkdir(other, 0o755))
	s.milkweed("mount", "--tier", "other:"+s.tier(1)+":64MiB", s.source, other)
	if r := s.try("status"); r.code != exit.NotMounted || !strings.Contains(r.stdout, other+": ready") || !strings.Contains(r.stderr, s.point+" is not mounted yet") {
		t.Errorf("status: exit code %d\n%s\n%s", r.code, r.stdout, r.stderr)
	}
	s.milkweed("umount", other)
	s.check(os.Remove(other))
	s.milkweed("umount", s.point)
	s.eventually("the supervisor has ended", func() bool { return len(s.processes()) == 0 })
	s.wantNothing()
}

// Before its mount is ready, a daemon ends as after one signal, however many it gets: a user sends them to the
// command, a service manager to all processes, and the command passes them on.
func TestMountInterrupted(t *testing.T) {
	parallel(t)
	for _, flags := range [][]string{nil, {"--supervise"}} {
		s := newWaitingSite(t)
		waiting := s.command(s.site.words(append(s.words, flags...))...)
		var stderr bytes.Buffer
		waiting.Stderr = &stderr
		s.check(waiting.Start())
		s.waits(s.point)
		daemons := slices.DeleteFunc(s.processes(), func(pid int) bool { return pid == waiting.Process.Pid })
		for left := len(daemons); left > 0; {
			left = 0
			for _, pid := range daemons {
				if unix.Kill(pid, unix.SIGINT) == nil {
					left++
				}
			}
		}
		if waiting.Wait(); waiting.ProcessState.ExitCode() != int(exit.Failure) || strings.Contains(stderr.String(), "died") {
			t.Errorf("%q: %v, %s", flags, waiting.ProcessState, &stderr)
		}
		if left := s.sockets(); len(left) > 0 {
			t.Errorf("%q: left in the directory of the sockets: %q", flags, left)
		}
	}
}

// A mount that warns goes on when nobody reads its warnings any more, as after `kill` of the program that has started
// the command.
func TestMountThatNobodyReads(t *testing.T) {
	s := newSite(t)
	s.write("f", 1000)
	r, w, err := os.Pipe()
	s.check(err)
	s.check(r.Close())
	cmd := s.command(s.program, "mount", "-o", "clock_skew=0s", s.source, s.point) // says which tiers it has chosen
	cmd.Stdout, cmd.Stderr = w, w
	s.check(cmd.Run())
	s.check(w.Close())
	if got := s.status(); len(got.Tiers) == 0 {
		t.Errorf("tiers: %+v", got.Tiers)
	}
	s.umount()
}
