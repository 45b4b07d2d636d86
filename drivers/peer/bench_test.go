package peer

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// against runs functions in turn, times times each. It reports the median time of the first, and the
// medians of its ratios to each of the others, whose names are given. cpu reports the CPU time of
// this process, which is client and server of both sides, too.
func against(b *testing.B, times int, names []string, sides ...func() error) {
	b.Helper()
	took := make([][]float64, len(sides))
	used := make([][]float64, len(sides))
	for b.Loop() {
		for i, f := range sides {
			start, cpu := time.Now(), cpuTime()
			for range times {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
			took[i] = append(took[i], time.Since(start).Seconds()/float64(times)*1e6)
			used[i] = append(used[i], (cpuTime()-cpu).Seconds()/float64(times)*1e6)
		}
	}
	b.ReportMetric(median(took[0]), "us")
	b.ReportMetric(median(used[0]), "cpu-us")
	for i, name := range names {
		b.ReportMetric(median(ratios(took[0], took[i+1])), "time/"+name)
		b.ReportMetric(median(ratios(used[0], used[i+1])), "cpu/"+name)
	}
	b.ReportMetric(0, "ns/op")
}

func ratios(a, b []float64) []float64 {
	var r []float64
	for i := range a {
		r = append(r, a[i]/b[i])
	}
	return r
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// cpuTime returns the CPU time that this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchRig returns an Object of a file of size bytes that another node has placed, and a plain server
// with a file of the same content, both in memory. change is as for newRig.
func benchRig(b *testing.B, size int, change func(*Config)) (o drivers.Object, client *http.Client, url string) {
	dir, err := os.MkdirTemp("/dev/shm", "milkweed-bench")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	data := content(size)
	store, err := newCopy(filepath.Join(dir, "tier"), "f", data)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { store.Close() })
	if err := os.WriteFile(filepath.Join(dir, "f"), data, 0o600); err != nil {
		b.Fatal(err)
	}
	r := newRig(b, newMemory(map[string][]byte{"f": data}), change, posixFiles{store})
	plain := httptest.NewServer(http.FileServer(http.Dir(dir)))
	b.Cleanup(plain.Close)
	transport := &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	b.Cleanup(transport.CloseIdleConnections)
	return r.open("f"), &http.Client{Transport: transport}, plain.URL + "/f"
}

// get reads a URL into buf.
func get(client *http.Client, url string, buf []byte) error {
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, buf)
	return err
}

// BenchmarkRemoteFile reads a placed file of another node, in streams as fills do and in reads of 1
// MiB, against GET requests of the file to a plain server, which uses sendfile.
func BenchmarkRemoteFile(b *testing.B) {
	size := drivertest.Size(256<<20, 4<<20)
	for _, readers := range drivertest.Size([]int{1, 4}, []int{4}) {
		b.Run(fmt.Sprintf("readers=%d", readers), func(b *testing.B) {
			o, client, url := benchRig(b, size, nil)
			atOnce := func(f func(buf []byte) error) func() error {
				return func() error {
					var (
						wg    sync.WaitGroup
						first error
						mu    sync.Mutex
					)
					for range readers {
						wg.Go(func() {
							if err := f(make([]byte, 1<<20)); err != nil {
								mu.Lock()
								defer mu.Unlock()
								first = err
							}
						})
					}
					wg.Wait()
					return first
				}
			}
			for name, read := range map[string]func([]byte) error{
				"stream": func(buf []byte) error {
					s, err := o.(drivers.Streamer).Stream(context.Background(), 0, int64(size))
					if err != nil {
						return err
					}
					defer s.Close()
					_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{s}, buf)
					return err
				},
				"reads": func(buf []byte) error {
					for off := int64(0); off < int64(size); off += int64(len(buf)) {
						if _, err := o.ReadAt(context.Background(), buf, off); err != nil {
							return err
						}
					}
					return nil
				},
			} {
				b.Run(name, func(b *testing.B) {
					against(b, 1, []string{"plain"}, atOnce(read), atOnce(func(buf []byte) error { return get(client, url, buf) }))
				})
			}
		})
	}
}

// BenchmarkTLS reads a placed file of another node in a stream, with TLS against without.
func BenchmarkTLS(b *testing.B) {
	size := drivertest.Size(256<<20, 4<<20)
	ca := newAuthority(b)
	secure, _, _ := benchRig(b, size, func(c *Config) {
		f := filesIn(b.TempDir())
		ca.issue(f, []string{c.Self}, nil, ca)
		c.TLS = readTLS(b, f)
	})
	plain, _, _ := benchRig(b, size, nil)
	buf := make([]byte, 1<<20)
	stream := func(o drivers.Object) func() error {
		return func() error {
			s, err := o.(drivers.Streamer).Stream(context.Background(), 0, int64(size))
			if err != nil {
				return err
			}
			defer s.Close()
			_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{s}, buf)
			return err
		}
	}
	against(b, 1, []string{"plain"}, stream(secure), stream(plain))
}

// BenchmarkSmallRemoteFile opens and reads a placed file of 110 KB of another node, against a plain
// GET request.
func BenchmarkSmallRemoteFile(b *testing.B) {
	const size = 110_000
	o, client, url := benchRig(b, size, nil)
	buf := make([]byte, size)
	against(b, drivertest.Size(1000, 10), []string{"plain"}, func() error {
		_, err := o.ReadAt(context.Background(), buf, 0)
		return err
	}, func() error { return get(client, url, buf) })
}
