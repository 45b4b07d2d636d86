package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/doctor"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// examined runs doctor on the mount, with an exit code.
func (s *site) examined(code exit.Code) (r doctorReport) {
	s.t.Helper()
	got := s.try("doctor", "--json", s.point)
	if got.code != code {
		s.t.Fatalf("doctor: exit code %d, want %d\n%s%s", got.code, code, got.stdout, got.stderr)
	}
	s.check(json.Unmarshal([]byte(got.stdout), &r))
	return r
}

// wantFinding fails the test unless r has a finding of a severity about a subject, whose text and
// remedy have parts.
func (s *site) wantFinding(r doctorReport, severity doctor.Severity, subject string, seen []string, remedy ...string) {
	s.t.Helper()
	has := func(text string, parts []string) bool {
		return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(text, p) })
	}
	if !slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool {
		return f.Severity == severity && f.Subject == subject && has(f.Seen, seen) && has(f.Remedy, remedy)
	}) {
		s.t.Errorf("no %s about %s with %q and %q in %+v", severity, subject, seen, remedy, r.Findings)
	}
}

// simulate puts a simulated PFS before the source, with flags such as --latency.
func (s *site) simulate(flags ...string) {
	s.t.Helper()
	pfs := s.dir + "/pfs"
	s.check(os.Mkdir(pfs, 0o755))
	cmd := s.command(slices.Concat([]string{s.program, "demo", "pfs", "--bandwidth", "1GB", s.source, pfs}, flags)...)
	stdin, err := cmd.StdinPipe()
	s.check(err)
	stdout, err := cmd.StdoutPipe()
	s.check(err)
	cmd.Stderr = os.Stderr
	s.check(cmd.Start())
	s.t.Cleanup(func() {
		stdin.Close()
		cmd.Wait()
	})
	_, err = stdin.Write([]byte("{}\n"))
	s.check(err)
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil { // the answer comes when it is mounted
		s.t.Fatal(err)
	}
	s.source = pfs
}

// Of a mount that works, doctor has nothing to say, while the first epoch goes on and after two.
func TestDoctorOfAHealthyMount(t *testing.T) {
	if testing.Short() {
		t.Skip("measures this machine")
	}
	s := newSite(t)
	for i := range 20 { // few, so that readers wait for less than a second in all
		s.write(fmt.Sprintf("class%d/%d.jpg", i%4, i), 10_000+1000*i)
	}
	s.check(os.Mkdir(s.tier(1), 0o700))
	s.sh(`mount -t tmpfs none "$1"`, s.tier(1)) // other tests may keep the disk busy, which doctor would say
	s.mount("64MiB")
	for epoch := 1; epoch <= 3; epoch++ {
		s.epoch(epoch)
		s.settled()
		got := s.try("doctor", s.point)
		if want := s.point + ": nothing to change\n"; got.code != exit.OK || !strings.HasSuffix(got.stdout, want) || strings.Contains(got.stdout, "warning") {
			t.Errorf("epoch %d: exit code %d\n%s%s", epoch, got.code, got.stdout, got.stderr)
		}
	}
	s.umount()
	s.sh(`umount "$1"`, s.tier(1))
	s.wantNothing()
}

// Doctor names five prepared faults and their remedies.
func TestDoctor(t *testing.T) {
	if testing.Short() {
		t.Skip("measures the latency of a source")
	}
	parallel(t)
	t.Run("full tier", func(t *testing.T) {
		s := newSite(t)
		for i := range 20 {
			s.write(fmt.Sprint(i), 50_000)
		}
		s.mount("300KiB")
		s.readAll()
		s.settled()
		r := s.examined(exit.OK)
		s.wantFinding(r, doctor.Warning, "tier tier1", []string{"full: ", "of 300 KiB used in tier1", "15 files had no room"}, `quota = "`, "milkweed evict", "refresh --prune "+s.point, "placement.window")
		s.umount()
		s.wantNothing()
	})
	t.Run("slow source", func(t *testing.T) {
		s := newSite(t)
		for i := range 20 {
			s.write(fmt.Sprintf("d/%d", i), 10_000)
		}
		s.simulate("--latency", "30ms")
		s.mount("64MiB")
		r := s.examined(exit.OK)
		s.wantFinding(r, doctor.Warning, "source", []string{"slow: 3", "ms to open a file", "median of 8 files"}, "milkweed warmup "+s.point, "milkweed plan", "more workers", "--peers")
		s.umount()
	})
	t.Run("low nofile", func(t *testing.T) {
		s := newSite(t)
		s.write("f", 10)
		s.limited(1000)
		s.mount("64MiB")
		s.wrapper = nil // the limit is that of the daemon
		r := s.examined(exit.OK)
		s.wantFinding(r, doctor.Warning, "open files", []string{"1,000 files (soft limit; the hard one is 1,000)", "are open"}, "65536", "LimitNOFILE=")
		s.umount()
		s.wantNothing()
	})
	t.Run("hung tier", func(t *testing.T) {
		s := newSite(t)
		s.write("f", 10)
		heal := s.hang(s.tier(1))
		s.mount("64MiB", "64MiB")
		r := s.examined(exit.Incomplete)
		s.wantFinding(r, doctor.Problem, "tier tier1", []string{"hangs", s.tier(1) + " gives no answer", "down: no answer in time"}, "Check the disk", "used again when it answers")
		heal()
		s.umount()
		s.wantNothing()
	})
	t.Run("wrong clock", func(t *testing.T) {
		for ahead, severity := range map[string]doctor.Severity{"10m": doctor.Warning, "30h": doctor.Problem} {
			s := newSite(t)
			s.write("f", 10)
			s.simulate("--ahead", ahead)
			s.mount("64MiB")
			if s.status().Source.ClockAheadSeconds != 0 {
				t.Error("the daemon knows the clock before a file was opened")
			}
			code := exit.OK
			if severity == doctor.Problem {
				code = exit.Incomplete
			}
			want := []string{"the clock of this machine is ", "behind that of the source: f has changed in the future"}
			remedy := []string{"date -u", "chrony"}
			s.wantFinding(s.examined(code), severity, "clock", want, remedy...)

			s.must("cat", s.point+"/f")
			s.check(os.Remove(s.dir + "/source/f")) // now only the daemon has seen it
			want[1] = "behind that of the source"
			s.wantFinding(s.examined(code), severity, "clock", want, remedy...)
			s.umount()
		}
	})
}

// If the daemon hangs or is dead, doctor ends in time with an error that names the cause.
func TestDoctorWithoutAnswer(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the time limits of sources, tiers or daemons that hang")
	}
	s := newSite(t)
	s.inNamespace("true") // without a mount point, doctor finds the mounts of all sites
	s.write("f", 10)
	s.mount("64MiB")
	pid := s.status().PID
	drivertest.Stop(t, pid)
	start := time.Now()
	got := s.try("doctor", s.point)
	if took := time.Since(start); got.code != exit.NotMounted || !strings.Contains(got.stderr, "a signal has stopped it") || took > 6*doctor.Timeout {
		t.Errorf("stopped: exit code %d after %v: %s", got.code, took, got.stderr)
	}
	s.check(unix.Kill(pid, unix.SIGCONT))
	s.killDaemon()
	if got := s.try("doctor", s.point); got.code != exit.NotMounted || !strings.Contains(got.stderr, "does not answer") {
		t.Errorf("killed: exit code %d: %s", got.code, got.stderr)
	}
	s.umount()
	if got := s.try("doctor"); got.code != exit.NotMounted {
		t.Errorf("without a mount: exit code %d: %s", got.code, got.stderr)
	}
}

// A source that hangs is named.
func TestDoctorOfAHungSource(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the time limits of sources, tiers or daemons that hang")
	}
	s := newSite(t)
	s.write("f", 10)
	s.mount("64MiB")
	heal := s.hangHard(s.source)
	r := s.examined(exit.Incomplete)
	s.wantFinding(r, doctor.Problem, "source", []string{"hangs", s.source + " gives no answer"}, "Check its server")
	heal()
	s.umount()
	s.wantNothing()
}

// Without a mount point, doctor needs one mount. If there are several, the error names them.
func TestDoctorOfSeveralMounts(t *testing.T) {
	s, other := newSite(t), newSite(t)
	s.inNamespace("true")
	other.inNamespaceOf(s)
	for _, each := range []*site{s, other} {
		each.write("f", 10)
		each.mount("64MiB")
	}
	got := s.try("doctor")
	if got.code != exit.Usage || !strings.Contains(got.stderr, s.point) || !strings.Contains(got.stderr, other.point) {
		t.Errorf("exit code %d: %s", got.code, got.stderr)
	}
	for _, each := range []*site{s, other} {
		each.umount()
		each.wantNothing()
	}
}

// A mount that drains is found by its former mount point, and its users are named.
func TestDoctorOfADrainingMount(t *testing.T) {
	s := newSite(t)
	s.inNamespace("true") // without a mount point, doctor finds the mounts of all sites
	s.write("f", 10)
	s.mountWith("mode=cached,clock_skew=0s", "64MiB") // the daemon sees the file open
	held := s.command("sh", "-c", `exec sleep 120 < "$1"`, "sh", s.point+"/f")
	s.check(held.Start())
	defer func() {
		held.Process.Kill()
		held.Wait()
	}()
	s.eventually("the file is open, and has a copy", func() bool { got := s.status(); return got.OpenHandles == 1 && got.Names.OpenedComplete })
	s.milkweed("umount", "--lazy", s.point)
	for _, words := range [][]string{{"doctor", "--json", s.point}, {"doctor", "--json"}} {
		got := s.try(words...)
		var r doctorReport
		s.check(json.Unmarshal([]byte(got.stdout), &r))
		s.wantFinding(r, doctor.Warning, "mount", []string{"drains", "in use by open files"}, "umount --force "+s.point)
	}
	var status control.Status
	s.check(json.Unmarshal([]byte(s.try("status", "--json").stdout), &status))
	if !status.Draining || status.Names.CopiedFiles != 0 || status.Names.OpenedComplete {
		t.Errorf("copies are not read any more: got %+v", status.Names)
	}
}

// Doctor names what makes copies useless or missing without any fault: a job that reads a small part of a
// file, a source that was renamed, and files that have just changed.
func TestDoctorNamesOddUses(t *testing.T) {
	parallel(t)
	t.Run("a part of a file", func(t *testing.T) {
		for mode, severity := range map[string]doctor.Severity{"stateless": doctor.Note, "passthrough": doctor.Warning} {
			s := newSite(t)
			s.write("a/f", 64<<20)
			s.mountWith("mode="+mode, "1GiB")
			s.sh(`dd if="$1/a/f" of=/dev/null bs=64k count=80 iflag=direct 2>/dev/null`, s.point)
			s.closed()
			s.wantFinding(s.examined(exit.OK), severity, "copies", []string{"jobs have read 5.0 MiB so far, 8% of the files that they opened (64 MiB)"}, "split")
			s.sh(`cat "$1/a/f" >/dev/null`, s.point)
			s.settled()
			for _, f := range s.examined(exit.OK).Findings {
				if f.Subject == "copies" {
					t.Errorf("the file was read: %+v", f)
				}
			}
		}
	})
	t.Run("a renamed source", func(t *testing.T) {
		s := newSite(t)
		s.write("a/f", 20_000)
		s.mount("64MiB")
		s.check(os.Rename(s.source, s.source+".old"))
		s.wantFinding(s.examined(exit.Incomplete), doctor.Problem, "source", []string{"does not exist any more", "renamed"}, "Move it back")
		s.check(os.Mkdir(s.source, 0o755)) // as the mount point of a disk
		s.wantFinding(s.examined(exit.OK), doctor.Warning, "source", []string{s.source + " is empty"}, "is mounted")
		s.check(os.Remove(s.source))
		s.check(os.Rename(s.source+".old", s.source))
		if r := s.examined(exit.OK); r.Problems != 0 {
			t.Errorf("after the source is back: %+v", r)
		}
	})
	t.Run("fresh files", func(t *testing.T) {
		s := newSite(t)
		s.write("a/f", 20_000)
		read := func() { s.sh(`touch "$1"; cat "$2/a/f" >/dev/null`, s.source+"/a/f", s.point) }
		s.mountWith("mode=cached,clock_skew=1h", "64MiB")
		read()
		if got := s.milkweed("where", s.point+"/a/f"); !strings.Contains(got, "not placed") || !strings.Contains(got, "it changed recently, and can be copied in") {
			t.Errorf("where: %s", got)
		}
		s.wantFinding(s.examined(exit.OK), doctor.Note, "fresh files", []string{"1 file changed less than", "read from the source"}, "source.clock_skew")
		s.umount()
		s.mountWith("mode=cached,clock_skew=3s", "64MiB")
		read()
		s.eventually("the file is copied", func() bool { return s.status().Placement.Placed == 1 })
		s.wantFinding(s.examined(exit.OK), doctor.Note, "fresh files", []string{"1 version of a file had changed less than"}, "source.clock_skew")
	})
}
