package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// archive returns the files of an archive of debug, which only its owner can read.
func (s *site) archive(file string) map[string]string {
	s.t.Helper()
	f, err := os.Open(file)
	s.check(err)
	defer f.Close()
	info, err := f.Stat()
	s.check(err)
	z, err := gzip.NewReader(f)
	s.check(err)
	parts := make(map[string]string)
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		s.check(err)
		content, err := io.ReadAll(t)
		s.check(err)
		parts[strings.TrimPrefix(h.Name, "milkweed-debug/")] = string(content)
		if fs.FileMode(h.Mode) != 0o600 {
			s.t.Errorf("%s has the mode %o", h.Name, h.Mode)
		}
	}
	if info.Mode() != 0o600 {
		s.t.Errorf("%s has the mode %v", file, info.Mode())
	}
	return parts
}

// The archive has what it says. With --redact, no name of the dataset, of a directory or of the machine is in
// it, and what explains a fault still is.
func TestDebug(t *testing.T) {
	s := newSite(t)
	for i := range 20 {
		s.write(fmt.Sprintf("hushdir/hushfile%02d.jpg", i), 40000)
	}
	s.age()
	s.mountWith("attr_timeout=30s,mode=cached", "64MiB")
	s.milkweed("warmup", s.point)
	s.umount()
	damaged := filepath.Join(s.dataset(1), "files/hushdir/hushfile07.jpg")
	info, err := os.Stat(damaged)
	s.check(err)
	f, err := os.OpenFile(damaged, os.O_WRONLY, 0)
	s.check(err)
	_, err = f.WriteAt([]byte("damaged"), 100)
	s.check(err)
	s.check(f.Close())
	s.check(os.Chtimes(damaged, time.Time{}, info.ModTime()))
	s.mountWith("attr_timeout=30s,mode=cached", "64MiB")
	s.readAll() // the log says that the copy is corrupt

	whole, redacted := filepath.Join(s.dir, "whole.tar.gz"), filepath.Join(s.dir, "redacted.tar.gz")
	if out := s.milkweed("debug", "-o", whole, s.point); !strings.Contains(out, "--redact") || strings.Contains(out, "\n"+whole) {
		t.Errorf("debug printed %q", out)
	}
	var r debugResult
	s.check(json.Unmarshal([]byte(s.milkweed("debug", "--json", "--redact", "-o", redacted, s.point)), &r))
	if len(r.Parts) != 9 || !r.Redacted || r.Bytes == 0 || r.File != redacted {
		t.Errorf("debug --json printed %+v", r)
	}
	if profile := s.get("/debug/pprof/profile?seconds=1"); !strings.HasPrefix(profile, "\x1f\x8b") {
		t.Errorf("the control socket has no CPU profile: %q", profile[:min(len(profile), 200)])
	}
	parts := s.archive(whole)
	for name, want := range map[string]string{
		"README.txt": "status.json", "status.json": s.source, "config.json": `"option attr_timeout"`, "metrics.txt": "milkweed_tier_files", "plan.json": "{",
		"peers.json": "{", "goroutines.txt": "goroutine ", "heap.pprof": "\x1f\x8b", "log.txt": "hushfile07", "process.txt": "open descriptors", "kernel.txt": "MemTotal",
		"storage.json": `"role": "tier tier1"`,
	} {
		if !strings.Contains(parts[name], want) {
			t.Errorf("%s has no %q", name, want)
		}
		delete(parts, name)
	}
	if len(parts) > 0 {
		t.Errorf("other parts: %v", parts)
	}

	parts = s.archive(redacted)
	for name, want := range map[string]string{"log.txt": "copy is corrupt", "status.json": `"corrupt_copies": 1`, "config.json": `"30s"`, "storage.json": "source"} {
		if !strings.Contains(parts[name], want) {
			t.Errorf("%s, redacted, has no %q in\n%s", name, want, parts[name])
		}
	}
	if _, err := control.DecodeStatus([]byte(parts["status.json"])); err != nil {
		t.Errorf("the redacted status: %v", err)
	}
	for name, content := range parts {
		for _, secret := range []string{"hush", filepath.Base(s.dir), config.DatasetID(s.source)} {
			if strings.Contains(content, secret) {
				t.Errorf("%q is in %s", secret, name)
			}
		}
	}
	if r := s.try("debug", "-o", whole, s.point); r.code != exit.Usage {
		t.Errorf("a file that exists: exit code %d: %s", r.code, r.stderr)
	}
	s.umount()
	s.wantNothing()
}

// Each text of a status that --redact shows is one that a status has.
func TestShownTexts(t *testing.T) {
	known := make(map[string]bool)
	for _, f := range control.Schema() {
		known[strings.ReplaceAll(f.Path, "[]", "")] = true
	}
	for _, path := range shownTexts {
		if !known[path] {
			t.Errorf("a status has no %s", path)
		}
	}
}

// Of a daemon that does not answer, or is dead, the archive has what is left.
func TestDebugWithoutAnswer(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the time limits of sources, tiers or daemons that hang")
	}
	s := newSite(t)
	s.write("d/f", 1000)
	s.mount("64MiB")
	pid := s.status().PID
	drivertest.Stop(t, pid)
	stopped, killed := filepath.Join(s.dir, "stopped.tar.gz"), filepath.Join(s.dir, "killed.tar.gz")
	start := time.Now()
	r := s.try("debug", "-o", stopped, s.point)
	if took := time.Since(start); r.code != exit.Incomplete || !strings.Contains(r.stdout, "a signal has stopped it") || took > 3*partTimeout {
		t.Errorf("stopped: exit code %d after %v: %s%s", r.code, took, r.stdout, r.stderr)
	}
	s.check(unix.Kill(pid, unix.SIGCONT))
	s.check(unix.Kill(pid, unix.SIGKILL))
	s.eventually("the daemon has ended", func() bool { return !slices.Contains(s.processes(), pid) })
	if r := s.try("debug", "-o", killed, s.point); r.code != exit.Incomplete || !strings.Contains(r.stdout, "does not answer") {
		t.Errorf("killed: exit code %d: %s%s", r.code, r.stdout, r.stderr)
	}
	for _, file := range []string{stopped, killed} {
		if parts := s.archive(file); !strings.Contains(parts["kernel.txt"], "MemTotal") || !strings.Contains(parts["README.txt"], "status.json      missing: ") {
			t.Errorf("%s has %v", file, parts)
		}
	}
	s.umount()
	s.mount("64MiB") // removes the socket
	s.umount()
	s.wantNothing()
}
