package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/fs"
)

// openDevice opens /dev/fuse.
func openDevice(s *site) *os.File {
	s.t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	s.check(err)
	s.t.Cleanup(func() { f.Close() })
	return f
}

// mountDevice mounts a new /dev/fuse on point, as root.
func mountDevice(s *site, point string) *os.File {
	s.t.Helper()
	f := openDevice(s)
	mountFuse(s, f, point)
	return f
}

// mountFuse mounts an open /dev/fuse on point.
func mountFuse(s *site, f *os.File, point string) {
	s.t.Helper()
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,max_read=1048576,allow_other,default_permissions", f.Fd())
	s.check(unix.Mount(s.source, point, fs.Type, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_RDONLY, data))
}

// serveDevice starts a daemon that serves a descriptor, as nobody without any capability. name is the
// name of the mount.
func serveDevice(s *site, device *os.File, name string) *foreground {
	s.t.Helper()
	d := &foreground{site: s, ended: make(chan error, 1)}
	d.cmd = s.command("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--reuid="+nobody, "--regid="+nobody, "--clear-groups", "--",
		s.program, "mount", "-f", "--fuse-fd", "3", "-o", "allow_other,clock_skew=0s", "--tier", "tier1:"+s.tier(1)+":64MiB", s.source, name)
	d.cmd.ExtraFiles = []*os.File{device}
	d.start()
	device.Close()
	return d
}

// A process without any capability serves a mount that root has made, under a name that is no path in
// its mount namespace. Check says that it has no passthrough. It ends with 0 when root unmounts.
func TestFuseFD(t *testing.T) {
	drivertest.Need(t, "setpriv")
	s := newSite(t)
	dataset := varied(s)
	s.sh(`chown -R "$2:$2" "$1"`, s.dir, nobody)
	name := s.dir + "/elsewhere/mount"
	d := serveDevice(s, mountDevice(s, s.point), name)
	s.asNobody()
	s.eventually("the daemon answers", func() bool { return s.try("status", name).code == 0 })
	s.wrapper = nil // other users read, too
	s.epoch(1)

	if out := s.must(s.wrapperOf("status", name)...); !strings.Contains(out, name) || strings.Contains(out, "passthrough\n") {
		t.Errorf("status: %s", out)
	}
	s.eventually("all files are copied", func() bool { return total(s.files(s.dataset(1)+"/files")) == dataset })
	s.epoch(2)
	if r := s.run("sh", "-c", `echo > "$1"/new`, "sh", s.point); !strings.Contains(r.stderr, "Read-only") {
		t.Errorf("a write: %s", r.stderr)
	}
	for _, words := range [][]string{{"status"}, {"where", name + "/class0/000.jpg"}, {"refresh", name}} {
		if out := s.must(s.wrapperOf(words...)...); out == "" && words[0] != "refresh" {
			t.Errorf("%q printed nothing", words)
		}
	}
	check := s.run(s.wrapperOf("check", "--mode", "passthrough", "--tier", "tier2:"+s.tier(2)+":64MiB", s.source)...)
	if !strings.Contains(check.stdout, "An unprivileged container or pod has no passthrough") {
		t.Errorf("check does not say that there is no passthrough:\n%s%s", check.stdout, check.stderr)
	}
	if r := s.run(s.wrapperOf("umount", name)...); r.code != exit.MountPoint || !strings.Contains(r.stderr, "another mount namespace") {
		t.Errorf("umount: exit code %d\n%s", r.code, r.stderr)
	}
	s.check(unix.Unmount(s.point, 0))
	d.wait()
	s.wantNothing()
	if !s.unlocked(1) {
		t.Error("the dataset in the tier is still locked")
	}
}

// wrapperOf returns the words of a command that nobody runs.
func (s *site) wrapperOf(words ...string) []string {
	return append([]string{"setpriv", "--reuid=" + nobody, "--regid=" + nobody, "--clear-groups", "--", s.program}, words...)
}

// The mount point may be a descriptor of /dev/fuse, as for programs that use libfuse. The name is the path of the mount,
// or if it is mounted elsewhere, that of the descriptor for other processes.
func TestMountPointIsADevice(t *testing.T) {
	for _, path := range []string{"/dev/fd/3", "/proc/self/fd/3"} {
		for _, elsewhere := range []bool{false, true} {
			t.Run(fmt.Sprint(path, " ", elsewhere), func(t *testing.T) {
				s := newSite(t)
				s.write("f", 1000)
				device := openDevice(s)
				d := &foreground{site: s, ended: make(chan error, 1)}
				mountFuse(s, device, s.point)
				if elsewhere {
					s.inNamespace("true") // which does not have the mount
				}
				words := append(s.words(s.mountWords("1MiB")), "-f", "-o", "allow_other")
				words[len(words)-4] = path
				d.cmd = s.command(words...)
				d.cmd.ExtraFiles = []*os.File{device}
				d.start()
				isKnown := fs.DeviceNumber(int(device.Fd())) != 0 // from Linux 6.17 on
				device.Close()
				s.sh(`cmp "$1" "$2"`, s.point+"/f", s.source+"/f")
				name := s.point
				if elsewhere || !isKnown {
					name = fmt.Sprintf("/proc/%d/fd/3", d.cmd.Process.Pid)
				}
				if got := s.milkweed("status", name); !strings.HasPrefix(got, name+":") {
					t.Errorf("%s is described by %s", name, got)
				}
				s.check(unix.Unmount(s.point, 0))
				d.wait()
				s.wantNothing()
			})
		}
	}
	t.Run("refused", func(t *testing.T) {
		s := newSite(t)
		s.write("f", 1000)
		for words, says := range map[string]string{
			`exec 3<>/dev/fuse && exec "$@"`:              "mount point /dev/fd/3 needs --foreground",
			`exec 3<>/dev/fuse && exec "$@" -f`:           "mount point /dev/fd/3: descriptor 3: it is not mounted",
			`exec 3<"$POINT" && exec "$@"`:                "Name the directory by its path, or add --foreground.",
			`exec 3<"$POINT" && exec "$@" -f --supervise`: "the daemon does not inherit the descriptor",
			`exec 3</dev/null && exec "$@" -f`:            "/dev/fd/3 is neither /dev/fuse nor a directory",
			`exec "$@" 3<&-`:                              "/dev/fd/3 is neither /dev/fuse nor a directory",
			`exec "$@" -f --supervise 3<>/dev/fuse`:       "--supervise exclude each other",
		} {
			args := s.words(s.mountWords("1MiB"))
			args[len(args)-1] = "/dev/fd/3"
			r := s.run(append([]string{"env", "POINT=" + s.point, "sh", "-c", words, "sh"}, args...)...)
			if r.code == exit.OK || !strings.Contains(r.stderr, says) {
				t.Errorf("%s: exit code %d\n%s", words, r.code, r.stderr)
			}
		}
	})
}

// The option default_permissions is for a mount that has it.
func TestDefaultPermissions(t *testing.T) {
	s := newSite(t)
	s.write("f", 1000)
	s.wantRefusal(append(s.mountWords("1MiB"), "-o", "allow_other,default_permissions"), exit.Usage, "option default_permissions is for --fuse-fd", "allow_other implies it")
	device := openDevice(s)
	defer device.Close()
	s.check(unix.Mount(s.source, s.point, fs.Type, unix.MS_RDONLY, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device.Fd())))
	if fs.DeviceNumber(int(device.Fd())) == 0 {
		drivertest.Skipf(t, "Linux 6.17 is required to tell which mount a descriptor serves")
	}
	d := &foreground{site: s, ended: make(chan error, 1)}
	d.cmd = s.command(append(s.words(s.mountWords("1MiB")), "-f", "--fuse-fd", "3", "-o", "allow_other,default_permissions")...)
	d.cmd.ExtraFiles = []*os.File{device}
	d.start()
	<-d.ended
	if !strings.Contains(d.stderr.String(), "option default_permissions: the mount does not have it") {
		t.Errorf("got %s", &d.stderr)
	}
}

// The connection ends while files are copied: by the end of the mount, SIGTERM, or umount --force. The
// daemon exits with 0 and leaves no copy half done.
func TestFuseFDEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("kills and restarts daemons many times")
	}
	parallel(t)
	drivertest.Need(t, "setpriv")
	for name, end := range map[string]func(s *site, d *foreground){
		"unmount": func(s *site, d *foreground) { s.check(unix.Unmount(s.point, unix.MNT_DETACH)) },
		"SIGTERM": func(s *site, d *foreground) { d.cmd.Process.Signal(syscall.SIGTERM) },
		"force": func(s *site, d *foreground) {
			s.must(s.wrapperOf("umount", "--force", s.dir+"/elsewhere")...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.write("large.tfrecord", 40<<20)
			s.sh(`chown -R "$2:$2" "$1"`, s.dir, nobody)
			d := serveDevice(s, mountDevice(s, s.point), s.dir+"/elsewhere")
			s.must("head", "-c1", s.point+"/large.tfrecord")
			end(s, d)
			d.wait()
			unix.Unmount(s.point, unix.MNT_DETACH) // after SIGTERM
			s.wantNothing()
		})
	}
}

// A descriptor that cannot be served is an error.
func TestFuseFDErrors(t *testing.T) {
	drivertest.Need(t, "setpriv")
	s := newSite(t)
	s.write("f", 1000)
	s.sh(`chown -R "$2:$2" "$1"`, s.dir, nobody)
	null, err := os.Open(os.DevNull)
	s.check(err)
	defer null.Close()
	for _, c := range []struct {
		device *os.File
		code   exit.Code
		says   string
	}{
		{null, exit.Usage, "it is not an open /dev/fuse"},
		{openDevice(s), exit.Fuse, "it is not mounted"},
	} {
		d := serveDevice(s, c.device, s.point)
		<-d.ended
		if code := d.cmd.ProcessState.ExitCode(); code != int(c.code) || !strings.Contains(d.stderr.String(), "flag --fuse-fd: descriptor 3: "+c.says) {
			t.Errorf("exit code %d, want %d and %q\n%s", code, c.code, c.says, &d.stderr)
		}
	}

	device := mountDevice(s, s.point)
	dup, err := unix.Dup(int(device.Fd()))
	s.check(err)
	d := serveDevice(s, device, s.dir+"/first")
	s.must("cat", s.point+"/f")
	s.eventually("no request is waiting", func() bool { return fs.CheckDevice(dup) != nil })
	second := serveDevice(s, os.NewFile(uintptr(dup), "/dev/fuse"), s.dir+"/second")
	<-second.ended
	if code := second.cmd.ProcessState.ExitCode(); code != int(exit.Fuse) || !strings.Contains(second.stderr.String(), "another process serves it already") {
		t.Errorf("exit code %d\n%s", code, &second.stderr)
	}
	s.must("cat", s.point+"/f")
	s.check(unix.Unmount(s.point, 0))
	d.wait()

	for words, says := range map[string]string{
		"--fuse-fd 3":                      "needs --foreground",
		"-f --fuse-fd 1":                   "not the number of an inherited descriptor",
		"-f --fuse-fd 0":                   "not the number of an inherited descriptor",
		"-f --fuse-fd 9 --supervise":       "--supervise exclude each other",
		"-f --fuse-fd 9 --clear-stale":     "--clear-stale exclude each other",
		"-f --fuse-fd 199":                 "descriptor 199: it is not an open /dev/fuse",
		"-f --fuse-fd 9999999999999999999": "invalid argument",
	} {
		r := s.try(append(append([]string{"mount"}, strings.Fields(words)...), s.source, s.point)...)
		if r.code != exit.Usage || !strings.Contains(r.stderr, says) {
			t.Errorf("%s: exit code %d\n%s", words, r.code, r.stderr)
		}
	}
}
