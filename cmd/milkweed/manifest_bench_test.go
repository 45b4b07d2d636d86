package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// BenchmarkManifest compares the time of `milkweed warmup` with a manifest, whose hashes it verifies, with
// that without one, in turn. The metric is the median of the ratios of neighbouring runs.
//
//	go test -run '^$' -bench Manifest -benchtime 10x ./cmd/milkweed
func BenchmarkManifest(b *testing.B) {
	count, size := largeObjects()
	for _, shape := range []struct {
		name  string
		files int
		size  int
	}{{"small", drivertest.Size(5000, 100), 16 << 10}, {"large", count, size}} {
		b.Run(shape.name, func(b *testing.B) {
			s := newSite(b)
			for i := range shape.files {
				s.write(fmt.Sprintf("d%d/%d", i%10, i), shape.size)
			}
			file := s.dir + "/list.mtree"
			begin := time.Now()
			s.milkweed("manifest", "-o", file, s.source)
			written := time.Since(begin)
			fill := func(words []string) float64 {
				s.milkweed(words...)
				begin := time.Now()
				s.milkweed("warmup", s.point)
				took := time.Since(begin)
				s.umount()
				s.emptyTiers()
				return took.Seconds()
			}
			fill(s.mountWords("4GiB"))
			var ratios, took []float64
			for b.Loop() {
				without := fill(s.mountWords("4GiB"))
				with := fill(s.listed(file, "4GiB"))
				ratios, took = append(ratios, with/without), append(took, with)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(ratios), "ratio")
			b.ReportMetric(median(took), "s-with")
			b.ReportMetric(written.Seconds(), "s-to-write")
		})
	}
}
