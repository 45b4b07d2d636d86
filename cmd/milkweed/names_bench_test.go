package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// expire is how long the benchmarks wait until the client of the simulated PFS has cached no names.
const expire = 1500 * time.Millisecond

// BenchmarkWarmup compares a warm-up of a tier in memory with 16 processes that read the files
// directly from a simulated PFS of 2 ms and 200 MB/s.
func BenchmarkWarmup(b *testing.B) {
	for _, folders := range []int{1, 20, 500} {
		b.Run(fmt.Sprintf("folders=%d", folders), func(b *testing.B) {
			s := newSite(b)
			var names []string
			for i := range 2000 {
				names = append(names, fmt.Sprintf("%03d/%04d", i%folders, i))
				s.write(names[i], 90_000)
			}
			for i := range 4 {
				names = append(names, fmt.Sprintf("large%d", i))
				s.write(names[2000+i], 32_000_000)
			}
			list := filepath.Join(s.dir, "list")
			s.check(os.WriteFile(list, []byte(strings.Join(names, "\x00")), 0o600))
			s.overPFS("2ms", "200MB")
			var ours, theirs []float64
			for b.Loop() {
				time.Sleep(expire)
				theirs = append(theirs, seconds(func() {
					s.sh(`cd "$1" && xargs -0 -P 16 -n 20 cat <"$2" >/dev/null`, s.source, list)
				}))
				tier, err := os.MkdirTemp("/dev/shm", "milkweed-test")
				s.check(err)
				s.milkweed("mount", "--tier", "ram:"+tier+":1GiB", s.source, s.point)
				time.Sleep(expire)
				ours = append(ours, seconds(func() { s.milkweed("warmup", s.point) }))
				s.umount()
				s.check(os.RemoveAll(tier))
			}
			reportRatio(b, "16-readers", ours, theirs)
		})
	}
}

// BenchmarkListing compares `ls -lR` of 100,000 files, and `ls -UR`, through a mount and of the
// source itself, the first time and the second time.
func BenchmarkListing(b *testing.B) {
	s := newSite(b)
	s.sh(`cd "$1" && for d in $(seq -w 100); do
		mkdir $d && (cd $d && seq 1000 | split -l 1 -a 4 - img_)
	done`, s.source)
	for _, options := range []string{"-UR", "-lR"} {
		list := func(folder string) float64 {
			return seconds(func() { s.sh(`ls $1 "$2" >/dev/null`, options, folder) })
		}
		b.Run("ls "+options, func(b *testing.B) {
			var native, first, second []float64
			for b.Loop() {
				native = append(native, list(s.source))
				s.mount("64MiB")
				first = append(first, list(s.point))
				list(s.point)
				second = append(second, list(s.point))
				s.umount()
			}
			b.Logf("first time: %.3v s", first)
			reportRatio(b, "native", second, native)
		})
	}
}

func seconds(f func()) float64 {
	start := time.Now()
	f()
	return time.Since(start).Seconds()
}

// reportRatio reports the medians of the durations, and of their ratios.
func reportRatio(b *testing.B, other string, ours, theirs []float64) {
	median := func(v []float64) float64 { return slices.Sorted(slices.Values(v))[len(v)/2] }
	ratios := make([]float64, len(ours))
	for i := range ours {
		ratios[i] = ours[i] / theirs[i]
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(ours), "milkweed-s")
	b.ReportMetric(median(theirs), other+"-s")
	b.ReportMetric(median(ratios), "milkweed/"+other)
}

// BenchmarkRestart compares a second mount with and without the metadata snapshot: a process reads
// 1,000 files of 10 directories of a simulated PFS of 2 ms, whose copies are in a tier in memory, in
// no order. It reports the operations on the source before the process ends.
func BenchmarkRestart(b *testing.B) {
	s := newSite(b)
	var names []string
	for i := range 1000 {
		names = append(names, fmt.Sprintf("class%d/%04d.jpg", i%10, i))
		s.write(names[i], 90_000)
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	list := filepath.Join(s.dir, "list")
	s.check(os.WriteFile(list, []byte(strings.Join(names, "\x00")), 0o600))
	s.overPFS("2ms", "200MB")
	tier, err := os.MkdirTemp("/dev/shm", "milkweed-test")
	s.check(err)
	b.Cleanup(func() { os.RemoveAll(tier) })
	time.Sleep(6 * time.Second) // until the times of the directories prove that their names are valid
	words := []string{"mount", "--tier", "ram:" + tier + ":1GiB", s.source, s.point}
	read := func(option string) (took float64, operations int64) {
		s.must(append([]string{s.program}, append(words, "-o", "metadata_snapshot="+option)...)...)
		time.Sleep(expire)
		took = seconds(func() { s.sh(`cd "$1" && xargs -0 -n 1000 cat <"$2" >/dev/null`, s.point, list) })
		operations = s.operations()
		s.umount()
		return took, operations
	}
	s.milkweed(append(words, "-o", "clock_skew=0s")...)
	s.milkweed("warmup", s.point)
	s.umount()
	var with, without []float64
	var most int64
	for b.Loop() {
		t, n := read("off")
		b.Logf("without: %.2f s, %d operations", t, n)
		without = append(without, t)
		t, n = read("auto")
		b.Logf("with: %.2f s, %d operations", t, n)
		with, most = append(with, t), max(most, n)
	}
	b.ReportMetric(float64(most), "operations")
	reportRatio(b, "off", with, without)
}
