package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// diskTier makes tier 1 a disk of its own, with an ext4 of some MiB.
func (s *site) diskTier(size int, options ...string) {
	s.t.Helper()
	drivertest.Need(s.t, "mkfs.ext4", "losetup")
	s.sh(`mkdir "$1"; truncate -s "$2" "$3"; image=$3; tier=$1; shift 3
		mkfs.ext4 -q -m 0 "$@" "$image"; mount -o loop "$image" "$tier"`,
		append([]string{s.tier(1), fmt.Sprintf("%dM", size), s.dir + "/image"}, options...)...)
}

// where returns what `milkweed where` says of a file.
func (s *site) where(name string) string {
	s.t.Helper()
	return s.milkweed("where", s.point+"/"+name)
}

// notPlaced counts the files of varied without a copy, and checks that where gives a reason for each.
func (s *site) notPlaced(reason string) (n int) {
	s.t.Helper()
	for line := range strings.Lines(s.must("sh", "-c", `find "$1" -name '*.jpg' -print0 | xargs -0 "$2" where`, "sh", s.point, s.program)) {
		switch {
		case strings.Contains(line, "not placed"):
			n++
			if !strings.Contains(line, reason) {
				s.t.Errorf("got %q, want the reason %q", line, reason)
			}
		case !strings.Contains(line, "placed"):
			s.t.Errorf("got %q", line)
		}
	}
	return n
}

// If the disk of a tier is full, although its quota has room, then status, doctor, where and one line of the
// log name the reason. The tier takes copies again when there is room.
func TestDiskIsFull(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole epochs")
	}
	parallel(t)
	tests := map[string]struct {
		options []string
		fill    string // takes what the disk has; $1 is the tier
		reason  string
	}{
		"bytes":  {nil, `head -c 18M /dev/zero >"$1/mine"`, "its disk is full"},
		"inodes": {[]string{"-N", "300"}, `mkdir "$1/mine"; for i in $(seq 150); do : >"$1/mine/$i"; done`, "no inodes left"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			dataset := varied(s)
			s.diskTier(24, tt.options...)
			s.sh(tt.fill, s.tier(1))
			s.mountWith("mode=cached", "16MiB") // a file is opened in each epoch
			var status control.Status
			s.eventually("each file has a copy or is skipped", func() bool { // a copy that failed is tried again after a second
				s.epoch(0)
				status = s.settled()
				return status.Tiers[0].Files+status.Placement.Skipped >= 200
			})
			// The errors are of copies that were in flight when the disk became full, and of smaller ones than those.
			tier, missing := status.Tiers[0], s.notPlaced(tt.reason)
			if tier.Health != control.Full || !strings.Contains(tier.Reason, tt.reason) || tier.Errors > int64(missing)/4 {
				t.Errorf("%s: %s, %d errors; want full: %s", tier.Health, tier.Reason, tier.Errors, tt.reason)
			}
			if missing == 0 || tier.Files+int64(missing) != 200 {
				t.Errorf("%d copies and %d files without one; want 200 together", tier.Files, missing)
			}
			if out := s.run(s.program, "doctor", s.point).stdout; !strings.Contains(out, tt.reason) || !strings.Contains(out, "df -i") {
				t.Errorf("doctor: %s", out)
			}
			if n := strings.Count(s.logs(), "takes no more copies"); n != 1 {
				t.Errorf("%d lines of the log", n)
			}

			s.check(os.RemoveAll(s.tier(1) + "/mine"))
			s.eventually("the tier has noticed", func() bool { return s.status().Tiers[0].Health == control.Healthy })
			s.epoch(3)
			status = s.settled()
			if got := status.Tiers[0].Files; got != 200 || s.notPlaced("") != 0 {
				t.Errorf("%d copies when there is room", got)
			}
			before := status.Source.Bytes
			s.epoch(4)
			if got := s.status().Source.Bytes - before; got != 0 || status.Tiers[0].Health != control.Healthy {
				t.Errorf("%d of %d bytes from the source, %s", got, dataset, status.Tiers[0].Health)
			}
			s.umount()
			s.sh(`umount "$1"`, s.tier(1))
			s.wantNothing()
		})
	}
}

// Files that are larger than a process may write are read from the source, once in each epoch, and do
// not keep others from being copied.
func TestFileSizeLimit(t *testing.T) {
	s := newSite(t)
	drivertest.Need(t, "prlimit")
	small := varied(s)
	for i := range 6 {
		s.write(fmt.Sprintf("large%d.rec", i), 3<<20+i)
	}
	s.wrapper = []string{"prlimit", "--fsize=2097152:2097152", "--"}
	s.mount("64MiB")
	s.wrapper = nil
	for epoch := range 2 {
		s.epoch(epoch)
		s.settled()
	}
	status := s.settled()
	tier := status.Tiers[0]
	if tier.Health != control.Healthy || tier.Files != 200 || tier.UsedBytes < small {
		t.Errorf("%s: %s; %d copies of 200 small files, %d bytes", tier.Health, tier.Reason, tier.Files, tier.UsedBytes)
	}
	if got := status.Placement.Skipped; got != 6 {
		t.Errorf("%d files skipped, want 6", got)
	}
	// The kernel reclaims pages at any time, and requests them again. A copy that is tried in vain requests MiB.
	large := int64(6*3<<20 + 15)
	if got, most := status.Source.Bytes-small, 2*large+1<<20; got < large || got > most {
		t.Errorf("%d bytes of large files from the source, want %d to %d", got, large, most)
	}
	if got := s.where("large3.rec"); !strings.Contains(got, "not placed") || !strings.Contains(got, "RLIMIT_FSIZE") {
		t.Errorf("where: %s", got)
	}
	s.umount()
	s.wantNothing()
}

// If the checksums.log of a tier must not grow, the status says so, and the copies stay.
func TestSizeLimitOfRecords(t *testing.T) {
	s := newSite(t)
	drivertest.Need(t, "prlimit")
	const files = 300
	for i := range files {
		s.write(fmt.Sprintf("%03d.jpg", i), 500+i)
	}
	s.write("large.bin", 20_000)
	s.wrapper = []string{"prlimit", "--fsize=16384:16384", "--"}
	s.mountWith("mode=cached", "64MiB")
	s.wrapper = nil
	s.must("cat", s.point+"/large.bin")
	s.eventually("the large file has no copy", func() bool { return strings.Contains(s.where("large.bin"), "does not allow files of this size") })
	s.epoch(0)
	status := s.settled()
	tier, missing := status.Tiers[0], s.notPlaced("checksums.log")
	if tier.Health != control.Full || !strings.Contains(tier.Reason, "RLIMIT_FSIZE") || tier.Files < 50 || tier.Files+int64(missing) != files {
		t.Errorf("%s: %s; %d copies, and %d of %d files without one", tier.Health, tier.Reason, tier.Files, missing, files)
	}
	if out := s.run(s.program, "doctor", s.point).stdout; !strings.Contains(out, "checksums.log, which records its copies") || !strings.Contains(out, "ulimit -Hf") {
		t.Errorf("doctor: %s", out)
	}
	if n := strings.Count(s.logs(), "takes no more copies"); n != 1 {
		t.Errorf("%d lines of the log", n)
	}
	s.umount()
	s.wrapper = []string{"prlimit", "--fsize=2048:2048", "--"}
	s.mountWith("mode=cached", "64MiB")
	s.wrapper = nil
	s.epoch(1)
	if got := s.settled(); got.Tiers[0].Reads < tier.Files || got.Tiers[0].Health == control.Down {
		t.Errorf("with a lower limit: %s (%s), %d reads of %d copies", got.Tiers[0].Health, got.Tiers[0].Reason, got.Tiers[0].Reads, tier.Files)
	}
	s.umount()
	s.mountWith("mode=cached", "64MiB")
	s.epoch(2)
	if got := s.settled().Tiers[0]; got.Files != files+1 || got.Health != control.Healthy {
		t.Errorf("without the limit: %s, %d copies", got.Health, got.Files)
	}
	s.umount()
	s.wantNothing()
}

// A disk that stores whole seconds holds copies as any other, also for the next mount.
func TestWholeSeconds(t *testing.T) {
	s := newSite(t)
	dataset := varied(s)
	s.diskTier(32, "-I", "128")
	s.mount("16MiB")
	s.epoch(1)
	if got := s.settled().Tiers[0].Files; got != 200 {
		t.Errorf("%d copies of 200 files", got)
	}
	s.umount()
	s.sh(`umount "$1"; mount -o loop "$2" "$1"`, s.tier(1), s.dir+"/image")
	s.mount("16MiB")
	s.epoch(2)
	if got := s.settled().Source.Bytes; got != 0 {
		t.Errorf("after a new mount, %d of %d bytes come from the source", got, dataset)
	}
	s.umount()
	s.sh(`umount "$1"`, s.tier(1))
	s.wantNothing()
}
