package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/fs"
)

// An automounter does what systemd does for x-systemd.automount: it mounts a file system at the first
// access to its mount point. Like it, it runs the programs that mount and unmount in its own process
// group, which is that of the test: to these processes, the trigger is an empty directory.
type automounter struct {
	s    *site
	root *os.File // the trigger, which the file system hides

	mu        sync.Mutex
	requested []string // by which processes: the name of each
}

// The requests of the kernel, from include/uapi/linux/auto_fs.h.
const (
	missingIndirect = 3 // mount
	expireIndirect  = 4 // unmount
	missingDirect   = 5 // mount
	expireDirect    = 6 // unmount

	ioctlReady  = 0x9360     // of an os.File of the trigger, with the token of the request
	ioctlFail   = 0x9361     // the same
	ioctlExpire = 0x40049366 // unmount, if the mount is not in use
)

// automount makes point a trigger. At an access to it, mount is called, and to expire the mount, unmount.
func (s *site) automount(point string, mount, unmount func() error) *automounter {
	s.t.Helper()
	return s.startAutomounter(point, "direct", map[uint32]func(string) error{
		missingDirect: func(string) error { return mount() },
		expireDirect:  func(string) error { return unmount() },
	})
}

// startAutomounter mounts an autofs of a kind at point, and calls actions for the requests of the kernel, with the
// name below point that they are for.
func (s *site) startAutomounter(point, kind string, actions map[uint32]func(name string) error) *automounter {
	s.t.Helper()
	drivertest.Need(s.t, "/dev/autofs")
	requests, kernel, err := os.Pipe()
	s.check(err)
	options := fmt.Sprintf("fd=%d,pgrp=%d,minproto=5,maxproto=5,%s", kernel.Fd(), unix.Getpgrp(), kind)
	err = unix.Mount("milkweed-test", point, "autofs", 0, options)
	kernel.Close()
	s.check(err)
	a := &automounter{s: s}
	a.root, err = os.Open(point)
	s.check(err)
	served := make(chan struct{})
	s.t.Cleanup(func() {
		for _, pid := range s.processes() {
			unix.Kill(pid, unix.SIGKILL)
		}
		a.root.Close()
		s.unmountAll() // ends the pipe
		<-served
		requests.Close()
	})
	go func() {
		defer close(served)
		a.serve(requests, actions)
	}()
	return a
}

// serve replies to the requests of the kernel until the trigger is unmounted.
func (a *automounter) serve(requests io.Reader, actions map[uint32]func(name string) error) {
	for {
		packet := make([]byte, 1024)
		if _, err := requests.Read(packet); err != nil {
			if err != io.EOF {
				a.s.t.Error(err)
			}
			return
		}
		kind, token := binary.NativeEndian.Uint32(packet[4:]), binary.NativeEndian.Uint32(packet[8:])
		pid := binary.NativeEndian.Uint32(packet[32:])
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		a.mu.Lock()
		a.requested = append(a.requested, string(name))
		a.mu.Unlock()
		reply := uint(ioctlReady)
		length := binary.NativeEndian.Uint32(packet[40:])
		if err := actions[kind](string(packet[44 : 44+length])); err != nil {
			a.s.t.Log(err)
			reply = ioctlFail
		}
		if err := unix.IoctlSetInt(int(a.root.Fd()), reply, int(token)); err != nil {
			a.s.t.Error(err)
		}
	}
}

// wantRequests fails the test if the kernel has not sent n requests so far.
func (a *automounter) wantRequests(n int) {
	a.s.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.requested) != n {
		a.s.t.Errorf("%d requests, want %d: of %q", len(a.requested), n, a.requested)
	}
}

// elsewhere runs a command in a process group of its own, as that of a user.
func (a *automounter) elsewhere(words ...string) string {
	a.s.t.Helper()
	ctx, cancel := context.WithTimeout(a.s.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env, cmd.SysProcAttr = a.s.env, &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.CombinedOutput()
	if err != nil {
		a.s.t.Fatalf("%q: %v, %s", words, err, out)
	}
	return string(out)
}

// runs returns a function that runs a command.
func (s *site) runs(words ...string) func() error {
	return func() error {
		r := s.run(words...)
		if r.code != exit.OK {
			return fmt.Errorf("%q: exit code %d, %s", words, r.code, r.stderr)
		}
		return nil
	}
}

// An automounter mounts at the first access, and unmounts what is idle.
func TestAutomount(t *testing.T) {
	s := newSite(t)
	s.write("f", 1000)
	a := s.automount(s.point, s.runs(s.words(s.mountWords("64MiB"))...), s.runs("umount", s.point))
	for n := range 2 {
		a.elsewhere("cmp", s.source+"/f", s.point+"/f")
		a.wantRequests(2*n + 1)
		s.eventually("the daemon has a session", func() bool {
			pid := s.status().PID
			id, err := unix.Getsid(pid)
			return err == nil && id == pid
		})
		if err := unix.IoctlSetPointerInt(int(a.root.Fd()), ioctlExpire, 1); err != nil {
			t.Fatal(err)
		}
		a.wantRequests(2*n + 2)
		s.eventually("the daemon has ended", func() bool { return len(s.processes()) == 0 })
	}
}

// A trigger is a mount point also before any access to it, for the automounter as well as for users.
func TestMountOnTrigger(t *testing.T) {
	drivertest.Need(t, "script")
	s := newSite(t)
	s.write("f", 1000)
	words := s.words(s.mountWords("64MiB"))
	a := s.automount(s.point, func() error { return errors.New("no mount was expected") }, nil)
	for name, mount := range map[string]func(){
		"automounter": func() { s.must(words...) },
		"user":        func() { a.elsewhere(words...) },
		"mount -a":    func() { a.elsewhere(slices.Insert(slices.Clone(words), 2, "--unless-mounted")...) },
		"terminal": func() {
			a.elsewhere("script", "--quiet", "--return", "--command", strings.Join(words, " "), "/dev/null")
		},
	} {
		if r := s.try(append([]string{"check"}, words[2:]...)...); r.code != exit.OK || !strings.Contains(r.stdout, s.point+" is the trigger of an automounter") {
			t.Errorf("check: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
		}
		if r := s.try("status", s.point); r.code != exit.NotMounted || !strings.Contains(r.stderr, "at the first access, such as `ls "+s.point) {
			t.Errorf("status: exit code %d\n%s", r.code, r.stderr)
		}
		mount()
		a.elsewhere("cmp", s.source+"/f", s.point+"/f")
		s.check(unix.Kill(s.status().PID, unix.SIGHUP)) // reloads the configuration
		s.eventually("the configuration is reloaded", func() bool { return strings.Contains(s.logs(), "configuration") })
		s.check(os.RemoveAll(s.dir + "/state/milkweed"))
		s.umount()
		a.wantRequests(0)
		if left := s.processes(); len(left) > 0 {
			t.Errorf("%s: still running: %d", name, left)
		}
	}
}

// What a mount uses is where the same automounter has to mount first: the source, behind a link, a tier, the
// plan and the configuration.
func TestAutomountedSource(t *testing.T) {
	s := newSite(t)
	s.write("data/f", 1000)
	config, link := s.config(1, "[source]\nclock_skew = '0s'")[2], s.dir+"/link"
	s.check(os.WriteFile(s.dir+"/plan", []byte("f\n"), 0o644))
	s.check(os.Symlink(s.source+"/data", link))
	etc := s.dir + "/etc"
	a := s.automount(s.point, s.runs(s.program, "mount", "-c", etc+"/"+filepath.Base(config), "-o", "plan="+etc+"/plan", link, s.point), s.runs("umount", s.point))
	var others []*automounter
	for real, point := range map[string]string{s.dir + "/real": s.source, s.dir + "/disk": s.tier(1), s.dir: etc} {
		s.sh(`if [ -d "$2" ] && [ ! -d "$1" ]; then mv "$2" "$1"; fi; mkdir -p "$1" "$2"`, real, point)
		others = append(others, s.automount(point, s.runs("mount", "--bind", real, point), nil))
	}
	a.elsewhere("cmp", s.dir+"/real/data/f", s.point+"/f")
	for _, other := range append(others, a) {
		other.wantRequests(1)
	}
	if got := s.settled().Tiers[0]; got.Files != 1 {
		t.Errorf("tier 1: %+v", got)
	}
	s.sh(`cmp "$1" "$(find "$2" -type f -size 1000c)"`, s.dir+"/real/data/f", s.dir+"/disk")
	s.umount()
}

// A source that its automounter cannot mount is not an empty dataset.
func TestAutomountFails(t *testing.T) {
	s := newSite(t)
	for _, c := range []struct {
		trigger, source string
		mount           func() error
		says            string
	}{
		{s.source, s.source, func() error { return errors.New("the server is down") }, "source: " + s.source + ": no such file or directory"},
		{s.dir + "/up", s.dir + "/up/data", s.runs("mount", "-t", "tmpfs", "none", s.dir+"/up"), "source: " + s.dir + "/up/data does not exist"},
	} {
		s.check(os.MkdirAll(c.trigger, 0o755))
		s.automount(c.trigger, c.mount, nil)
		words := append(s.mountWords("64MiB")[:3], c.source, s.point)
		if r := s.try(words...); r.code != exit.Source || !strings.Contains(r.stderr, c.says) {
			t.Errorf("%s: exit code %d\n%s", c.source, r.code, r.stderr)
		}
	}
	a := s.automount(s.point, s.runs(append([]string{s.program}, append(s.mountWords("64MiB")[:3], s.point+"/data", s.point)...)...), nil)
	a.elsewhere("sh", "-c", `! ls "$1"`, "sh", s.point) // a mount does not wait for itself
	a.wantRequests(1)

	// A tier inside the source is seen, although the source is behind a link on a trigger.
	real, link, point := s.dir+"/real", s.dir+"/link", s.dir+"/other"
	s.sh(`mkdir -p "$1/data" "$2" "$3" && ln -s "$1/data" "$1/x"`, real, link, point)
	s.automount(link, s.runs("mount", "--bind", real, link), nil)
	a = s.automount(point, s.runs(s.program, "mount", "--tier", "t:"+real+"/data/cache:64MiB", link+"/x", point), nil)
	a.elsewhere("sh", "-c", `! ls "$1"`, "sh", point)
	a.wantRequests(1)
	if names, err := os.ReadDir(real + "/data"); err != nil || len(names) > 0 {
		t.Errorf("in the source: %v, %v", names, err)
	}
	if left := s.processes(); len(left) > 0 {
		t.Errorf("still running: %d", left)
	}
}

// A service manager that gives up sends SIGTERM to all processes. If the file system is mounted already, the
// daemon unmounts it, although the automounter does not know yet that the command has ended.
func TestAutomountEnds(t *testing.T) {
	s := newSite(t)
	s.write("f", 1000)
	isMounted := func() bool {
		table, err := mounts.Read(mounts.Self)
		m, _ := table.At(s.point)
		return err == nil && m.Type == fs.Type
	}
	var once atomic.Bool // an access calls the automounter again, if the mount has ended before it gets there
	mount := s.runs(s.words(s.mountWords("64MiB"))...)
	s.automount(s.point, func() error {
		if !once.CompareAndSwap(true, false) {
			return errors.New("the access was not the first one")
		}
		return mount()
	}, nil)
	for round := range 10 {
		once.Store(true)
		access := exec.Command("ls", s.point)
		access.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		s.check(access.Start())
		s.eventually("the file system is mounted", isMounted)
		for _, pid := range s.processes() {
			unix.Kill(pid, unix.SIGTERM)
		}
		access.Wait()
		s.eventually("no process is left", func() bool { return len(s.processes()) == 0 })
		if isMounted() {
			t.Fatalf("round %d: the mount of a daemon that has ended is left", round)
		}
	}
}

// The source has folders that an automounter makes when they are used. A listing before that does not hide them, and
// they stay what they are after the automounter has removed them again.
func TestSourceWithAutomountedFolders(t *testing.T) {
	s := newSite(t)
	auto, real := s.source+"/auto", s.dir+"/real"
	s.check(os.MkdirAll(auto, 0o755))
	for _, name := range []string{"a", "b"} {
		s.check(os.MkdirAll(real+"/"+name+"/d", 0o755))
		s.check(os.WriteFile(real+"/"+name+"/d/f", []byte(name), 0o644))
	}
	a := s.startAutomounter(auto, "indirect", map[uint32]func(string) error{
		missingIndirect: func(name string) error {
			if _, err := os.Stat(real + "/" + name); err != nil {
				return err
			}
			return errors.Join(os.Mkdir(auto+"/"+name, 0o755), unix.Mount(real+"/"+name, auto+"/"+name, "", unix.MS_BIND, ""))
		},
		expireIndirect: func(name string) error {
			return errors.Join(unix.Unmount(auto+"/"+name, 0), os.Remove(auto+"/"+name))
		},
	})
	s.mount("64MiB")
	wantNames := func(want string) {
		t.Helper()
		if got := strings.TrimSpace(a.elsewhere("ls", s.point+"/auto")); got != want {
			t.Errorf("listing: %q, want %q", got, want)
		}
	}
	wantNames("")
	a.wantRequests(0)
	for _, name := range []string{"a", "b"} {
		if got := a.elsewhere("cat", s.point+"/auto/"+name+"/d/f"); got != name {
			t.Errorf("%s: %q", name, got)
		}
	}
	a.elsewhere("sh", "-c", `! cat "$1" 2>/dev/null`, "sh", s.point+"/auto/c")
	wantNames("a\nb")
	a.wantRequests(3)

	stays := exec.Command("sh", "-c", `cd "$1/auto/a/d" && while read _; do cat f && echo; done`, "sh", s.point)
	in, err := stays.StdinPipe()
	s.check(err)
	out, err := stays.StdoutPipe()
	s.check(err)
	s.check(stays.Start())
	defer stays.Wait()
	defer in.Close()
	printed := s.printed(out)
	for range 2 {
		s.eventually("the automounter has unmounted both", func() bool {
			err := unix.IoctlSetPointerInt(int(a.root.Fd()), ioctlExpire, 1)
			if err != nil && err != unix.EAGAIN {
				t.Fatal(err)
			}
			left, err := os.ReadDir(auto)
			return err == nil && len(left) == 0
		})
		s.check(s.runs(s.program, "refresh", s.point)())
		fmt.Fprintln(in)
		printed("a") // in the working directory
	}
	s.check(in.Close())
	s.check(stays.Wait())
	s.umount()
}
