package main

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/bench"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// benchWords run the benchmark, as small as it can be.
func benchWords(words ...string) []string {
	return append([]string{"bench", "--scale=0.001", "--runs=1", "--latency=1ms", "--bandwidth=2GB"}, words...)
}

// wantNoBench fails the test if a benchmark has left anything.
func (s *site) wantNoBench(folders []string) {
	s.t.Helper()
	s.wantNothing()
	if len(folders) == 0 {
		s.t.Error("no folders were named")
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

// processesIn lists the command lines that name something in a folder.
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

// The benchmark measures all that it says, on every side that there is; through
// Milkweed the source is not asked again; and nothing is left.
func TestBench(t *testing.T) {
	s := newSite(t)
	picture := s.dir + "/bench.svg"
	var r bench.Report
	if out := s.milkweed(benchWords("--json", "--svg", picture)...); json.Unmarshal([]byte(out), &r) != nil {
		t.Fatalf("printed %q", out)
	}
	s.wantNoBench(r.TemporaryFolders)
	if svg, err := os.ReadFile(picture); err != nil || !bytes.Contains(svg, []byte("cosmoflow, later epochs")) {
		t.Errorf("the picture: %v, %d bytes", err, len(svg))
	}
	if got, want := len(r.Groups), 3; got != want {
		t.Fatalf("%d groups, want %d", got, want)
	}
	micro, workloads, monarch := r.Groups[0], r.Groups[1], r.Groups[2]
	for _, c := range planMicro(1).cases() {
		wantSides(t, micro, c.name, bench.Native, "passthrough", "stateless", "user", bench.Rclone)
	}
	for _, w := range bench.Workloads {
		for _, epoch := range []string{", epoch 1", ", later epochs"} {
			wantSides(t, workloads, w.Name+epoch, bench.Native, bench.Direct, "milkweed", bench.StageIn, bench.Rclone)
			if u := resultOf(t, workloads, w.Name+epoch, "milkweed").Utilization; u == nil || u.Median <= 0 || u.Median > 1 {
				t.Errorf("%s%s: utilization %+v", w.Name, epoch, u)
			}
		}
		if later := resultOf(t, workloads, w.Name+", later epochs", "milkweed").Source; later.Opens > 0 || later.Bytes > 0 {
			t.Errorf("%s, later epochs: the source was asked %+v", w.Name, later)
		}
	}
	for _, epochs := range []string{"monarch, epoch 1", "monarch, later epochs", "monarch, three epochs"} {
		wantSides(t, monarch, epochs, bench.Direct, "milkweed", bench.StageIn)
	}
	later := resultOf(t, monarch, "monarch, later epochs", "milkweed").Source
	if least := later.UnplacedBytes; least == 0 || later.Bytes < least {
		t.Errorf("monarch, later epochs: the source was asked %+v, and its pages are not kept", later)
	}
	direct := resultOf(t, monarch, "monarch, three epochs", bench.Direct).Source
	for _, side := range []string{"milkweed", bench.StageIn} {
		got := resultOf(t, monarch, "monarch, three epochs", side).Source
		if got.Opens >= direct.Opens || got.Bytes >= direct.Bytes || got.UnplacedBytes >= direct.UnplacedBytes {
			t.Errorf("monarch by way of %s: the source was asked %+v, and directly %+v", side, got, direct)
		}
	}
}

// wantSides fails the test unless the group has the case with positive numbers
// for each side, or leaves the side out.
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

// A user without rights mounts by way of fusermount3, and reads that mount.
func TestBenchUser(t *testing.T) {
	need(t, "fusermount3")
	s := newSite(t)
	s.inNamespace(fuseForAll)
	out := s.milkweed(benchWords("micro", "--modes=cached", "--rclone=off")...)
	s.wantNothing()
	for _, want := range []string{"user is a mount in mode auto that uid 65534 made", "left out: rclone: by --rclone off"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	for _, c := range planMicro(1).cases() {
		if !hasRow(out, c.name, "user") {
			t.Errorf("no row for %s, user:\n%s", c.name, out)
		}
	}
}

// hasRow reports whether a line has these two cells first.
func hasRow(out, name, side string) bool {
	for line := range strings.Lines(out) {
		if rest, ok := strings.CutPrefix(line, name); ok && strings.HasPrefix(strings.TrimSpace(rest), side+" ") {
			return true
		}
	}
	return false
}

// Ctrl-C in the middle leaves nothing.
func TestBenchInterrupted(t *testing.T) {
	s := newSite(t)
	cmd := s.command(append([]string{s.program}, benchWords("monarch", "--runs=1000", "--tier", s.dir)...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	s.check(cmd.Start())
	s.eventually("Milkweed is mounted", func() bool {
		return len(s.mounts()) == 2
	})
	folder := filepath.Dir(s.mounts()[0])
	s.check(cmd.Process.Signal(syscall.SIGINT))
	cmd.Wait()
	if got := exit.Code(cmd.ProcessState.ExitCode()); got != exit.Failure {
		t.Errorf("exit code %d, want %d", got, exit.Failure)
	}
	if got, want := stderr.String(), "milkweed: interrupted\n"; got != want {
		t.Errorf("it said %q, want %q", got, want)
	}
	s.wantNoBench([]string{folder})
}

func TestBenchUsage(t *testing.T) {
	for _, line := range []string{"macro", "--scale=0", "--scale=-1", "--runs=0", "--latency=-1s", "--bandwidth=fast", "--rclone=on", "--modes=fast"} {
		_, _, err := runMilkweed(t, append([]string{"bench"}, strings.Fields(line)...)...)
		if wantCode(t, err, exit.Usage); t.Failed() {
			t.Fatal(line)
		}
	}
}

// Without room nothing is made.
func TestBenchWithoutRoom(t *testing.T) {
	dir := t.TempDir()
	_, _, err := runMilkweed(t, "bench", "micro", "--scale=100", "--tier", dir, "--modes", strings.Repeat("cached,", 1000)+"cached")
	wantCode(t, err, exit.Tier)
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// errandOn makes a small dataset, changes it, and has it read.
func errandOn(t *testing.T, change func(path string), e errand) answer {
	t.Helper()
	e.Folder = t.TempDir()
	e.Files = samplesOf("a", 3, 300_000)
	if err := writeDataset(t.Context(), e.Folder, e.Files); err != nil {
		t.Fatal(err)
	}
	change(filepath.Join(e.Folder, e.Files[1].Name))
	r := errandReader{buf: make([]byte, errandBlock)}
	return r.run(e)
}

// A reader notices a byte that is not what was written, and a file that is too
// short, whatever it does with it.
func TestBenchReaderNoticesWrongFiles(t *testing.T) {
	flip := func(path string) {
		p, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		p[1000] ^= 1
		if err := os.WriteFile(path, p, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cut := func(path string) {
		if err := os.Truncate(path, 299_999); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name   string
		do     string
		change func(string)
		wrong  bool
	}{
		{"right", checkFiles, func(string) {}, false},
		{"flipped", checkFiles, flip, true},
		{"cut, checked", checkFiles, cut, true},
		{"cut, read", readFiles, cut, true},
		{"cut, stat", statFiles, cut, true},
	} {
		a := errandOn(t, c.change, errand{Do: c.do})
		if (a.Error != "") != c.wrong {
			t.Errorf("%s: %+v", c.name, a)
		}
		if !c.wrong && a.Bytes != 900_000 {
			t.Errorf("%s: %d bytes", c.name, a.Bytes)
		}
	}
}

// What stands for numpy's file is one: a reader of archives finds the array.
func TestWriteNPZ(t *testing.T) {
	dir := t.TempDir()
	s := sample{Name: "x.npz", Size: 100_000}
	if err := s.writeNPZ(dir, 1); err != nil {
		t.Fatal(err)
	}
	z, err := zip.OpenReader(dir + "/x.npz")
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	m, err := z.Open("x.npy")
	if err != nil {
		t.Fatal(err)
	}
	array, err := io.ReadAll(m)
	if err != nil {
		t.Fatal(err)
	}
	head := npyHeader(100_000)
	if len(head)%64 != 0 || !strings.HasSuffix(head, "\n") || len(array) != len(head)+100_000 {
		t.Errorf("a head of %d bytes, %d altogether", len(head), len(array))
	}
	r := errandReader{buf: make([]byte, errandBlock)}
	if n, err := r.batch([]part{{Path: dir + "/x.npz", Length: s.Size, Last: true, NPZ: true}}); err != nil || n != s.Size {
		t.Errorf("read %d of %d: %v", n, s.Size, err)
	}
	if r.file != nil {
		t.Error("the file is open")
	}
}

// An emulated step takes what it should, and hardly more.
func TestComputeFor(t *testing.T) {
	start := time.Now()
	if err := computeFor(3 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 3*time.Millisecond {
		t.Errorf("took %v", took)
	}
}
