package main

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// Where a file of size 0 may have content, as in /proc and in many a FUSE mount, the mount shows none as empty that is
// not. One that is empty is read once. Without a configured mode, each file is opened.
func TestFilesWithoutSize(t *testing.T) {
	parallel(t)
	s := newSite(t)
	process := exec.Command("sleep", "infinity")
	process.Env = []string{} // an empty file
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { process.Process.Kill(); process.Wait() })
	s.source = fmt.Sprintf("/proc/%d", process.Process.Pid)
	for _, mode := range []string{"", "passthrough", "stateless", "cached"} {
		options := "metadata_snapshot=off"
		if mode != "" {
			options += ",mode=" + mode
		}
		s.mountWith(options, "1MiB")
		before := s.status()
		if mode == "" && (before.Mode != "cached" || !strings.Contains(before.ModeReason, "the source shows size 0 for ")) {
			t.Errorf("the mode is %s, %q", before.Mode, before.ModeReason)
		}
		opens := before.Source.Opens
		s.eventually("an open of an empty file costs none at the source", func() bool { // not while the file is new
			if r := s.run("cat", s.point+"/environ"); r.code != exit.OK || r.stdout != "" {
				t.Errorf("%s, an empty file: %+v", options, r)
			}
			last := opens
			opens = s.status().Source.Opens
			return opens == last && last > before.Source.Opens
		})
		for _, words := range [][]string{{"cat"}, {"cat"}, {"md5sum"}, {"tail", "-c1"}, {"dd", "iflag=direct", "status=none"}} {
			name := s.point + "/comm"
			if words[0] == "dd" {
				name = "if=" + name
			}
			if r := s.run(append(words, name)...); r.code == exit.OK || r.stdout != "" || !strings.Contains(r.stderr, "Operation not supported") {
				t.Errorf("%s, %q of a file with content: %+v", options, words, r)
			}
		}
		s.must("ls", "-l", s.point+"/comm")
		if got := s.milkweed("where", s.point+"/environ", s.point+"/comm", s.point+"/status"); !strings.Contains(got, "an open finds out") || !strings.Contains(got, "empty") || !strings.Contains(got, "it has content, and the source shows size 0") {
			t.Errorf("%s: where says\n%s", options, got)
		}
		if r := s.try("warmup", s.point+"/comm"); r.code != exit.Incomplete || !strings.Contains(r.stderr, "the source shows size 0 for a file that has content") {
			t.Errorf("%s: warmup: %+v", options, r)
		}
		s.umount()
	}
	if r := s.try("manifest", s.source); r.code != exit.Incomplete || !strings.Contains(r.stderr, "comm: the source shows size 0 for a file that has content") {
		t.Errorf("a manifest of the source: %+v", r)
	}
	if got := s.logs(); strings.Count(got, "file not readable through Milkweed") < 4 {
		t.Errorf("the log does not name the file:\n%s", got)
	}
}
