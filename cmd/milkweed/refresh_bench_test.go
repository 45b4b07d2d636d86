package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/drivers/blob/blobtest"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// BenchmarkRefresh has 100,000 files with copies, in directories of 100. In each round, 1,000 of them
// are removed at the source, 1,000 replaced and 1,000 added. It reports the time of `milkweed refresh`
// and then of `refresh --prune`, the operations at the source, and the ratio of the 99th percentiles of
// 8 paced readers of the other files, beside the refresh and alone.
//
//	go test -run '^$' -bench Refresh -benchtime 3x -timeout 30m ./cmd/milkweed
func BenchmarkRefresh(b *testing.B) {
	count, changed := drivertest.Size(100_000, 1000), drivertest.Size(1000, 10)
	b.Run("folder", func(b *testing.B) {
		s := newSite(b)
		dataset := make(map[string]bool)
		for key, data := range objects(count, []byte("content"), new([]string)) {
			name := filepath.Join(s.source, key)
			s.check(os.MkdirAll(filepath.Dir(name), 0o755))
			s.check(os.WriteFile(name, data, 0o644))
			dataset[key] = true
		}
		s.mount("1GiB")
		refreshRounds(b, s, dataset, changed, func(gone, other, added []string) {
			for _, key := range gone {
				s.check(os.Remove(filepath.Join(s.source, key)))
			}
			for _, key := range slices.Concat(other, added) {
				s.check(os.WriteFile(s.dir+"/new", []byte("other content"), 0o644))
				s.check(os.Rename(s.dir+"/new", filepath.Join(s.source, key)))
			}
		}, func() int64 {
			st := s.status().Source
			return st.Stats + st.ReadDirs
		})
		s.umount()
	})
	b.Run("bucket", func(b *testing.B) {
		s := newStoreBench(b, count, 7, blobtest.Plan{})
		dataset := make(map[string]bool)
		for _, key := range s.keys {
			dataset[key] = true
		}
		s.mounted(func() {
			refreshRounds(b, s.site, dataset, changed, func(gone, other, added []string) {
				for _, key := range gone {
					s.server.Remove(b, "bench", key)
				}
				s.server.PutMany(b, "bench", func(yield func(string, []byte) bool) {
					for _, key := range slices.Concat(other, added) {
						if !yield(key, []byte("other content")) {
							return
						}
					}
				})
			}, func() int64 { return s.proxy.Stats().Lists + s.proxy.Stats().Heads + s.proxy.Stats().Others })
		})
	})
}

// refreshRounds runs the rounds of BenchmarkRefresh on a mount. change changes the source, and
// operations returns the number of operations at the source, without reads.
func refreshRounds(b *testing.B, s *site, dataset map[string]bool, changed int, change func(gone, other, added []string), operations func() int64) {
	s.milkweed("warmup", s.point)
	r := &pacedReaders{b: b, rate: 2000}
	var took, pruned, ops, pruneOps, p99 []float64
	for round := 0; b.Loop(); round++ {
		names := slices.Sorted(maps.Keys(dataset))
		var gone, other, added []string
		for i := range changed {
			k := i * (len(names) / changed)
			gone, other = append(gone, names[k]), append(other, names[k+1])
			added = append(added, fmt.Sprintf("%s/added-%d-%d", filepath.Dir(names[k]), round, i))
		}
		for _, key := range gone {
			delete(dataset, key)
		}
		stay := maps.Clone(dataset)
		for _, key := range other {
			delete(stay, key)
		}
		names = slices.Sorted(maps.Keys(stay))
		r.files = len(names)
		r.path = func(n int) string { return filepath.Join(s.point, names[n]) }
		for _, key := range added {
			dataset[key] = true
		}
		alone := r.run(nil)
		change(gone, other, added)
		var result control.Refreshed
		before := operations()
		beside := r.run(func() {
			start := time.Now()
			s.check(json.Unmarshal([]byte(s.milkweed("refresh", "--json", s.point)), &result))
			took = append(took, time.Since(start).Seconds())
		})
		ops = append(ops, float64(operations()-before))
		if result.Added != int64(changed) || result.Removed != int64(changed) || result.Replaced != int64(changed) || result.Failed != 0 {
			b.Errorf("%d added, %d removed, %d replaced, %d failed; want %d of each", result.Added, result.Removed, result.Replaced, result.Failed, changed)
		}
		p99 = append(p99, beside.p99()/alone.p99())
		b.Logf("p99 %.2f ms alone, %.2f ms beside", 1e3*alone.p99(), 1e3*beside.p99())
		before = operations()
		start := time.Now()
		s.check(json.Unmarshal([]byte(s.milkweed("refresh", "--prune", "--json", s.point)), &result))
		pruned = append(pruned, time.Since(start).Seconds())
		pruneOps = append(pruneOps, float64(operations()-before))
		if result.Pruned.Removed != int64(changed) || result.Pruned.Failed != 0 {
			b.Errorf("pruned %+v, want %d copies", *result.Pruned, changed)
		}
		s.milkweed("warmup", s.point)
		if n := s.status().Tiers[0].Files; n != int64(len(dataset)) {
			b.Errorf("%d copies, want %d", n, len(dataset))
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(took), "s-of-refresh")
	b.ReportMetric(median(ops), "operations")
	b.ReportMetric(median(pruned), "s-of-prune")
	b.ReportMetric(median(pruneOps), "operations-of-prune")
	b.ReportMetric(median(p99), "p99-ratio")
}
