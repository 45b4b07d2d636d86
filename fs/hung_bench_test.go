package fs_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/tiers"
)

func init() { children["latencies"] = printLatencies }

// printLatencies opens, reads and closes each file of a folder, two at a time, and prints how long
// each took in nanoseconds. args are the folder, and "drop" to drop the page cache before.
func printLatencies(args []string) error {
	entries, err := os.ReadDir(args[0])
	if err != nil {
		return err
	}
	var (
		readers sync.WaitGroup
		mu      sync.Mutex
		failure error
		took    []time.Duration
	)
	paths := make(chan string, len(entries))
	for _, e := range entries {
		p := filepath.Join(args[0], e.Name())
		if args[1] == "drop" {
			if err := dropPages(p); err != nil {
				return err
			}
		}
		paths <- p
	}
	close(paths)
	for range 2 {
		readers.Go(func() {
			buf := make([]byte, 128<<10)
			for p := range paths {
				start := time.Now()
				err := readFile(p, buf)
				mu.Lock()
				took = append(took, time.Since(start))
				if err != nil {
					failure = err
				}
				mu.Unlock()
			}
		})
	}
	readers.Wait()
	for _, d := range took {
		fmt.Println(d.Nanoseconds())
	}
	return failure
}

// latencies runs printLatencies in a child.
func latencies(b *testing.B, folder, pages string) (took []float64) {
	b.Helper()
	out, err := childCommand("latencies", folder, pages).CombinedOutput()
	if err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		nanos, err := strconv.ParseFloat(lines.Text(), 64)
		if err != nil {
			b.Fatal(err)
		}
		took = append(took, nanos/1e9)
	}
	return took
}

// Reads of placed files that are not in the page cache, and first reads of files, each of 110 KB,
// with and without 64 other readers for which the source hangs. An operation takes 2 ms. 100
// iterations take about a minute.
func BenchmarkBesideHungReaders(b *testing.B) {
	var (
		readers = drivertest.Size(64, 8) // for which the source hangs
		files   = drivertest.Size(100, 10)
	)
	for _, mode := range []fs.Mode{fs.Cached, fs.Stateless, fs.Passthrough} {
		b.Run(mode.String(), func(b *testing.B) {
			source := b.TempDir()
			for i := range readers {
				write(b, source, fmt.Sprintf("hung/%d", i), 1<<20, uint64(i))
			}
			for i := range files {
				write(b, source, fmt.Sprintf("placed/%d", i), 110_000, uint64(i))
			}
			var sides [2]*stack // with hung readers, without
			for i := range sides {
				s := newStack(b, stackOptions{quotas: []tiers.Quota{bytesQuota(4 << 30)}, memory: true, workers: 8, mode: mode, over: source}, nil)
				latencies(b, s.in("placed"), "keep")
				s.settled()
				s.from.Add(drivertest.Rule{Delay: 2 * time.Millisecond})
				sides[i] = s
			}
			sides[0].from.Add(drivertest.Rule{Op: drivertest.OpRead, Name: "hung/*", Hang: true})
			hung := childCommand("crowd", sides[0].in("hung"))
			if err := hung.Start(); err != nil {
				b.Fatal(err)
			}
			begin := time.Now()
			var placed, first [2][]float64
			for n := 0; b.Loop(); n++ {
				folder := fmt.Sprintf("new%d", n)
				for i := range files {
					write(b, source, fmt.Sprintf("%s/%d", folder, i), 110_000, uint64(i))
				}
				for turn := range sides {
					i := (n + turn) % len(sides)
					placed[i] = append(placed[i], latencies(b, sides[i].in("placed"), "drop")...)
					first[i] = append(first[i], latencies(b, sides[i].in(folder), "keep")...)
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(time.Since(begin).Seconds(), "hung-s")
			reportPercentiles(b, "placed", placed)
			reportPercentiles(b, "first", first)
			hung.Process.Kill()
			hung.Wait()
		})
	}
}

// reportPercentiles reports percentiles of latencies beside hung readers, and the ratio to those
// without.
func reportPercentiles(b *testing.B, name string, sides [2][]float64) {
	for _, p := range []int{50, 99, 100} {
		var at [2]float64
		for i, v := range sides {
			v = slices.Sorted(slices.Values(v))
			at[i] = v[(len(v)-1)*p/100]
		}
		b.ReportMetric(at[0]*1e3, fmt.Sprintf("%s-p%d-ms", name, p))
		b.ReportMetric(at[0]/at[1], fmt.Sprintf("%s-p%d-ratio", name, p))
	}
}
