package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// A profile of a real job has its opens and reads, and advice with what shows it. Ctrl-C ends it with what
// was recorded until then.
func TestProfile(t *testing.T) {
	if testing.Short() {
		t.Skip("profiles for half a second")
	}
	s := newSite(t)
	for i := range 120 {
		s.write(fmt.Sprintf("a/%03d", i), 20000)
	}
	s.write("b/large", 3<<20)
	s.mountWith("mode=cached", "64MiB")
	for _, words := range [][]string{{"--json"}, nil} {
		cmd := s.command(s.words(append([]string{"profile", "--duration", "1m", s.point}, words...))...)
		var out strings.Builder
		cmd.Stdout = &out
		notes, err := cmd.StderrPipe()
		s.check(err)
		s.check(cmd.Start())
		begun := make([]byte, 1)
		notes.Read(begun) // the trace has begun
		s.sh(`cat "$1"/a/* >/dev/null; dd if="$1"/b/large of=/dev/null bs=64k iflag=direct skip=8 count=2 2>/dev/null`, s.point)
		s.sh(`sleep 0.5`)
		s.check(cmd.Process.Signal(os.Interrupt))
		go func() { // until the command ends
			b := make([]byte, 4096)
			for _, err := notes.Read(b); err == nil; _, err = notes.Read(b) {
			}
		}()
		s.check(cmd.Wait())
		if words == nil {
			for _, want := range []string{"opens    121 of 121 files", "DIRECTORY", "FILES UP TO", `→ mount.mode = "stateless"`} {
				if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), strings.Join(strings.Fields(want), " ")) {
					t.Errorf("no %q in\n%s", want, &out)
				}
			}
			continue
		}
		var r profileReport
		s.check(json.Unmarshal([]byte(out.String()), &r))
		a := r.Accesses
		if a.Opens != 121 || a.Files != 121 || a.FileBytes != 120*20000+3<<20 || a.InOrder != 119 || a.Reads < 122 || a.Dropped != 0 {
			t.Errorf("got %+v", a)
		}
		if len(a.Dirs) != 2 || a.Dirs[0].Path != "a" || a.Dirs[0].Opens != 120 {
			t.Errorf("directories: got %+v", a.Dirs)
		}
		if len(r.Advice) == 0 || !strings.Contains(r.Advice[0].Setting, "stateless") {
			t.Errorf("advice: got %+v", r.Advice)
		}
	}
	if got := s.milkweed("profile", "--duration", "200ms", s.point); !strings.Contains(got, "Advice needs 100 opens.") {
		t.Errorf("without accesses:\n%s", got)
	}
	if r := s.try("profile", "--duration", "0s", s.point); r.code != exit.Usage {
		t.Errorf("no time: %d %s", r.code, r.stderr)
	}
	s.umount()
	if r := s.try("profile", s.point); r.code != exit.NotMounted {
		t.Errorf("not mounted: %d %s", r.code, r.stderr)
	}
}

// Without --duration, a profile has what was recorded since the mount, though nothing is read any more.
func TestProfileSinceMount(t *testing.T) {
	parallel(t)
	s := newSite(t)
	for i := range 150 {
		s.write(fmt.Sprintf("a/%03d", i), 20000)
	}
	s.write("b/large", 3<<20)
	s.mountWith("mode=cached", "64MiB")
	if got := s.milkweed("profile", s.point); !strings.Contains(got, "Advice needs 100 opens.") {
		t.Errorf("before any access:\n%s", got)
	}
	s.sh(`cat "$1"/a/* >/dev/null; cat "$1"/a/* >/dev/null; dd if="$1"/b/large of=/dev/null bs=64k iflag=direct skip=44 count=2 2>/dev/null`, s.point)
	s.settled()
	var r profileReport
	s.check(json.Unmarshal([]byte(s.milkweed("profile", "--json", s.point)), &r))
	a := r.Accesses
	if a.Opens != 301 || a.Files != 151 || a.FileBytes != 300*20000+3<<20 || a.InOrder != 298 || a.Neighbors != 299 || a.Random == 0 || a.Sequential+a.Spliced < 150 || a.Dropped != 0 || a.Seconds < 1 {
		t.Errorf("got %+v", a)
	}
	if a.ReadBytes < 150*20000+128<<10 || a.ReadBytes > 300*20000+3<<20 {
		t.Errorf("%d bytes read", a.ReadBytes)
	}
	if n := a.FileSizes[2]; n.UpTo != 64<<10 || n.Count != 300 {
		t.Errorf("sizes of files: got %v", a.FileSizes)
	}
	if len(r.Advice) == 0 || !strings.Contains(r.Advice[0].Setting, "stateless") {
		t.Errorf("advice: got %+v", r.Advice)
	}
	if got := s.milkweed("profile", s.point); !strings.Contains(got, "301 of 151 files since the mount") || strings.Contains(got, "DIRECTORY") {
		t.Errorf("got\n%s", got)
	}
}
