package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/doctor"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// Programs read every fourth file of directories, one in order with several threads and one in no order:
// nothing else is read from the source.
func TestShares(t *testing.T) {
	parallel(t)
	for _, order := range []string{"order", "no order"} {
		t.Run(order, func(t *testing.T) {
			s := newSite(t)
			var share int64
			for i := range 400 {
				name := fmt.Sprintf("class%d/%05d.jpg", i/100, i)
				size := len(s.write(name, 10_000+i))
				if i%4 == 3 {
					share += int64(size)
				}
			}
			s.mountWith("mode=cached", "1GiB")
			s.run("python3", "-c", `
import concurrent.futures, os, random, sys
files = [os.path.join(d, name) for d, _, names in sorted(os.walk(sys.argv[1])) for name in sorted(names)][3::4]
if sys.argv[2] == "no order":
    random.Random(1).shuffle(files)
def read(path):
    with open(path, "rb") as f:
        return len(f.read())
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    assert sum(pool.map(read, files)) == int(sys.argv[3])
`, s.point, order, fmt.Sprint(share))
			if got := s.settled(); got.Source.Bytes != share || got.Placement.Placed != 100 || got.Placement.Prefetched == 0 || got.Names.UnopenedFiles != 0 {
				t.Errorf("got %d bytes of the source and %+v, want %d; %d copies were not opened", got.Source.Bytes, got.Placement, share, got.Names.UnopenedFiles)
			}
			s.examined(exit.OK)
		})
	}
}

// A job opens half of the files in no order. The other half is copied ahead, and the commands say so.
func TestUnopenedCopies(t *testing.T) {
	parallel(t)
	s := newSite(t)
	for i := range 250 {
		s.write(fmt.Sprintf("d/%03d", i), 1000)
	}
	s.mountWith("mode=cached", "1GiB")
	s.run("python3", "-c", `
import os, random, sys
names = sorted(os.listdir(sys.argv[1]))
random.Random(1).shuffle(names)
for epoch in range(2):
    for name in names[:125]:
        with open(os.path.join(sys.argv[1], name), "rb") as f:
            f.read()
`, s.point+"/d")
	s.eventually("the others are copied", func() bool { return s.status().Names.UnopenedFiles == 125 })
	if got := s.milkweed("status", s.point); !strings.Contains(got, "unopened   125 files (122 KiB) copied ahead, which no job has opened\n") {
		t.Errorf("status:\n%s", got)
	}
	s.wantFinding(s.examined(exit.OK), doctor.Note, "copies", []string{"125 of 250 files with copies", "122 KiB"}, "milkweed plan")
}
