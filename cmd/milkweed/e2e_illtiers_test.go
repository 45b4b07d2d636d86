package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// hang mounts a FUSE file system on dir whose daemon answers no request. After heal, dir is as it
// was before. Mounts wait for tiers as long as they do outside of tests.
func (s *site) hang(dir string) (heal func()) {
	s.t.Helper()
	_, heal = s.silent(dir)
	return heal
}

// hangHard is hang, except that the daemon reads the requests. A process that waits for the reply to one that
// was read cannot be ended, also by SIGKILL.
func (s *site) hangHard(dir string) (heal func()) {
	s.t.Helper()
	device, _ := s.silent(dir)
	request := make([]byte, 1<<17)
	_, err := device.Read(request)
	s.check(err)
	reply := make([]byte, 16+64) // struct fuse_out_header, and struct fuse_init_out of version 7.31
	binary.NativeEndian.PutUint32(reply, uint32(len(reply)))
	copy(reply[8:16], request[8:16]) // unique
	binary.NativeEndian.PutUint32(reply[16:], 7)
	binary.NativeEndian.PutUint32(reply[20:], 31)
	binary.NativeEndian.PutUint32(reply[36:], 4096) // max_write
	_, err = device.Write(reply)
	s.check(err)
	go func() {
		for err == nil {
			_, err = device.Read(request)
		}
	}()
	return func() {
		s.t.Helper()
		s.check(unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH)) // Read returns
		device.Close()
	}
}

// silent is hang, and returns the device of the daemon.
func (s *site) silent(dir string) (device *os.File, heal func()) {
	s.t.Helper()
	s.env = append(s.env, openTimeoutEnv+"=")
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0) // before the mount, it cannot be polled
	s.check(err)
	device = os.NewFile(uintptr(fd), "/dev/fuse")
	s.t.Cleanup(func() { device.Close() })
	s.check(os.MkdirAll(dir, 0o700))
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device.Fd())
	s.check(unix.Mount("hanging", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options))
	return device, func() {
		s.t.Helper()
		device.Close() // what hangs fails with ENOTCONN
		s.check(unix.Unmount(dir, unix.MNT_DETACH))
	}
}

// tierIs waits until tier n has a state of health, and returns it.
func (s *site) tierIs(n int, health control.Health) (tier control.Tier) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("tier %d is %s", n, health), func() bool {
		tier = s.status().Tiers[n-1]
		return tier.Health == health
	})
	return tier
}

// A mount starts while a tier hangs, and shows that. Other commands do not hang. When the tier
// answers, it is used, with the copies of earlier mounts.
func TestTierHangsAtStart(t *testing.T) {
	if testing.Short() {
		t.Skip("depends on how fast a tier opens")
	}
	s := newSite(t)
	for i := range 20 {
		s.write(fmt.Sprintf("%d.jpg", i), 10_000)
	}
	words := append(s.mountWords("64MiB", "64MiB"), "--mode", "passthrough")
	s.milkweed(words...)
	s.epoch(1)
	before := s.settled()
	s.umount()

	heal := s.hang(s.tier(1))
	if got := s.try(words...); got.code != exit.OK || !strings.Contains(got.stderr, "tier=tier1") || !strings.Contains(got.stderr, "no answer in time") {
		t.Fatalf("mount: exit code %d\n%s", got.code, got.stderr)
	}
	if got := s.status().Tiers; got[0].Health != control.Down || !strings.Contains(got[0].Reason, "no answer in time") || got[1].Health != control.Healthy {
		t.Errorf("status: %+v", got)
	}
	if got := s.milkweed("status", s.point); !strings.Contains(got, "down: no answer in time") {
		t.Errorf("status:\n%s", got)
	}
	s.must("cat", s.point+"/0.jpg")
	s.milkweed("where", s.point+"/0.jpg")
	if got := s.settled().Source.Bytes; got != 10_000 {
		t.Errorf("source bytes of a file whose copy cannot be reached: got %d, want 10000", got)
	}
	heal()

	if got := s.tierIs(1, control.Healthy); got.Files != 20 {
		t.Errorf("tier 1 has %d copies, want 20", got.Files)
	}
	s.epoch(2)
	after := s.settled()
	if got := after.Source.Bytes; got != 10_000 {
		t.Errorf("source bytes after the tier has answered: got %d, want 10000: its copies are not used", got)
	}
	if got, want := after.Tiers[0].Passthrough, before.Tiers[0].Passthrough; got != want || want && after.Opens["tier1"]["passthrough"] == 0 {
		t.Errorf("passthrough: got %v, want %v; opens: %v", got, want, after.Opens)
	}
	s.umount()
	s.wantNothing()
}

// A mount starts while all of its tiers hang, reads the source, and ends on SIGTERM and on
// `milkweed umount`.
func TestEndWhileTierHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the time limits of sources, tiers or daemons that hang")
	}
	parallel(t)
	for name, end := range map[string]func(d *foreground){
		"SIGTERM": func(d *foreground) { d.cmd.Process.Signal(unix.SIGTERM) },
		"umount":  func(d *foreground) { d.umount() },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.write("f", 100_000)
			heal := s.hang(s.tier(1))
			d := serveInForeground(s, "64MiB")
			s.epoch(1)
			if got := d.scrape()[`milkweed_tier_health{state="down",tier="tier1"}`]; got != 1 {
				t.Errorf("the metrics do not show that the tier is down: %v", got)
			}
			end(d)
			d.wait()
			heal()
			s.wantNothing()
		})
	}
}

// If the disk of a tier is not mounted, the folder below its mount point is not filled, unless the
// operator removes the file that the warning names. When the disk is mounted, the tier is used.
func TestTierIsNotMounted(t *testing.T) {
	s := newSite(t)
	data := s.write("f", 100_000)
	disk := s.dir + "/tier1"
	s.check(os.Mkdir(disk, 0o700))
	s.sh(`mount -t tmpfs none "$1"`, disk)
	s.mount("64MiB")
	s.must("cat", s.point+"/f")
	s.settled()
	s.umount()

	s.sh(`mkdir "$2" && mount --move "$1" "$2"`, disk, s.dir+"/away")
	got := s.try(s.mountWords("64MiB")...)
	state, _ := filepath.Glob(s.dir + "/state/milkweed/mounted-*")
	if len(state) != 1 {
		t.Fatalf("files of the state: %q, want one", state)
	}
	if got.code != exit.OK || !strings.Contains(got.stderr, "not mounted") || !strings.Contains(got.stderr, "remove "+state[0]) {
		t.Fatalf("mount: exit code %d\n%s", got.code, got.stderr)
	}
	if got := s.must("cat", s.point+"/f"); got != string(data) {
		t.Error("the mount has other bytes")
	}
	if got := s.status().Tiers[0]; got.Health != control.Down || !strings.Contains(got.Reason, "not mounted") {
		t.Errorf("status: %+v", got)
	}
	if left, err := os.ReadDir(disk); len(left) > 0 || err != nil {
		t.Errorf("below the mount point: %v, %v; want nothing", left, err)
	}

	s.sh(`mount --move "$2" "$1"`, disk, s.dir+"/away")
	if got := s.tierIs(1, control.Healthy); got.Files != 1 {
		t.Errorf("the disk has %d copies, want 1", got.Files)
	}
	s.umount()

	s.sh(`umount "$1"`, disk)
	s.check(os.Remove(state[0]))
	s.mount("64MiB")
	s.must("cat", s.point+"/f")
	if got := s.settled().Tiers[0]; got.Health != control.Healthy || got.Files != 1 {
		t.Errorf("after the operator has said so: %+v", got)
	}
	s.umount()
	s.wantNothing()
}

// A tier on a file system that reports no size is filled up to its quota in bytes.
func TestTierWithoutSize(t *testing.T) {
	s := newSite(t)
	s.write("f", 100_000)
	s.check(os.Mkdir(s.tier(1), 0o700))
	s.sh(`mount -t ramfs none "$1"`, s.tier(1))
	s.mount("64MiB")
	s.must("cat", s.point+"/f")
	if got := s.settled().Tiers[0]; got.Files != 1 {
		t.Errorf("%+v, want one copy", got)
	}
	s.umount()
	s.sh(`umount "$1"`, s.tier(1))
	s.wantNothing()
}

// A mount on a disk without room for the folder of the dataset says what to do, and uses the tier when there is room.
func TestMountOnAFullTier(t *testing.T) {
	s := newSite(t)
	s.write("f", 5000)
	s.check(os.Mkdir(s.tier(1), 0o700))
	s.sh(`mount -t tmpfs -o size=1m,nr_inodes=10 none "$1"; for i in $(seq 9); do : >"$1/mine$i"; done`, s.tier(1))
	s.mountWith("mode=cached", "64MiB") // each open is seen
	if log := s.logs(); !strings.Contains(log, "starts without a tier") || !strings.Contains(log, "Make room on its disk") {
		t.Errorf("the log: %s", log)
	}
	s.must("cat", s.point+"/f")
	s.sh(`rm "$1"/mine?`, s.tier(1))
	s.eventually("the tier is used", func() bool { return s.status().Tiers[0].Health == control.Healthy })
	s.eventually("the file has a copy", func() bool { s.must("cat", s.point+"/f"); return s.status().Tiers[0].Files == 1 })
	s.umount()
	s.sh(`umount "$1"`, s.tier(1))
	s.wantNothing()
}
