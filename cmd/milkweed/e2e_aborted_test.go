package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/fs/fusectl"
)

// connection returns the connection of the mount. The caller closes it.
func (s *site) connection() *fusectl.Connection {
	s.t.Helper()
	table, err := mounts.Read(s.table)
	s.check(err)
	m, _ := table.At(s.point)
	connection, err := fusectl.Open(m.Dev)
	s.check(err)
	return connection
}

// abort ends the connection of the mount, as an administrator does.
func (s *site) abort() {
	s.t.Helper()
	connection := s.connection()
	defer connection.Close()
	s.check(connection.Abort())
}

// wantFailure waits for the end of the daemon, which must be a failure that its log names.
func (d *foreground) wantFailure() {
	d.t.Helper()
	var failed *exec.ExitError
	err := <-d.ended
	if !errors.As(err, &failed) || failed.ExitCode() != int(exit.Failure) {
		d.t.Errorf("the daemon ended with %v, want exit code %d", err, exit.Failure)
	}
	log := d.stderr.String()
	if !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "the kernel has ended the connection") {
		d.t.Errorf("the log does not have the failure:\n%s", log)
	}
}

// withoutFusectl makes the user of the commands one who cannot control FUSE connections.
func (s *site) withoutFusectl() {
	s.inNamespace(fuseForAll + "\numount -ql /sys/fs/fuse/connections || true")
	s.giveToNobody()
}

// If the kernel ends the connection and the mount stays, the daemon has failed: a service manager starts it
// again. Until then, programs do not take the mount point for an empty dataset.
func TestConnectionIsAborted(t *testing.T) {
	drivertest.Need(t, "root")
	for name, prepare := range map[string]func(s *site){
		"root": func(s *site) {},
		// It does not know its connection.
		"a user without fusectl": (*site).withoutFusectl,
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			data := s.write("f", 1000)
			prepare(s)
			d := serveInForeground(s, "1MiB")
			s.must("cat", s.point+"/f")
			s.settled()
			s.abort()
			d.wantFailure()
			if r := s.run("ls", s.point); !strings.Contains(r.stderr, "endpoint is not connected") {
				t.Errorf("ls of the mount point: got %q %q, want ENOTCONN", r.stdout, r.stderr)
			}
			if !s.unlocked(1) {
				t.Error("the dataset in the tier is still locked")
			}
			d = serveWords(s, append(s.mountWords("1MiB"), "--clear-stale")) // as the unit does
			if got := s.must("cat", s.point+"/f"); got != string(data) {
				t.Error("wrong bytes after the failure")
			}
			s.umount()
			d.wait()
			s.wantNothing()
		})
	}
}

// A supervisor mounts again, also if requests wait for the source, and if umount -f fails because the mount is in
// use.
func TestSuperviseAborted(t *testing.T) {
	drivertest.Need(t, "root")
	for name, end := range map[string]func(s *site){
		"abort": (*site).abort,
		"umount -f of a mount in use": func(s *site) {
			if err := unix.Unmount(s.point, unix.MNT_FORCE); !errors.Is(err, unix.EBUSY) {
				s.t.Errorf("umount -f: got %v, want EBUSY", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			data := s.write("f", 1000)
			s.write("slow", 8<<20)
			s.milkweed(append(s.mountWords("64MiB"), "--supervise", "-o", "mode=stateless,source_bandwidth=1MB")...)
			s.must("cat", s.point+"/f")
			before := s.status()
			f, err := os.Open(s.point + "/slow")
			s.check(err)
			read := make(chan error, 1)
			go func() {
				_, err := f.ReadAt(make([]byte, 4<<20), 0)
				read <- err
			}()
			s.eventually("the read waits for the source", func() bool { return s.status().Source.Bytes > before.Source.Bytes })
			end(s)
			if err := <-read; err == nil {
				t.Error("the read that waited for the source has succeeded")
			}
			s.check(f.Close())
			s.eventually("it has been mounted again", func() bool {
				after, err := control.DecodeStatus([]byte(s.try("status", "--json", s.point).stdout))
				return err == nil && after.Crashes == 1
			})
			if got := s.must("cat", s.point+"/f"); got != string(data) {
				t.Error("wrong bytes after the failure")
			}
			s.umount()
			s.eventually("the supervisor has ended", func() bool { return len(s.processes()) == 0 })
			s.wantNothing()
		})
	}
}

// The kernel also ends the connection before the mount: for umount -f, and for `milkweed umount --force`. Neither is a
// failure. A second mount point of the file system, where every access fails, is unmounted, too.
func TestUnmountIsNoFailure(t *testing.T) {
	drivertest.Need(t, "root")
	for name, end := range map[string]func(d *foreground){
		"umount -f":               func(d *foreground) { d.check(unix.Unmount(d.point, unix.MNT_FORCE)) },
		"milkweed umount --force": func(d *foreground) { d.milkweed("umount", "--force", d.point) },
		"abort, and SIGTERM": func(d *foreground) {
			d.abort()
			d.check(d.cmd.Process.Signal(unix.SIGTERM))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.write("f", 1000)
			for _, second := range []string{"", s.dir + "/second"} {
				d := serveInForeground(s, "1MiB")
				if second != "" {
					s.check(os.Mkdir(second, 0o755))
					s.check(unix.Mount(s.point, second, "", unix.MS_BIND, ""))
				}
				end(d)
				d.wait()
				if log := d.stderr.String(); strings.Contains(log, "level=ERROR") {
					t.Errorf("the log has an error:\n%s", log)
				}
				s.wantNothing()
			}
		})
	}
}

// A mount that was moved stays when its connection is aborted.
func TestMovedAndAborted(t *testing.T) {
	drivertest.Need(t, "root")
	s := newSite(t)
	s.write("f", 1000)
	s.inNamespace("true") // a mount below a shared one cannot be moved
	d := serveInForeground(s, "1MiB")
	s.check(os.Mkdir(s.dir+"/elsewhere", 0o755))
	s.must("mount", "--move", s.point, s.dir+"/elsewhere")
	s.point = s.dir + "/elsewhere"
	s.abort()
	d.wantFailure()
	if len(s.mounts()) != 1 {
		t.Errorf("mounted: %q", s.mounts())
	}
}

// An abort is a failure, and an unmount is none, also if another process has mounted the descriptor and the daemon may
// know its connection.
func TestFuseFDIsAborted(t *testing.T) {
	drivertest.Need(t, "root")
	for _, aborted := range []bool{true, false} {
		s := newSite(t)
		s.write("f", 1000)
		d := &foreground{site: s, ended: make(chan error, 1)}
		d.cmd = s.command(append(s.words(s.mountWords("1MiB")), "--foreground", "--fuse-fd", "3")...)
		device := mountDevice(s, s.point)
		fd, err := unix.Dup(int(device.Fd()))
		s.check(err)
		device.Close()
		device = os.NewFile(uintptr(fd), "/dev/fuse")
		s.check(unix.SetNonblock(fd, true)) // as a launcher may have left it
		d.cmd.ExtraFiles = []*os.File{device}
		d.start()
		device.Close()
		s.must("cat", s.point+"/f")
		if aborted {
			s.abort()
			d.wantFailure()
			s.check(unix.Unmount(s.point, 0))
		} else {
			s.check(unix.Unmount(s.point, 0))
			d.wait()
		}
		s.wantNothing()
	}
}
