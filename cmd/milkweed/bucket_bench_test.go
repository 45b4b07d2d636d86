package main

import (
	"context"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/milkweedfs/milkweed/cmd/internal/sandbox"
	"github.com/milkweedfs/milkweed/drivers/blob/blobtest"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// storeLatency is the delay that a proxy adds to each request to a real object
// store. Server, proxy, daemon and readers run on the same machine.
const storeLatency = 20 * time.Millisecond

// A storeBench is a site with a bucket of objects. Only the server has their
// content.
type storeBench struct {
	*site
	b      *testing.B
	server *blobtest.Server
	proxy  *blobtest.Proxy
	url    string // of the bucket
	keys   []string
	size   int    // of each object
	tier1  string // the folder of a tier in memory
}

// newStoreBench makes a bucket with count objects of a size.
func newStoreBench(b *testing.B, count, size int, plan blobtest.Plan) *storeBench {
	server := blobtest.Start(b, blobtest.S3)
	server.Setenv(b)
	b.Setenv("AWS_CA_BUNDLE", "") // rclone does not start with one
	plan.Latency = storeLatency
	s := &storeBench{site: newSite(b), b: b, server: server, size: size}
	s.proxy = blobtest.NewProxy(b, server.URL, plan)
	s.url = server.BucketURL("bench", "", s.proxy.URL)
	server.MakeBucket(b, "bench")
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{}).Read(data)
	server.Fill(b, "bench", objects(count, data, &s.keys))
	tier, err := os.MkdirTemp("/dev/shm", "milkweed-bench-")
	s.check(err)
	s.tier1 = tier
	b.Cleanup(func() { os.RemoveAll(tier) })
	return s
}

// largeObjects returns the number and the size of the large objects of the benchmarks.
func largeObjects() (count, size int) { return drivertest.Size(4, 2), drivertest.Size(128<<20, 16<<20) }

// objects yields count objects with the same content, in directories of 100, and
// appends their keys to keys.
func objects(count int, data []byte, keys *[]string) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for i := range count {
			key := fmt.Sprintf("dir-%03d/object-%05d", i/100, i)
			*keys = append(*keys, key)
			if !yield(key, data) {
				return
			}
		}
	}
}

// mounted mounts the bucket, calls f, and unmounts the bucket.
func (s *storeBench) mounted(f func()) {
	s.milkweed("mount", "--tier", "ram:"+s.tier1+":8GiB", s.url, s.point)
	f()
	s.umount()
}

// cold returns the time that f takes with the bucket mounted and empty tiers.
func (s *storeBench) cold(f func()) (took time.Duration) {
	folders, _ := filepath.Glob(s.tier1 + "/*")
	for _, f := range folders {
		s.check(os.RemoveAll(f))
	}
	s.mounted(func() { took = timed(f) })
	return took
}

func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

// read reads all objects below a folder, in child processes.
func (s *storeBench) read(folder string, readers int, shuffled bool) {
	s.b.Helper()
	keys := slices.Clone(s.keys)
	if shuffled {
		rand.New(rand.NewPCG(1, 2)).Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	}
	cmd := exec.Command("xargs", "-P", strconv.Itoa(readers), "-n", strconv.Itoa(max(1, min(25, len(keys)/readers))), "cat")
	cmd.Dir = folder
	cmd.Stdin = strings.NewReader(strings.Join(keys, "\n"))
	if err := cmd.Run(); err != nil { // of cat too
		s.b.Fatalf("read: %v", err)
	}
}

// get reads all objects from the server and discards them, in ranges of length
// bytes and with parallel requests in flight. It is the fastest possible client.
func (s *storeBench) get(length, parallel int) {
	client := s3.New(s3.Options{Region: "us-east-1", BaseEndpoint: &s.proxy.URL, UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"), "")})
	presign := s3.NewPresignClient(client)
	transport := &http.Transport{MaxIdleConnsPerHost: parallel}
	defer transport.CloseIdleConnections()
	type part struct {
		url  string
		span string
	}
	parts := make(chan part)
	var getters sync.WaitGroup
	for range parallel {
		getters.Go(func() {
			buf := make([]byte, 1<<20)
			for p := range parts {
				req, err := http.NewRequest(http.MethodGet, p.url, nil)
				s.check(err)
				req.Header.Set("Range", p.span)
				resp, err := transport.RoundTrip(req)
				s.check(err)
				_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, buf)
				resp.Body.Close()
				s.check(err)
				if resp.StatusCode != http.StatusPartialContent {
					s.b.Errorf("HTTP %s", resp.Status)
				}
			}
		})
	}
	for _, key := range s.keys {
		r, err := presign.PresignGetObject(context.Background(), &s3.GetObjectInput{Bucket: aws.String("bench"), Key: &key})
		s.check(err)
		for off := 0; off < s.size; off += length {
			parts <- part{r.URL, fmt.Sprintf("bytes=%d-%d", off, min(off+length, s.size)-1)}
		}
	}
	close(parts)
	getters.Wait()
}

// paired runs the sides of a benchmark in turn. It reports the median time of each
// in seconds, and the median ratio of the first to each of the others.
func paired(b *testing.B, names []string, sides []func() time.Duration) {
	times := make([][]float64, len(sides))
	for b.Loop() {
		for i, side := range sides {
			times[i] = append(times[i], side().Seconds())
		}
	}
	median := func(v []float64) float64 {
		v = slices.Sorted(slices.Values(v))
		return v[len(v)/2]
	}
	for i, name := range names {
		b.ReportMetric(median(times[i]), name+"-s")
		if i > 0 {
			var ratios []float64
			for n := range times[i] {
				ratios = append(ratios, times[0][n]/times[i][n])
			}
			b.ReportMetric(median(ratios), names[0]+"/"+name)
		}
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkBucketLarge compares the first epoch over large objects with parallel
// GETs of the same bytes, of the length and the number that are the fastest.
func BenchmarkBucketLarge(b *testing.B) {
	var (
		rates       = drivertest.Size([]int64{250e6, 500e6, 0}, []int64{500e6})
		lengths     = drivertest.Size([]int{8 << 20, 16 << 20}, []int{8 << 20})
		parallels   = drivertest.Size([]int{8, 16, 32}, []int{8})
		count, size = largeObjects()
	)
	for _, rate := range rates {
		b.Run(fmt.Sprintf("MBps=%d", rate/1e6), func(b *testing.B) {
			s := newStoreBench(b, count, size, blobtest.Plan{Rate: rate})
			best, length, parallel := time.Hour, 0, 0
			for _, l := range lengths {
				for _, p := range parallels {
					if took := timed(func() { s.get(l, p) }); took < best {
						best, length, parallel = took, l, p
					}
				}
			}
			b.Logf("fastest GETs: ranges of %d MiB, %d in flight", length>>20, parallel)
			paired(b, []string{"milkweed", "raw"}, []func() time.Duration{
				func() time.Duration { return s.cold(func() { s.read(s.point, 4, false) }) },
				func() time.Duration { return timed(func() { s.get(length, parallel) }) },
			})
			before := s.proxy.Stats()
			s.cold(func() { s.read(s.point, 4, false) })
			after := s.proxy.Stats()
			b.ReportMetric(float64(after.Gets-before.Gets)/float64(count*size/(8<<20)), "requests/floor")
			b.ReportMetric(float64(after.Bytes-before.Bytes)/float64(count*size), "bytes/dataset")
		})
	}
}

// BenchmarkBucketWarmup compares the warm-up of a folder, over a network of 250
// MB/s, with parallel GETs of the same bytes.
func BenchmarkBucketWarmup(b *testing.B) {
	count, size := largeObjects()
	for _, kind := range []struct {
		name           string
		count, size    int
		parallel, part int // of the GETs
	}{{"large", count, size, 16, 8 << 20}, {"small", drivertest.Size(3000, 100), 110_000, 64, 110_000}} {
		b.Run(kind.name, func(b *testing.B) {
			s := newStoreBench(b, kind.count, kind.size, blobtest.Plan{Rate: 250e6})
			paired(b, []string{"milkweed", "raw"}, []func() time.Duration{
				func() time.Duration { return s.cold(func() { s.milkweed("warmup", s.point) }) },
				func() time.Duration { return timed(func() { s.get(kind.part, kind.parallel) }) },
			})
		})
	}
}

// BenchmarkBucketSmall compares the first epoch over small objects with rclone
// mount.
func BenchmarkBucketSmall(b *testing.B) {
	drivertest.Need(b, "rclone")
	s := newStoreBench(b, drivertest.Size(400, 40), 110_000, blobtest.Plan{})
	rclone := s.rclone(b)
	for _, shuffled := range []bool{false, true} {
		for _, readers := range drivertest.Size([]int{1, 4}, []int{4}) {
			b.Run(fmt.Sprintf("shuffled=%t/readers=%d", shuffled, readers), func(b *testing.B) {
				paired(b, []string{"rclone", "milkweed"}, []func() time.Duration{
					func() time.Duration { return rclone(func(point string) { s.read(point, readers, shuffled) }) },
					func() time.Duration { return s.cold(func() { s.read(s.point, readers, shuffled) }) },
				})
				before := s.proxy.Stats()
				s.cold(func() { s.read(s.point, readers, shuffled) })
				after := s.proxy.Stats()
				b.ReportMetric(float64(after.Gets-before.Gets)/float64(len(s.keys)), "gets/object")
				b.ReportMetric(float64(after.Lists-before.Lists), "lists")
				b.ReportMetric(float64(after.Heads-before.Heads+after.Others-before.Others), "others")
			})
		}
	}
}

// rclone returns a function that mounts the bucket with rclone, with an empty
// cache, and returns the time that f takes.
func (s *storeBench) rclone(b *testing.B) func(f func(point string)) time.Duration {
	config := filepath.Join(s.dir, "rclone.conf")
	s.check(os.WriteFile(config, []byte("[bench]\ntype = s3\nprovider = Other\nenv_auth = true\nregion = us-east-1\nendpoint = "+s.proxy.URL+"\n"), 0o600))
	return func(f func(point string)) (took time.Duration) {
		box, err := sandbox.New("/dev/shm", "milkweed-bench-", 0)
		s.check(err)
		defer func() { s.check(box.Remove()) }()
		m, err := box.MountRclone(context.Background(), "bench:bench", config)
		s.check(err)
		took = timed(func() { f(m.Point) })
		s.check(m.Remove())
		return took
	}
}

// BenchmarkBucketLaterEpochs compares the later epochs of a bucket with those of a
// folder. The copies are in the same kind of tier, and the page cache is empty.
func BenchmarkBucketLaterEpochs(b *testing.B) {
	count, size := largeObjects()
	for _, kind := range []struct {
		name        string
		count, size int
	}{{"large", count, size}, {"small", drivertest.Size(600, 60), 110_000}} {
		b.Run(kind.name, func(b *testing.B) {
			s := newStoreBench(b, kind.count, kind.size, blobtest.Plan{})
			local := newSite(b)
			for _, key := range s.keys {
				local.write(key, kind.size)
			}
			tier, err := os.MkdirTemp("/dev/shm", "milkweed-bench-")
			s.check(err)
			b.Cleanup(func() { os.RemoveAll(tier) })
			folder := func(f func()) {
				local.milkweed("mount", "--tier", "ram:"+tier+":8GiB", local.source, local.point)
				f()
				local.umount()
			}
			s.mounted(func() { s.read(s.point, 4, false); s.settled() })
			folder(func() { s.read(local.point, 4, false); local.settled() })
			before := s.proxy.Stats()
			paired(b, []string{"bucket", "folder"}, []func() time.Duration{
				func() (took time.Duration) {
					s.mounted(func() { s.must("find", s.point, "-size", "0"); took = timed(func() { s.read(s.point, 4, false) }) })
					return took
				},
				func() (took time.Duration) {
					folder(func() {
						s.must("find", local.point, "-size", "0")
						took = timed(func() { s.read(local.point, 4, false) })
					})
					return took
				},
			})
			b.ReportMetric(float64(s.proxy.Stats().Gets-before.Gets), "gets")
		})
	}
}

// BenchmarkBucketMillion measures the time and the memory for listing a million
// keys with one prefix, without and with the metadata snapshot of an earlier mount.
func BenchmarkBucketMillion(b *testing.B) {
	keys := drivertest.Size(1_000_000, 2500)
	server := blobtest.Many(b, keys)
	server.Setenv(b)
	s := newSite(b)
	folder := s.point + "/" + strings.TrimSuffix(blobtest.ManyPrefix, "/")
	proxy := blobtest.NewProxy(b, server.URL, blobtest.Plan{Latency: storeLatency})
	names := filepath.Join(s.dir, "names")
	mount := func(f func()) {
		s.milkweed("mount", "--tier", "ram:"+s.tier(1)+":1GiB", "-o", "metadata_snapshot="+names, server.BucketURL(blobtest.ManyBucket, "", proxy.URL), s.point)
		f()
		s.umount()
	}
	list := func() {
		if got := strings.TrimSpace(s.sh(`ls -f "$1" | wc -l`, folder)); got != strconv.Itoa(keys+2) {
			b.Fatalf("%s names are listed", got)
		}
	}
	for b.Loop() {
		s.check(os.RemoveAll(names))
		before := proxy.Stats()
		mount(func() {
			b.ReportMetric(timed(func() { s.must("stat", fmt.Sprintf("%s/%09d", folder, keys-1)) }).Seconds(), "first-stat-s")
			b.ReportMetric(timed(list).Seconds(), "then-list-s")
			b.ReportMetric(s.memory("VmRSS"), "rss-MB")
			b.ReportMetric(s.memory("VmHWM"), "peak-MB")
		})
		b.ReportMetric(float64(proxy.Stats().Lists-before.Lists), "lists")
		before = proxy.Stats()
		mount(func() {
			b.ReportMetric(float64(proxy.Stats().Lists-before.Lists), "lists-to-mount-again")
			b.ReportMetric(timed(list).Seconds(), "list-again-s")
		})
		b.ReportMetric(float64(proxy.Stats().Lists-before.Lists), "lists-again")
	}
	b.ReportMetric(0, "ns/op")
}

// memory returns a field of /proc/PID/status of the daemon, in megabytes.
func (s *site) memory(field string) float64 {
	s.t.Helper()
	for _, pid := range s.processes() {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue // it has ended
		}
		if _, rest, ok := strings.Cut(string(status), field+":"); ok {
			kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			s.check(err)
			return kb * 1024 / 1e6
		}
	}
	s.t.Fatal("no daemon is running")
	return 0
}
