package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// A container is a process in a mount namespace of its own, with copies of all mounts, as the
// processes of a container have. It reads files on request.
type container struct {
	*site
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
}

// containerScript answers each line. "sum PATH" is answered with the SHA-256 of a file, "hold PATH"
// opens a file, "map PATH" maps one, "held" is answered with the SHA-256 of what is held.
const containerScript = `
import hashlib, mmap, sys
f = m = None
for line in sys.stdin:
    word, _, path = line.strip().partition(" ")
    try:
        if word == "sum":
            with open(path, "rb") as f: data = f.read()
        elif word == "hold":
            f = open(path, "rb"); data = b""
        elif word == "map":
            with open(path, "rb") as g: m = mmap.mmap(g.fileno(), 0, prot=mmap.PROT_READ)
            data = b""
        elif word == "release":
            f = m = None; data = b""
        elif word == "held":
            data = m[:] if m else f.read()
        print(hashlib.sha256(data).hexdigest(), flush=True)
    except OSError as e:
        print(e.strerror, flush=True)
`

// inContainer starts a container. The site must be inNamespace, so that the container has copies of no
// other mounts.
func (s *site) inContainer() *container {
	s.t.Helper()
	c := &container{site: s, cmd: s.command("unshare", "--mount", "--propagation", "private", python, "-uc", containerScript)}
	c.cmd.Env = nil // it is no process of the site
	var err error
	c.stdin, err = c.cmd.StdinPipe()
	s.check(err)
	stdout, err := c.cmd.StdoutPipe()
	s.check(err)
	s.check(c.cmd.Start())
	c.lines = bufio.NewScanner(stdout)
	s.t.Cleanup(c.end)
	c.ask("release") // answered in the namespace
	return c
}

// ask sends a line and returns the answer.
func (c *container) ask(line string) string {
	c.t.Helper()
	_, err := fmt.Fprintln(c.stdin, line)
	c.check(err)
	if !c.lines.Scan() {
		c.t.Fatalf("%s: no answer: %v", line, c.lines.Err())
	}
	return c.lines.Text()
}

// wantFile checks the content of a file of the mount.
func (c *container) wantFile(name string, data []byte) {
	c.t.Helper()
	sum := sha256.Sum256(data)
	if got := c.ask("sum " + c.point + "/" + name); got != hex.EncodeToString(sum[:]) {
		c.t.Errorf("%s in the container: %s", name, got)
	}
}

// wantEnd checks that the mount has ended. What the kernel has cached may still be read.
func (c *container) wantEnd() {
	c.t.Helper()
	if got := c.ask("sum " + c.point + "/unknown"); got != "Transport endpoint is not connected" {
		c.t.Errorf("after the end: %s", got)
	}
}

func (c *container) end() {
	c.stdin.Close()
	c.cmd.Wait()
}

// While a container has a copy of the mount, umount returns at once and names it, the dataset can
// be mounted again with the same tiers, and the container reads right bytes. When the container has
// not used the mount for a while, its access ends, and the daemon.
func TestUmountWithContainer(t *testing.T) {
	if testing.Short() {
		t.Skip("runs programs that take long")
	}
	parallel(t)
	for _, mode := range []string{"cached", "passthrough", "stateless"} {
		t.Run(mode, func(t *testing.T) {
			s := newSite(t)
			s.inNamespace("true")
			data := make(map[string][]byte)
			for i := range 20 {
				name := fmt.Sprintf("f%d", i)
				data[name] = s.write(name, 200_000+i)
			}
			s.mountWith("mode="+mode, "1MiB", "64MiB")
			s.must("cat", s.point+"/f0", s.point+"/f1")
			c := s.inContainer()
			c.wantFile("f0", data["f0"])
			s.settled()

			r := s.try("umount", s.point)
			if r.code != exit.OK || !strings.Contains(r.stderr, "mount namespace") || !strings.Contains(r.stderr, fmt.Sprintf("(%d)", c.cmd.Process.Pid)) {
				t.Fatalf("umount: code %d, %s", r.code, r.stderr)
			}
			if left := s.mounts(); len(left) > 0 {
				t.Errorf("still mounted: %v", left)
			}
			if out := s.try("status").stdout; !strings.Contains(out, "draining") || !strings.Contains(out, fmt.Sprintf("(%d)", c.cmd.Process.Pid)) {
				t.Errorf("status: %s", out)
			}
			if r := s.try("umount", s.point); r.code != exit.NotMounted || !strings.Contains(r.stderr, "in use elsewhere") {
				t.Errorf("a second umount: code %d, %s", r.code, r.stderr)
			}
			c.wantFile("f1", data["f1"])
			c.wantFile("f2", data["f2"])

			s.mountWith("mode="+mode, "1MiB", "64MiB")
			for name := range data {
				if got := s.must("cat", s.point+"/"+name); got != string(data[name]) {
					t.Errorf("%s: wrong bytes", name)
				}
			}
			c.wantFile("f3", data["f3"])
			s.settled()
			for i := 4; i < 20; i++ {
				name := fmt.Sprintf("f%d", i)
				c.wantFile(name, data[name])
			}
			s.umount()

			s.eventually("the daemon ends", func() bool { return len(s.processes()) == 0 })
			c.wantEnd()
			s.wantNothing()
			if !s.unlocked(1) || !s.unlocked(2) {
				t.Error("the dataset in a tier is still locked")
			}
		})
	}
}

// A daemon that drains serves a file that is open or mapped until it is closed, also if nothing
// reads it.
func TestDrainWhileOpen(t *testing.T) {
	if testing.Short() {
		t.Skip("kills and restarts daemons many times")
	}
	type held struct {
		*container
		sum [sha256.Size]byte
	}
	var all []held
	for _, mode := range []string{"cached", "stateless"} {
		for _, how := range []string{"hold", "map"} {
			s := newSite(t)
			s.inNamespace("true")
			data := s.write("f", 3<<20)
			s.mountWith("mode="+mode, "64MiB")
			c := s.inContainer()
			c.ask(how + " " + s.point + "/f")
			s.umount()
			all = append(all, held{c, sha256.Sum256(data)})
		}
	}
	time.Sleep(13 * time.Second) // longer than a mount is idle
	for _, h := range all {
		if got := h.ask("held"); got != hex.EncodeToString(h.sum[:]) {
			t.Errorf("the file in the container: %s", got)
		}
		h.ask("release")
	}
	for _, h := range all {
		h.eventually("the daemon ends", func() bool { return len(h.processes()) == 0 })
		h.wantNothing()
	}
}

// With --force, umount ends a mount that is in use, here and in containers, and a daemon that
// drains. A signal while it drains has the same effect.
func TestUmountForce(t *testing.T) {
	parallel(t)
	for name, end := range map[string]func(s *site){
		"at once":        func(s *site) { s.milkweed("umount", "--force", s.point) },
		"while draining": func(s *site) { s.umount(); s.milkweed("umount", "--force", s.point) },
		"after umount(8)": func(s *site) {
			s.must("umount", s.point)
			s.eventually("it drains", func() bool { return strings.Contains(s.try("status").stdout, "draining") })
			s.milkweed("umount", "--force", s.point)
		},
		"signal while draining": func(s *site) {
			s.umount()
			s.must("kill", fmt.Sprint(s.processes()[0]))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.inNamespace("true")
			s.write("f", 1000)
			s.mount("64MiB")
			c := s.inContainer()
			c.ask("hold " + s.point + "/f")
			end(s)
			s.eventually("the daemon ends", func() bool { return len(s.processes()) == 0 })
			c.wantEnd()
			s.wantNothing()
		})
	}
}
