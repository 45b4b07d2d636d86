package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// BenchmarkPrepare compares 8 readers that loop over a generation, with and without a preparation of
// the next one beside them, in turn. The readers are paced to 60 % of the CPU time of the machine. Half
// of the files of the next generation are links to those of this one, and half are new. The metrics are
// the medians of the ratios of neighbouring runs.
//
//	go test -run '^$' -bench Prepare -benchtime 10x -timeout 30m ./cmd/milkweed
func BenchmarkPrepare(b *testing.B) {
	files := drivertest.Size(4000, 200)
	s := newSite(b)
	s.check(os.Mkdir(s.dir+"/sets", 0o755))
	for i := range files {
		s.write(fmt.Sprintf("../sets/v1/d%d/%d", i%10, i), 100_000)
	}
	s.check(os.Remove(s.source))
	s.link("v1")
	s.mount("1GiB")
	s.milkweed("warmup", s.point)
	r := &pacedReaders{b: b, files: files, path: func(n int) string { return fmt.Sprintf("%s/d%d/%d", s.point, n%10, n) }}
	r.calibrate()
	var throughput, p99 []float64
	var prepared time.Duration
	for b.Loop() {
		r.run(nil) // the kernel has dropped what it knew of the files with the generation of the last round
		alone := r.run(nil)
		for n := range files {
			dir, name := fmt.Sprintf("/d%d/", n%10), fmt.Sprint(n)
			if n%2 == 0 {
				s.write("../sets/v2"+dir+name, 100_000)
				continue
			}
			s.check(os.MkdirAll(s.dir+"/sets/v2"+dir, 0o755))
			s.check(os.Link(s.dir+"/sets/v1"+dir+name, s.dir+"/sets/v2"+dir+name))
		}
		beside := r.run(func() {
			begin := time.Now()
			s.milkweed("prepare", "v2", s.point)
			prepared += time.Since(begin)
		})
		throughput = append(throughput, beside.rate()/alone.rate())
		p99 = append(p99, beside.p99()/alone.p99())
		b.Logf("alone %.0f files/s, p99 %.2f ms; beside %.0f files/s, p99 %.2f ms", alone.rate(), 1e3*alone.p99(), beside.rate(), 1e3*beside.p99())
		s.check(os.RemoveAll(s.dir + "/sets/v2"))
		s.milkweed("generations", "drop", "v2", s.point)
		s.milkweed("refresh", s.point+"/.generations")
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(throughput), "throughput-ratio")
	b.ReportMetric(median(p99), "p99-ratio")
	b.ReportMetric(prepared.Seconds()/float64(b.N), "s-of-prepare")
	s.umount()
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// pacedReaders open, read and close random files, at a fixed rate. Each reads several files and then
// pauses, as a worker of a DataLoader does between batches.
type pacedReaders struct {
	b     *testing.B
	files int                // number of them
	path  func(n int) string // of a file
	rate  float64            // files per second; 0: as fast as possible
}

// A readResult is what pacedReaders have done.
type readResult struct {
	latencies []float64 // seconds, sorted
	seconds   float64
}

func (r readResult) rate() float64 { return float64(len(r.latencies)) / r.seconds }
func (r readResult) p99() float64  { return r.latencies[len(r.latencies)*99/100] }

// calibrate paces the readers to 60 % of the CPU time.
func (r *pacedReaders) calibrate() {
	const share = 0.6
	runs := drivertest.Size(4, 1)
	for range runs { // the first run also gives the kernel all pages; paced, a file takes more time
		before := busy(r.b)
		result := r.run(nil)
		used := (busy(r.b) - before) / result.seconds // 1 is a whole machine
		r.b.Logf("%.0f files/s take %.0f %% of the CPU time", result.rate(), 100*used)
		r.rate = result.rate() * share / used
	}
}

// busy returns for how many seconds the processors of the machine were in use, on average.
func busy(b *testing.B) float64 {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		b.Fatal(err)
	}
	const ticks = 100 // per second, USER_HZ
	var user, nice, system, idle, iowait, irq, softirq float64
	fmt.Sscanf(string(text), "cpu %f %f %f %f %f %f %f", &user, &nice, &system, &idle, &iowait, &irq, &softirq)
	return (user + nice + system + irq + softirq) / ticks / float64(runtime.NumCPU())
}

// run reads while other runs or, if that is nil, for length.
func (r *pacedReaders) run(other func()) (result readResult) {
	const readers, batch = 8, 8
	length := drivertest.Size(4*time.Second, time.Second/2)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2 * readers)) // no reader waits for one that is in a system call
	var running sync.WaitGroup
	var mu sync.Mutex
	start := time.Now()
	ended := make(chan struct{})
	more := func() bool {
		select {
		case <-ended:
			return other == nil && time.Since(start) < length
		default:
			return true
		}
	}
	for i := range readers {
		running.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			rng := rand.New(rand.NewPCG(uint64(i), uint64(start.UnixNano())))
			buf := make([]byte, 1<<17)
			var mine []float64
			next := start.Add(time.Duration(rng.Float64() * 1e7))
			for more() {
				if r.rate > 0 && len(mine)%batch == 0 {
					pause := unix.NsecToTimespec(max(int64(time.Until(next)), 0))
					unix.Nanosleep(&pause, nil) // on a signal, a batch begins early
					next = next.Add(time.Duration(readers * batch / r.rate * 1e9))
				}
				path := r.path(rng.IntN(r.files))
				begin := time.Now()
				f, err := os.Open(path)
				if err != nil {
					r.b.Error(err)
					return
				}
				if _, err := f.Read(buf); err != nil {
					r.b.Error(err)
				}
				f.Close()
				mine = append(mine, time.Since(begin).Seconds())
			}
			mu.Lock()
			defer mu.Unlock()
			result.latencies = append(result.latencies, mine...)
		})
	}
	if other != nil {
		other()
	}
	close(ended)
	running.Wait()
	result.seconds = time.Since(start).Seconds()
	slices.Sort(result.latencies)
	return result
}
