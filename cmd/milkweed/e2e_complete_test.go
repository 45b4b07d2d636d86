package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
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
}
