package accesses_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/accesses"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/placement"
)

func open(name, level string, size int64) control.TraceLine {
	l := control.TraceLine{Op: "open", Level: level, Seconds: 0.5, Cause: "latency", Size: &size}
	l.Path = name
	return l
}

func read(name string, offset, size int64) control.TraceLine {
	l := control.TraceLine{Op: "read", Level: "ram", Seconds: 0.25, Cause: "-", Size: &size}
	if offset >= 0 {
		l.Offset = &offset
	}
	l.Path = name
	return l
}

func TestSummary(t *testing.T) {
	const mib = 1 << 20
	r := accesses.NewRecorder()
	failed := open("d/failed", "source", 1)
	failed.Failed = true
	for _, l := range []control.TraceLine{
		{Mode: "cached"}, {Dropped: 3}, failed,
		open("d/b", "ram", 100), open("d/a", "source", 5*mib), open("d/c", "ram", 100), open("e/x", "ram", 2<<30), open("d/a", "ram", 5*mib),
		read("d/a", 0, mib), read("d/a", 2*mib, mib), read("d/a", mib, mib), read("d/a", 40*mib, 4096), read("e/\xff", -1, 4096),
	} {
		r.Add(l)
	}
	s := r.Summary(10)
	if s.Dropped != 3 || s.Opens != 5 || s.Files != 4 || s.FileBytes != 10*mib+200+2<<30 || s.Neighbors != 2 || s.InOrder != 1 {
		t.Errorf("opens: got %+v", s)
	}
	if s.Reads != 5 || s.Spliced != 1 || s.Sequential != 3 || s.Random != 1 || s.ReadBytes != 3*mib+8192 {
		t.Errorf("reads: got %+v", s)
	}
	if got := fmt.Sprint(s.FileSizes); got != "[{4096 2} {16384 0} {65536 0} {131072 0} {524288 0} {1048576 0} {8388608 2} {67108864 0} {1073741824 0} {0 1}]" {
		t.Errorf("sizes of files: got %s", got)
	}
	if s.RequestSizes[0].Count != 2 || s.RequestSizes[5].Count != 3 {
		t.Errorf("sizes of requests: got %v", s.RequestSizes)
	}
	if want := map[string]int64{"ram": 4, "source": 1}; !reflect.DeepEqual(s.Levels, want) {
		t.Errorf("levels: got %v, want %v", s.Levels, want)
	}
	if s.Waited() != 2.5 || s.Waits["latency"] != 2.5 {
		t.Errorf("waits: got %v", s.Waits)
	}
	if len(s.Dirs) != 2 || s.Dirs[0].Path != "d" || s.Dirs[0].Opens != 4 || s.Dirs[0].Sequential != 3 || s.Dirs[1].Reads != 1 {
		t.Errorf("directories: got %+v", s.Dirs)
	}
	dir := accesses.Dir{Path: "e\xff", Opens: 1}
	var back accesses.Dir
	if text, err := json.Marshal(dir); err != nil || json.Unmarshal(text, &back) != nil || back != dir {
		t.Errorf("%s is read as %+v, %v", text, back, err)
	}
}

// A job that opens many directories and files takes a bounded amount of memory.
func TestBounds(t *testing.T) {
	r := accesses.NewRecorder()
	for i := range 300_000 {
		r.Add(open(fmt.Sprintf("d%d/f", i), "ram", 1))
	}
	s := r.Summary(1)
	if len(s.Dirs) != 1001 || s.Dirs[0].Path != accesses.Others || s.Dirs[0].Opens != 299_000 || s.Files != 1<<18 || s.Opens != 300_000 {
		t.Errorf("%d directories, the first %+v; %d files of %d opens", len(s.Dirs), s.Dirs[0], s.Files, s.Opens)
	}
}

func TestAdvise(t *testing.T) {
	const mib = 1 << 20
	// What a well-served job does, and a status of its mount.
	served := func() (accesses.Summary, *control.Status) {
		return accesses.Summary{
			Seconds: 10, Opens: 1000, FileBytes: 1000 * 100 << 10, Neighbors: 900, InOrder: 450,
			Levels: map[string]int64{"ram": 1000}, Waits: map[string]float64{},
		}, &control.Status{Mode: "stateless", Tiers: []control.Tier{{Name: "ram", PassthroughReason: "the mode is stateless"}}}
	}
	for _, c := range []struct {
		name   string
		change func(*accesses.Summary, *control.Status)
		want   string // a part of the only advice; "": none
	}{
		{"served well", func(*accesses.Summary, *control.Status) {}, ""},
		{"small files in passthrough", func(_ *accesses.Summary, s *control.Status) { s.Mode = "passthrough" }, `"stateless"`},
		{"large files in stateless", func(a *accesses.Summary, _ *control.Status) { a.FileBytes = 1000 * 4 * mib }, `"passthrough"`},
		{"large files in cached", func(a *accesses.Summary, s *control.Status) {
			a.FileBytes, s.Mode, s.Tiers[0].PassthroughReason = 1000*4*mib, "cached", "the mode is cached"
		}, `"passthrough"`},
		{"large files in passthrough", func(a *accesses.Summary, s *control.Status) {
			a.FileBytes, s.Mode, s.Tiers[0] = 1000*4*mib, "passthrough", control.Tier{Passthrough: true}
		}, ""},
		{"large files where passthrough does not work", func(a *accesses.Summary, s *control.Status) {
			a.FileBytes = 1000 * 4 * mib
			s.Tiers[0].PassthroughReason = "it is stacked"
		}, ""},
		{"too few opens", func(a *accesses.Summary, _ *control.Status) { a.Opens, a.FileBytes = 99, 99*4*mib }, ""},
		{"tiny files", func(a *accesses.Summary, _ *control.Status) { a.FileBytes = 1000 * 2000 }, "Pack"},
		{"no room", func(a *accesses.Summary, s *control.Status) {
			a.Levels["source"], a.Waits["latency"], s.Placement = 200, 30, placement.Counters{Skipped: 500}
		}, "quota"},
		{"shuffled, nothing placed", func(a *accesses.Summary, _ *control.Status) { a.Levels["fill"], a.Waits["latency"] = 900, 30 }, "milkweed plan"},
		{"shuffled, with a plan", func(a *accesses.Summary, s *control.Status) {
			a.Levels["fill"], a.Waits["latency"], s.Plan.StreamCount = 900, 30, 1
		}, ""},
		{"in order", func(a *accesses.Summary, _ *control.Status) {
			a.Levels["fill"], a.Waits["fill"], a.InOrder = 900, 30, 900
		}, ""},
		{"few waits", func(a *accesses.Summary, _ *control.Status) { a.Levels["fill"], a.Waits["latency"] = 900, 1 }, ""},
		{"bandwidth", func(a *accesses.Summary, _ *control.Status) { a.Levels["fill"], a.Waits["bandwidth"] = 900, 30 }, "warmup"},
		{"a busy tier", func(a *accesses.Summary, _ *control.Status) { a.Waits["tier"], a.Reads = 30, 10_000 }, ""},
		{"a slow tier", func(a *accesses.Summary, _ *control.Status) { a.Waits["tier"] = 30 }, "fastest tier"},
	} {
		a, s := served()
		c.change(&a, s)
		got := accesses.Advise(a, s)
		switch {
		case c.want == "" && len(got) > 0, c.want != "" && len(got) != 1:
			t.Errorf("%s: got %+v", c.name, got)
		case c.want != "" && !strings.Contains(got[0].Setting, c.want):
			t.Errorf("%s: got %+v, want %s", c.name, got, c.want)
		}
	}
}
