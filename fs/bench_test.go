package fs_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	loopback "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/limit"
	"github.com/milkweedfs/milkweed/drivers/posix"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/placement"
	"github.com/milkweedfs/milkweed/tiers"
)

func init() {
	children["loopback"] = serveLoopback
	children["slow"] = serveSlow
	children["time"] = timeReads
	children["preads"] = timePreads
}

// serveLoopback serves the loopback example of go-fuse, without passthrough. args are the mount
// point and the folder.
func serveLoopback(args []string) error {
	root, err := loopback.NewLoopbackRoot(args[1])
	if err != nil {
		return err
	}
	second := time.Second
	server, err := loopback.Mount(args[0], root, &loopback.Options{
		AttrTimeout: &second, EntryTimeout: &second, NullPermissions: true,
		MountOptions: fuse.MountOptions{Name: "loopback", FsName: args[1], DisabledCapabilities: fuse.CAP_PASSTHROUGH},
	})
	if err != nil {
		return err
	}
	awaitEnd()
	return server.Unmount()
}

// serveSlow serves a folder like a busy parallel file system: an operation takes 1 ms, a read is at
// most 128 KiB, and each open drops the page cache of the file. args are the mount point and the
// folder.
func serveSlow(args []string) error {
	dir, err := posix.OpenDir(args[1])
	if err != nil {
		return err
	}
	ctx, log := context.Background(), slog.New(slog.DiscardHandler)
	levels, err := tiers.New(limit.New(dir, limit.Config{Latency: time.Millisecond}), nil, tiers.Options{}, log)
	if err != nil {
		return err
	}
	names, err := metadata.New(ctx, levels, metadata.Options{TTL: time.Minute}, log)
	if err != nil {
		return err
	}
	mount, err := fs.New(names, placement.New(levels, names, placement.Config{Workers: 1}, log), fs.Config{Point: args[0], Source: "slow", NegativeTTL: time.Minute, InvalidateOnOpen: true}, log)
	if err != nil {
		return err
	}
	awaitEnd()
	return mount.Unmount()
}

// awaitEnd prints that the mount is ready, and returns when standard input ends.
func awaitEnd() {
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
}

// serveAt starts a child that serves a folder at a new mount point until the benchmark ends, and
// returns the mount point.
func serveAt(b *testing.B, role, folder string) string {
	b.Helper()
	point := b.TempDir()
	cmd := childCommand(role, point, folder)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			b.Errorf("%s: %v", role, err)
		}
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		b.Fatalf("%s: %q, %v", role, line, err)
	}
	return point
}

// timeReads reads every file of a folder from start to end, and prints the duration in nanoseconds.
// args are the folder, the number of files to read at once, and "drop" to drop the page cache
// before.
func timeReads(args []string) error {
	readers, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	var paths []string
	err = filepath.WalkDir(args[0], func(p string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			paths = append(paths, p)
		}
		return err
	})
	if err != nil {
		return err
	}
	if args[2] == "drop" {
		for _, p := range paths {
			if err := dropPages(p); err != nil {
				return err
			}
		}
	}
	var (
		wg    sync.WaitGroup
		queue = make(chan string, len(paths))
		errs  = make(chan error, readers)
	)
	for _, p := range paths {
		queue <- p
	}
	close(queue)
	start := time.Now()
	for range readers {
		wg.Go(func() {
			buf := make([]byte, 128<<10)
			for p := range queue {
				if err := readFile(p, buf); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	select {
	case err := <-errs:
		return err
	default:
	}
	fmt.Println(took.Nanoseconds())
	return nil
}

// timePreads reads 4 KiB at random offsets of each file of a folder, and prints the duration in
// nanoseconds. args are the folder and the number of reads of each file.
func timePreads(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(args[0])
	if err != nil {
		return err
	}
	var took time.Duration
	for i, e := range entries {
		f, err := os.Open(filepath.Join(args[0], e.Name()))
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		rng, buf := rand.New(rand.NewPCG(uint64(i), 4)), make([]byte, 4<<10)
		start := time.Now()
		for range n {
			if _, err := f.ReadAt(buf, rng.Int64N(info.Size()/4096)*4096); err != nil {
				return err
			}
		}
		took += time.Since(start)
	}
	fmt.Println(took.Nanoseconds())
	return nil
}

// readFile reads a file with as few system calls and copies as possible.
func readFile(path string, buf []byte) error {
	fd, err := syscall.Open(path, syscall.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	for {
		n, err := syscall.Read(fd, buf)
		if err != nil || n == 0 {
			return err
		}
	}
}

// dropPages drops the page cache of a file.
func dropPages(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// took runs timeReads in a child and returns the duration in seconds.
func took(b *testing.B, folder string, readers int, pages string) float64 {
	b.Helper()
	return seconds(b, "time", folder, strconv.Itoa(readers), pages)
}

// seconds runs one of children that prints a duration in nanoseconds, and returns it in seconds.
func seconds(b *testing.B, role string, args ...string) float64 {
	b.Helper()
	out, err := childCommand(role, args...).CombinedOutput()
	var nanos int64
	if err == nil {
		_, err = fmt.Sscan(string(out), &nanos)
	}
	if err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	return float64(nanos) / 1e9
}

// compare reports the median time of each of two sides that were timed alternately, and the median
// ratio of the pairs.
func compare(b *testing.B, name, other string, ours, theirs []float64) {
	ratios := make([]float64, len(ours))
	for i := range ours {
		ratios[i] = ours[i] / theirs[i]
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(ours)*1e3, name+"-ms")
	b.ReportMetric(median(theirs)*1e3, other+"-ms")
	b.ReportMetric(median(ratios), name+"/"+other)
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// shapes returns the datasets of the benchmarks.
func shapes() []shape {
	return []shape{
		{"large", drivertest.Size(6, 3), drivertest.Size(64<<20, 4<<20)},
		{"small", drivertest.Size(1500, 30), 110_000},
	}
}

// A shape is files of one size.
type shape struct {
	name  string
	files int
	size  int
}

// Reads of placed files in each mode, against reads of the same copies without Milkweed. The tier
// is in memory, and the page cache is kept between epochs.
func BenchmarkPlacedAgainstNative(b *testing.B) {
	var (
		atOnce = drivertest.Size([]int{1, 2}, []int{2})
		random = drivertest.Size(256<<20, 4<<20)  // bytes of the file that is read at random
		preads = drivertest.Size("100000", "100") // of it
	)
	for _, mode := range []fs.Mode{fs.Passthrough, fs.Stateless, fs.Cached} {
		for _, shape := range shapes() {
			for _, readers := range atOnce {
				b.Run(fmt.Sprintf("%v/%s/readers=%d", mode, shape.name, readers), func(b *testing.B) {
					s, native := placed(b, mode, shape.files, shape.size)
					var ours, theirs []float64
					for b.Loop() {
						theirs = append(theirs, took(b, native, readers, "keep"))
						ours = append(ours, took(b, s.point, readers, "keep"))
					}
					compare(b, "milkweed", "native", ours, theirs)
				})
			}
		}
		b.Run(mode.String()+"/random", func(b *testing.B) {
			s, native := placed(b, mode, 1, random)
			var ours, theirs []float64
			for b.Loop() {
				theirs = append(theirs, seconds(b, "preads", filepath.Join(native, "d"), preads))
				ours = append(ours, seconds(b, "preads", s.in("d"), preads))
			}
			compare(b, "milkweed", "native", ours, theirs)
		})
	}
}

// Reads of whole files of each size, stateless against passthrough. The results are the basis of
// mode = "auto".
func BenchmarkStatelessAgainstPassthrough(b *testing.B) {
	var (
		sizes = drivertest.Size([]int{64, 256, 1 << 10, 4 << 10, 16 << 10}, []int{64, 1 << 10}) // KiB
		total = drivertest.Size(256<<10, 4<<10)                                                 // KiB of all files
	)
	for _, kib := range sizes {
		for _, pages := range []string{"keep", "drop"} {
			b.Run(fmt.Sprintf("KiB=%d/%s", kib, pages), func(b *testing.B) {
				files := min(1000, total/kib)
				stateless, _ := placed(b, fs.Stateless, files, kib<<10)
				passthrough, _ := placed(b, fs.Passthrough, files, kib<<10)
				var ours, theirs []float64
				for b.Loop() {
					theirs = append(theirs, took(b, passthrough.point, 1, pages))
					ours = append(ours, took(b, stateless.point, 1, pages))
				}
				compare(b, "stateless", "passthrough", ours, theirs)
			})
		}
	}
}

// placed mounts files that are all on a tier in memory, and returns the folder of the copies.
func placed(b *testing.B, mode fs.Mode, files, size int) (s *stack, native string) {
	b.Helper()
	s = newStack(b, stackOptions{quotas: []tiers.Quota{bytesQuota(1 << 30)}, memory: true, mode: mode}, func(source string) {
		for i := range files {
			write(b, source, fmt.Sprintf("d/%d", i), size, uint64(i))
		}
	})
	took(b, s.point, 1, "drop")
	s.settled()
	took(b, s.point, 1, "keep")
	return s, filepath.Join(s.tierPath(1), "data", "files")
}

// Reads of placed files, against the loopback example of go-fuse over the same copies. Neither side
// has passthrough. "keep" keeps the page cache of an earlier read and "drop" drops it; "user" also
// drops it and has the smaller read-ahead of a mount without root.
func BenchmarkPlacedAgainstLoopback(b *testing.B) {
	for _, shape := range shapes() {
		for _, pages := range []string{"drop", "keep", "user"} {
			b.Run(shape.name+"/"+pages, func(b *testing.B) {
				user := pages == "user"
				if user {
					pages = "drop"
				}
				s := newStack(b, stackOptions{quotas: []tiers.Quota{bytesQuota(1 << 30)}, memory: true, user: user}, func(source string) {
					for i := range shape.files {
						write(b, source, fmt.Sprintf("d/%d", i), shape.size, uint64(i))
					}
				})
				took(b, s.point, 1, "drop")
				s.settled()
				other := serveAt(b, "loopback", filepath.Join(s.tierPath(1), "data", "files"))
				took(b, other, 1, "drop")
				var ours, theirs []float64
				for b.Loop() {
					theirs = append(theirs, took(b, other, 1, pages))
					ours = append(ours, took(b, s.point, 1, pages))
				}
				compare(b, "milkweed", "loopback", ours, theirs)
			})
		}
	}
}

// The first epoch through Milkweed, against the same reads from the source. An operation of the
// source takes 1 ms and returns at most 128 KiB.
func BenchmarkFirstEpochAgainstSource(b *testing.B) {
	for _, shape := range shapes() {
		for _, readers := range drivertest.Size([]int{1, 4}, []int{4}) {
			b.Run(fmt.Sprintf("%s/readers=%d", shape.name, readers), func(b *testing.B) {
				data := b.TempDir()
				for i := range shape.files / 3 {
					write(b, data, fmt.Sprintf("d/%d", i), shape.size, uint64(i))
				}
				slow := serveAt(b, "slow", data)
				var ours, theirs []float64
				for b.Loop() {
					s := newStack(b, stackOptions{quotas: []tiers.Quota{bytesQuota(1 << 30)}, memory: true, workers: 8, over: slow}, nil)
					// No page is cached. Dropping pages would open the files, and so start copies.
					theirs = append(theirs, took(b, slow, readers, "keep"))
					ours = append(ours, took(b, s.point, readers, "keep"))
					s.end()
				}
				compare(b, "milkweed", "source", ours, theirs)
			})
		}
	}
}
