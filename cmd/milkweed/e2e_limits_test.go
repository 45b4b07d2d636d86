package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// limited makes the commands of a site run with a limit on open files.
func (s *site) limited(files int) {
	s.t.Helper()
	drivertest.Need(s.t, "prlimit")
	s.wrapper = append(s.wrapper, "prlimit", fmt.Sprintf("--nofile=%d:%[1]d", files), "--")
}

// check, mount and doctor name the hard limits at which a daemon ends or does less.
func TestHardLimits(t *testing.T) {
	drivertest.Need(t, "prlimit")
	s := newSite(t)
	s.write("f", 1000)
	s.wrapper = append(s.wrapper, "prlimit", "--cpu=900", "--fsize=10485760", "--as=17179869184", "--data=8589934592", "--")
	want := []string{
		"the kernel kills the daemon when it has used the CPU for 15m0s (ulimit -Ht)",
		"files of more than 10 MiB get no copy, and the log does not grow beyond (ulimit -Hf)",
		"the daemon ends when it needs more than 16 GiB of addresses (ulimit -Hv)",
		"the daemon ends when it needs more than 8.0 GiB of memory (ulimit -Hd)",
	}
	words := s.mountWords("64MiB")
	checked, mounted := s.try(append([]string{"check"}, words[1:]...)...), s.try(words...)
	s.wrapper = nil // doctor asks for the limits of the daemon
	examined := s.milkweed("doctor", s.point)
	for _, text := range want {
		if !strings.Contains(checked.stdout, text) {
			t.Errorf("check lacks %q:\n%s", text, checked.stdout)
		}
		if !strings.Contains(mounted.stderr, text) {
			t.Errorf("mount lacks %q:\n%s", text, mounted.stderr)
		}
		if !strings.Contains(strings.Join(strings.Fields(examined), " "), text) {
			t.Errorf("doctor lacks %q:\n%s", text, examined)
		}
	}
	s.umount()

	s.mount("64MiB")
	for name, out := range map[string]string{"check": s.milkweed(append([]string{"check"}, s.source)...), "doctor": s.milkweed("doctor", s.point)} {
		if strings.Contains(out, "ulimit -Ht") || strings.Contains(out, "ulimit -Hv") {
			t.Errorf("%s names a limit that is none:\n%s", name, out)
		}
	}
	s.umount()
}

// check, mount and doctor name a time-out of the kernel that the source may exceed. Where the kernel has a default,
// a mount chooses its own.
func TestRequestTimeout(t *testing.T) {
	drivertest.Need(t, "root")
	const folder = "/proc/sys/fs/fuse/"
	if _, err := os.Stat(folder + "max_request_timeout"); err != nil {
		drivertest.Skipf(t, "needs Linux 6.15: %v", err)
	}
	const text = "the kernel ends the mount when a request takes longer than 20s"
	for _, c := range []struct {
		sysctl string
		named  bool
	}{{"max_request_timeout", true}, {"default_request_timeout", false}} {
		s := newSite(t)
		data := s.write("f", 1<<20)
		s.inNamespace(`echo 20 > "$1/sysctl" && mount --bind "$1/sysctl" "$2"`, folder+c.sysctl) // for all processes it would be another one
		words := s.mountWords("64MiB")
		checked, mounted := s.try(append([]string{"check"}, words[1:]...)...), s.try(words...)
		if got := s.must("cat", s.point+"/f"); got != string(data) {
			t.Error("wrong bytes")
		}
		for name, out := range map[string]string{
			"check": checked.stdout, "mount": mounted.stderr,
			"doctor": strings.Join(strings.Fields(s.milkweed("doctor", s.point)), " "),
		} {
			if strings.Contains(out, text) != c.named || strings.Contains(out, "sysctl fs.fuse.max_request_timeout=600") != c.named {
				t.Errorf("%s: %s names a time-out: %t, want %t\n%s", c.sysctl, name, !c.named, c.named, out)
			}
		}
		s.umount()
		s.wantNothing()
	}
}

// A file of the source hangs for longer than the default time-out of the kernel: the mount goes on. It ends if the
// time-out is the longest that a mount may choose.
func TestRequestTimeoutOfTheKernel(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a time-out of the kernel")
	}
	drivertest.Need(t, "root")
	mount := func(sysctl string) (*site, *foreground, chan error) {
		path := "/proc/sys/fs/fuse/" + sysctl
		before, err := os.ReadFile(path)
		if err != nil {
			drivertest.Skipf(t, "needs Linux 6.15: %v", err)
		}
		s := newSite(t)
		s.write("slow", 4<<20)
		s.check(os.WriteFile(path, []byte("20"), 0)) // for a moment: it is that of the whole machine
		d := serveWords(s, append(s.mountWords("64MiB"), "-o", "mode=stateless,source_bandwidth=10kB"))
		s.check(os.WriteFile(path, before, 0))
		f, err := os.Open(s.point + "/slow")
		s.check(err)
		read := make(chan error, 1)
		go func() {
			defer f.Close()
			_, err := f.ReadAt(make([]byte, 1<<20), 1<<20)
			read <- err
		}()
		return s, d, read
	}
	patient, d, slow := mount("default_request_timeout")
	time.Sleep(20 * time.Second) // the kernel looks for requests that are late every 15 s
	s, other, late := mount("max_request_timeout")
	if err := <-late; err == nil {
		t.Error("a request that took longer than the kernel permits has succeeded")
	}
	other.wantFailure()
	s.milkweed("umount", s.point)
	s.wantNothing()
	select {
	case err := <-slow:
		t.Errorf("the read of the other mount has ended: %v", err)
	default:
	}
	if out := patient.must("ls", patient.point); !strings.Contains(out, "slow") {
		t.Errorf("ls of the other mount: %q", out)
	}
	patient.milkweed("umount", "--force", patient.point)
	d.wait()
	<-slow
	patient.wantNothing()
}

// With the fewest descriptors that are accepted, no open by a job fails, although the daemon would
// keep more files open. With fewer, the mount is refused.
func TestFewDescriptors(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole epochs")
	}
	parallel(t)
	for _, mode := range []string{"cached", "stateless"} {
		t.Run(mode, func(t *testing.T) {
			s := newSite(t)
			for i := range 1500 {
				s.write(fmt.Sprintf("%d/%04d", i%10, i), 2000)
			}
			s.limited(256)
			s.milkweed(append(s.mountWords("64KiB"), "--mode", mode)...) // most files are read from the source
			s.wrapper = nil
			for range 2 {
				out := s.sh(`cd "$1" && find . -type f | xargs -n 20 -P 32 cat 2>&1 >/dev/null || true`, s.point)
				if out != "" {
					t.Errorf("reading failed:\n%.1000s", out)
				}
			}
			const hold = `import glob, sys
files = sorted(glob.glob(sys.argv[1] + "/*/*"))
held = [open(f, "rb") for f in files[:150]]
for f in files[150:]: open(f, "rb").read()
for f in held: assert len(f.read()) == 2000`
			s.must(python, "-c", hold, s.point) // with the idle files, that would be too many
			if log := s.logs(); mode == "cached" && !strings.Contains(log, "no descriptor is left") {
				t.Error("there were enough descriptors")
			}
			s.umount()
			s.wantNothing()
		})
	}
	s := newSite(t)
	s.limited(64)
	s.wantRefusal(s.mountWords("1MiB"), exit.Fuse, "at most 64 at once (ulimit -Hn), and a mount needs 256", "LimitNOFILE")
}
