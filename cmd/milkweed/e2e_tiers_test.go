package main

import (
	"fmt"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
)

// tierBytes adds up what all tiers have answered.
func tierBytes(s control.Status) (sum int64) {
	for _, t := range s.Tiers {
		sum += t.Bytes
	}
	return sum
}

// varied writes files of 10 to 50 KB, 200 of them, into 4 folders, and returns
// the sum of their sizes.
func varied(s *site) int64 {
	s.t.Helper()
	sum := 0
	for i := range 200 {
		size := 10_000 + i*7919%40_000
		s.write(fmt.Sprintf("class%d/%03d.jpg", i%4, i), size)
		sum += size
	}
	return int64(sum)
}

const largestVaried = 50_000

// A dataset that is larger than the first tier fills it up, goes on in the
// second, and is read from both from the second epoch on: the source is left
// alone.
func TestTwoTiers(t *testing.T) {
	s := newSite(t)
	dataset := varied(s)
	s.mount("2MiB", "64MiB")
	s.epoch(1)
	first := s.settled()

	tier1, tier2 := first.Tiers[0], first.Tiers[1]
	if free := tier1.QuotaBytes - tier1.UsedBytes; free < 0 || free >= largestVaried {
		t.Errorf("tier 1 uses %d of %d: %d bytes are left, which is not less than a file", tier1.UsedBytes, tier1.QuotaBytes, free)
	}
	if got := tier1.Files + tier2.Files; got != 200 {
		t.Errorf("files in the tiers: %d + %d, want 200 together", tier1.Files, tier2.Files)
	}
	if got := total(s.files(s.dataset(1)+"/files")) + total(s.files(s.dataset(2)+"/files")); got != dataset {
		t.Errorf("bytes of copies on disk: got %d, want %d", got, dataset)
	}
	if got := first.Source.Bytes; got != dataset {
		t.Errorf("source bytes of the first epoch: got %d, want %d", got, dataset)
	}

	before := first
	for epoch := 2; epoch <= 3; epoch++ {
		s.epoch(epoch)
		now := s.status()
		was, is := before.Source, now.Source
		if is.Opens != was.Opens || is.Reads != was.Reads || is.Bytes != was.Bytes {
			t.Errorf("epoch %d: the source was asked for %+v, before for %+v", epoch, is, was)
		}
		if got := tierBytes(now) - tierBytes(before); got != dataset {
			t.Errorf("epoch %d: bytes from the tiers: got %d, want %d", epoch, got, dataset)
		}
		before = now
	}
	s.umount()
	s.wantNothing()
}

// A dataset that is larger than both tiers is hit, in every epoch after the
// first, for just what was placed of it. The hit share is what the tiers
// answered in the epoch, in bytes, divided by what the tiers and the source
// did. No page is cached from one epoch to the next, so that both sums are
// exact, and so the shares must be equal, not just near.
func TestTwoTiersTooSmall(t *testing.T) {
	s := newSite(t)
	dataset := varied(s)
	s.mount("1MiB", "2MiB")
	s.epoch(1)
	before := s.settled()
	placed := total(s.files(s.dataset(1)+"/files")) + total(s.files(s.dataset(2)+"/files"))
	if placed <= 2<<20 || placed >= 3<<20 {
		t.Errorf("placed: %d bytes, in tiers of 1 MiB and 2 MiB", placed)
	}
	if got := before.Placement.PlacedBytes; got != placed {
		t.Errorf("placed, says the status: %d bytes; there are %d", got, placed)
	}
	for epoch := 2; epoch <= 4; epoch++ {
		s.epoch(epoch)
		now := s.settled()
		hits, misses := tierBytes(now)-tierBytes(before), now.Source.Bytes-before.Source.Bytes
		if hits != placed || hits+misses != dataset {
			t.Errorf("epoch %d: hit share %d/%d, want %d/%d", epoch, hits, hits+misses, placed, dataset)
		}
		before = now
	}
	t.Logf("hit share: %.4f = %d/%d bytes", float64(placed)/float64(dataset), placed, dataset)
	s.umount()
	s.wantNothing()
}

// In the first epoch no byte of a file that somebody opens is read from the
// source twice, and none of a file that nobody opens, although 4 processes read
// all of them at once and of the large ones pieces out of order.
func TestFirstEpochSourceBytes(t *testing.T) {
	s := newSite(t)
	for i := range 150 {
		s.write(fmt.Sprintf("touched/small/%03d.jpg", i), 500+i*1500)
		s.write(fmt.Sprintf("untouched/%03d.jpg", i), 500+i*1500)
	}
	for i := range 4 {
		s.write(fmt.Sprintf("touched/large%d.tfrecord", i), 12<<20+i*4097)
	}
	touched := total(s.files(s.source + "/touched"))
	s.mount("16MiB", "1GiB")
	s.script("testdata/epoch.py", s.source+"/touched", s.point+"/touched", "--pieces")
	status := s.settled()
	got := status.Source.Bytes
	t.Logf("source bytes: %d, of files with %d: %.4f", got, touched, float64(got)/float64(touched))
	if float64(got) > 1.02*float64(touched) {
		t.Errorf("source bytes: got %d, more than 1.02 times the %d of the files touched", got, touched)
	}
	if got, want := status.Source.Opens, int64(154); got != want {
		t.Errorf("source opens: got %d, want %d", got, want)
	}
	s.umount()
	s.wantNothing()
}
