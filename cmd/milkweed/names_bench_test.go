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

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// expire waits until the client of the simulated PFS has cached no names. With -short, it does not.
func expire() { time.Sleep(drivertest.Size(1500*time.Millisecond, 0)) }

// BenchmarkWarmup compares a warm-up of a tier in memory with 16 processes that read the files
// directly from a simulated PFS of 2 ms and 200 MB/s.
func BenchmarkWarmup(b *testing.B) {
	var (
		subdirs = drivertest.Size([]int{1, 20, 500}, []int{20})
		files   = drivertest.Size(2000, 100)
		large   = drivertest.Size(32_000_000, 2_000_000) // bytes of each of 4 more files
	)
	for _, folders := range subdirs {
		b.Run(fmt.Sprintf("folders=%d", folders), func(b *testing.B) {
			s := newSite(b)
			var names []string
			for i := range files {
				names = append(names, fmt.Sprintf("%03d/%04d", i%folders, i))
				s.write(names[i], 90_000)
			}
			for i := range 4 {
				names = append(names, fmt.Sprintf("large%d", i))
				s.write(names[files+i], large)
			}
			list := filepath.Join(s.dir, "list")
			s.check(os.WriteFile(list, []byte(strings.Join(names, "\x00")), 0o600))
			s.overPFS("2ms", "200MB")
			var ours, theirs []float64
			for b.Loop() {
				expire()
				theirs = append(theirs, seconds(func() {
					s.sh(`cd "$1" && xargs -0 -P 16 -n 20 cat <"$2" >/dev/null`, s.source, list)
				}))
				tier, err := os.MkdirTemp("/dev/shm", "milkweed-test")
				s.check(err)
				s.milkweed("mount", "--tier", "ram:"+tier+":1GiB", s.source, s.point)
				expire()
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
	dirs, files := drivertest.Size("100", "10"), drivertest.Size("1000", "20")
	s.sh(`cd "$1" && for d in $(seq -w $2); do
		mkdir $d && (cd $d && seq $3 | split -l 1 -a 4 - img_)
	done`, s.source, dirs, files)
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
	var (
		files = drivertest.Size(1000, 100)
		skew  = drivertest.Size("5s", "0s")                   // of clocks; 5s is the default
		age   = drivertest.Size(6*time.Second, time.Second/4) // at which the times of the directories prove that their names are valid
	)
	s := newSite(b)
	var names []string
	for i := range files {
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
	time.Sleep(age)
	words := []string{"mount", "--tier", "ram:" + tier + ":1GiB", s.source, s.point}
	read := func(option string) (took float64, operations int64) {
		s.must(append([]string{s.program}, append(words, "-o", "clock_skew="+skew+",metadata_snapshot="+option)...)...)
		expire()
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
