package main

import (
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/doctor"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// Of a large file, a job reads a part: the rest is not copied, and the commands say why. The file is
// copied when a job goes through it, or on request. The source serves each byte once, and nothing is left
// of the parts when the mount ends.
func TestPartsOfLargeFiles(t *testing.T) {
	parallel(t)
	for _, mode := range []string{"cached", "passthrough", "stateless"} {
		t.Run(mode, func(t *testing.T) {
			const mib, unit = 1 << 20, 128 << 10
			s := newSite(t)
			for _, name := range []string{"a/read", "b/warmed", "c/part"} {
				s.write(name, 40*mib)
			}
			s.mountWith("mode="+mode, "1GiB")
			part := func(name string) {
				s.sh(`cmp -i 20000000 -n 4096 "$1/$3" "$2/$3"`, s.point, s.source, name)
			}
			for _, name := range []string{"a/read", "a/read", "b/warmed", "c/part"} {
				part(name)
			}
			s.eventually("the parts are copied", func() bool { return s.status().Fills.LazyBytes == 3*unit })
			if got := s.status(); got.Fills.Lazy != 3 || got.Fills.InFlight != 0 || got.Source.Bytes != 3*unit || got.Tiers[0].UsedBytes > 3*mib {
				t.Errorf("after parts of three files: %+v, %d bytes of the source, %d of the tier", got.Fills, got.Source.Bytes, got.Tiers[0].UsedBytes)
			}
			if got := s.where("a/read"); !strings.Contains(got, "filling") || !strings.Contains(got, "128 KiB copied; only what readers ask for is copied") {
				t.Errorf("where: %s", got)
			}
			if got := s.milkweed("status", s.point); !strings.Contains(got, "in parts   3 files above 8 MiB, of which only what jobs ask for is copied: 384 KiB\n") {
				t.Errorf("status:\n%s", got)
			}
			s.wantFinding(s.examined(exit.OK), doctor.Note, "parts", []string{"3 files above 8 MiB", "384 KiB"}, "warmup")
			s.sh(`cmp "$1/a/read" "$2/a/read"`, s.point, s.source)
			s.milkweed("warmup", s.point+"/b")
			s.settled()
			for _, name := range []string{"a/read", "b/warmed"} {
				if got := s.where(name); !strings.Contains(got, "placed") {
					t.Errorf("where: %s", got)
				}
			}
			if got := s.status(); got.Fills.Lazy != 1 || got.Source.Bytes != 80*mib+unit {
				t.Errorf("after two files were copied: %+v, %d bytes of the source", got.Fills, got.Source.Bytes)
			}
			s.umount()
			s.wantNothing()
		})
	}
}
