package main

import (
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/doctor"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// If links lead out of the source, as in a snapshot of Hugging Face, check, mount and doctor name how many and what to
// mount instead. A warm-up says why it copies nothing. What they name works.
func TestLinksLeaveTheSource(t *testing.T) {
	s := newSite(t)
	s.sh(`mkdir -p "$1/blobs" "$1/snapshots/abc/data" && cd "$1/snapshots/abc" && for i in 1 2 3; do
		head -c 3000 /dev/urandom >"$1/blobs/$i" && ln -s "../../blobs/$i" "model-$i" && ln -s "../../../blobs/$i" "data/$i"; done
		ln -s model-1 best`, s.source)
	model := s.source
	const seen, remedy = "6 of 7 sampled symbolic links lead out of the mount, such as ", ", to which they lead, and use snapshots/abc in that mount."
	s.source += "/snapshots/abc"
	words := s.mountWords("1MiB")
	if r := s.try(append([]string{"check"}, words[1:]...)...); r.code != exit.OK || !strings.Contains(r.stdout, seen) || !strings.Contains(r.stdout, "Mount "+model+remedy) {
		t.Errorf("check: %+v", r)
	}
	if r := s.try(words...); r.code != exit.OK || !strings.Contains(r.stderr, seen) || !strings.Contains(r.stderr, "Mount "+model+remedy) {
		t.Errorf("mount: %+v", r)
	}
	s.wantFinding(s.examined(exit.OK), doctor.Warning, "source", []string{seen}, "Mount "+model+remedy)
	if got := s.milkweed("warmup", s.point); !strings.Contains(got, "0 of 0 files") || !strings.Contains(got, "there is no regular file, and links in directories are not followed") {
		t.Errorf("warmup: %s", got)
	}
	s.umount()
	s.source = model
	s.mount("1MiB")
	s.must("cmp", s.point+"/snapshots/abc/data/2", model+"/blobs/2")
	if got := s.milkweed("warmup", s.point); !strings.Contains(got, "3 of 3 files") || strings.Contains(got, "links") {
		t.Errorf("warmup: %s", got)
	}
	if got := s.logs(); strings.Count(got, "lead out of the mount") != 2 { // twice in one line
		t.Errorf("the logs:\n%s", got)
	}
}

// The links of a generation are judged from its directory, whether the source is a link or the directory of generations.
func TestLinksOfAGeneration(t *testing.T) {
	s := newSite(t)
	s.sh(`mkdir "$1/v1" "$1/v2" "$1/shared" && echo x >"$1/shared/x" && ln -s ../shared/x "$1/v1/x" && ln -s v2 "$1/current"`, s.source)
	sets := s.source
	for _, source := range []string{sets, sets + "/current"} {
		s.source = source
		want := "Mount " + sets + ", to which they lead, and use v1 in that mount."
		words := append(s.mountWords("1MiB"), "-o", "generation=v1")
		if r := s.try(append([]string{"check"}, words[1:]...)...); !strings.Contains(r.stdout, want) {
			t.Errorf("check of %s: %+v", source, r)
		}
		if r := s.try(words...); r.code != exit.OK || !strings.Contains(r.stderr, want) {
			t.Errorf("mount of %s: %+v", source, r)
		}
		s.wantFinding(s.examined(exit.OK), doctor.Warning, "source", []string{"1 of 1 sampled"}, want)
		s.umount()
	}
}
