package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/placement"
)

// completeLine returns what the status of a site says about whether the dataset is complete.
func (s *site) completeLine() string {
	s.t.Helper()
	for line := range strings.Lines(s.milkweed("status", s.point)) {
		if rest, ok := strings.CutPrefix(line, "complete "); ok {
			return strings.TrimSpace(rest)
		}
	}
	s.t.Error("the status does not say whether the dataset is complete")
	return ""
}

// The status says whether another epoch would read content from the source: over the dataset, and over
// the files that were opened. If it says no content, the epoch reads none.
func TestStatusOfCompleteDataset(t *testing.T) {
	parallel(t)
	s := newSite(t)
	for i := range 6 {
		s.write(fmt.Sprintf("a/%d", i), 20_000)
	}
	s.write("b/c/large", 2<<20)
	s.write("b/empty", 0)
	want := func(when string, complete, opened bool, text string) {
		t.Helper()
		names := s.settled().Names
		if names.Complete != complete || names.OpenedComplete != opened {
			t.Errorf("%s: got %+v", when, names)
		}
		if got := s.completeLine(); got != text {
			t.Errorf("%s:\ngot  %s\nwant %s", when, got, text)
		}
	}
	readsNothing := func(when, script string) {
		t.Helper()
		before := s.settled().Source.Bytes
		s.sh(script, s.point)
		if got := s.settled().Source.Bytes; got != before {
			t.Errorf("%s: another epoch read %d bytes from the source", when, got-before)
		}
	}
	const all = `find "$1" -type f -exec cat {} + >/dev/null`

	s.mountWith("mode=cached,clock_skew=0s", "64MiB")
	want("before any access", false, false, "not known: 0 of 0 known files have copies; 1 directory is not listed yet")
	const two = `cat "$1"/a/0 "$1"/a/1 >/dev/null` // looked up without a listing
	s.sh(two, s.point)
	want("after two files", false, true, "not known: 2 of 2 known files have copies; 2 directories are not listed yet; "+
		"another epoch over the 2 files opened reads no content from the source")
	readsNothing("after two files", two)
	s.sh(all, s.point)
	want("after an epoch", true, true, "yes: all 8 files (2.1 MiB) have copies; another epoch reads no content from the source")
	readsNothing("after an epoch", all)
	s.milkweed("evict", s.point+"/b")
	want("after an eviction", false, false, "no: 1 of 8 files (2.0 MiB) has no copy; 1 of the 7 files opened has no copy")
	s.umount()
	s.emptyTiers()

	s.mountWith("mode=cached,clock_skew=0s", "1MiB")
	s.sh(all, s.point)
	want("a file without room", false, false, "no: 1 of 8 files (2.0 MiB) has no copy; 1 of the 7 files opened has no copy")
}

// While a mount drains, copies are not read.
func TestCompleteLineOfOddMounts(t *testing.T) {
	var s control.Status
	s.Names.Complete = true
	if got, want := completeLine(s), "yes: the dataset has no files"; got != want {
		t.Errorf("an empty dataset: got %q, want %q", got, want)
	}
	s.Draining = true
	if got, want := completeLine(s), "no: copies are not read"; got != want {
		t.Errorf("draining: got %q, want %q", got, want)
	}
	s = control.Status{Peers: new(control.Peers)}
	s.Names.Files, s.Names.Bytes, s.Names.UnknownNames = 3, 3000, 1
	if got, want := completeLine(s), "no: 3 of 3 known files (2.9 KiB) have no copy; 1 name has no attributes yet; other nodes may have copies"; got != want {
		t.Errorf("with peers: got %q, want %q", got, want)
	}
	s.Names = control.Names{Coverage: placement.Coverage{Files: 3, CopiedFiles: 1, UnknownFiles: 2}}
	if got, want := completeLine(s), "not known: 1 of 3 known files have copies; the pieces of 2 files were not looked for yet; other nodes may have copies"; got != want {
		t.Errorf("pieces: got %q, want %q", got, want)
	}
	s = control.Status{Names: control.Names{Coverage: placement.Coverage{Files: 3, Bytes: 3000, CopiedFiles: 3, DeniedDirs: 1}}}
	if got, want := completeLine(s), "not known: 3 of 3 known files have copies; 1 directory cannot be listed: permission denied"; got != want {
		t.Errorf("a denied directory: got %q, want %q", got, want)
	}
}

// warmup --dry-run says before whether the tiers have room, and a warm-up then does what it says.
func TestWarmupDryRun(t *testing.T) {
	parallel(t)
	s := newSite(t)
	for i := range 10 {
		s.write(fmt.Sprintf("a/%d", i), 100<<10)
	}
	s.write("a/empty", 0)
	s.mountWith("mode=cached,clock_skew=0s", "256KiB", "300KiB")
	r := s.try("warmup", "--dry-run", "--json", s.point)
	var got control.Progress
	s.check(json.Unmarshal([]byte(r.stdout), &got))
	if r.code != exit.Incomplete || got.FilesTotal != 11 || got.FilesDone != 1 || got.FilesSkipped != 5 || got.BytesSkipped != 500<<10 ||
		got.NeededBytes != 1000<<10 || got.RoomBytes != 556<<10 {
		t.Errorf("exit code %d, got %+v\n%s", r.code, got, r.stderr)
	}
	if got := s.settled(); got.Placement.Placed != 0 || got.Source.Bytes != 0 {
		t.Errorf("a dry run has copied %d files, and read %d bytes", got.Placement.Placed, got.Source.Bytes)
	}
	s.milkweed("warmup", s.point)
	if got := s.settled(); got.Placement.Placed != 5 || got.Placement.Skipped != 5 {
		t.Errorf("the warm-up: %+v", got.Placement)
	}
	s.umount()
	s.emptyTiers()

	s.mountWith("mode=cached,clock_skew=0s", "64MiB")
	if got, want := s.milkweed("warmup", "--dry-run", s.point), "10 of 11 files (1000 KiB of 1000 KiB) to copy: this needs 1000 KiB, and the tiers have 64 MiB\n"; got != want {
		t.Errorf("with room: got %q, want %q", got, want)
	}
	s.milkweed("warmup", s.point)
	if got, want := s.milkweed("warmup", "--dry-run", s.point), "0 of 11 files (0 B of 1000 KiB) to copy: this needs 0 B, and the tiers have 63 MiB\n"; got != want {
		t.Errorf("after a warm-up: got %q, want %q", got, want)
	}
}

// check says before a mount whether the tiers have room for the dataset, also for that of a manifest. It
// obeys the limit of operations at the source.
func TestCheckOfRoom(t *testing.T) {
	parallel(t)
	s := newSite(t)
	for i := range 100 {
		s.write(fmt.Sprintf("a/%d", i), 100<<10)
	}
	manifest := s.dir + "/m.mtree"
	s.milkweed("manifest", "--output", manifest, s.source)
	finding := func(args ...string) check.Finding {
		t.Helper()
		r := s.try(append([]string{"check", "--json"}, args...)...)
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
	if got := finding("--tier", tier(1, "4MiB"), "--tier", tier(2, "5MiB"), s.source); got.Status != check.Warning ||
		got.Detail != "the dataset needs 9.8 MiB (100 files), and the tiers have 9.0 MiB" {
		t.Errorf("too little room: %+v", got)
	}
	if got := finding("--tier", tier(1, "64MiB"), s.source); got.Status != check.OK || got.Detail != "the dataset needs 9.8 MiB (100 files), and the tiers have 64 MiB" {
		t.Errorf("enough room: %+v", got)
	}
	if got := finding("--tier", tier(1, "64MiB"), "-o", "source_operations=10", s.source); got.Status != check.OK ||
		!strings.Contains(got.Detail, "not all files were counted") || !strings.Contains(got.Detail, "warmup --dry-run") {
		t.Errorf("with a limit of operations: %+v", got)
	}
	listed := s.dir + "/tiering.toml"
	s.check(os.WriteFile(listed, fmt.Appendf(nil, "[source]\npath = %q\nmanifest = %q\n[[tier]]\nname = \"t\"\npath = %q\nquota = \"4MiB\"\n", s.source, manifest, s.tier(1)), 0o644))
	if got := finding("-c", listed); got.Status != check.Warning || got.Detail != "the dataset needs 9.8 MiB (100 files), and the tiers have 4.0 MiB" {
		t.Errorf("a manifest: %+v", got)
	}
}
