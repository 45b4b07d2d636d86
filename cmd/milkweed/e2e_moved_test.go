package main

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// If a mount point is moved, or a directory above it renamed, commands find the daemon at the new path,
// and it can be unmounted there, by the command and by a signal. A mount that has taken the old path
// stays.
func TestMovedMount(t *testing.T) {
	parallel(t)
	moves := map[string]string{
		"renamed": `mv "$1/a" "$1/b"`,
		"moved":   `mkdir -p "$1/b/point"; mount --move "$1/a/point" "$1/b/point"`,
	}
	for name, move := range moves {
		for _, end := range []string{"umount", "SIGTERM"} {
			t.Run(name+", "+end, func(t *testing.T) {
				s := newSite(t)
				data := s.write("d/f", 5000)
				s.inNamespace(`mkdir -p "$2/a/point"; mount --make-rprivate / 2>/dev/null || true`, s.dir)
				s.point = s.dir + "/a/point"
				s.mount("64MiB")
				pid := s.status().PID
				s.must("sh", "-ec", move, "sh", s.dir)
				s.must("sh", "-ec", `mkdir -p "$1/a/point"; mount -t tmpfs none "$1/a/point"; touch "$1/a/point/mine"`, "sh", s.dir)
				s.point = s.dir + "/b/point"

				if got := s.must("cat", s.point+"/d/f"); got != string(data) {
					t.Error("wrong bytes")
				}
				if got := s.settled(); got.PID != pid {
					t.Errorf("status of process %d, want %d", got.PID, pid)
				}
				s.milkweed("warmup", s.point+"/d")
				s.milkweed("where", s.point+"/d/f")
				if end == "umount" {
					s.umount()
				} else {
					s.check(unix.Kill(pid, unix.SIGTERM))
				}
				s.eventually("the daemon has ended", func() bool { return unix.Kill(pid, 0) != nil })
				s.must("sh", "-ec", `! mountpoint -q "$1/b/point"; test -e "$1/a/point/mine"`, "sh", s.dir)
				s.must("umount", s.dir+"/a/point")
				s.wantNothing()
			})
		}
	}
}

// A directory of a mount that is mounted by itself, as a volume of a container, reads the files. Commands say where
// the whole mount is, and status shows that one.
func TestBindOfADirectory(t *testing.T) {
	s := newSite(t)
	s.write("train/f", 5000)
	s.check(os.Mkdir(s.dir+"/part", 0o755))
	s.inNamespace(`mkdir -p "$1"`)
	s.mount("64MiB")
	part := s.dir + "/part"
	s.must("mount", "--bind", s.point+"/train", part)
	s.must("cat", part+"/f")
	for _, words := range [][]string{{"status", part}, {"where", part + "/f"}} {
		if r := s.try(words...); r.code != exit.NotMounted || !strings.Contains(r.stderr, part+" is the part train of a mount") ||
			!strings.Contains(r.stderr, "Use "+s.point+"/train.") {
			t.Errorf("%q: exit code %d, %s", words, r.code, r.stderr)
		}
	}
	if got := s.milkweed("status"); strings.Count(got, ": ready, ") != 1 {
		t.Errorf("the status of all mounts:\n%s", got)
	}
	s.milkweed("umount", part)
	s.must("cat", s.point+"/train/f")
	s.umount()
	s.wantNothing()
}

// Unmounting one of several mount points of a mount, as of mount --bind, does not end the others.
func TestBindOfAMount(t *testing.T) {
	s := newSite(t)
	data := s.write("f", 5000)
	s.check(os.Mkdir(s.dir+"/second", 0o755))
	s.inNamespace(`mkdir -p "$1"`)
	s.mount("64MiB")
	first := s.point
	s.must("mount", "--bind", s.point, s.dir+"/second")
	pid := s.status().PID
	s.point = s.dir + "/second"
	if got := s.status(); got.PID != pid {
		t.Errorf("status of process %d, want %d", got.PID, pid)
	}
	s.umount()
	s.point = first
	if got := s.must("cat", s.point+"/f"); got != string(data) || s.status().PID != pid {
		t.Error("the first mount point has suffered")
	}
	s.umount()
	s.wantNothing()
}

// Root finds the mount of another user by its new path, although the kernel lets nobody else read it.
func TestMovedMountOfAUser(t *testing.T) {
	drivertest.Need(t, "setpriv")
	s := newSite(t)
	s.write("f", 5000)
	s.check(os.MkdirAll(s.dir+"/a/point", 0o755))
	s.inNamespace(fuseForAll + "\nmount --make-rprivate / 2>/dev/null || true")
	asRoot := s.wrapper
	s.point = s.dir + "/a/point"
	s.giveToNobody()
	s.mount("64MiB")
	asUser := s.wrapper
	s.sh(`mv "$1/a" "$1/b"`, s.dir)
	s.point = s.dir + "/b/point"
	pid := s.status().PID
	s.wrapper = asRoot
	if r := s.run("ls", s.point); r.code == exit.OK {
		t.Error("root may read the mount")
	}
	if got, err := control.DecodeStatus([]byte(s.milkweed("status", "--json", s.point))); err != nil || got.PID != pid {
		t.Errorf("status of process %d (%v), want %d", got.PID, err, pid)
	}
	s.milkweed("umount", s.point)
	s.eventually("the daemon has ended", func() bool { return unix.Kill(pid, 0) != nil })
	s.wrapper = asUser
	s.wantNothing()
}
