package main

import (
	"strconv"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// copiesTake returns what the copies in tier 1 occupy, in bytes.
func (s *site) copiesTake() (bytes int64) {
	s.t.Helper()
	for line := range strings.Lines(s.must("find", s.dataset(1)+"/files", "-type", "f", "-printf", "%b\n")) {
		blocks, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		s.check(err)
		bytes += 512 * blocks
	}
	return bytes
}

// On file systems that allocate more than 4 KiB at once, the copies occupy at most the quota, and as much as
// the status says. What is evicted makes room again.
func TestQuotaInLargeUnits(t *testing.T) {
	parallel(t)
	const quota = 4 << 20
	disk := func(options ...string) func(s *site) {
		return func(s *site) { s.diskTier(64, options...) }
	}
	tests := map[string]struct {
		make  func(s *site)
		needs string // what warmup says
		files int64  // that have room at least
	}{
		"huge pages": {func(s *site) {
			s.sh(`mkdir "$1"; mount -t tmpfs -o size=512M,huge=always tmpfs "$1"`, s.tier(1))
		}, "needs 6.1 MiB", 80},
		"clusters": {disk("-O", "bigalloc", "-C", "65536"), "needs 13 MiB, and the tiers have 4.0 MiB; no room for 136 files", quota / (64 << 10)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			drivertest.Need(t, "root")
			varied(s)
			tt.make(s)
			account := func(when string) (files int64) {
				t.Helper()
				status := s.closed()
				tier := status.Tiers[0]
				if took := s.copiesTake(); took > quota || took != tier.UsedBytes {
					t.Errorf("%s: the copies take %d bytes of %d, and the status says %d", when, took, quota, tier.UsedBytes)
				}
				return tier.Files
			}
			s.mount("4MiB")
			if out := s.run(s.program, "warmup", "--dry-run", s.point).stdout; !strings.Contains(out, tt.needs) {
				t.Errorf("got %q, want %q", out, tt.needs)
			}
			s.epoch(1)
			files := account("after an epoch")
			if files < tt.files || files == 200 {
				t.Errorf("%d copies, want at least %d, and not all", files, tt.files)
			}
			s.umount()
			s.mount("4MiB")
			s.epoch(2)
			account("after a restart")
			s.milkweed("evict", s.point)
			account("after all copies were evicted")
			s.epoch(3)
			if got := account("after another epoch"); got < tt.files {
				t.Errorf("%d copies after the eviction, want at least %d", got, tt.files)
			}
			s.umount()
			s.sh(`umount "$1"`, s.tier(1))
			s.wantNothing()
		})
	}
}
