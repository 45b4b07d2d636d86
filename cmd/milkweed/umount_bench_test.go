package main

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// BenchmarkUmountWithContainer mounts a dataset, starts a process in a mount namespace of its own
// that reads it, and unmounts it, while another process writes to the disk of the tier and syncs
// it. It reports the duration of umount, and of the longest one.
//
//	go test -run '^$' -bench UmountWithContainer -benchtime 100x ./cmd/milkweed
func BenchmarkUmountWithContainer(b *testing.B) {
	written := drivertest.Size("64", "4") // MiB between two syncs
	s := newSite(b)
	for i := range 20 {
		s.write(fmt.Sprintf("f%d", i), 1<<20)
	}
	load := s.command("sh", "-c", `while dd if=/dev/zero of="$1" bs=1M count="$2" conv=fsync 2>/dev/null; do :; done`, "sh", s.dir+"/load", written)
	s.check(load.Start())
	defer func() {
		load.Process.Kill()
		load.Wait()
		os.Remove(s.dir + "/load")
	}()
	var total, longest time.Duration
	for b.Loop() {
		s.emptyTiers()
		s.mount("64MiB")
		c := s.inContainer()
		for i := range 20 {
			c.ask(fmt.Sprintf("sum %s/f%d", s.point, i))
		}
		start := time.Now()
		s.umount()
		took := time.Since(start)
		total, longest = total+took, max(longest, took)
		c.end()
		s.eventually("the daemon ends", func() bool {
			left := len(s.processes())
			return left <= 1 // the load
		})
	}
	b.ReportMetric(float64(total.Milliseconds())/float64(b.N), "ms/umount")
	b.ReportMetric(float64(longest.Milliseconds()), "ms/longest")
}
