package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/fs"
)

// A foreground is a daemon that runs in the foreground, as a child of the test.
type foreground struct {
	*site
	cmd     *exec.Cmd
	stderr  bytes.Buffer
	metrics string // the address of its metrics
	ended   chan error
}

// serveInForeground mounts in the foreground, and returns when the mount is ready.
func serveInForeground(s *site, quotas ...string) *foreground {
	s.t.Helper()
	return serveWords(s, s.mountWords(quotas...))
}

// serveWords is serveInForeground with the words of a mount.
func serveWords(s *site, words []string) *foreground {
	s.t.Helper()
	d := &foreground{site: s, metrics: freeAddress(s.t), ended: make(chan error, 1)}
	words = append(words, "--foreground", "--metrics-listen", d.metrics)
	d.cmd = s.command(s.words(words)...)
	d.start()
	s.eventually("the mount is ready", func() bool { return s.try("status", s.point).code == 0 })
	return d
}

// start starts the command.
func (d *foreground) start() {
	d.t.Helper()
	d.cmd.Stderr = &d.stderr
	d.check(d.cmd.Start())
	go func() { d.ended <- d.cmd.Wait() }()
}

// wait waits for the end of the daemon. If the daemon fails, the test fails.
func (d *foreground) wait() {
	d.t.Helper()
	select {
	case err := <-d.ended:
		if err != nil {
			d.t.Errorf("the daemon ended with %v\n%s", err, &d.stderr)
		}
	case <-time.After(30 * time.Second):
		d.t.Fatal("the daemon has not ended after 30 s")
	}
}

// hosts counts the addresses of the loopback interface that loopback has returned.
var hosts atomic.Uint32

// loopback returns an address of the loopback interface, with port 0, that no other test uses: a port
// that was free a moment ago could be taken by another test.
func loopback() string {
	n := hosts.Add(1)
	return fmt.Sprintf("127.77.%d.%d:0", n>>8, n&0xff)
}

// freeAddress returns an address on which no process listens.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", loopback())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// scrape returns the metrics by name, with labels.
func (d *foreground) scrape() map[string]float64 {
	d.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	resp, err := client.Get("http://" + d.metrics + "/metrics")
	d.check(err)
	defer resp.Body.Close()
	values := make(map[string]float64)
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		line := lines.Text()
		i := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || i < 0 {
			continue
		}
		if values[line[:i]], err = strconv.ParseFloat(line[i+1:], 64); err != nil {
			d.t.Errorf("metric %q: %v", line, err)
		}
	}
	return values
}

// descriptors returns the number of open descriptors of the daemon.
func (d *foreground) descriptors() int {
	d.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
	d.check(err)
	return len(entries)
}

// unlocked reports whether no process holds the lock of the dataset in a tier.
func (s *site) unlocked(tier int) bool {
	s.t.Helper()
	f, err := os.Open(filepath.Join(s.dataset(tier), "lock"))
	s.check(err)
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// When all files are closed, the daemon has as many goroutines and descriptors as before. After a
// signal or an unmount it exits with 0, and leaves only copies.
func TestNothingLeft(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole epochs")
	}
	parallel(t)
	for _, c := range []struct {
		name string
		end  func(d *foreground)
	}{
		{"SIGTERM", func(d *foreground) { d.cmd.Process.Signal(unix.SIGTERM) }},
		{"SIGINT", func(d *foreground) { d.cmd.Process.Signal(unix.SIGINT) }},
		{"umount", func(d *foreground) { d.umount() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			varied(s)
			d := serveInForeground(s, "2MiB", "64MiB")
			s.must("cat", s.point+"/class0/000.jpg") // start what is started only once
			s.settled()
			before := d.scrape()
			fuseReaders := min(max(2, before["go_sched_gomaxprocs_threads"]), 16) // go-fuse starts more as there are more requests
			goroutines, descriptors := before["go_goroutines"]+fuseReaders, d.descriptors()

			s.epoch(1)
			s.epoch(2)
			s.closed()
			s.eventually(fmt.Sprintf("at most %d descriptors", descriptors), func() bool { return d.descriptors() <= descriptors })
			s.eventually(fmt.Sprintf("at most %v goroutines", goroutines), func() bool { return d.scrape()["go_goroutines"] <= goroutines })

			c.end(d)
			d.wait()
			s.wantNothing()
			if !s.unlocked(1) || !s.unlocked(2) {
				t.Error("the dataset in a tier is still locked")
			}
		})
	}
}

// A daemon that gets SIGTERM while it copies a file ends, and leaves no temporary file.
func TestEndWhileCopying(t *testing.T) {
	if testing.Short() {
		t.Skip("copies gigabytes")
	}
	s := newSite(t)
	s.write("large.tfrecord", 1)
	s.check(os.Truncate(s.source+"/large.tfrecord", 3<<30)) // takes seconds to copy
	d := serveInForeground(s, "4GiB")
	s.must("head", "-c", "8M", s.point+"/large.tfrecord")
	s.eventually("the whole file is being copied", func() bool { return s.status().Fills.InFlight == 1 })
	d.cmd.Process.Signal(unix.SIGTERM)
	d.wait()
	s.wantNothing()
	if copies := s.files(s.dataset(1) + "/files"); len(copies) > 0 {
		t.Errorf("there is a copy: %v", copies)
	}
}

// A file that is open when the daemon gets SIGTERM stays readable until it is closed. The daemon
// ends after that.
func TestEndWhileOpen(t *testing.T) {
	s := newSite(t)
	data := s.write("f", 3<<20)
	d := serveInForeground(s, "1GiB")
	f, err := os.Open(s.point + "/f")
	s.check(err)
	defer f.Close()
	d.cmd.Process.Signal(unix.SIGTERM)
	s.eventually("the mount is detached", func() bool { return len(s.mounts()) == 0 })
	got := make([]byte, len(data))
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
		t.Errorf("reading a file that was open: %v", err)
	}
	s.check(f.Close())
	d.wait()
	s.wantNothing()
}

// A daemon does not end with SIGHUP.
func TestHangup(t *testing.T) {
	s := newSite(t)
	data := s.write("f", 1000)
	s.mount("64MiB")
	s.must("kill", "-HUP", strconv.Itoa(s.status().PID))
	s.eventually("the signal has had its effect", func() bool { return strings.Contains(s.logs(), "configuration reloaded") })
	if got := s.must("cat", s.point+"/f"); got != string(data) {
		t.Error("the mount has other bytes")
	}
	s.umount()
	s.wantNothing()
}

// The metrics have the numbers of the status.
func TestMetrics(t *testing.T) {
	s := newSite(t)
	varied(s)
	d := serveInForeground(s, "1MiB", "2MiB")
	s.epoch(1)
	s.epoch(2)
	status := s.closed()
	got := d.scrape()
	want := map[string]float64{
		"milkweed_ready":                                                  1,
		"milkweed_open_handles":                                           0,
		"milkweed_source_read_bytes_total":                                float64(status.Source.Bytes),
		`milkweed_source_operations_total{operation="open"}`:              float64(status.Source.Opens),
		`milkweed_source_operations_total{operation="read"}`:              float64(status.Source.Reads),
		`milkweed_placements_total{result="placed"}`:                      float64(status.Placement.Placed),
		`milkweed_placements_total{result="skipped"}`:                     float64(status.Placement.Skipped),
		"milkweed_placed_bytes_total":                                     float64(status.Placement.PlacedBytes),
		"milkweed_fills_in_flight":                                        0,
		`milkweed_opens_total{level="source",mode="` + status.Mode + `"}`: float64(status.Opens["source"][status.Mode]),
	}
	for _, tier := range status.Tiers {
		label := fmt.Sprintf("{tier=%q}", tier.Name)
		want["milkweed_tier_used_bytes"+label] = float64(tier.UsedBytes)
		want["milkweed_tier_quota_bytes"+label] = float64(tier.QuotaBytes)
		want["milkweed_tier_files"+label] = float64(tier.Files)
		want["milkweed_tier_reads_total"+label] = float64(tier.Reads)
		want["milkweed_tier_read_bytes_total"+label] = float64(tier.Bytes)
		want[fmt.Sprintf("milkweed_read_duration_seconds_count{level=%q}", tier.Name)] = float64(status.ReadLatency[tier.Name].Count)
		if tier.Bytes == 0 {
			t.Errorf("nothing was read from %s", tier.Name)
		}
	}
	for name, value := range want {
		if g, ok := got[name]; !ok || g != value {
			t.Errorf("%s: got %v, want %v", name, g, value)
		}
	}
	d.cmd.Process.Signal(unix.SIGTERM)
	d.wait()
	s.wantNothing()
}

// The kernel gives the device number of a file system that has ended to the next one. If that happens
// during `milkweed umount`, the command does not end that one, and waits for its own daemon. A command
// that lacks CAP_SYS_ADMIN calls fusermount3, which is here a script that lets the test unmount.
func TestUmountSparesOthers(t *testing.T) {
	drivertest.Need(t, "root", "setpriv")
	const connections = "/sys/fs/fuse/connections" // the command cannot mount fusectl itself
	if err := unix.Mount("none", connections, "fusectl", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(connections, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for _, flags := range [][]string{nil, {"--force"}} {
		t.Run(fmt.Sprint("umount", flags), func(t *testing.T) {
			s, other := newSite(t), newSite(t)
			s.write("f", 1000)
			s.mount("1MiB")
			pid := s.status().PID
			bin, called, done := s.dir+"/bin", s.dir+"/called", s.dir+"/done"
			s.check(os.Mkdir(bin, 0o755))
			s.check(os.WriteFile(bin+"/fusermount3", fmt.Appendf(nil, "#!/bin/sh\ntouch %s\nuntil [ -e %s ]; do sleep 0.01; done\n", called, done), 0o755))
			cmd := s.command(append([]string{"setpriv", "--bounding-set=-sys_admin", "--", s.program, "umount", s.point}, flags...)...)
			var stderr bytes.Buffer
			cmd.Stderr, cmd.Env = &stderr, append(s.env, "PATH="+bin+":"+os.Getenv("PATH"))
			s.check(cmd.Start())
			returned := make(chan error, 1)
			go func() { returned <- cmd.Wait() }()
			s.eventually("umount calls fusermount3", func() bool { _, err := os.Stat(called); return err == nil })
			drivertest.Stop(t, pid)
			s.check(unix.Unmount(s.point, 0))
			s.check(other.mountMany(func() {
				s.check(os.WriteFile(done, nil, 0o644))
				select {
				case err := <-returned:
					t.Errorf("umount has returned before the end of its daemon: %v %s", err, &stderr)
					returned <- err
				case <-time.After(500 * time.Millisecond):
				}
				s.check(unix.Kill(pid, unix.SIGCONT))
				if err := <-returned; err != nil {
					t.Errorf("%v: %s", err, &stderr)
				}
			}))
			s.wantNothing()
		})
	}
}

// The same for a daemon that learns of its end late, and may then get a signal, too. It has not failed.
func TestDaemonSparesOthers(t *testing.T) {
	s, other := newSite(t), newSite(t)
	s.write("f", 1000)
	for _, signals := range [][]os.Signal{{unix.SIGTERM, unix.SIGCONT}, {unix.SIGCONT}} {
		for range 6 {
			d := serveInForeground(s, "1MiB")
			drivertest.Stop(t, d.cmd.Process.Pid)
			s.check(unix.Unmount(s.point, 0))
			s.check(other.mountMany(func() {
				for _, signal := range signals {
					s.check(d.cmd.Process.Signal(signal))
				}
				d.wait()
			}))
		}
	}
	s.wantNothing()
}

// mountMany mounts so many file systems that a device number which is free again is used, and calls
// meanwhile. The error is that of a mount that another process has ended.
func (s *site) mountMany(meanwhile func()) error {
	var devices []*os.File
	for i := range 20 {
		point := fmt.Sprintf("%s/%d", s.point, i)
		s.check(os.MkdirAll(point, 0o755))
		devices = append(devices, mountDevice(s, point))
	}
	meanwhile()
	var errs []error
	for _, device := range devices {
		errs = append(errs, fs.CheckDevice(int(device.Fd())))
	}
	s.unmountAll()
	for _, device := range devices {
		device.Close()
	}
	return errors.Join(errs...)
}

// Umount --all unmounts all mounts, also if one of them is in use. With --dry-run it only names the users.
func TestUmountAll(t *testing.T) {
	s := newSite(t)
	s.write("f", 1000)
	s.inNamespace("true")
	inner := s.dir + "/inner"
	s.check(os.Mkdir(inner, 0o755))
	s.mount("64MiB")
	s.milkweed("mount", "--tier", "ram:"+s.tier(2)+":64MiB", s.source+"/.", inner)
	busy := s.command("sh", "-c", `cd "$1" && echo ready && exec cat`, "sh", s.point)
	stdin, err := busy.StdinPipe()
	s.check(err)
	stdout, err := busy.StdoutPipe()
	s.check(err)
	s.check(busy.Start())
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	for _, pid := range s.processes() {
		if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); pid != busy.Process.Pid && string(comm) != "milkweed\n" {
			t.Errorf("the name of a daemon is %q, %v", comm, err)
		}
	}
	for _, words := range [][]string{{"--all"}, {s.point}} {
		r := s.try(append([]string{"umount", "--dry-run"}, words...)...)
		if r.code != exit.MountPoint || !strings.Contains(r.stderr, s.point+" is in use by cat") || len(s.mounts()) != 2 {
			t.Errorf("--dry-run %q: exit code %d, mounted: %q\n%s", words, r.code, s.mounts(), r.stderr)
		}
	}
	s.milkweed("umount", "--dry-run", inner)
	if r := s.try("umount", "--all"); r.code != exit.MountPoint || !strings.Contains(r.stderr, s.point+" is in use by cat") {
		t.Errorf("one is in use: exit code %d\n%s", r.code, r.stderr)
	}
	if got := s.mounts(); !slices.Equal(got, []string{s.point}) {
		t.Errorf("still mounted: %q", got)
	}
	stdin.Close()
	s.check(busy.Wait())
	for range 2 {
		s.milkweed("umount", "--all")
	}
	s.wantNothing()
	if r := s.try("umount", "--all", s.point); r.code != exit.Usage {
		t.Errorf("with a mount point: exit code %d", r.code)
	}
}
