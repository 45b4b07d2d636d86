package main

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// BenchmarkImageFolder compares the later epochs of a PyTorch DataLoader that
// decodes JPEG files, in each mode: through the mount, and from the copies in the
// tier.
func BenchmarkImageFolder(b *testing.B) {
	drivertest.Need(b, "python3-torch", "python3-torchvision", "python3-PIL")
	var (
		images  = drivertest.Size("800", "64")
		warmups = drivertest.Size(1, 0) // epochs over the copies before those that count
	)
	for _, mode := range []string{"stateless", "passthrough"} {
		b.Run(mode, func(b *testing.B) {
			s := newSite(b)
			s.script("testdata/imagefolder.py", "make", s.source, images)
			s.mountWith("mode="+mode, "1GiB")
			defer s.umount()
			epoch := func(folder string) float64 {
				out := s.script("testdata/imagefolder.py", "epoch", folder)
				seconds, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
				s.check(err)
				return seconds
			}
			epoch(s.point)
			s.settled()
			native := filepath.Join(s.dataset(1), "files")
			for range warmups {
				epoch(native)
			}
			var ratios, ours, theirs []float64
			for b.Loop() {
				theirs = append(theirs, epoch(native))
				ours = append(ours, epoch(s.point))
				ratios = append(ratios, ours[len(ours)-1]/theirs[len(theirs)-1])
			}
			for unit, v := range map[string][]float64{"native-s": theirs, "milkweed-s": ours, "milkweed/native": ratios} {
				slices.Sort(v)
				b.ReportMetric(v[len(v)/2], unit)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkPlannedImageFolder compares the utilisation of an accelerator after the first second of
// the first epoch: over a local directory, over a simulated PFS of 5 ms and 500 MB/s, through a
// mount, and through a mount that gets the order of the DataLoader.
func BenchmarkPlannedImageFolder(b *testing.B) {
	drivertest.Need(b, "python3-torch", "python3-torchvision", "python3-PIL")
	made := newSite(b)
	made.script("testdata/imagefolder.py", "make", made.source, drivertest.Size("1600", "64"))
	sides := make(map[string][]float64)
	for b.Loop() {
		s := newSite(b) // has a PFS of its own, which lives for commandTimeout
		s.source = made.source
		s.overPFS("5ms", "500MB")
		measure := func(side, command, folder string) {
			out := s.script("testdata/imagefolder.py", command, folder)
			share, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
			s.check(err)
			sides[side] = append(sides[side], share)
		}
		measure("local", "train", made.source)
		measure("source", "train", s.source)
		for side, command := range map[string]string{"milkweed": "train", "planned": "plan"} {
			expire()
			s.mount("1GiB")
			measure(side, command, s.point)
			s.umount()
			s.emptyTiers()
		}
	}
	for side, v := range sides {
		slices.Sort(v)
		b.ReportMetric(v[len(v)/2], side)
	}
	b.ReportMetric(0, "ns/op")
}
