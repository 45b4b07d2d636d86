package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// readSmall reads all files of a directory, argument 1, in rounds, argument 2, through the daemon: it drops
// the pages of each file from the page cache. It prints the seconds that this took.
const readSmall = `
import os, sys, time
names = [os.path.join(sys.argv[1], n) for n in os.listdir(sys.argv[1])]
begin = time.monotonic()
for _ in range(int(sys.argv[2])):
    for name in names:
        fd = os.open(name, os.O_RDONLY)
        os.read(fd, 1 << 20)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
print(time.monotonic() - begin)
`

// BenchmarkWatched compares the time of reading placed small files while the mount is watched with that
// while it is not, in turn. It is watched by `milkweed top` every second, and its metrics and the data of
// its page are requested every 5 seconds. The metric is the median of the ratios of neighbouring runs.
//
//	go test -run '^$' -bench Watched -benchtime 20x ./cmd/milkweed
func BenchmarkWatched(b *testing.B) {
	files, rounds := drivertest.Size(2000, 200), drivertest.Size("5", "1")
	s := newSite(b)
	for i := range files {
		s.write(fmt.Sprintf("d/%d", i), 16<<10)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.check(err)
	address := l.Addr().String()
	s.check(l.Close())
	s.milkweed(append(s.mountWords("1GiB"), "--metrics-listen", address)...)
	s.milkweed("warmup", s.point)
	read := func() float64 {
		took, err := strconv.ParseFloat(strings.TrimSpace(s.must("/usr/bin/python3", "-c", readSmall, s.point+"/d", rounds)), 64)
		s.check(err)
		return took
	}
	read()
	var ratios, alone []float64
	watched := func() float64 {
		defer s.watchMount(address)()
		return read()
	}
	for first := true; b.Loop(); first = !first { // each side is the first one in every second pair
		var without, with float64
		if first {
			without, with = read(), watched()
		} else {
			with, without = watched(), read()
		}
		ratios, alone = append(ratios, with/without), append(alone, without)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(median(alone), "s-alone")
}

// watchMount watches the mount until end is called.
func (s *site) watchMount(address string) (end func()) {
	top := s.command(s.program, "top", "--lines", s.point)
	s.check(top.Start())
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			for _, path := range []string{"/metrics", "/page.json"} {
				if r, err := http.Get("http://" + address + path); err == nil {
					io.Copy(io.Discard, r.Body)
					r.Body.Close()
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Second):
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
		top.Process.Kill()
		top.Wait()
	}
}
