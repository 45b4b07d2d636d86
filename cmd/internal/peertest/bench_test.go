package peertest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/reader"
	"github.com/milkweedfs/milkweed/cmd/internal/simpfs"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

var many = sync.OnceValues(func() (content, error) { return images("many", 2000) })

// With -short, the benchmarks have few files instead of small and many, and pair instead of large.
var (
	few  = sync.OnceValues(func() (content, error) { return images("few", 60) })
	pair = sync.OnceValues(func() (content, error) { return tfrecords("pair", 2, 4<<20) })
)

// BenchmarkPeersColdEpoch compares the first epoch on 4 nodes with and without peers, in turn. A link
// has 4 times the bandwidth of the source, which all nodes share. The arithmetic floor of the time
// with peers is 1/4 of that without them, and "of-floor" is the time as a multiple of it. With the
// faster source, all processes together need more than the 2 cores of a small machine.
func BenchmarkPeersColdEpoch(b *testing.B) {
	type test struct {
		name    string
		content func() (content, error)
		rate    int64
	}
	var (
		nodes = drivertest.Size(4, 2)
		tests = drivertest.Size(
			[]test{{"small,100MB", many, 100e6}, {"small,25MB", small, 25e6}, {"small,10MB", small, 10e6}, {"small,5MB", small, 5e6}, {"large,100MB", large, 100e6}, {"large,25MB", large, 25e6}},
			[]test{{"small,100MB", few, 100e6}, {"large,100MB", pair, 100e6}})
	)
	for _, test := range tests {
		b.Run(test.name, func(b *testing.B) {
			speed := simpfs.Speed{Latency: time.Millisecond, BytesPerSecond: test.rate}
			alone := newCluster(b, shape{nodes: nodes, content: test.content, source: speed, link: 4 * test.rate})
			shared := newCluster(b, shape{content: test.content, source: speed, network: alone.network})
			floor := float64(shared.content.size()) / float64(test.rate)
			var without, with, ofFloor, cpu []float64
			for i := 0; b.Loop(); i++ {
				seconds, _ := alone.coldEpoch()
				without = append(without, seconds)
				seconds, used := shared.coldEpoch(shared.peers()...)
				with, cpu = append(with, seconds), append(cpu, used)
				ofFloor = append(ofFloor, float64(nodes)*with[i]/without[i])
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(floor, "s-of-source")
			b.ReportMetric(median(cpu), "cpu-s")
			b.ReportMetric(median(without), "s-without-peers")
			b.ReportMetric(median(with), "s-with-peers")
			b.ReportMetric(median(ofFloor), "of-floor")
		})
	}
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// coldEpoch returns the seconds of an epoch that begins with empty tiers, with 4 readers on each
// node, and the CPU time of the daemons. args are those of mount.
func (c *cluster) coldEpoch(args ...string) (seconds, cpu float64) {
	c.t.Helper()
	c.empty()
	c.mount(args...)
	var jobs []*job
	for _, n := range c.nodes {
		jobs = append(jobs, n.start(1, 4))
	}
	for _, j := range jobs {
		seconds = max(seconds, j.want().Seconds)
	}
	c.settle()
	cpu = c.cpu()
	c.umount()
	return seconds, cpu
}

// empty removes what the tiers hold. Nothing is mounted.
func (c *cluster) empty() {
	c.t.Helper()
	for _, n := range c.nodes {
		n.empty()
	}
}

// empty removes what the tier holds.
func (n *node) empty() {
	n.c.t.Helper()
	left, err := filepath.Glob(n.tier + "/*")
	n.c.check(err)
	for _, name := range left {
		n.c.check(os.RemoveAll(name))
	}
}

// BenchmarkPeersRemote compares, in turn, reading files that another node holds with requests to a
// plain HTTP server for the same files on the same link, and with reading files that the node holds
// itself. The server is a process of its own, as the daemons are, and sends the files with
// sendfile(2). The CPU time is that of the two daemons.
func BenchmarkPeersRemote(b *testing.B) {
	for _, test := range []struct {
		name    string
		content func() (content, error)
	}{{"110KB", drivertest.Size(small, few)}, {"16MiB", drivertest.Size(large, pair)}} {
		b.Run(test.name, func(b *testing.B) {
			c := newCluster(b, shape{nodes: 2, content: test.content, link: 400e6})
			holder, user := c.nodes[0], c.nodes[1]
			user.quota = 1 // its own files go to the holder, too
			c.mount(c.peers()...)
			c.epoch(1)
			server := holder.serve(filepath.Join(holder.tier, config.DatasetID(c.source), "files"))
			var direct, local, remote, ofHTTP, cpu []float64
			for i := 0; b.Loop(); i++ {
				direct = append(direct, user.fetch(server))
				local = append(local, holder.read())
				before := c.cpu()
				remote = append(remote, user.read())
				cpu = append(cpu, c.cpu()-before)
				ofHTTP = append(ofHTTP, remote[i]/direct[i])
			}
			bytes, files := float64(c.content.size()), float64(len(c.content.files))
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(bytes/1e6/median(direct), "MB/s-http")
			b.ReportMetric(bytes/1e6/median(remote), "MB/s-peers")
			b.ReportMetric(1e6*median(direct)/files, "µs/file-http")
			b.ReportMetric(1e6*median(local)/files, "µs/file-local")
			b.ReportMetric(1e6*median(remote)/files, "µs/file-peers")
			b.ReportMetric(median(ofHTTP), "time-of-http")
			b.ReportMetric(median(cpu)/bytes*1e9, "cpu-s/GB")
			c.umount()
		})
	}
}

// serve serves a folder by HTTP on the node, in a process of its own, and returns its URL.
func (n *node) serve(folder string) (url string) {
	l, err := n.listen(n.Address + ":0")
	n.c.check(err)
	defer l.Close()
	socket, err := l.(*net.TCPListener).File()
	n.c.check(err)
	defer socket.Close()
	self, err := os.Executable()
	n.c.check(err)
	cmd := exec.Command(self)
	cmd.Env, cmd.ExtraFiles, cmd.Stderr = append(os.Environ(), serveEnv+"="+folder), []*os.File{socket}, os.Stderr
	n.c.check(cmd.Start())
	n.c.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return "http://" + l.Addr().String() + "/"
}

// serveFolder serves a folder at the socket that serve has passed.
func serveFolder(folder string) error {
	l, err := net.FileListener(os.NewFile(3, "socket"))
	if err != nil {
		return err
	}
	return http.Serve(l, http.FileServer(http.Dir(folder)))
}

// fetch returns the seconds that it takes to request all files from a server, one after the other.
func (n *node) fetch(url string) float64 {
	transport := &http.Transport{ReadBufferSize: reader.BlockSize, DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
		err = n.Do(func() error {
			c, err = new(net.Dialer).DialContext(ctx, network, address)
			return err
		})
		return c, err
	}}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport}
	buf := make([]byte, reader.BlockSize)
	start := time.Now()
	for _, f := range n.c.content.files {
		response, err := client.Get(url + f.Name)
		n.c.check(err)
		size, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, response.Body, buf)
		response.Body.Close()
		n.c.check(err)
		if size != f.Size {
			n.c.t.Fatalf("%s: %d bytes, want %d", f.Name, size, f.Size)
		}
	}
	return time.Since(start).Seconds()
}

// read returns the seconds that it takes to read all files of the mount, one after the other.
func (n *node) read() float64 {
	var r reader.Result
	n.c.check(n.Do(func() error {
		g, err := reader.Start(context.Background(), 1, nil)
		if err != nil {
			return err
		}
		defer g.Stop()
		r, err = g.Do([]reader.Task{{Kind: reader.Read, Folder: n.point, Files: n.c.content.files, DropFirst: true}}, nil)
		return err
	}))
	return r.Seconds
}

// cpu returns the CPU time of the daemons in seconds.
func (c *cluster) cpu() (seconds float64) {
	for _, n := range c.nodes {
		for _, pid := range n.processes() {
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			c.check(err)
			// The fields after the name, which is in parentheses; utime and stime are fields 14 and 15.
			fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
			for _, field := range fields[11:13] {
				var ticks float64
				_, err := fmt.Sscan(field, &ticks)
				c.check(err)
				seconds += ticks / userHZ
			}
		}
	}
	return seconds
}

// userHZ is the unit of times in /proc on Linux.
const userHZ = 100
