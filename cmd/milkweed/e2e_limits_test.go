package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// limited makes the commands of a site run with a limit on open files.
func (s *site) limited(files int) {
	s.t.Helper()
	drivertest.Need(s.t, "prlimit")
	s.wrapper = append(s.wrapper, "prlimit", fmt.Sprintf("--nofile=%d:%[1]d", files), "--")
}

// With the fewest descriptors that are accepted, no open by a job fails, although the daemon would
// keep more files open. With fewer, the mount is refused.
func TestFewDescriptors(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole epochs")
	}
	parallel(t)
	for _, mode := range []string{"cached", "stateless"} {
		t.Run(mode, func(t *testing.T) {
			s := newSite(t)
			for i := range 1500 {
				s.write(fmt.Sprintf("%d/%04d", i%10, i), 2000)
			}
			s.limited(256)
			s.milkweed(append(s.mountWords("64KiB"), "--mode", mode)...) // most files are read from the source
			s.wrapper = nil
			for range 2 {
				out := s.sh(`cd "$1" && find . -type f | xargs -n 20 -P 32 cat 2>&1 >/dev/null || true`, s.point)
				if out != "" {
					t.Errorf("reading failed:\n%.1000s", out)
				}
			}
			const hold = `import glob, sys
files = sorted(glob.glob(sys.argv[1] + "/*/*"))
held = [open(f, "rb") for f in files[:150]]
for f in files[150:]: open(f, "rb").read()
for f in held: assert len(f.read()) == 2000`
			s.must(python, "-c", hold, s.point) // with the idle files, that would be too many
			if log := s.logs(); mode == "cached" && !strings.Contains(log, "no descriptor is left") {
				t.Error("there were enough descriptors")
			}
			s.umount()
			s.wantNothing()
		})
	}
	s := newSite(t)
	s.limited(64)
	s.wantRefusal(s.mountWords("1MiB"), exit.Fuse, "at most 64 at once (ulimit -Hn), and a mount needs 256", "LimitNOFILE")
}
