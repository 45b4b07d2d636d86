package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/placement"
)

func TestScrubCommand(t *testing.T) {
	right := placement.ScrubReport{Path: ".", Ended: true, CopiesFound: 3, CopiesRight: 3, BytesRead: 1 << 20}
	corrupt, skipped := right, right
	corrupt.CopiesRight, corrupt.CopiesCorrupt, corrupt.Refetched = 2, 1, 1
	corrupt.Errors = []placement.ScrubError{{Path: "a\nb", Error: "block 0: copy is corrupt"}}
	skipped.Skipped = []placement.ScrubSkip{{Tier: "ssd", Reason: "tier is down"}}
	for _, test := range []struct {
		name        string
		report      placement.ScrubReport
		err         error
		code        exit.Code
		out, stderr string
	}{
		{"right", right, nil, exit.OK, "3 copies (1.0 MiB) verified in 0s, 0 corrupt\n", ""},
		{"corrupt", corrupt, nil, exit.Incomplete, "3 copies (1.0 MiB) verified in 0s, 1 corrupt, 1 file copied again\n", `"a\nb": block 0`},
		{"skipped", skipped, nil, exit.Incomplete, "3 copies (1.0 MiB) verified in 0s, 0 corrupt; 1 tier skipped\n", "tier ssd was not verified to the end: tier is down"},
		{"refused", right, scrubInProgress(), exit.Failure, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := &controltest.Daemon{Scrubs: []placement.ScrubReport{test.report}, ScrubErr: test.err}
			point := served(t, d)
			out, stderr, err := runMilkweed(t, "scrub", "--rate", "5MB", filepath.Join(point, "train"))
			wantCode(t, err, test.code)
			if out != test.out || !strings.Contains(stderr, test.stderr) {
				t.Errorf("got %q and %q, want %q and %q", out, stderr, test.out, test.stderr)
			}
			if req := d.Scrubbed.Load(); string(req.Name) != "train" || req.Rate != 5_000_000 || req.Background {
				t.Errorf("request: %+v", req)
			}
		})
	}
}

func TestScrubCommandInBackground(t *testing.T) {
	d := &controltest.Daemon{StepEvery: time.Hour}
	point := served(t, d)
	out, _, err := runMilkweed(t, "scrub", "--background", point)
	wantCode(t, err, exit.OK)
	if req := d.Scrubbed.Load(); !strings.HasPrefix(out, "scrub started") || string(req.Name) != "." || !req.Background {
		t.Errorf("got %q, %+v", out, req)
	}
	for _, args := range [][]string{{"--rate", "fast"}, {"--background", "--json"}, {point, point}} {
		_, _, err := runMilkweed(t, append([]string{"scrub"}, args...)...)
		wantCode(t, err, exit.Usage)
	}
}

// flip inverts a bit in each copy of a tier, and keeps the modification times.
func (s *site) flip(tier int) (copies int64) {
	s.t.Helper()
	for name := range s.files(s.dataset(tier) + "/files") {
		path := filepath.Join(s.dataset(tier), "files", name)
		info, err := os.Stat(path)
		s.check(err)
		data, err := os.ReadFile(path)
		s.check(err)
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		s.check(err)
		off := len(data) * int(copies%5) / 5
		_, err = f.WriteAt([]byte{data[off] ^ 16}, int64(off))
		s.check(errors.Join(err, f.Close(), os.Chtimes(path, time.Time{}, info.ModTime())))
		copies++
	}
	return copies
}

// scrub runs the command scrub and returns its report.
func (s *site) scrub(code exit.Code, words ...string) (r placement.ScrubReport) {
	s.t.Helper()
	got := s.try(append([]string{"scrub", "--json", s.point}, words...)...)
	if got.code != code {
		s.t.Fatalf("exit code %d, want %d\n%s%s", got.code, code, got.stdout, got.stderr)
	}
	s.check(json.Unmarshal([]byte(got.stdout), &r))
	return r
}

// The command scrub finds every bit that flips in the copies of a mount after they were
// verified, and costs the source nothing else. The program then reads the right bytes.
func TestScrubMount(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole epochs")
	}
	parallel(t)
	for _, mode := range []string{"cached", "stateless", "passthrough"} {
		t.Run(mode, func(t *testing.T) {
			s := newSite(t)
			varied(s)
			large := s.write("large", 5<<20+3)
			s.mountWith("mode="+mode, "2MiB", "64MiB")
			s.epoch(1)
			before := s.settled()
			if r := s.scrub(exit.OK); r.CopiesRight != 201 || !r.Clean() {
				t.Errorf("the first scrub: %+v", r)
			}
			if got := s.status(); got.Source.SourceOperations != before.Source.SourceOperations {
				t.Errorf("operations on the source: %+v, before %+v", got.Source.SourceOperations, before.Source.SourceOperations)
			}
			flipped := s.flip(1) + s.flip(2)
			if r := s.scrub(exit.Incomplete); r.CopiesCorrupt != flipped || r.CopiesRight != r.CopiesFound-flipped || r.Refetched != flipped {
				t.Errorf("%d bits flipped: %+v", flipped, r)
			}
			if data, err := s.read("large"); err != nil || !bytes.Equal(data, large) {
				t.Errorf("read after the scrub: wrong bytes, or %v", err)
			}
			s.epoch(2)
			status := s.settled()
			if c := status.Scrub.ScrubCounters; c.Scrubs != 2 || c.Corrupt != flipped || status.Tiers[0].Corrupt+status.Tiers[1].Corrupt != flipped {
				t.Errorf("status: %+v", status.Scrub)
			}
			s.milkweed("scrub", "--background", s.point)
			s.eventually("the scrub in the background has ended", func() bool { return s.status().Scrub.Scrubs == 3 })
			if last := s.status().Scrub.Last; !last.Clean() || last.CopiesRight != 201 {
				t.Errorf("the scrub in the background: %+v", last)
			}
			s.umount()
			s.wantNothing()
		})
	}
}

// One scrub runs at a time. It ends with the daemon.
func TestScrubTwice(t *testing.T) {
	s := newSite(t)
	s.write("f", 5<<20)
	s.mount("64MiB")
	s.epoch(1)
	s.settled()
	s.milkweed("scrub", "--background", "--rate", "1kB", s.point)
	if got := s.milkweed("status", s.point); !strings.Contains(got, "in progress since") {
		t.Errorf("status: %s", got)
	}
	if r := s.try("scrub", s.point); r.code != exit.Failure || !strings.Contains(r.stderr, placement.ErrScrubInProgress.Error()) {
		t.Errorf("a second scrub: code %d, %s", r.code, r.stderr)
	}
	s.umount()
	s.wantNothing()
}

// With scrub.interval, the daemon verifies the copies itself.
func TestScheduledScrub(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole epochs")
	}
	s := newSite(t)
	s.write("f", 100_000)
	s.mountWith("scrub_interval=1s,scrub_rate=50MB", "64MiB")
	s.epoch(1)
	s.settled()
	flipped := s.flip(1)
	s.eventually("a scheduled scrub finds "+strconv.FormatInt(flipped, 10)+" flips", func() bool {
		c := s.status().Scrub.ScrubCounters
		return c.Corrupt == flipped && c.Refetched == flipped && c.Scrubs >= 2
	})
	s.umount()
	s.wantNothing()
}
