package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// After the program that has mounted has ended, nothing is left of it: its lock is free, its pipe ends,
// and the disk of its files can be unmounted. That is so for a daemon, for one with its supervisor, and
// in the foreground.
func TestNothingIsInherited(t *testing.T) {
	parallel(t)
	for _, flag := range []string{"", "--supervise", "--foreground"} {
		t.Run("mount "+flag, func(t *testing.T) {
			s := newSite(t)
			drivertest.Need(t, "flock")
			data := s.write("f", 5000)
			disk := s.dir + "/disk"
			s.sh(`mkdir "$1"; mount -t tmpfs none "$1"; : >"$1/file"; mkfifo "$1/pipe"`, disk)
			pipe, err := os.OpenFile(disk+"/pipe", os.O_RDWR, 0)
			s.check(err)
			reader, err := os.Open(disk + "/pipe")
			s.check(err)
			defer reader.Close()
			words := slices.Concat([]string{s.program}, s.mountWords("64MiB")[:1], strings.Fields(flag), s.mountWords("64MiB")[1:])
			// Descriptors 9 to 12 are inherited by all programs of the script.
			script := `exec 9>"$1/lock" 10<"$1/file" 11>"$1/pipe" 12<"$1"; flock 9; shift; "$@" >/dev/null 2>&1`
			if flag == "--foreground" {
				script += " & while ! mountpoint -q \"$POINT\"; do sleep 0.05; done"
			}
			cmd := s.command(append([]string{"bash", "-ec", script, "sh", disk}, words...)...)
			cmd.Env = append(cmd.Env, "POINT="+s.point)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			pipe.Close()

			s.must("flock", "-n", disk+"/lock", "true")
			reader.SetReadDeadline(time.Now().Add(20 * time.Second))
			if n, err := reader.Read(make([]byte, 1)); n != 0 || os.IsTimeout(err) {
				t.Errorf("the pipe has not ended: %d bytes, %v", n, err)
			}
			reader.Close()
			s.sh(`umount "$1"`, disk)
			if got := s.must("cat", s.point+"/f"); got != string(data) {
				t.Error("wrong bytes")
			}
			s.umount()
			s.eventually("the processes have ended", func() bool { return len(s.processes()) == 0 })
			s.wantNothing()
		})
	}
}

// A daemon reads a configuration file that a descriptor of its caller names.
func TestNamedDescriptors(t *testing.T) {
	s := newSite(t)
	data := s.write("f", 5000)
	config := fmt.Sprintf("[source]\npath = %q\n[mount]\npoint = %q\n[[tier]]\nname = \"ram\"\npath = %q\nquota = \"64MiB\"\n", s.source, s.point, s.tier(1))
	s.must("bash", "-ec", `exec 9<<<"$2"; exec "$1" mount -o clock_skew=0s -c /dev/fd/9`, "sh", s.program, config)
	if got := s.must("cat", s.point+"/f"); got != string(data) {
		t.Error("wrong bytes")
	}
	s.umount()
}

// A umask and soft limits of the caller do not reach the daemon.
func TestInheritedLimits(t *testing.T) {
	s := newSite(t)
	varied(s)
	s.inNamespace(fuseForAll)
	s.giveToNobody() // root may do anything with its files
	s.must("bash", "-ec", `ulimit -S -f 1; ulimit -S -t 1; ulimit -S -v 30000000; umask 0777; exec "$@"`, "sh", s.program,
		"mount", "-o", "clock_skew=0s", "--tier", "tier1:"+s.tier(1)+":64MiB", s.source, s.point)
	s.epoch(1)
	if got := s.settled(); got.Tiers[0].Files != 200 {
		t.Errorf("%d copies of 200 files: %s", got.Tiers[0].Files, got.Tiers[0].Reason)
	}
	for line := range strings.Lines(s.sh(`cat /proc/$(pgrep -f "mount.*$1" | head -1)/limits`, s.point)) {
		for _, limit := range []string{"Max cpu time", "Max file size", "Max address space"} {
			if strings.HasPrefix(line, limit) && !strings.Contains(line[len(limit):], "unlimited            unlimited") {
				t.Errorf("got %s", line)
			}
		}
	}
	s.umount()
}

// A user without a name in the user database cannot mount with fusermount3. Check and mount say why.
func TestUserWithoutName(t *testing.T) {
	s := newSite(t)
	drivertest.Need(t, "getent")
	s.write("f", 10)
	s.inNamespace(fuseForAll)
	const uid = "4000017"
	s.giveTo(uid)
	s.wantRefusal(s.mountWords("1MiB"), exit.Fuse, "user "+uid+" has no name", "/etc/passwd")
	got := s.try(append([]string{"check"}, s.mountWords("1MiB")[1:]...)...)
	if got.code != exit.Fuse || !strings.Contains(got.stdout, "user "+uid+" has no name") {
		t.Errorf("check: exit code %d, %s", got.code, got.stdout)
	}
}

// If the log cannot be written, mount prints a warning and mounts nevertheless.
func TestNoPlaceForTheLog(t *testing.T) {
	s := newSite(t)
	data := s.write("f", 10)
	s.check(os.WriteFile(s.dir+"/state/milkweed", nil, 0o600)) // no directory
	got := s.try(s.mountWords("1MiB")...)
	if got.code != exit.OK || !strings.Contains(got.stderr, "has no log: ") || !strings.Contains(got.stderr, "--log-file") {
		t.Errorf("exit code %d, %s", got.code, got.stderr)
	}
	if got := s.must("cat", s.point+"/f"); got != string(data) {
		t.Error("wrong bytes")
	}
	s.umount()
}
