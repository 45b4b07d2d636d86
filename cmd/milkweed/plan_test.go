package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/placement"
)

func TestPlanCommand(t *testing.T) {
	d := &controltest.Daemon{}
	point := served(t, d)
	file := filepath.Join(t.TempDir(), "order.txt")
	for _, c := range []struct {
		content string
		flags   []string
		code    exit.Code
		paths   []string
		want    string // in the output or the error
	}{
		{"a\n\n" + point + "/b c\r\n.//d/./e\n", []string{"--stream", "r1", "--epoch", "2", "--from", "7", "--lead", "9"}, exit.OK, []string{"a", "b c", "d/e"}, "3 files planned"},
		{"a\n\n/else", nil, exit.Usage, nil, file + `: line 3: "/else" is not the name of a file in the mount`},
		{"a\n../else", nil, exit.Usage, nil, file + `: line 2: "../else": .. is not accepted`},
		{"a\nb\x00c\x00", []string{"-0"}, exit.OK, []string{"a\nb", "c"}, "2 files planned"},
		{"a\nbad\n", nil, exit.Incomplete, []string{"a", "bad"}, "1 path was not accepted"},
		{"bad\n", nil, exit.Usage, []string{"bad"}, "1 path was not accepted"},
		{"\n\n", nil, exit.Usage, nil, file + ": it has no paths"},
		{"a\x00b", nil, exit.Usage, nil, file + ": it has a NUL byte"},
		{"a", []string{"--lead", "-1"}, exit.Usage, nil, `lead: "-1" is not a number`},
	} {
		_, before, _ := d.Planned.Calls()
		if err := os.WriteFile(file, []byte(c.content), 0o644); err != nil {
			t.Fatal(err)
		}
		out, _, err := runMilkweed(t, append([]string{"plan", point, file}, c.flags...)...)
		wantCode(t, err, c.code)
		if err != nil {
			out += err.Error()
		}
		if !strings.Contains(out, c.want) {
			t.Errorf("%q: got %q, want %q", c.content, out, c.want)
		}
		if _, paths, _ := d.Planned.Calls(); len(paths) > len(before) && !reflect.DeepEqual(paths[len(before):], c.paths) {
			t.Errorf("%q: paths in the request: %q, want %q", c.content, paths[len(before):], c.paths)
		}
	}
	parts, _, _ := d.Planned.Calls()
	if want := (placement.PlanPart{Stream: "r1", Epoch: 2, From: 7, Lead: 9}); parts[0] != want {
		t.Errorf("got %+v, want %+v", parts[0], want)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(point, link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(link+"/by/link\n"+point+"/by/point\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, before, _ := d.Planned.Calls()
	_, _, err := runMilkweed(t, "plan", link, file)
	wantCode(t, err, exit.OK)
	if _, paths, _ := d.Planned.Calls(); !slices.Equal(paths[len(before):], []string{"by/link", "by/point"}) {
		t.Errorf("a plan by a link to the mount: the paths in the request are %q", paths[len(before):])
	}
	d.PlanErr = &exit.Error{Code: exit.Usage, Err: errors.New("the plan is full")}
	_, _, err = runMilkweed(t, "plan", point, file)
	wantCode(t, err, exit.Usage)

	for words, want := range map[string]string{"--clear": "*", "--clear --stream r1": "r1", "--clear --stream=": ""} {
		_, _, err := runMilkweed(t, append([]string{"plan", point}, strings.Fields(words)...)...)
		wantCode(t, err, exit.OK)
		if _, _, drops := d.Planned.Calls(); drops[len(drops)-1] != want {
			t.Errorf("%s: dropped %q, want %q", words, drops, want)
		}
	}
	_, _, err = runMilkweed(t, "plan", point, filepath.Join(t.TempDir(), "missing"))
	wantCode(t, err, exit.Usage)
	_, _, err = runMilkweed(t, "plan", t.TempDir(), file)
	wantCode(t, err, exit.NotMounted)
	_, _, err = runMilkweed(t, "plan", "--show", "--clear", point)
	wantCode(t, err, exit.Usage)
	_, _, err = runMilkweed(t, "plan", "--show", point, file)
	wantCode(t, err, exit.Usage)
}

func TestPlanShow(t *testing.T) {
	d := &controltest.Daemon{}
	point := served(t, d)
	out, _, err := runMilkweed(t, "plan", "--show", point)
	wantCode(t, err, exit.OK)
	if want := point + ": no plan\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	d.State = control.Plan{
		PlanStats: placement.PlanStats{
			PlanCounters: placement.PlanCounters{Opens: 200, Correct: 20}, StreamCount: 2, Entries: 1800, Lead: 64, LeadBytes: 8 << 20, Suspended: true,
		},
		Streams: []placement.PlanStream{
			{Name: "", Epoch: 1, Entries: 1000, Position: 100, Lead: 64, LeadBytes: 8 << 20, Passed: 100, Correct: 20},
			{Name: "r\n1", Entries: 900},
		},
	}
	out, _, err = runMilkweed(t, "plan", "--show", point)
	wantCode(t, err, exit.OK)
	want := point + `: 1,800 entries in 2 streams, 64 ahead of the job (8.0 MiB); 10% of 200 opens predicted; suspended, because less than an eighth of the recent opens are in it

STREAM  EPOCH  POSITION  OF     LEAD                PREDICTED
-       1      100       1,000  64 files (8.0 MiB)  20 of 100
"r\n1"  0      0         900    0 files (0 B)       0 of 0
`
	if out != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
	out, _, err = runMilkweed(t, "plan", "--show", "--json", point)
	wantCode(t, err, exit.OK)
	var got control.Plan
	if err := json.Unmarshal([]byte(out), &got); err != nil || !reflect.DeepEqual(got, d.State) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// The files of a plan are copied in its order before the job opens them. The job finds the socket by
// an extended attribute, and what it reads does not depend on the plan.
func TestPlan(t *testing.T) {
	drivertest.Need(t, "getfattr")
	s := newSite(t)
	var order []string
	for _, name := range []string{"d/c", "a", "e/f/g", "d/b", "h", "d/i"} {
		s.write(name, 50_000)
		order = append(order, name)
	}
	plan := s.dir + "/order.txt"
	s.check(os.WriteFile(plan, []byte(strings.Join(order, "\n")+"\nno/such\n./nothing\n"+s.point+"/none\n"), 0o644))
	s.milkweed(append(s.mountWords("64MiB"), "-o", "consistency=0s,plan="+plan)...)
	s.eventually("all files are copied", func() bool { return s.status().Placement.Placed == int64(len(order)) })
	socket := strings.TrimSpace(s.must("getfattr", "--only-values", "-n", "user.milkweed.socket", s.point))
	if got := s.sockets(); len(got) != 1 || got[0] != socket {
		t.Errorf("the attribute is %q, the sockets are %q", socket, got)
	}
	before := s.status()
	if p := before.Plan; p.Rejected != 0 || p.Missing != 3 || p.Entries != 9 {
		t.Errorf("got %+v, want three missing of 9", p)
	}
	for _, name := range order {
		s.must("cmp", s.source+"/"+name, s.point+"/"+name)
	}
	after := s.status()
	if after.Source.Reads != before.Source.Reads || after.Source.Stats > before.Source.Stats+1 { // of the root
		t.Errorf("operations at the source: %+v before the job, %+v after", before.Source.SourceOperations, after.Source.SourceOperations)
	}
	if out := s.milkweed("plan", "--show", s.point); !strings.Contains(out, "100% of 6 opens predicted") || !strings.Contains(out, " 6 of 6\n") {
		t.Errorf("printed\n%s", out)
	}
	s.check(os.WriteFile(plan, []byte("d/b\x00a\x00"), 0o644))
	s.milkweed("plan", "-0", "--stream", "other", "--lead", "2", s.point, plan)
	if got := s.status().Plan.StreamCount; got != 2 {
		t.Errorf("got %d streams, want 2", got)
	}
	s.milkweed("plan", "--clear", s.point)
	if got := s.milkweed("plan", "--show", s.point); got != s.point+": no plan\n" {
		t.Errorf("printed\n%s", got)
	}
	s.umount()
	s.wantNothing()
	const lines = 20_000
	s.check(os.WriteFile(plan, []byte(strings.Repeat("d/c\n", lines)+"../etc/passwd\nd/b\n"), 0o644))
	s.milkweed(append(s.mountWords("64MiB"), "-o", "plan="+plan)...)
	s.eventually("the plan is read", func() bool { return strings.Contains(s.logs(), `err="line 20001: `) })
	if got := s.status().Plan.Entries; got != lines {
		t.Errorf("got %d entries, want those before the line that is wrong", got)
	}
	s.umount()
	s.check(os.WriteFile(plan, []byte("a\n../etc/passwd\n"), 0o644))
	s.wantRefusal(append(s.mountWords("64MiB"), "-o", "plan="+plan), exit.Usage, "order.txt: line 2: ", "one path on each line")
	s.check(os.Remove(plan))
	s.wantRefusal(append(s.mountWords("64MiB"), "-o", "plan="+plan), exit.Usage, "order.txt", "one path on each line")
}
