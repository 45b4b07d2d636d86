package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/bench"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// benchWords returns the arguments of the smallest possible benchmark.
func benchWords(words ...string) []string {
	return append([]string{"bench", "--scale=0.001", "--runs=1", "--latency=1ms", "--bandwidth=2GB"}, words...)
}

// microCases are the cases of group micro.
var microCases = []string{
	"sequential, pages dropped",
	"sequential, 2 readers, pages dropped",
	"sequential, pages kept",
	"random 4 KiB, pages dropped",
	"random 4 KiB, pages kept",
	"open+read+close of 110 KB, pages kept",
	"stat",
	"list, each file",
	"find -size, each file",
}

// wantNoBench fails the test if a benchmark has left a process, a mount or a
// file.
func (s *site) wantNoBench(folders []string) {
	s.t.Helper()
	s.wantNothing()
	if len(folders) == 0 {
		s.t.Error("the report has no folders")
	}
	for _, dir := range folders {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			s.t.Errorf("%s is left: %v", dir, err)
		}
		if left := processesIn(dir); len(left) > 0 {
			s.t.Errorf("still running: %q", left)
		}
	}
}

// processesIn lists the command lines of processes that have a path in a folder as
// an argument.
func processesIn(dir string) []string {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var lines []string
	for _, f := range files {
		if line, _ := os.ReadFile(f); bytes.Contains(line, []byte(dir+"/")) {
			lines = append(lines, string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return lines
}

// The benchmark measures each case on every side. The source is not read again
// after the first epoch through Milkweed. Nothing is left behind.
func TestBench(t *testing.T) {
	if testing.Short() {
		t.Skip("runs programs that take long")
	}
	s := newSite(t)
	picture := s.dir + "/bench.svg"
	var r bench.Report
	if out := s.milkweed(benchWords("--json", "--svg", picture)...); json.Unmarshal([]byte(out), &r) != nil {
		t.Fatalf("printed %q", out)
	}
	s.wantNoBench(r.TemporaryFolders)
	if svg, err := os.ReadFile(picture); err != nil || !bytes.Contains(svg, []byte("cosmoflow, later epochs")) {
		t.Errorf("SVG: %v, %d bytes", err, len(svg))
	}
	if got, want := len(r.Groups), 3; got != want {
		t.Fatalf("%d groups, want %d", got, want)
	}
	micro, workloads, monarch := r.Groups[0], r.Groups[1], r.Groups[2]
	if got, want := len(micro.Cases), len(microCases); got != want {
		t.Errorf("micro has %d cases, want %d", got, want)
	}
	for _, name := range microCases {
		wantSides(t, micro, name, bench.Native, "passthrough", "stateless", "user", bench.Rclone)
	}
	for _, w := range bench.Workloads {
		for _, epoch := range []string{", epoch 1", ", later epochs"} {
			wantSides(t, workloads, w.Name+epoch, bench.Native, bench.Direct, "milkweed", "milkweed, plan*", bench.StageIn, bench.Rclone)
			if u := resultOf(t, workloads, w.Name+epoch, "milkweed").Utilization; u == nil || u.Median <= 0 || u.Median > 1 {
				t.Errorf("%s%s: utilization %+v", w.Name, epoch, u)
			}
		}
		first, then := resultOf(t, workloads, w.Name+", epoch 1", "milkweed").Waits, resultOf(t, workloads, w.Name+", later epochs", "milkweed").Waits
		if first == nil || then == nil || first.Latency <= then.Latency {
			t.Errorf("%s: waits %+v in epoch 1, %+v later; want fewer for the latency of the source", w.Name, first, then)
		}
		for _, side := range []string{"milkweed", "milkweed, plan*"} {
			if later := resultOf(t, workloads, w.Name+", later epochs", side).Source; later.Opens > 0 || later.Bytes > 0 {
				t.Errorf("%s, later epochs, %s: operations of the source: %+v", w.Name, side, later)
			}
		}
	}
	for _, epochs := range []string{"monarch, epoch 1", "monarch, later epochs", "monarch, three epochs"} {
		wantSides(t, monarch, epochs, bench.Direct, "milkweed", bench.StageIn)
	}
	later := resultOf(t, monarch, "monarch, later epochs", "milkweed").Source
	if least := later.UnplacedBytes; least == 0 || later.Bytes < least {
		t.Errorf("monarch, later epochs: operations of the source: %+v; its pages must not be cached", later)
	}
	direct := resultOf(t, monarch, "monarch, three epochs", bench.Direct).Source
	for _, side := range []string{"milkweed", bench.StageIn} {
		got := resultOf(t, monarch, "monarch, three epochs", side).Source
		if got.Opens >= direct.Opens || got.Bytes >= direct.Bytes || got.UnplacedBytes >= direct.UnplacedBytes {
			t.Errorf("monarch through %s: operations of the source: %+v; directly %+v", side, got, direct)
		}
	}
}

// wantSides fails the test unless the case has positive numbers for each side that
// the group does not leave out.
func wantSides(t *testing.T, g bench.Group, name string, sides ...string) {
	t.Helper()
	for _, side := range sides {
		if slices.ContainsFunc(g.LeftOut, func(s string) bool { return strings.HasPrefix(s, side+": ") }) {
			continue
		}
		if r := resultOf(t, g, name, side); r.Value <= 0 || r.Seconds.Min <= 0 {
			t.Errorf("%s, %s: %+v", name, side, r)
		}
	}
}

func resultOf(t *testing.T, g bench.Group, name, side string) bench.Result {
	t.Helper()
	for _, c := range g.Cases {
		for _, r := range c.Results {
			if c.Name == name && r.Side == side {
				return r
			}
		}
	}
	t.Fatalf("%s has no case %q with side %q", g.Name, name, side)
	return bench.Result{}
}

// A user without privileges mounts with fusermount3 and reads that mount.
func TestBenchUser(t *testing.T) {
	drivertest.Need(t, "fusermount3")
	s := newSite(t)
	s.inNamespace(fuseForAll)
	out := s.milkweed(benchWords("micro", "--modes=cached", "--rclone=off")...)
	s.wantNothing()
	for _, want := range []string{"user is a mount in mode auto that uid 65534 made", "left out: rclone: by --rclone off"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	for _, name := range microCases {
		if !hasRow(out, name, "user") {
			t.Errorf("no row for %s, user:\n%s", name, out)
		}
	}
}

// hasRow reports whether a line of a table begins with these two cells.
func hasRow(out, name, side string) bool {
	for line := range strings.Lines(out) {
		if rest, ok := strings.CutPrefix(line, name); ok && strings.HasPrefix(strings.TrimSpace(rest), side+" ") {
			return true
		}
	}
	return false
}

// Several accelerators share a dataset, in each format, with and without O_DIRECT, and wait for each other as
// asked. Each reads a part of the files, and all of them read every file once.
func TestBenchAccelerators(t *testing.T) {
	if testing.Short() {
		t.Skip("runs programs that take long")
	}
	s := newSite(t)
	for _, c := range []struct {
		words    []string
		division string
	}{
		{[]string{"--accelerators=3", "--sides=native,milkweed"}, "The readers keep the rules of the division CLOSED"},
		{[]string{"--accelerators=2", "--format=npy", "--direct", "--barrier=epoch"}, "Only the division OPEN permits --format npy and --barrier epoch and --direct"},
		{[]string{"--accelerators=2", "--direct", "--barrier=none", "--slowdown=2"}, "Only the division OPEN permits --barrier none and --direct"},
	} {
		t.Run(strings.Join(c.words, " "), func(t *testing.T) {
			words := append([]string{"workloads", "--workload=unet3d", "--rclone=off", "--tier", s.dir, "--json"}, c.words...)
			var r bench.Report
			s.check(json.Unmarshal([]byte(s.milkweed(benchWords(words...)...)), &r))
			g := r.Groups[0]
			if caption := strings.Join(g.Caption, "\n"); !strings.Contains(caption, c.division) {
				t.Errorf("the caption is\n%s", caption)
			}
			one := bench.Workloads[0].Scaled(0.001)
			for _, epoch := range g.Cases {
				if n := int64(one.Files * int(c.words[0][len(c.words[0])-1]-'0')); epoch.Operations != n || epoch.Samples != n {
					t.Errorf("%s: %d files with %d samples, want %d", epoch.Name, epoch.Operations, epoch.Samples, n)
				}
				for _, side := range epoch.Results {
					if u := side.Utilization; u == nil || u.Median <= 0 || u.Median > 1 {
						t.Errorf("%s, %s: utilisation %+v", epoch.Name, side.Side, u)
					}
				}
			}
			if later := resultOf(t, g, "unet3d, later epochs", "milkweed").Source; later.Opens > 0 || later.Bytes > 0 {
				t.Errorf("later epochs: operations of the source: %+v", later)
			}
			s.wantNoBench(r.TemporaryFolders)
		})
	}
}

// Readers with O_DIRECT get the bytes of the source in all modes, and leave no pages in the page cache of the
// mount; in mode passthrough none of the copies either.
func TestDirectReaders(t *testing.T) {
	if testing.Short() {
		t.Skip("looks at the page cache")
	}
	drivertest.Need(t, "fincore")
	s := newSite(t)
	s.write("f", 20_000_123)
	for _, mode := range []string{"passthrough", "stateless", "cached"} {
		t.Run(mode, func(t *testing.T) {
			s.mountWith("mode="+mode, "64MiB")
			s.must("cmp", s.source+"/f", s.point+"/f")
			s.settled()
			copied := s.dataset(1) + "/files/f"
			for _, path := range []string{s.point + "/f", copied} {
				s.must("dd", "if="+path, "iflag=nocache", "count=0", "status=none")
			}
			s.sh(`dd if="$1/f" iflag=direct bs=1M status=none | cmp - "$2/f"`, s.point, s.source)
			pages := func(path string) string {
				return strings.TrimSpace(s.must("fincore", "--noheadings", "--output=PAGES", path))
			}
			if n := pages(s.point + "/f"); n != "0" {
				t.Errorf("%s pages of the mount are cached", n)
			}
			if n := pages(copied); mode == "passthrough" && n != "0" {
				t.Errorf("%s pages of the copy are cached", n)
			}
			s.umount()
		})
	}
	s.wantNothing()
}

// A benchmark that is interrupted leaves nothing behind.
func TestBenchInterrupted(t *testing.T) {
	if testing.Short() {
		t.Skip("runs programs that take long")
	}
	s := newSite(t)
	cmd := s.command(append([]string{s.program}, benchWords("monarch", "--runs=1000", "--tier", s.dir)...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	s.check(cmd.Start())
	s.eventually("Milkweed is mounted", func() bool {
		return len(s.mounts()) == 2
	})
	folder := filepath.Dir(s.mounts()[0])
	s.interrupt(cmd, &stderr)
	s.wantNoBench([]string{folder})
}

func TestBenchUsage(t *testing.T) {
	for _, line := range []string{"macro", "--scale=0", "--scale=-1", "--runs=0", "--latency=-1s", "--bandwidth=fast", "--rclone=on", "--modes=fast",
		"--accelerators=0", "--accelerators=65", "--barrier=step", "--format=zip", "--slowdown=-1", "--workload=bert", "--sides=nfs"} {
		_, _, err := runMilkweed(t, append([]string{"bench"}, strings.Fields(line)...)...)
		if wantCode(t, err, exit.Usage); t.Failed() {
			t.Fatal(line)
		}
	}
}

// Without space, the benchmark makes no files.
func TestBenchWithoutRoom(t *testing.T) {
	dir := t.TempDir()
	_, _, err := runMilkweed(t, "bench", "micro", "--scale=100", "--tier", dir, "--modes", strings.Repeat("cached,", 1000)+"cached")
	wantCode(t, err, exit.Tier)
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
