package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// freezer makes a control group with a process, below a hierarchy of the machine, and returns its folder.
func freezer(s *site, hierarchy string, pid int) string {
	s.t.Helper()
	group := filepath.Join("/sys/fs/cgroup", hierarchy, filepath.Base(s.dir))
	if err := os.Mkdir(group, 0o755); err != nil {
		drivertest.Skipf(s.t, "a control group: %v", err)
	}
	s.t.Cleanup(func() {
		for file, text := range map[string]string{"freezer.state": "THAWED", "cgroup.freeze": "0"} { // the test has failed, perhaps
			if f, err := os.OpenFile(filepath.Join(group, file), os.O_WRONLY, 0); err == nil {
				f.WriteString(text)
				f.Close()
			}
		}
		os.WriteFile(filepath.Join(filepath.Dir(group), "cgroup.procs"), []byte(strconv.Itoa(pid)), 0) // unless it has ended
		s.eventually("the control group is removed", func() bool { return os.Remove(group) == nil })
	})
	if _, err := os.Stat(group + "/cgroup.procs"); err != nil {
		drivertest.Skipf(s.t, "control groups: %v", err)
	}
	s.check(os.WriteFile(group+"/cgroup.procs", []byte(strconv.Itoa(pid)), 0o644))
	return group
}

// If the daemon does not run, because it was stopped or its control group is frozen, commands say so in a short
// time, and how it goes on.
func TestHaltedDaemon(t *testing.T) {
	parallel(t)
	drivertest.Need(t, "root")
	write := func(s *site, group, file, text string) string {
		s.check(os.WriteFile(filepath.Join(group, file), []byte(text), 0o644))
		return fmt.Sprintf("its control group %s is frozen", group)
	}
	tests := map[string]func(s *site, pid int) (reason, remedy string, goOn func()){
		"signal": func(s *site, pid int) (string, string, func()) {
			drivertest.Stop(s.t, pid)
			return "a signal has stopped it", fmt.Sprintf("kill -CONT %d", pid), func() { s.check(unix.Kill(pid, unix.SIGCONT)) }
		},
		"freezer": func(s *site, pid int) (string, string, func()) {
			group := freezer(s, "freezer", pid)
			return write(s, group, "freezer.state", "FROZEN"), "echo THAWED >" + group + "/freezer.state",
				func() { write(s, group, "freezer.state", "THAWED") }
		},
		"control groups, version 2": func(s *site, pid int) (string, string, func()) {
			hierarchy := ""
			if _, err := os.Stat("/sys/fs/cgroup/unified"); err == nil {
				hierarchy = "unified"
			}
			group := freezer(s, hierarchy, pid)
			return write(s, group, "cgroup.freeze", "1"), "echo 0 >" + group + "/cgroup.freeze",
				func() { write(s, group, "cgroup.freeze", "0") }
		},
	}
	for name, halt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.write("f", 1000)
			s.mount("64MiB")
			pid := s.status().PID
			reason, remedy, goOn := halt(s, pid)
			want := fmt.Sprintf("the daemon of %s (process %d) does not run, and reads wait for it: %s", s.point, pid, reason)
			for _, words := range [][]string{{"status", s.point}, {"doctor", s.point}, {"evict", s.point}} {
				start := time.Now()
				r := s.try(words...)
				if r.code != exit.NotMounted || !strings.Contains(r.stderr, want) || !strings.Contains(r.stderr, remedy) {
					t.Errorf("%q: exit code %d after %v: %s\nwant %q and %q", words, r.code, time.Since(start), r.stderr, want, remedy)
				}
			}
			goOn()
			s.milkweed("status", s.point)
			s.umount()
			s.wantNothing()
		})
	}
}

// A daemon that was stopped and whose mount was removed meanwhile is named.
func TestHaltedDaemonWithoutMount(t *testing.T) {
	parallel(t)
	s := newSite(t)
	s.write("f", 1000)
	s.mount("64MiB")
	pid := s.status().PID
	drivertest.Stop(t, pid)
	s.must("umount", "--lazy", s.point)
	r := s.try("status", s.point)
	for _, want := range []string{fmt.Sprintf("a daemon (process %d) has no mount here", pid), "a signal has stopped it"} {
		if r.code != exit.NotMounted || !strings.Contains(r.stderr, want) {
			t.Errorf("exit code %d: %s\nwant %q", r.code, r.stderr, want)
		}
	}
	s.check(unix.Kill(pid, unix.SIGCONT))
	s.eventually("the daemon has ended", func() bool { return len(s.processes()) == 0 })
	s.wantNothing()
}
