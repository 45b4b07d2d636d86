package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/doctor"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/placement"
)

// Bytes that are shown are bytes that were read, however large the opened files are. In passthrough, where the
// daemon does not see reads, the column names the sizes of the opened files as that.
func TestBytesShownAreBytesRead(t *testing.T) {
	parallel(t)
	const size, opens, part = 8 << 20, 20, 64 << 10
	read := func(s *site) {
		for range opens {
			s.sh(`dd if="$1/a/f" of=/dev/null bs=64k count=1 iflag=direct 2>/dev/null`, s.point)
		}
	}
	for _, mode := range []string{"cached", "stateless"} {
		t.Run(mode, func(t *testing.T) {
			s := newSite(t)
			s.write("a/f", size)
			s.mountWith("mode="+mode, "64MiB")
			read(s)
			status, sum := s.settled(), int64(0)
			for _, n := range status.ReadBytes {
				sum += n
			}
			if sum < opens*part || sum > 2*opens*part {
				t.Errorf("bytes read: got %v, want %d", status.ReadBytes, opens*part)
			}
			if got := s.milkweed("status", s.point); strings.Contains(got, "opened\n") {
				t.Errorf("sizes of opened files in mode %s:\n%s", mode, got)
			}
		})
	}
	t.Run("passthrough", func(t *testing.T) {
		s := newSite(t)
		s.write("a/f", size)
		s.mountWith("mode=passthrough", "64MiB")
		s.milkweed("warmup", s.point)
		s.eventually("the copy is checked", func() bool { return s.status().Fills.Unchecked == 0 })
		read(s)
		if got := s.milkweed("status", s.point); !strings.Contains(got, "160 MiB opened") {
			t.Errorf("no sizes of opened files:\n%s", got)
		}
		if got := s.status(); got.OpenedBytes["tier1"]["passthrough"] != opens*size || got.ReadBytes["tier1"] != 0 {
			t.Errorf("got %v opened, %v read", got.OpenedBytes, got.ReadBytes)
		}
	})
}

// The status says whether another epoch would read content from the source: over the dataset, and over the files that
// were opened.
func TestStatusOfCompleteDataset(t *testing.T) {
	parallel(t)
	s := newSite(t)
	for i := range 6 {
		s.write(fmt.Sprintf("a/%d", i), 20_000)
	}
	s.write("b/c/large", 2<<20)
	s.write("b/empty", 0)
	s.mountWith("mode=cached,clock_skew=0s", "64MiB")
	line := func() string {
		for line := range strings.Lines(s.milkweed("status", s.point)) {
			if rest, ok := strings.CutPrefix(line, "complete "); ok {
				return strings.TrimSpace(rest)
			}
		}
		return ""
	}
	want := func(when string, complete, opened bool, texts ...string) {
		t.Helper()
		status, got := s.settled().Coverage, line()
		if status.Complete != complete || status.OpenedComplete != opened {
			t.Errorf("%s: got %+v", when, status)
		}
		for _, text := range texts {
			if !strings.Contains(got, text) {
				t.Errorf("%s: got %q, without %q", when, got, text)
			}
		}
	}
	want("before any access", false, false, "not known: ", "not listed yet")
	s.sh(`cat "$1"/a/0 "$1"/a/1 >/dev/null`, s.point) // looked up without a listing
	want("after two files", false, true, "another epoch over the 2 files opened reads no content")
	s.sh(`ls "$1/a" >/dev/null`, s.point)
	want("after one listing", false, true, "no: ", "known so far")
	s.sh(`find "$1" -type f -exec cat {} + >/dev/null`, s.point)
	want("after an epoch", true, true, "yes: all 8 files", "reads no content from the source")
	before := s.status().Source.Bytes
	s.sh(`find "$1" -type f -exec cat {} + >/dev/null`, s.point)
	if got := s.settled().Source.Bytes; got != before {
		t.Errorf("a complete dataset: the second epoch read %d bytes from the source", got-before)
	}

	s.milkweed("evict", s.point+"/b")
	want("after an eviction", false, false, "no: 1 file (2.0 MiB) without a copy, of 8", "1 of the 7 files opened has no copy")
	s.umount()

	s.mountWith("mode=cached,clock_skew=0s,metadata_snapshot=off", "64MiB")
	want("after a restart", false, false, "not known")
	s.sh(`find "$1" -type f -exec cat {} + >/dev/null`, s.point)
	want("after an epoch of a restart", true, true, "yes: ")
	s.umount()
	s.emptyTiers()

	s.mountWith("mode=cached,clock_skew=0s", "1MiB")
	s.sh(`find "$1" -type f -exec cat {} + >/dev/null`, s.point)
	want("a file without room", false, false, "no: 1 file (2.0 MiB) without a copy, of 8; no room for 1")
	s.umount()
	s.emptyTiers()

	s.mountWith("mode=cached,clock_skew=1h", "64MiB")
	s.sh(`find "$1" -type f -exec cat {} + >/dev/null`, s.point)
	want("files that have just changed", false, false, "no: 7 files", "7 changed recently")
}

// Doctor names what makes copies useless or missing without any fault: a job that reads a small part of a file, a source
// that was renamed, files that have just changed, and names that are looked up one by one before the first epoch.
func TestDoctorNamesOddUses(t *testing.T) {
	parallel(t)
	t.Run("a part of a file", func(t *testing.T) {
		for _, mode := range []string{"stateless", "passthrough"} {
			s := newSite(t)
			s.write("a/f", 64<<20)
			s.mountWith("mode="+mode, "1GiB")
			s.sh(`dd if="$1/a/f" of=/dev/null bs=64k count=30 iflag=direct 2>/dev/null`, s.point)
			s.settled()
			s.wantFinding(s.examined(exit.OK), doctor.Warning, "copies", []string{"jobs have read 1.9 MiB so far, 3% of the files that they opened (64 MiB)"}, "split")
			s.sh(`cat "$1/a/f" >/dev/null`, s.point)
			s.settled()
			for _, f := range s.examined(exit.OK).Findings {
				if f.Subject == "copies" {
					t.Errorf("the file was read: %+v", f)
				}
			}
		}
	})
	t.Run("a renamed source", func(t *testing.T) {
		s := newSite(t)
		s.write("a/f", 20_000)
		s.mount("64MiB")
		s.check(os.Rename(s.source, s.source+".old"))
		s.wantFinding(s.examined(exit.Incomplete), doctor.Problem, "source", []string{"does not exist any more", "renamed"}, "Move it back")
		s.check(os.Rename(s.source+".old", s.source))
		if r := s.examined(exit.OK); r.Problems != 0 {
			t.Errorf("after the source is back: %+v", r)
		}
	})
	t.Run("fresh files", func(t *testing.T) {
		s := newSite(t)
		s.write("a/f", 20_000)
		s.mountWith("mode=cached,clock_skew=4s", "64MiB")
		s.sh(`touch "$1"; cat "$2/a/f" >/dev/null`, s.source+"/a/f", s.point)
		if got := s.milkweed("where", s.point+"/a/f"); !strings.Contains(got, "not placed") || !strings.Contains(got, "it changed recently, and is copied in") {
			t.Errorf("where: %s", got)
		}
		s.wantFinding(s.examined(exit.OK), doctor.Note, "fresh files", []string{"1 file was opened less than", "is read from the source"}, "source.clock_skew")
		s.eventually("the file is copied", func() bool { return s.status().Placement.Placed == 1 })
		s.wantFinding(s.examined(exit.OK), doctor.Note, "fresh files", []string{"1 file had changed less than"}, "source.clock_skew")
	})
	t.Run("lookups before the first epoch", func(t *testing.T) {
		s := newSite(t)
		for i := range 100 {
			s.write(fmt.Sprintf("a/%d", i), 1000)
		}
		s.simulate("--latency", "20ms")
		s.mountWith("mode=cached,clock_skew=0s", "64MiB")
		s.sh(`for i in $(seq 0 99); do stat -c %s "$1/a/$i" >/dev/null; done; cat "$1"/a/* >/dev/null`, s.point)
		s.settled()
		s.wantFinding(s.examined(exit.OK), doctor.Note, "waits", []string{"the source to begin an answer outside of the epochs"}, "one by one")
	})
}

// In mode stateless, a job whose files are in the page cache opens nothing that the daemon sees. plan --show gives that as the reason.
func TestPlanWithoutOpens(t *testing.T) {
	parallel(t)
	s := newSite(t)
	for i := range 10 {
		s.write(fmt.Sprintf("a/%d", i), 1000)
	}
	s.mountWith("mode=stateless,clock_skew=0s", "64MiB")
	s.readAll()
	s.settled()
	list := s.dir + "/list"
	s.sh(`cd "$1" && find a -type f >"$2"`, s.point, list)
	s.milkweed("plan", s.point, list)
	s.readAll()
	if got := s.milkweed("plan", "--show", s.point); !strings.Contains(got, "no open yet: in mode stateless") {
		t.Errorf("got %s", got)
	}
}

// The advice of umount about --lazy is true: what is open stays readable, and the next open by a path fails.
func TestLazyUmountOfAJob(t *testing.T) {
	parallel(t)
	s := newSite(t)
	s.write("a/f", 20_000)
	s.mount("64MiB")
	f, err := os.Open(s.point + "/a/f")
	s.check(err)
	defer f.Close()
	if r := s.try("umount", s.point); r.code != exit.MountPoint || !strings.Contains(r.stderr, "fails at its next open") {
		t.Errorf("umount: %d %s", r.code, r.stderr)
	}
	s.milkweed("umount", "--lazy", s.point)
	if n, err := f.ReadAt(make([]byte, 20_000), 0); n != 20_000 {
		t.Errorf("the open file: %d bytes, %v", n, err)
	}
	if _, err := os.Open(s.point + "/a/f"); !os.IsNotExist(err) {
		t.Errorf("an open by path: %v", err)
	}
	f.Close()
}

// warmup --dry-run says before whether the tiers have room, and what it says is what a warm-up then does.
func TestWarmupDryRun(t *testing.T) {
	parallel(t)
	s := newSite(t)
	for i := range 10 {
		s.write(fmt.Sprintf("a/%d", i), 100<<10)
	}
	s.write("a/empty", 0)
	s.mountWith("mode=cached,clock_skew=0s", "256KiB", "300KiB")
	r := s.try("warmup", "--dry-run", "--json", s.point)
	var e control.Estimate
	s.check(json.Unmarshal([]byte(r.stdout), &e))
	want := placement.Estimate{
		Files: 11, Bytes: 1000 << 10, CopiedFiles: 1, NeededBytes: 1000 << 10, RoomBytes: 556 << 10, SkippedFiles: 5, SkippedBytes: 500 << 10,
	}
	if r.code != exit.Incomplete || e.Estimate != want {
		t.Errorf("exit code %d, got %+v, want %+v\n%s", r.code, e.Estimate, want, r.stderr)
	}
	if got := s.settled(); got.Placement.Placed != 0 || got.Source.Bytes != 0 {
		t.Errorf("a dry run has copied %d files, and read %d bytes", got.Placement.Placed, got.Source.Bytes)
	}
	if got := s.try("warmup", "--dry-run", s.point); !strings.Contains(got.stdout, "this needs 1000 KiB, and the tiers have 556 KiB; no room for 5 files (500 KiB)") {
		t.Errorf("got %s", got.stdout)
	}
	s.milkweed("warmup", s.point)
	if got := s.settled(); got.Placement.Placed != 5 || got.Placement.Skipped != 5 {
		t.Errorf("the warm-up: %+v", got.Placement)
	}
	s.umount()
	s.emptyTiers()

	s.mountWith("mode=cached,clock_skew=0s", "64MiB")
	if got := s.milkweed("warmup", "--dry-run", s.point); !strings.Contains(got, "11 files (1000 KiB), of which 10 (1000 KiB) are to be copied: this needs 1000 KiB") {
		t.Errorf("with room: %s", got)
	}
	s.milkweed("warmup", s.point)
	if got := s.milkweed("warmup", "--dry-run", s.point); !strings.Contains(got, "of which 0 (0 B) are to be copied: this needs 0 B") {
		t.Errorf("after a warm-up: %s", got)
	}
}

// check says before a mount whether the tiers have room for the dataset, also for that of a manifest.
func TestCheckOfRoom(t *testing.T) {
	parallel(t)
	s := newSite(t)
	for i := range 100 {
		s.write(fmt.Sprintf("a/%d", i), 100<<10)
	}
	manifest := s.dir + "/m.mtree"
	s.milkweed("manifest", "--output", manifest, s.source)
	finding := func(more ...string) check.Finding {
		t.Helper()
		r := s.try(append([]string{"check", "--json"}, more...)...)
		var report checkReport
		if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
			t.Fatalf("%s: %v\n%s", r.stdout, err, r.stderr)
		}
		for _, f := range report.Findings {
			if f.Name == "room" {
				return f
			}
		}
		t.Errorf("no finding about room: %s", r.stdout)
		return check.Finding{}
	}
	tier := func(n int, quota string) string { return fmt.Sprintf("tier%d:%s:%s", n, s.tier(n), quota) }
	if got := finding("--tier", tier(1, "4MiB"), "--tier", tier(2, "5MiB"), s.source); got.Status != check.Warning || got.Detail != "the dataset needs 9.8 MiB (100 files), and the tiers have 9.0 MiB" {
		t.Errorf("too little room: %+v", got)
	}
	if got := finding("--tier", tier(1, "64MiB"), s.source); got.Status != check.OK || got.Detail != "the dataset needs 9.8 MiB (100 files), and the tiers have 64 MiB" {
		t.Errorf("enough room: %+v", got)
	}
	listed := s.dir + "/tiering.toml"
	s.check(os.WriteFile(listed, fmt.Appendf(nil, "[source]\npath = %q\nmanifest = %q\n[[tier]]\nname = \"t\"\npath = %q\nquota = \"4MiB\"\n", s.source, manifest, s.tier(1)), 0o644))
	if got := finding("-c", listed); got.Status != check.Warning || got.Detail != "the dataset needs 9.8 MiB (100 files), and the tiers have 4.0 MiB" {
		t.Errorf("a manifest: %+v", got)
	}
}
