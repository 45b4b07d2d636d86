package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/placement"
)

// In each mode, evict removes the copies below the paths and no others, and returns their room. An open file
// stays readable, and a file that is opened later is copied again.
func TestEvict(t *testing.T) {
	parallel(t)
	for _, mode := range []string{"passthrough", "stateless", "cached"} {
		t.Run(mode, func(t *testing.T) {
			s := newSite(t)
			want := make(map[string][]byte)
			for i := range 20 {
				for _, dir := range []string{"a", "b"} {
					name := fmt.Sprintf("%s/%02d", dir, i)
					want[name] = s.write(name, 40000)
				}
			}
			s.age()
			s.mountWith("mode="+mode, "800KiB", "64MiB")
			s.milkweed("warmup", s.point)
			full := s.settled()
			copies := func() int { return len(s.files(s.dataset(1)+"/files")) + len(s.files(s.dataset(2)+"/files")) }
			if copies() != 40 || full.Tiers[0].Files == 0 || full.Tiers[1].Files == 0 {
				t.Fatalf("%d copies, want 40 in both tiers: %+v", copies(), full.Tiers)
			}
			open, err := os.Open(s.point + "/a/03")
			s.check(err)
			defer open.Close()
			half := make([]byte, 20000)
			_, err = io.ReadFull(open, half)
			s.check(err)
			s.check(os.Remove(s.source + "/a/04")) // its copy goes, too

			if out := s.milkweed("evict", s.point+"/a", s.point+"/b/07"); out != s.point+": 21 copies (840 KiB) removed\n" {
				t.Errorf("evict printed %q", out)
			}
			rest, err := io.ReadAll(open)
			if err != nil || string(half)+string(rest) != string(want["a/03"]) {
				t.Errorf("the open file has other bytes, or %v", err)
			}
			s.check(open.Close())
			s.eventually("the copies are gone, and their room is free", func() bool {
				st := s.status()
				return copies() == 19 && st.Tiers[0].Files+st.Tiers[1].Files == 19 && st.Tiers[0].UsedBytes+st.Tiers[1].UsedBytes == 19*40960
			})
			before := s.status().Source.Bytes
			if got := s.must("cat", s.point+"/a/05"); got != string(want["a/05"]) {
				t.Error("an evicted file has other bytes")
			}
			s.settled()
			if read := s.status().Source.Bytes - before; read < 40000 {
				t.Errorf("%d bytes were read from the source, want those of the evicted file", read)
			}
			s.eventually("the file has a copy again", func() bool { return s.milkweed("where", s.point+"/a/05") != "" && copies() >= 20 })

			s.settled()
			left := copies()
			var r placement.DropReport
			s.check(json.Unmarshal([]byte(s.milkweed("evict", "--json", s.point)), &r))
			if r.Copies != int64(left) || copies() != 0 {
				t.Errorf("evict of the mount: %+v, and %d copies are left of %d", r, copies(), left)
			}
			if _, err := os.Stat(filepath.Join(s.dataset(1), "milkweed.json")); err != nil {
				t.Errorf("the folder of the dataset: %v", err)
			}
			s.umount()
			s.wantNothing()
		})
	}
}

// A path that does not exist is an error, and one without a copy is not. Outside of a mount there is nothing
// to evict.
func TestEvictNothing(t *testing.T) {
	s := newSite(t)
	s.write("d/f", 1000)
	s.mount("64MiB")
	if out := s.milkweed("evict", s.point+"/d/f"); out != s.point+": 0 copies (0 B) removed\n" {
		t.Errorf("evict printed %q", out)
	}
	for path, code := range map[string]exit.Code{s.point + "/d/none": exit.Usage, s.source + "/d/f": exit.NotMounted} {
		if r := s.try("evict", path); r.code != code {
			t.Errorf("%s: exit code %d, want %d: %s", path, r.code, code, r.stderr)
		}
	}
	if r := s.try("evict"); r.code != exit.Usage {
		t.Errorf("without a path: exit code %d", r.code)
	}
	s.umount()
	s.wantNothing()
}
