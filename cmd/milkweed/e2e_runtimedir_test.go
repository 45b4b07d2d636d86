package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// When the directory of the socket goes, as at logout, commands of the user find the daemon at once, and those of root
// soon. When the directory is there again, as at the next login, they still do.
func TestRuntimeDirIsRemoved(t *testing.T) {
	for i, tt := range []struct{ name, script string }{
		{"removed", `rm -r "$1"/* && umount -l "$1" && rmdir "$1"`}, // as systemd-logind does
		{"detached", `umount -l "$1"`},
		{"made again", `umount -l "$1"; mount -t tmpfs -o mode=700,uid="$2" none "$1"`},
		{"cleaned", `rm "$1"/milkweed/*`},
		{"opened", `chmod 777 "$1/milkweed"`}, // other users can make sockets in it
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.write("f", 5000)
			uid := fmt.Sprint(1_000_000_000 + 8*os.Getpid() + i) // no other test uses its directory in /tmp
			s.asUserOfOne(uid)
			user, root := s.wrapper, s.wrapper[:slices.Index(s.wrapper, "setpriv")]
			asRoot := func(words ...string) result {
				s.wrapper = root
				defer func() { s.wrapper = user }()
				return s.run(words...)
			}
			login := "/run/user/" + uid
			if r := asRoot("sh", "-ec", `mount -t tmpfs none /run; mkdir -p "$1"; mount -t tmpfs -o mode=700,uid="$2" none "$1"`, "sh", login, uid); r.code != 0 {
				t.Fatalf("%+v", r)
			}
			s.env = append(s.env, "MILKWEED_RUNTIME_DIR=", "XDG_RUNTIME_DIR="+login)
			other := "/tmp/milkweed-" + uid // the directory of users without one below /run
			t.Cleanup(func() {
				if left, _ := filepath.Glob(other + "/*"); len(left) > 0 {
					t.Errorf("left is %q", left)
				}
				s.sh(`rm -rf "$1"`, other)
			})
			s.mount("16MiB")
			if r := asRoot("sh", "-c", tt.script, "sh", login, uid); r.code != 0 {
				t.Fatalf("%+v", r)
			}
			s.milkweed("status", s.point)
			s.milkweed("warmup", s.point)
			s.eventually("root finds the daemon", func() bool { return asRoot(s.program, "status", s.point).code == exit.OK })
			if n := strings.Count(s.logs(), "the control socket was made again"); n != 1 {
				t.Errorf("the socket was made again %d times", n)
			}
			s.umount()
			s.wantNothing()
		})
	}
}

// While the socket of a daemon cannot be made, commands say so and end nothing. The daemon makes it when it can.
func TestNoControlSocket(t *testing.T) {
	s := newSite(t)
	s.write("f", 5000)
	s.mount("1MiB")
	s.sh(`mv "$1/run" "$1/away" && echo >"$1/run"`, s.dir)
	if r := s.try("status", s.point); r.code != exit.NotMounted || !strings.Contains(r.stderr, "is mounted and works, but its daemon has no control socket at present") || strings.Contains(r.stderr, "umount") {
		t.Errorf("status: %+v", r)
	}
	if r := s.try(append(s.mountWords("1MiB"), "--clear-stale")...); r.code == exit.OK {
		t.Errorf("a second mount: %+v", r)
	}
	s.must("cmp", s.point+"/f", s.source+"/f")
	if log := s.logs(); strings.Count(log, "commands cannot find this daemon") != 1 {
		t.Errorf("the log: %s", log)
	}
	s.sh(`rm "$1/run" && mkdir -m 711 "$1/run"`, s.dir)
	s.eventually("the daemon has a socket", func() bool { return s.try("status", s.point).code == exit.OK })
	s.umount()
	s.wantNothing()
}
