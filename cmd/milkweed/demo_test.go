package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/demo"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// newDemoSite returns a site with a $TMPDIR of its own for a demo.
func newDemoSite(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	s.check(os.Mkdir(s.dir+"/tmp", 0o755))
	s.env = append(s.env, "TMPDIR="+s.dir+"/tmp")
	return s
}

// wantNoDemo fails the test if a demo has left a process, a mount or a file.
func (s *site) wantNoDemo(folders ...string) {
	s.t.Helper()
	s.wantNothing()
	left, err := os.ReadDir(s.dir + "/tmp")
	s.check(err)
	for _, e := range left {
		s.t.Errorf("left in $TMPDIR: %s", e.Name())
	}
	for _, dir := range folders {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			s.t.Errorf("%s is left: %v", dir, err)
		}
	}
}

// A demo reads the dataset from the source once through Milkweed, and in each
// epoch directly. It leaves nothing behind.
func TestDemo(t *testing.T) {
	s := newDemoSite(t)
	var r demo.Report
	out := s.milkweed("demo", "--json", "--files=40", "--large=1", "--epochs=3", "--bandwidth=1GB")
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	s.wantNoDemo(r.Folders...)
	if got, want := len(r.Epochs), 6; got != want {
		t.Fatalf("%d lines, want %d", got, want)
	}
	if len(r.Problems) > 0 {
		t.Errorf("problems: %q", r.Problems)
	}
	for _, e := range r.Epochs {
		if e.Files != 41 || e.Bytes != r.Bytes {
			t.Errorf("epoch %d via %s: read %d files, %d bytes; want 41, %d", e.Epoch, e.Via, e.Files, e.Bytes, r.Bytes)
		}
		switch read := e.Source.Bytes; {
		case e.Via == demo.ViaMilkweed && e.Epoch > 1:
			if e.Source.Opens+e.Source.Reads > 0 {
				t.Errorf("epoch %d: operations of the source: %+v", e.Epoch, e.Source)
			}
			if e.TierBytes["ram"] == 0 || e.TierBytes["ssd"] == 0 {
				t.Errorf("epoch %d: bytes read from the tiers: %v", e.Epoch, e.TierBytes)
			}
		case read < r.Bytes, float64(read) > 1.02*float64(r.Bytes):
			t.Errorf("epoch %d via %s: %d bytes read from the source, want %d", e.Epoch, e.Via, read, r.Bytes)
		}
	}
}

// A demo that is interrupted in the middle of an epoch leaves nothing behind.
func TestDemoInterrupted(t *testing.T) {
	if testing.Short() {
		t.Skip("runs programs that take long")
	}
	s := newDemoSite(t)
	cmd := s.command(s.program, "demo", "--epochs=100", "--files=100", "--large=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	s.check(cmd.Start())
	s.eventually("Milkweed is mounted", func() bool { return len(s.mounts()) == 2 })
	point := s.mounts()[1]
	var status control.Status
	s.eventually("files are placed", func() bool {
		var err error
		status, err = control.DecodeStatus([]byte(s.milkweed("status", "--json", point)))
		s.check(err)
		return status.Placement.Placed > 0
	})
	s.interrupt(cmd, &stderr)
	s.wantNoDemo(filepath.Dir(status.Tiers[0].Path))
}

// interrupt sends SIGINT to a command, and fails the test unless the command ends
// and prints that it was interrupted, and nothing else.
func (s *site) interrupt(cmd *exec.Cmd, stderr *bytes.Buffer) {
	s.t.Helper()
	s.check(cmd.Process.Signal(syscall.SIGINT))
	cmd.Wait()
	if got := exit.Code(cmd.ProcessState.ExitCode()); got != exit.Failure {
		s.t.Errorf("exit code %d, want %d", got, exit.Failure)
	}
	if got, want := stderr.String(), "milkweed: interrupted\n"; got != want {
		s.t.Errorf("standard error: got %q, want %q", got, want)
	}
}

// A process in the mount does not keep a demo from ending, nor from removing its
// folders.
func TestDemoMountInUse(t *testing.T) {
	if testing.Short() {
		t.Skip("runs programs that take long")
	}
	s := newDemoSite(t)
	cmd := s.command(s.program, "demo", "--epochs=2", "--files=100", "--large=1")
	s.check(cmd.Start())
	s.eventually("Milkweed is mounted", func() bool { return len(s.mounts()) == 2 })
	user := s.command("sleep", "60")
	user.Dir = s.mounts()[1]
	s.check(user.Start())
	defer user.Wait()
	defer user.Process.Kill()
	s.check(cmd.Wait())
	left, err := os.ReadDir(s.dir + "/tmp")
	s.check(err)
	if mounts := s.mounts(); len(left) > 0 || len(mounts) > 0 {
		t.Errorf("left in $TMPDIR: %v; still mounted: %q", left, mounts)
	}
}

func TestDemoUsage(t *testing.T) {
	for _, line := range []string{"--files=0 --large=0", "--files=-1", "--epochs=0", "--latency=-1s", "--bandwidth=fast", "--bandwidth=90%", "somewhere"} {
		_, _, err := runMilkweed(t, append([]string{"demo"}, strings.Fields(line)...)...)
		if wantCode(t, err, exit.Usage); t.Failed() {
			t.Fatal(line)
		}
	}
}
