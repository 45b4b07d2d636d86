package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// newDemoSite is a site for a demo, which finds its place by itself.
func newDemoSite(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	s.check(os.Mkdir(s.dir+"/tmp", 0o755))
	s.env = append(s.env, "TMPDIR="+s.dir+"/tmp")
	return s
}

// wantNoDemo fails the test if a demo has left anything.
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

// A demo reads the dataset from the source once by way of Milkweed, and each
// epoch straight; and leaves nothing.
func TestDemo(t *testing.T) {
	s := newDemoSite(t)
	var r demoReport
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
			t.Errorf("epoch %d by way of %s: %d files, %d bytes were read; want 41, %d", e.Epoch, e.Via, e.Files, e.Bytes, r.Bytes)
		}
		switch read := e.Source.Bytes; {
		case e.Via == viaMilkweed && e.Epoch > 1:
			if e.Source.Opens+e.Source.Reads > 0 {
				t.Errorf("epoch %d: the source was asked %+v", e.Epoch, e.Source)
			}
			if e.TierBytes["ram"] == 0 || e.TierBytes["ssd"] == 0 {
				t.Errorf("epoch %d: the tiers answered %v", e.Epoch, e.TierBytes)
			}
		case read < r.Bytes, float64(read) > maxOnce*float64(r.Bytes):
			t.Errorf("epoch %d by way of %s: the source gave %d bytes, want %d", e.Epoch, e.Via, read, r.Bytes)
		}
	}
}

// Ctrl-C in the middle of an epoch leaves nothing either.
func TestDemoInterrupted(t *testing.T) {
	s := newDemoSite(t)
	cmd := s.command(s.program, "demo", "--epochs=100", "--files=100", "--large=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	s.check(cmd.Start())
	s.eventually("the second mount is there", func() bool { return len(s.mounts()) == 2 })
	point := s.mounts()[1]
	var status control.Status
	s.eventually("files are open", func() bool {
		var err error
		status, err = control.DecodeStatus([]byte(s.milkweed("status", "--json", point)))
		s.check(err)
		return status.Placement.Placed > 0
	})
	s.check(cmd.Process.Signal(syscall.SIGINT))
	cmd.Wait()
	if got := exit.Code(cmd.ProcessState.ExitCode()); got != exit.Failure {
		t.Errorf("exit code %d, want %d", got, exit.Failure)
	}
	if got, want := stderr.String(), "milkweed: interrupted\n"; got != want {
		t.Errorf("it said %q, want %q", got, want)
	}
	s.wantNoDemo(strings.TrimSuffix(status.Tiers[0].Path, "/ram"))
}

// What is wrong with an epoch makes the demo fail.
func TestDemoProblems(t *testing.T) {
	whole := demoSourceUse{Operations: 30, Opens: 10, Reads: 20, Bytes: 1000}
	for _, c := range []struct {
		name string
		e    demoEpoch
		says string
	}{
		{"straight", demoEpoch{Epoch: 2, Via: sourceLevel, Bytes: 1000, Source: whole}, ""},
		{"first", demoEpoch{Epoch: 1, Via: viaMilkweed, Bytes: 1000, Source: whole}, ""},
		{"later", demoEpoch{Epoch: 2, Via: viaMilkweed, Bytes: 1000}, ""},
		{"twice", demoEpoch{Epoch: 1, Via: viaMilkweed, Bytes: 1000, Source: demoSourceUse{Bytes: 2000}}, "the source gave 2000 bytes of a dataset of 1000"},
		{"again", demoEpoch{Epoch: 2, Via: viaMilkweed, Bytes: 1000, Source: whole}, "the source was read from 20 times"},
		{"wrong", demoEpoch{Epoch: 2, Via: viaMilkweed, Bytes: 1000, wrong: []string{"a: 3 bytes"}}, "a: 3 bytes"},
		{"short", demoEpoch{Epoch: 1, Via: sourceLevel, Bytes: 999, Source: whole}, "999 bytes were read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &demoReport{Bytes: 1000}
			got := strings.Join(r.problems(c.e), "\n")
			if !strings.Contains(got, c.says) || (got == "") != (c.says == "") {
				t.Errorf("got %q, want %q", got, c.says)
			}
		})
	}
}

// A reader notices a byte that is not what was written.
func TestDemoReaderNoticesWrongBytes(t *testing.T) {
	dir := t.TempDir()
	samples := planDataset(3, 0)
	if err := writeDataset(t.Context(), dir, samples); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(dir+"/"+samples[1].Name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("milkweed"), 1000); err != nil {
		t.Fatal(err)
	}
	var in, out bytes.Buffer
	if err := json.NewEncoder(&in).Encode(share{Folder: dir, Samples: samples}); err != nil {
		t.Fatal(err)
	}
	if err := readShares(&in, &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var got tally
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &got); err != nil {
		t.Fatal(err)
	}
	if !got.Done || got.Files != 3 || len(got.Wrong) != 1 || !strings.Contains(got.Wrong[0], samples[1].Name) {
		t.Errorf("got %+v", got)
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
