package main

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/fs/fusectl"
)

// supervise mounts under a supervisor, in the background.
func (s *site) supervise(quotas ...string) {
	s.t.Helper()
	s.milkweed(append(s.mountWords(quotas...), "--supervise")...)
}

// kill kills a daemon by SIGKILL and returns how long it takes until a file can be read again.
func (s *site) kill(pid int, name string, want []byte) time.Duration {
	s.t.Helper()
	s.check(unix.Kill(pid, unix.SIGKILL))
	start := time.Now()
	s.eventually("it has been mounted again", func() bool {
		status, err := control.DecodeStatus([]byte(s.try("status", "--json", s.point).stdout))
		return err == nil && status.PID != pid
	})
	if got := s.must("cat", s.point+"/"+name); got != string(want) {
		s.t.Error("wrong bytes after the crash")
	}
	return time.Since(start)
}

// When the daemon is killed under readers, open files fail with ENOTCONN, and the supervisor mounts
// again. New opens then read the copies that were made before. Unmounting ends the supervisor.
func TestSupervise(t *testing.T) {
	if testing.Short() {
		t.Skip("kills and restarts daemons many times")
	}
	s := newSite(t)
	varied(s)
	data := s.write("open", 3<<20)
	s.supervise("1GiB")
	s.epoch(1)
	s.settled()
	for crashes := range int64(2) {
		before := s.status()
		if before.Crashes != crashes {
			t.Errorf("the status has %d crashes, want %d", before.Crashes, crashes)
		}
		f, err := os.Open(s.point + "/open")
		s.check(err)
		s.check(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
		reading := make(chan result, 1)
		go func() { reading <- s.run(python, "-B", "testdata/epoch.py", s.source, s.point, "--seed", "2") }()
		t.Logf("new opens worked after %v", s.kill(before.PID, "open", data))
		if _, err := f.ReadAt(make([]byte, 100), 0); !errors.Is(err, syscall.ENOTCONN) {
			t.Errorf("reading a file that was open: got %v, want ENOTCONN", err)
		}
		f.Close()
		<-reading // it may have failed
	}
	s.epoch(3)
	after := s.settled()
	if got := after.Source.Bytes; got != 0 {
		t.Errorf("%d bytes were read from the source after the crash, want 0", got)
	}
	if out := s.milkweed("status", s.point); !strings.Contains(out, "mounted again after 2 crashes") {
		t.Errorf("status does not show the crashes:\n%s", out)
	}
	s.umount()
	s.eventually("the supervisor has ended", func() bool { return len(s.processes()) == 0 })
	s.wantNothing()
	if log := s.logs(); !strings.Contains(log, "signal: killed") {
		t.Errorf("the log has no cause:\n%s", log)
	}
}

// In the foreground, the supervisor passes SIGTERM on, and ends with the daemon. It mounts again,
// too.
func TestSuperviseInForeground(t *testing.T) {
	s := newSite(t)
	data := s.write("f", 1000)
	cmd := s.command(s.words(append(s.mountWords("64MiB"), "--supervise", "--foreground"))...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	s.startService(cmd) // a daemon that dies before it is ready is not started again
	s.kill(s.status().PID, "f", data)
	s.check(cmd.Process.Signal(unix.SIGTERM))
	if err := cmd.Wait(); err != nil {
		t.Errorf("the supervisor ended with %v", err)
	}
	s.wantNothing()
	if !strings.Contains(stderr.String(), "the daemon has crashed") {
		t.Errorf("got the log\n%s", &stderr)
	}
}

// If the mount of a killed daemon is unmounted, the supervisor ends. The daemon is killed several
// times, so that the supervisor waits before it would mount again.
func TestSuperviseAfterUnmount(t *testing.T) {
	if testing.Short() {
		t.Skip("kills and restarts daemons many times")
	}
	s := newSite(t)
	data := s.write("f", 1000)
	s.supervise("64MiB")
	for range 2 {
		s.kill(s.status().PID, "f", data)
	}
	s.check(unix.Kill(s.status().PID, unix.SIGKILL)) // a pause of 2 s follows
	s.eventually("the daemon has ended", func() bool { return len(s.processes()) == 1 })
	s.umount()
	s.eventually("the supervisor has ended", func() bool { return len(s.processes()) == 0 })
	if left := s.mounts(); len(left) > 0 {
		t.Errorf("mounted again: %q", left)
	}
}

// A daemon that cannot mount at all is not started again.
func TestSuperviseRefused(t *testing.T) {
	s := newSite(t)
	s.check(os.WriteFile(s.point+"/f", nil, 0o644))
	for _, words := range [][]string{{"--supervise"}, {"--supervise", "--foreground"}} {
		s.wantRefusal(append(s.mountWords("64MiB"), words...), exit.MountPoint, "is not empty")
	}
	s.wantNothing()
}

// A supervisor gives up after maxCrashes, and pauses before that.
func TestCrashPause(t *testing.T) {
	var sum time.Duration
	for n := range maxCrashes {
		sum += crashPause(n)
	}
	if crashPause(1) != 0 || sum < 30*time.Second || sum > 10*time.Minute {
		t.Errorf("first pause %v, all %v", crashPause(1), sum)
	}
}

// A thread of the daemon that tells the kernel that a file has changed waits while a read of the file is in
// progress. If the daemon is killed then, each waits for the other. A supervisor, umount, and a mount with
// --clear-stale end that. Commands name the cause, and say what to do if the mount was detached before.
func TestDaemonDiesWhileItNotifies(t *testing.T) {
	drivertest.Need(t, "root", "setpriv")
	for name, again := range map[string]func(s *site, words []string, connection *fusectl.Connection){
		"supervisor": func(s *site, _ []string, _ *fusectl.Connection) {
			s.eventually("it has been mounted again", func() bool { return s.try("status", s.point).code == exit.OK })
		},
		"umount": func(s *site, words []string, _ *fusectl.Connection) {
			if r := s.try("status", s.point); r.code != exit.NotMounted || !strings.Contains(r.stderr, "was killed, and has not ended") || !strings.Contains(r.stderr, "milkweed umount") {
				s.t.Errorf("status: exit code %d, %s", r.code, r.stderr)
			}
			if r := s.run("setpriv", "--bounding-set=-sys_admin", "--", s.program, "umount", "--lazy", s.point); r.code != exit.Failure || !strings.Contains(r.stderr, "As root") {
				s.t.Errorf("umount without the right to abort: exit code %d, %s", r.code, r.stderr)
			}
			s.milkweed("umount", "--lazy", s.point)
			s.milkweed(words...)
		},
		"mount --clear-stale": func(s *site, words []string, _ *fusectl.Connection) {
			s.milkweed(append(words, "--clear-stale")...)
		},
		"by hand, after umount -l": func(s *site, words []string, connection *fusectl.Connection) {
			s.check(unix.Unmount(s.point, unix.MNT_DETACH))
			if r := s.try("umount", s.point); r.code != exit.Failure || !strings.Contains(r.stderr, "was killed, and has not ended") || !strings.Contains(r.stderr, "abort") {
				s.t.Errorf("umount: exit code %d, %s", r.code, r.stderr)
			}
			s.check(connection.Abort())
			s.eventually("the daemon has ended", func() bool { return s.try(words...).code == exit.OK })
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.write("slow", 8<<20)
			words := s.mountWords("64MiB")
			slow := []string{"-o", "mode=stateless,source_bandwidth=100kB"}
			switch name {
			case "supervisor":
				slow = append(slow, "--supervise")
			case "umount":
				s.inNamespace("umount -ql /sys/fs/fuse/connections || true") // a command without CAP_SYS_ADMIN cannot abort
			}
			s.milkweed(append(words, slow...)...)
			connection := s.connection()
			t.Cleanup(func() { // after a failure, the daemon and its readers could not be killed
				connection.Abort()
				connection.Close()
			})
			pid := s.status().PID
			reader := s.command("dd", "if="+s.point+"/slow", "of=/dev/null", "bs=1M")
			s.check(reader.Start())
			s.eventually("the file is being read", func() bool { return s.status().Fills.InFlight > 0 })
			s.check(os.Chmod(s.source+"/slow", 0o600))
			refresh := s.command(s.words([]string{"refresh", s.point + "/slow"})...)
			s.check(refresh.Start())
			s.eventually("the daemon notifies the kernel", func() bool { return drivertest.WaitsIn(pid, "folio_lock") })
			s.check(unix.Kill(pid, unix.SIGKILL))
			again(s, words, connection)
			if err := reader.Wait(); err == nil {
				t.Error("the read of a daemon that was killed has succeeded")
			}
			refresh.Wait() // it has lost its daemon
			s.umount()
			s.eventually("all processes have ended", func() bool { return len(s.processes()) == 0 })
			s.wantNothing()
		})
	}
}
