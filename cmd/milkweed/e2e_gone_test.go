package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/doctor"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// When the source forgets the generation that the mount shows, its copies stay readable, whether or not their
// files were opened before, until the mount shows another one. Then they go. This is what git-sync does.
func TestGenerationGone(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole epochs")
	}
	parallel(t)
	for _, mode := range []string{"passthrough", "stateless", "cached"} {
		t.Run(mode, func(t *testing.T) {
			s := newVersioned(t)
			want := make(map[string][]byte)
			for i := range 20 {
				name := fmt.Sprintf("placed/%02d", i)
				want[name] = s.write("../sets/v1/"+name, 5000+i)
				name = fmt.Sprintf("other/%02d", i)
				want[name] = s.write("../sets/v1/"+name, 5000+i)
			}
			s.milkweed(append([]string{"mount", "-o", "mode=" + mode, "--attr-timeout", shortTTL}, s.mountWords("64MiB")[1:]...)...)
			s.milkweed("warmup", s.point+"/placed")
			s.must("find", s.point)
			open, err := os.Open(s.point + "/placed/07")
			s.check(err)
			defer open.Close()
			s.must("cat", s.point+"/placed/08")

			s.link("v2")
			s.check(os.RemoveAll(s.dir + "/sets/v1"))
			stays := func(after string) {
				t.Helper()
				awaitTTL()
				s.wantReads(want, true, true)
				if got := len(strings.Fields(s.must("ls", s.point+"/placed"))); got != 20 {
					t.Errorf("after %s: %d names are listed, want 20", after, got)
				}
				for _, name := range []string{"/other/01", "/other/none", "/none"} {
					if r := s.run("cat", s.point+name); r.code == 0 || !strings.Contains(r.stderr, "Stale file handle") {
						t.Errorf("after %s: cat %s printed %q, want ESTALE", after, name, r.stderr)
					}
				}
				if got := s.copies(); got != "v1:20 v2:0" {
					t.Errorf("after %s: %s", after, got)
				}
			}
			stays("the removal")
			if r := s.try("refresh", s.point); r.code != exit.Source || !strings.Contains(r.stderr, "milkweed switch") {
				t.Errorf("refresh: exit code %d, %q", r.code, r.stderr)
			}
			stays("a refresh")
			if r := s.try("refresh", "--prune", "--force", s.point); r.code != exit.Source {
				t.Errorf("refresh --prune: exit code %d, %q", r.code, r.stderr)
			}
			stays("a refresh with --prune")
			s.wantFinding(s.examined(exit.Incomplete), doctor.Problem, "generation", []string{"v1", "no longer"}, "milkweed switch v2")
			if out := s.milkweed("generations", s.point); !strings.Contains(out, "current, not at the source") {
				t.Errorf("generations printed\n%s", out)
			}
			s.milkweed("prepare", "v2", s.point)
			s.milkweed("switch", "v2", s.point)
			s.shows("v2")
			time.Sleep(2 * minDropPoll)
			got := make([]byte, len(want["placed/07"]))
			if _, err := open.ReadAt(got, 0); err != nil || !bytes.Equal(got, want["placed/07"]) {
				t.Errorf("the open file: %v, or other bytes", err)
			}
			s.check(open.Close())
			s.eventually("the copies are gone", func() bool { return s.copies() == "v2:20" })
			s.eventually("their room is returned", func() bool { return s.used() == 20*8192 })
			s.umount()
			s.wantNothing()
		})
	}
}

// The next mount shows the generation to which the link points, whichever was shown before. One that the source
// has no longer cannot be mounted.
func TestRemountOfGoneGeneration(t *testing.T) {
	s := newVersioned(t)
	s.mount("64MiB")
	s.milkweed("warmup", s.point)
	s.umount()
	s.link("v2")
	s.check(os.RemoveAll(s.dir + "/sets/v1"))
	words := append([]string{"mount", "--generation", "v1"}, s.mountWords("64MiB")[1:]...)
	if r := s.try(words...); r.code != exit.Source || !strings.Contains(r.stderr, "has no directory v1") {
		t.Errorf("mount --generation v1: exit code %d, %q", r.code, r.stderr)
	}
	s.mount("64MiB")
	s.shows("v2")
	if out := s.milkweed("generations", "drop", "v1", s.point); !strings.HasPrefix(out, "v1: 20 copies") {
		t.Errorf("drop printed %q", out)
	}
	s.umount()
	s.wantNothing()
}

// In a bucket, too, the copies of the generation that the mount shows stay readable when its keys are deleted.
func TestGenerationGoneInBucket(t *testing.T) {
	s := newSite(t)
	want := make(map[string][]byte)
	for i := range 5 {
		for _, dir := range []string{"placed", "other"} {
			name := fmt.Sprintf("%s/%d", dir, i)
			want[name] = s.write("v1/"+name, 5000)
			s.write("v2/"+name, 5000)
		}
	}
	b := newBucket(s)
	pointer := s.source + "/current"
	s.check(os.WriteFile(pointer, []byte("v1"), 0o644))
	s.milkweed("mount", "--attr-timeout", shortTTL, "--tier", "tier1:"+s.tier(1)+":1GiB", strings.Replace(b.at(), "/?", "/current?", 1), s.point)
	s.milkweed("warmup", s.point+"/placed")
	s.must("find", s.point)
	s.check(os.WriteFile(pointer, []byte("v2"), 0o644))
	s.check(os.RemoveAll(s.source + "/v1"))
	for range 3 {
		awaitTTL()
		s.wantReads(want, true, true)
	}
	s.wantFinding(s.examined(exit.Incomplete), doctor.Problem, "generation", []string{"v1"}, "milkweed switch v2")
	s.milkweed("switch", "v2", s.point)
	s.must("diff", "-r", s.source+"/v2", s.point)
	s.eventually("the copies are gone", func() bool { return s.copies() == "v2:10" })
	s.umount()
	s.wantNothing()
}
