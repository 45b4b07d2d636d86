package main

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// BenchmarkImageFolder compares the later epochs of a PyTorch DataLoader that
// decodes JPEG files, in each mode: through the mount, and from the copies in the
// tier.
func BenchmarkImageFolder(b *testing.B) {
	need(b, "python3-torch", "python3-torchvision", "python3-PIL")
	for _, mode := range []string{"stateless", "passthrough"} {
		b.Run(mode, func(b *testing.B) {
			s := newSite(b)
			s.script("testdata/imagefolder.py", "make", s.source, "800")
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
			epoch(native)
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
