package main

import (
	"fmt"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
)

// tierBytes returns the bytes that all tiers have served.
func tierBytes(s control.Status) (sum int64) {
	for _, t := range s.Tiers {
		sum += t.Bytes
	}
	return sum
}

// varied writes 200 files of 10 to 50 KB into 4 directories, and returns the sum of their sizes.
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

// A dataset that is larger than the first tier fills the first, and the rest is placed in the
// second. From the second epoch on, it is read from both, and not from the source.
func TestTwoTiers(t *testing.T) {
	s := newSite(t)
	dataset := varied(s)
	s.mount("2MiB", "64MiB")
	s.epoch(1)
	first := s.settled()

	tier1, tier2 := first.Tiers[0], first.Tiers[1]
	if free := tier1.QuotaBytes - tier1.UsedBytes; free < 0 || free >= largestVaried {
		t.Errorf("tier 1 uses %d of %d: the %d bytes left have room for a file", tier1.UsedBytes, tier1.QuotaBytes, free)
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
			t.Errorf("epoch %d: operations on the source: %+v, before %+v", epoch, is, was)
		}
		if got := tierBytes(now) - tierBytes(before); got != dataset {
			t.Errorf("epoch %d: bytes from the tiers: got %d, want %d", epoch, got, dataset)
		}
		before = now
	}
	s.umount()
	s.wantNothing()
}

// If a dataset is larger than both tiers, then in every epoch after the first the hit ratio is the
// share of the dataset that was placed. The hit ratio is the number of bytes that the tiers served
// divided by the number that the tiers and the source served. The page cache has nothing from one
// epoch to the next. Both numbers are therefore exact, and the ratios must be equal.
func TestTwoTiersTooSmall(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole epochs")
	}
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
		t.Errorf("placed bytes in the status: %d; on the disk: %d", got, placed)
	}
	for epoch := 2; epoch <= 4; epoch++ {
		s.epoch(epoch)
		now := s.settled()
		hits, misses := tierBytes(now)-tierBytes(before), now.Source.Bytes-before.Source.Bytes
		if hits != placed || hits+misses != dataset {
			t.Errorf("epoch %d: hit ratio %d/%d, want %d/%d", epoch, hits, hits+misses, placed, dataset)
		}
		before = now
	}
	t.Logf("hit ratio: %.4f = %d/%d bytes", float64(placed)/float64(dataset), placed, dataset)
	s.umount()
	s.wantNothing()
}

// In the first epoch, each byte of a file that is opened is read from the source once, and no byte
// of a file that is not opened, although 4 processes read all files at once, and read pieces of
// the large ones out of order.
func TestFirstEpochSourceBytes(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole epochs")
	}
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
	t.Logf("source bytes: %d; sizes of the files: %d; ratio: %.4f", got, touched, float64(got)/float64(touched))
	if float64(got) > 1.02*float64(touched) {
		t.Errorf("source bytes: got %d, more than 1.02 times the size of the files read, %d", got, touched)
	}
	if got, want := status.Source.Opens, int64(154); got != want {
		t.Errorf("source opens: got %d, want %d", got, want)
	}
	s.umount()
	s.wantNothing()
}
