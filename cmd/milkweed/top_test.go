package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gdamore/tcell/v3"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/rates"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// watched returns a model of the daemon d with a sample after some opens.
func watched(d *controltest.Daemon) *topModel {
	at := time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC)
	before, after := d.Status(context.Background()), d.Status(context.Background())
	after.Opens["ram"]["passthrough"] += 90
	after.OpenedBytes["ram"]["passthrough"] += 90 << 20
	after.Opens["source"]["cached"] += 10
	after.Source.Reads += 20
	after.Source.Bytes += 10 << 20
	after.Waits[0].Seconds += 1.5
	m := newTopModel("/mnt", time.Second)
	m.add(sample{at: at, status: before})
	p, ok := rates.Between(&before, &after, at, at.Add(time.Second))
	m.add(sample{at: at.Add(time.Second), status: after, rates: p, rated: ok})
	return m
}

// rowsOf returns a view as text.
func rowsOf(rows []row) string {
	var lines []string
	for _, r := range rows {
		lines = append(lines, r.String())
	}
	return strings.Join(lines, "\n")
}

func TestTopViews(t *testing.T) {
	m := watched(&controltest.Daemon{MountPoint: "/mnt", Peered: true})
	for i, wants := range [][]string{
		{"ram     ███", "25%", "400 MiB", "90M", "down: no space left on device", "1 of 2 up", "hit ratio", "90%", "known:9%", "90 of 1,000 known files", "mostly for: latency (100%)", "20 ops/s", "2 copies", "7 queued", "plan ", "tier is not healthy (2 times)"},
		{"latency", "1.50 s/s", "1m3s", "EPOCH", "7, now", "2.0 MiB fill, 5.0 MiB ram, 70 MiB opened in ram", "80%"},
		{"read ", "20/s", "420", "3 blocks", "of at most 12", "3 idle handles"},
		{"node2", "10.0.0.2:7440", "40 MiB", "node3", "down"},
		{"2026-01-02", "ssd: tier is not healthy (2 times)", "scrub ", "1 corrupt"},
	} {
		got := rowsOf(append(m.head(), topViews[i].rows(m, blocks, 160)...))
		for _, want := range wants {
			if !strings.Contains(got, want) {
				t.Errorf("view %s: no %q in\n%s", topViews[i].name, want, got)
			}
		}
	}
	if got := rowsOf(watched(&controltest.Daemon{MountPoint: "/mnt"}).peersView(blocks, 100)); !strings.Contains(got, "no other node") {
		t.Errorf("without peers: %s", got)
	}
	if got := rowsOf(watched(&controltest.Daemon{MountPoint: "/mnt", Bucket: true}).sourceView(ascii, 100)); !strings.Contains(got, "3,413 requests") {
		t.Errorf("a bucket: %s", got)
	}
}

// Every view can be shown before there are rates, and in a narrow terminal.
func TestTopWithoutRates(t *testing.T) {
	m := newTopModel("/mnt", time.Second)
	if got := rowsOf(m.head()); !strings.Contains(got, "waiting for the daemon") {
		t.Errorf("at the start: %s", got)
	}
	m.add(sample{at: time.Now(), status: control.Status{MountPoint: "/mnt"}})
	for _, v := range topViews {
		for _, width := range []int{1, 80} {
			v.rows(m, ascii, width)
		}
	}
	m.add(sample{at: m.now.at.Add(12 * time.Second), err: &exit.Error{Err: errors.New("no daemon"), Remedy: "x"}})
	if got := rowsOf(m.head()); !strings.Contains(got, "no answer for 12s: no daemon") || strings.Contains(got, "x\n") {
		t.Errorf("without an answer: %s", got)
	}
}

func TestTopKeys(t *testing.T) {
	m := watched(&controltest.Daemon{MountPoint: "/mnt"})
	// press sends events of the terminal, or the characters of strings.
	press := func(keys ...any) (goOn bool) {
		t.Helper()
		goOn = true
		for _, k := range keys {
			var e *tcell.EventKey
			switch k := k.(type) {
			case *tcell.EventKey:
				e = k
			case tcell.Key:
				e = tcell.NewEventKey(k, "", tcell.ModNone)
			case string:
				e = tcell.NewEventKey(tcell.KeyRune, k, tcell.ModNone)
			}
			goOn = m.key(e, 10, 25) && goOn
		}
		return goOn
	}
	goOn := press("3")
	if m.view != 2 {
		t.Errorf("view %d after 3", m.view)
	}
	goOn = press(tcell.KeyTab, tcell.KeyTab, tcell.KeyTab, tcell.NewEventKey(tcell.KeyTab, "", tcell.ModShift)) && goOn
	if m.view != 4 {
		t.Errorf("view %d after Tab", m.view)
	}
	goOn = press(tcell.KeyPgDn, tcell.KeyPgDn, tcell.KeyPgDn, tcell.NewEventKey(tcell.KeyUp, "", tcell.ModShift)) && goOn
	if m.scroll != 14 {
		t.Errorf("row %d after scrolling", m.scroll)
	}
	goOn = press("12", "x", tcell.NewEventKey(tcell.KeyRune, "q", tcell.ModCtrl), tcell.KeyHome) && goOn
	if m.view != 4 || m.scroll != 0 {
		t.Errorf("view %d, row %d", m.view, m.scroll)
	}
	goOn = press("+") && goOn
	if m.interval != 2*time.Second || len(m.points) != 0 {
		t.Errorf("%v and %d points after +", m.interval, len(m.points))
	}
	m.interval = 3 * time.Second
	goOn = press("-") && goOn
	if m.interval != 2*time.Second {
		t.Errorf("%v after -", m.interval)
	}
	for range 20 {
		goOn = press("+") && goOn
	}
	goOn = press(" ") && goOn
	if m.interval != time.Minute || !m.paused {
		t.Errorf("%v, paused %v", m.interval, m.paused)
	}
	if !goOn {
		t.Error("one of these keys ended it")
	}
	for _, k := range []any{"q", tcell.KeyEsc, tcell.NewEventKey(tcell.KeyRune, "\x03", tcell.ModNone), tcell.NewEventKey(tcell.KeyRune, "c", tcell.ModCtrl)} {
		if press(k) {
			t.Errorf("%v did not end it", k)
		}
	}
}

func TestGlyphs(t *testing.T) {
	if got, want := blocks.sparkline([]float64{9, 0, 1, 4, 8}, 4, 0), " ▂▅█"; got != want {
		t.Errorf("sparkline: got %q, want %q", got, want)
	}
	if got, want := blocks.sparkline([]float64{1}, 3, 2), "  ▅"; got != want {
		t.Errorf("sparkline: got %q, want %q", got, want)
	}
	for share, want := range map[float64]string{-1: "░░░░", 0: "░░░░", 0.001: "▏░░░", 0.5: "██░░", 1: "████", 7: "████"} {
		if got := blocks.gauge(share, 4); got != want {
			t.Errorf("gauge of %v: got %q, want %q", share, got, want)
		}
		if got := ascii.gauge(share, 7); utf8.RuneCountInString(got) != 7 {
			t.Errorf("gauge of %v: got %q", share, got)
		}
	}
}

// --lines and --json print the given number of intervals of a real mount that is read.
func TestTopLines(t *testing.T) {
	s := newSite(t)
	for _, name := range []string{"a", "b", "c"} {
		s.write("d/"+name, 100<<10)
	}
	s.mount("64MiB")
	s.read("d/a")
	stop := make(chan struct{})
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		for {
			select {
			case <-stop:
				return
			default:
				exec.Command("ls", "-l", filepath.Join(s.point, "d")).Run()
			}
		}
	}()
	out := s.milkweed("top", "--lines", "--interval", "200ms", "--count", "2", s.point)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], "HIT") || !strings.Contains(lines[0], "W-LATENCY") || len(strings.Fields(lines[0])) != len(strings.Fields(lines[2])) {
		t.Errorf("got\n%s", out)
	}
	out = s.milkweed("top", "--json", "-i", "200ms", "-n", "1", s.point)
	close(stop)
	<-reading
	var p rates.Point
	if err := json.Unmarshal([]byte(out), &p); err != nil || p.Seconds < 0.1 || len(p.Levels) != 3 || p.Levels[2].Name != "source" {
		t.Errorf("got %s, %v", out, err)
	}
	if r := s.try("top", s.point); r.code != exit.Usage || !strings.Contains(r.stderr, "not a terminal") || !strings.Contains(r.stderr, "--lines") {
		t.Errorf("without a terminal: %d %s", r.code, r.stderr)
	}
	if r := s.try("top", "--lines", "--interval", "1ms", s.point); r.code != exit.Usage {
		t.Errorf("1 ms: %d %s", r.code, r.stderr)
	}
	if r := s.try("top", "-n", "2", s.point); r.code != exit.Usage {
		t.Errorf("a number without --lines: %d %s", r.code, r.stderr)
	}
	s.umount()
	if r := s.try("top", "--lines", s.point); r.code != exit.NotMounted {
		t.Errorf("not mounted: %d %s", r.code, r.stderr)
	}
}

// In a real terminal, top shows the mount, changes its views, says when the daemon does not answer, and
// restores the terminal.
func TestTopInATerminal(t *testing.T) {
	if testing.Short() {
		t.Skip("runs programs that take long")
	}
	drivertest.Need(t, "tmux")
	s := newSite(t)
	s.write("d/f", 100<<10)
	s.mount("64MiB")
	s.read("d/f")
	server := "milkweed-test-" + filepath.Base(s.dir)
	tmux := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("tmux", append([]string{"-L", server, "-f", "/dev/null"}, args...)...)
		cmd.Env = s.env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("tmux %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	t.Cleanup(func() { exec.Command("tmux", "-L", server, "kill-server").Run() })
	top := "env TERM=tmux-256color LC_ALL=C.UTF-8 " + s.program + " top --interval 100ms " + s.point
	tmux("new-session", "-d", "-x", "130", "-y", "30", top+"; echo Ctrl-C: exit code $?; read line; "+top+"; echo q: exit code $?; cat")
	screen := func(wants ...string) {
		t.Helper()
		var got string
		lacks := func(want string) bool { return !strings.Contains(got, want) }
		defer func() {
			if t.Failed() {
				t.Log(got)
			}
		}()
		s.eventually(fmt.Sprintf("the screen has %q", wants), func() bool {
			got = tmux("capture-pane", "-p")
			return !slices.ContainsFunc(wants, lacks)
		})
	}
	screen(s.point, "ready", "LEVEL", "hit ratio", "1 levels", "█")
	tmux("send-keys", "2")
	screen("WAITS FOR", "bandwidth", "No epoch yet")
	tmux("send-keys", "Tab")
	screen("OPERATION", "stat")
	tmux("send-keys", "BTab")
	screen("WAITS FOR")
	tmux("send-keys", "4")
	screen("no other node")
	tmux("send-keys", "5")
	screen("No warning in the log")
	tmux("send-keys", "p")
	screen("paused")
	tmux("send-keys", "p", "1")
	tmux("resize-window", "-x", "60", "-y", "10")
	screen("LEVEL", "more rows: Down")
	pid := s.status().PID
	drivertest.Stop(t, pid)
	screen("no answer for")
	s.check(unix.Kill(pid, unix.SIGCONT))
	screen("ready", "LEVEL")
	tmux("send-keys", "C-c")
	screen("Ctrl-C: exit code 0")
	tmux("send-keys", "Enter")
	screen("ready", "LEVEL")
	tmux("send-keys", "q")
	screen("q: exit code 0")
}

// status --watch prints the status and the rates until it is interrupted, and then exits with 0.
func TestStatusWatch(t *testing.T) {
	s := newSite(t)
	s.write("d/f", 100<<10)
	s.mount("64MiB")
	for _, flags := range [][]string{nil, {"--json"}} {
		cmd := s.command(s.words(append([]string{"status", "--watch", "--interval", "100ms", s.point}, flags...))...)
		out, err := cmd.StdoutPipe()
		s.check(err)
		s.check(cmd.Start())
		statuses, rated := 0, false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			line := lines.Text()
			if strings.HasPrefix(line, s.point+": ready") || strings.HasPrefix(line, "{") {
				statuses++
			}
			rated = rated || strings.Contains(line, "OPENS/s") && strings.Contains(line, "W-FILL")
			if statuses == 3 {
				s.check(cmd.Process.Signal(os.Interrupt))
				statuses++
			}
		}
		if err := cmd.Wait(); err != nil || statuses < 4 || rated != (flags == nil) {
			t.Errorf("%v: %d statuses, rates %v, %v", flags, statuses, rated, err)
		}
	}
	if r := s.try("status", "--watch", "--interval", "0s", s.point); r.code != exit.Usage {
		t.Errorf("no interval: %d %s", r.code, r.stderr)
	}
}
