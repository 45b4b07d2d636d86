package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// read reads a file of the mount, without the page cache, in a process of its own. After 30 s it
// returns errHangs.
func (s *site) read(name string) ([]byte, error) {
	s.t.Helper()
	if s.reader == nil {
		s.reader = newFileReader(s.t)
	}
	return s.reader.read(filepath.Join(s.point, name), true)
}

// When the source disappears under the mount, files that are placed are still read, even after
// the TTL of their metadata. Reads of other files fail; they succeed if the source was only
// renamed or lazily unmounted, because the daemon has the directory open. No read hangs.
func TestSourceGone(t *testing.T) {
	parallel(t)
	for _, c := range []struct {
		name, prep, gone string
		fails            bool // reads of files that are not placed
	}{
		{"removed", "", `rm -r "$1"`, true},
		{"emptied", "", `rm -r "$1"/*`, true},
		{"renamed", "", `mv "$1" "$1.elsewhere"`, false},
		{"unmounted", `mount -t tmpfs none "$1"`, `umount --lazy "$1"`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			s.sh(c.prep, s.source)
			want := make(map[string][]byte)
			for i := range 20 {
				for _, name := range []string{fmt.Sprintf("placed/%02d", i), fmt.Sprintf("other/%02d", i)} {
					want[name] = s.write(name, 10_000+i*20_000)
				}
			}
			s.milkweed(append(s.mountWords("1MiB", "64MiB"), "--attr-timeout", shortTTL)...)
			s.milkweed("warmup", s.point+"/placed")
			s.must("find", s.point) // the kernel and the daemon cache all names
			s.sh(c.gone, s.source)
			s.wantReads(want, c.name != "emptied", c.fails)
			awaitTTL()
			s.wantReads(want, c.name != "emptied", c.fails)
			if got := s.closed(); !got.Ready {
				t.Errorf("status: %+v", got)
			}
			s.umount()
			s.wantNothing()
		})
	}
}

// shortTTL is a TTL of names and attributes, and awaitTTL waits until it has passed.
const shortTTL = "60ms"

func awaitTTL() { time.Sleep(100 * time.Millisecond) }

// wantReads reads all files and compares their bytes. If placed is set, the reads below "placed"
// must succeed. The reads below "other" must fail if fails is set, and else succeed.
func (s *site) wantReads(want map[string][]byte, placed, fails bool) {
	s.t.Helper()
	for name, data := range want {
		got, err := s.read(name)
		isPlaced := filepath.Dir(name) == "placed"
		switch {
		case errors.Is(err, errHangs):
			s.t.Fatal(err)
		case err == nil && !bytes.Equal(got, data):
			s.t.Errorf("%s: wrong bytes", name)
		case isPlaced && placed && err != nil:
			s.t.Errorf("%s is placed: %v", name, err)
		case !isPlaced && (err != nil) != fails:
			s.t.Errorf("%s is not placed: got error %v, want one: %v", name, err, fails)
		}
	}
}

// Files that come back to the source, and files that are new there, can be read after the TTL.
func TestSourceBack(t *testing.T) {
	s := newSite(t)
	old := s.write("old", 100_000)
	s.milkweed(append(s.mountWords("64MiB"), "--attr-timeout", shortTTL)...)
	s.milkweed("warmup", s.point)
	s.sh(`mv "$1/old" "$2"`, s.source, s.dir)
	awaitTTL()
	if _, err := s.read("old"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that was removed from the source: got error %v, want %v", err, os.ErrNotExist)
	}
	s.sh(`mv "$2/old" "$1"`, s.source, s.dir)
	fresh := s.write("fresh", 50_000)
	awaitTTL()
	for name, want := range map[string][]byte{"old": old, "fresh": fresh} {
		if got, err := s.read(name); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: not the bytes of the source: %v", name, err)
		}
	}
	s.umount()
	s.wantNothing()
}

// hangable replaces the source by a simulated PFS that serves it. The functions stop and resume
// the process of the PFS: what is requested of it in between hangs.
func (s *site) hangable() (stop, resume func()) {
	s.t.Helper()
	pfs := s.overPFS("1ms", "1GB")
	signal := func(signal unix.Signal) func() { return func() { s.check(unix.Kill(pfs, signal)) } }
	return signal(unix.SIGSTOP), signal(unix.SIGCONT)
}

// overPFS replaces the source by a simulated PFS that serves it, and returns its process.
func (s *site) overPFS(latency, bandwidth string) int {
	s.t.Helper()
	pfs := s.dir + "/pfs"
	s.must("mkdir", pfs) // it is the user's
	cmd := s.command(s.program, "demo", "pfs", s.source, pfs, "--latency", latency, "--bandwidth", bandwidth)
	cmd.Stderr = s.t.Output()
	stdin, err := cmd.StdinPipe()
	s.check(err)
	s.check(cmd.Start())
	s.source = pfs
	s.eventually("the PFS is mounted", func() bool { return slices.Contains(s.mounts(), pfs) })
	s.t.Cleanup(func() {
		unix.Kill(cmd.Process.Pid, unix.SIGCONT)
		stdin.Close()
		cmd.Wait()
	})
	return cmd.Process.Pid
}

// A warm-up of a path that is not cached can be interrupted while the source hangs.
func TestWarmupWhileSourceHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the time limits of sources, tiers or daemons that hang")
	}
	s := newSite(t)
	s.write("dir/file", 10_000)
	stop, resume := s.hangable()
	s.mount("64MiB")
	stop()
	before := s.status().Source.Stats
	cmd := s.command(s.program, "warmup", s.point+"/dir")
	s.check(cmd.Start())
	s.eventually("the source is requested", func() bool { return s.status().Source.Stats > before })
	s.check(cmd.Process.Signal(unix.SIGINT))
	cmd.Wait()
	if got := exit.Code(cmd.ProcessState.ExitCode()); got != exit.Incomplete {
		t.Errorf("interrupted: exit code %d, want %d", got, exit.Incomplete)
	}
	resume()
	if got := s.try("warmup", s.point+"/dir"); got.code != exit.OK {
		t.Errorf("after the source has resumed: exit code %d and\n%s", got.code, got.stderr)
	}
	s.umount()
}

// While the source hangs, status and metrics are complete, and where shows what is cached, also if
// its TTL has passed. For a name that is not cached, where fails with the reason.
func TestStatusWhileSourceHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the time limits of sources, tiers or daemons that hang")
	}
	s := newSite(t)
	s.write("placed/file", 10_000)
	s.write("other/file", 10_000)
	stop, resume := s.hangable()
	s.milkweed(append(s.mountWords("64MiB"), "--attr-timeout", shortTTL)...)
	s.milkweed("warmup", s.point+"/placed")
	time.Sleep(2 * time.Second) // the kernel caches the attributes of the PFS for a second
	stop()

	if got := s.status(); !got.Ready || got.DatasetID != filepath.Base(s.dataset1()) {
		t.Errorf("status: %+v", got)
	}
	if got := s.try("status", s.point); got.code != exit.OK {
		t.Errorf("status: exit code %d and\n%s", got.code, got.stderr)
	}
	if metrics := s.get("/metrics"); !strings.Contains(metrics, "milkweed_tier_used_bytes") {
		t.Errorf("metrics:\n%s", metrics)
	}
	if got := s.try("where", s.point+"/placed/file"); got.code != exit.OK || !strings.Contains(got.stdout, s.dataset1()) {
		t.Errorf("where of a placed file: exit code %d and\n%s%s", got.code, got.stdout, got.stderr)
	}
	if got := s.try("where", s.point+"/other/file"); got.code != exit.Source || !strings.Contains(got.stderr, "the source did not respond") {
		t.Errorf("where of a name that is not cached: exit code %d and\n%s", got.code, got.stderr)
	}
	resume()
	s.must("cmp", s.point+"/other/file", s.source+"/other/file")
	s.umount()
}

// dataset1 returns the only directory of copies in the first tier. Unlike dataset, it does not call
// the source.
func (s *site) dataset1() string {
	s.t.Helper()
	found, err := filepath.Glob(s.tier(1) + "/*")
	s.check(err)
	if len(found) != 1 {
		s.t.Fatalf("in tier 1: %q", found)
	}
	return found[0]
}

// While the source hangs in system calls that cannot be interrupted, commands end: those that examine it say
// that it does not answer, and the others do not need it.
func TestCommandsWhileSourceHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the time limits of sources, tiers or daemons that hang")
	}
	drivertest.Need(t, "root")
	s := newSite(t)
	s.write("f", 10)
	list := s.dir + "/list.mtree"
	s.milkweed("manifest", "-o", list, s.source)
	s.mount("64MiB")
	heal := s.hangHard(s.source)
	other := s.dir + "/other"
	s.check(os.Mkdir(other, 0o755))
	type command struct {
		words []string
		code  exit.Code
		says  string
	}
	try := func(c command) {
		if r := s.try(c.words...); r.code != c.code || !strings.Contains(strings.Join(strings.Fields(r.stdout+r.stderr), " "), c.says) {
			t.Errorf("%q: exit code %d, %s%s", c.words, r.code, r.stdout, r.stderr)
		}
	}
	var commands sync.WaitGroup
	for _, c := range []command{
		{[]string{"check", s.source, other}, exit.Source, "a file system hangs"},
		{[]string{"check", "--manifest", list, s.source}, exit.Source, "a file system hangs"},
		{[]string{"manifest", s.source}, exit.Source, "a file system hangs"},
		{[]string{"doctor", s.point}, exit.Incomplete, "gives no answer"},
		{[]string{"status", s.point}, exit.OK, "f"},
	} {
		commands.Go(func() { try(c) })
	}
	commands.Wait()
	try(command{[]string{"umount", s.point}, exit.OK, ""})
	heal()
	s.eventually("the commands that hung in the source have ended", func() bool { return len(s.processes()) == 0 })
	s.wantNothing()
}

// A mount of an empty source prints a warning, as check does.
func TestMountOfEmptySource(t *testing.T) {
	s := newSite(t)
	r := s.try(s.mountWords("64MiB")...)
	if r.code != exit.OK || !strings.Contains(r.stderr, s.source+" is empty") || !strings.Contains(r.stderr, "is mounted") {
		t.Errorf("exit code %d, %s%s", r.code, r.stdout, r.stderr)
	}
	s.umount()
	s.wantNothing()
}
