package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// A tracing is a running milkweed trace --json.
type tracing struct {
	s     *site
	cmd   *exec.Cmd
	lines *json.Decoder
	notes *bufio.Reader
	first string // the first line of the standard error
}

// trace starts milkweed trace, and returns when it shows what happens from then on.
func (s *site) trace(words ...string) *tracing {
	s.t.Helper()
	t := &tracing{s: s, cmd: s.command(s.words(append([]string{"trace", s.point}, words...))...)}
	out, err := t.cmd.StdoutPipe()
	s.check(err)
	errs, err := t.cmd.StderrPipe()
	s.check(err)
	s.check(t.cmd.Start())
	t.lines, t.notes = json.NewDecoder(out), bufio.NewReader(errs)
	t.first, err = t.notes.ReadString('\n')
	s.check(err)
	return t
}

// until returns the lines up to the first that is wanted.
func (t *tracing) until(wanted func(control.TraceLine) bool) (lines []control.TraceLine) {
	t.s.t.Helper()
	for {
		var l control.TraceLine
		if err := t.lines.Decode(&l); err != nil {
			t.s.t.Fatalf("after %d lines: %v", len(lines), err)
		}
		if lines = append(lines, l); wanted(l) {
			return lines
		}
	}
}

// end waits for the end, and returns the rest of the standard error.
func (t *tracing) end(code exit.Code) string {
	t.s.t.Helper()
	io.Copy(io.Discard, t.lines.Buffered())
	rest, err := io.ReadAll(t.notes)
	t.s.check(err)
	t.cmd.Wait()
	if got := exit.Code(t.cmd.ProcessState.ExitCode()); got != code {
		t.s.t.Errorf("trace: exit code %d, want %d: %s", got, code, rest)
	}
	return string(rest)
}

// In each mode, trace shows the opens, and the reads that the daemon answers, with the level and the bytes.
func TestTrace(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole epochs")
	}
	parallel(t)
	for _, mode := range []string{"passthrough", "stateless", "cached"} {
		t.Run(mode, func(t *testing.T) {
			s := newSite(t)
			s.write("d/a", 300000)
			s.write("d/b\xff", 1000)
			s.write("d/last", 1)
			s.age()
			s.mountWith("mode="+mode, "64MiB")
			trace := s.trace("--json")
			if got := strings.Contains(trace.first, "mode passthrough"); got != (mode == "passthrough") {
				t.Errorf("the first line is %q", trace.first)
			}
			for _, name := range []string{"a", "b\xff"} {
				s.must("cat", s.point+"/d/"+name)
			}
			s.settled()
			s.must("dd", "if="+s.point+"/d/a", "iflag=nocache", "count=0", "status=none") // so that it is read again
			s.must("cat", s.point+"/d/a")
			s.must("cat", s.point+"/d/last")
			lines := trace.until(func(l control.TraceLine) bool { return l.Op == "read" && l.Path == "d/last" })
			s.check(trace.cmd.Process.Signal(syscall.SIGINT))
			rest := trace.end(exit.OK)
			if want := fmt.Sprintf("milkweed: %d lines, 0 dropped\n", len(lines)); rest != want && len(lines) > 1 {
				t.Errorf("the summary is %q, want %q", rest, want)
			}
			opens, sizes, again := make(map[string]int), make(map[string]int64), int64(0)
			for _, l := range lines {
				switch {
				case l.Op == "open":
					opens[l.Path]++
				case l.Level == "tier1":
					again += *l.Size
				default:
					sizes[l.Path] += *l.Size
				}
				if l.Time.IsZero() || l.Level == "" || l.Cause == "" || l.Seconds <= 0 || l.Failed {
					t.Errorf("incomplete: %+v", l)
				}
				if l.Level == "tier1" && l.Op == "read" && l.Cause != control.TierCause {
					t.Errorf("a read of a copy has the cause %s", l.Cause)
				}
			}
			if opens["d/a"] == 0 || opens["d/b\xff"] == 0 || opens["d/last"] == 0 {
				t.Errorf("opens: %v", opens)
			}
			if sizes["d/a"]+again < 300000 || sizes["d/b\xff"]+again < 1000 {
				t.Errorf("reads of %v bytes, and %d of copies", sizes, again)
			}
			if mode != "passthrough" && (again == 0 || sizes["d/a"]+again < 600000) {
				t.Errorf("reads of %v bytes, and %d of copies, want those of both cats", sizes, again)
			}
			s.umount()
			s.wantNothing()
		})
	}
}

// trace shows what the filters select, ends after --count lines, and with code 7 when the daemon ends.
func TestTraceFilters(t *testing.T) {
	s := newSite(t)
	for _, name := range []string{"x/a.jpg", "x/b.txt", "y/c.jpg"} {
		s.write(name, 1000)
	}
	s.age()
	s.mount("64MiB")
	traces := map[string]*tracing{
		"x/a.jpg y/c.jpg": s.trace("--json", "--path", "*.jpg"),
		"x/a.jpg x/b.txt": s.trace("--json", "--path", "x/*"),
		"y/c.jpg":         s.trace("--json", "--path", "y/c.jpg", "--count", "1"),
	}
	slow := s.trace("--slow", "1h", "--json")
	if r := s.try("trace", s.point); r.code != exit.Usage || !strings.Contains(r.stderr, "4 traces of the mount are in progress") {
		t.Errorf("a fifth trace: exit code %d: %s", r.code, r.stderr)
	}
	for _, name := range []string{"x/a.jpg", "x/b.txt", "y/c.jpg"} {
		s.must("cat", s.point+"/"+name)
	}
	for want, trace := range traces {
		names := strings.Fields(want)
		for _, l := range trace.until(func(l control.TraceLine) bool { return l.Path == names[len(names)-1] }) {
			if !strings.Contains(want, l.Path) {
				t.Errorf("%s is shown with those of %s", l.Path, want)
			}
		}
	}
	if rest := traces["y/c.jpg"].end(exit.OK); rest != "milkweed: 1 line, 0 dropped\n" {
		t.Errorf("--count 1 ended with %q", rest)
	}
	s.umount()
	if rest := slow.end(exit.NotMounted); !strings.Contains(rest, "0 lines, 0 dropped") {
		t.Errorf("the end of the daemon: %q", rest)
	}
	for _, names := range []string{"x/a.jpg y/c.jpg", "x/a.jpg x/b.txt"} {
		if rest := traces[names].end(exit.NotMounted); !strings.Contains(rest, " 0 dropped") {
			t.Errorf("the end of the daemon: %q", rest)
		}
	}
	s.wantNothing()
}

// Wrong patterns, durations and counts are refused.
func TestTraceUsage(t *testing.T) {
	for _, words := range [][]string{{"--path", "[a"}, {"--path", `x\`}, {"--slow", "10"}, {"--slow", "-1s"}, {"--count", "-1"}} {
		_, _, err := runMilkweed(t, append([]string{"trace", "/mnt"}, words...)...)
		wantCode(t, err, exit.Usage)
		if err == nil || !strings.Contains(err.Error(), "Use a ") {
			t.Errorf("%q: %v, want a remedy", words, err)
		}
	}
}

// A trace that nobody reads does not delay readers: it drops lines, and says how many. When its client has gone,
// it ends.
func TestTraceUnread(t *testing.T) {
	s := newSite(t)
	s.write("f", 4<<20)
	s.age()
	s.mountWith("mode=cached", "64MiB")
	s.must("cat", s.point+"/f")
	s.settled()
	sockets := s.sockets()
	if len(sockets) != 1 {
		t.Fatalf("sockets: %q", sockets)
	}
	conn, err := net.Dial("unix", sockets[0])
	s.check(err)
	defer conn.Close()
	fmt.Fprint(conn, "GET /v1/trace HTTP/1.1\r\nHost: milkweed\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReaderSize(conn, 16), nil) // the trace has begun
	s.check(err)
	const reads = 12000
	s.sh(fmt.Sprintf(`for i in $(seq 10); do dd if="$1" of=/dev/null bs=512 count=%d iflag=direct status=none & done; wait`, reads/10), s.point+"/f")
	lines := json.NewDecoder(resp.Body)
	seen, dropped := 0, int64(0)
	for dropped == 0 {
		var l control.TraceLine
		s.check(lines.Decode(&l))
		seen++
		dropped += l.Dropped
	}
	t.Logf("%d lines, %d dropped", seen, dropped)
	s.check(conn.Close())
	s.eventually("the trace has ended", func() bool {
		return !strings.Contains(s.get("/debug/pprof/goroutine?debug=1"), "daemon).Trace")
	})
	s.umount()
	s.wantNothing()
}

// The columns are aligned, missing numbers are dashes, and hostile names are quoted.
func TestTraceText(t *testing.T) {
	controltest.Folder(t)
	size := int64(4096)
	read := control.TraceLine{Time: time.Now(), Op: "read", Level: "ram", Seconds: 0.0125, Cause: "tier", Size: &size}
	read.Path = "a\x1b[31m"
	d := &controltest.Daemon{MountPoint: "/mnt/imagenet", Lines: []control.TraceLine{{Mode: "cached"}, {Dropped: 3}, read}}
	controltest.Serve(t, d)
	var out, notes bytes.Buffer
	client, err := control.Dial(t.Context(), d.MountPoint)
	wantCode(t, err, exit.OK)
	defer client.Close()
	err = traceFlags{count: 1}.run(t.Context(), &out, &notes, client, control.TraceFilter{})
	wantCode(t, err, exit.OK)
	lines := strings.Split(out.String(), "\n")
	if len(lines) != 3 || strings.Index(lines[0], "PATH") != strings.Index(lines[1], `"a`) ||
		strings.Join(strings.Fields(lines[1])[1:], " ") != `read ram 12.5ms tier - 4096 "a\x1b[31m"` {
		t.Errorf("printed\n%s", &out)
	}
	if want := "milkweed: 3 lines dropped\nmilkweed: 1 line, 3 dropped\n"; !strings.HasSuffix(notes.String(), want) {
		t.Errorf("printed %q, want %q at the end", &notes, want)
	}
}
