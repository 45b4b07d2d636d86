package main

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/fs"
)

const (
	// minMemory is the memory limit below which a mount is refused.
	minMemory = 64 << 20

	// workerMemory is the share of the memory limit for each worker, which has up to three blocks
	// of 1 MiB in flight.
	workerMemory = 32 << 20

	// smallRequests is the size of the reads of the kernel below config.SmallMemory. Each takes a
	// buffer. Those in the background may take a quarter of the heap; there is also one for each
	// process that waits.
	smallRequests = 128 << 10

	// readAhead is for read-ahead from the source, without a limit; with one, an eighth of the heap
	// is, if that is less.
	readAhead = 256 << 20
)

// A memoryPlan divides the memory that the control group permits. What is in neither part is for
// the kernel, the page cache, and what the garbage collector has not freed yet.
type memoryPlan struct {
	heap    int64 // the soft limit of the Go runtime; math.MaxInt64: none
	ram     int64 // for the tiers in memory, which count as memory of the control group
	workers int   // at most
	request int   // the largest read of the kernel
	reads   int   // of the page cache in flight
	ahead   int64 // for read-ahead from the source
}

// planMemory returns the plan for a limit in bytes, with or without tiers in memory.
func planMemory(limit int64, hasRAM bool) memoryPlan {
	if limit == math.MaxInt64 {
		return memoryPlan{heap: limit, ram: limit, workers: math.MaxInt, request: fs.MaxRequest, reads: fs.MaxBackground, ahead: readAhead}
	}
	p := memoryPlan{workers: int(max(1, limit/workerMemory)), request: fs.MaxRequest}
	if limit < config.SmallMemory {
		p.request = smallRequests
	}
	if hasRAM {
		p.ram = max(0, min(limit/2, limit-minMemory))
	}
	p.heap = (limit - p.ram) / 2
	p.reads = int(min(p.heap/4/int64(p.request), fs.MaxBackground))
	p.ahead = min(p.heap/8, readAhead)
	return p
}

// boundMemory adapts a configuration to the memory limit of the control group. It returns the plan.
func boundMemory(c *config.Config, limit int64, log *slog.Logger) (memoryPlan, error) {
	if limit == math.MaxInt64 {
		return planMemory(limit, false), nil
	}
	if limit < minMemory {
		return memoryPlan{}, tooLittleMemory(limit)
	}
	ram := memoryTiers(c)
	p := planMemory(limit, len(ram) > 0)
	p.bound(c, ram, log)
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(p.heap)
	}
	return p, nil
}

func tooLittleMemory(limit int64) *exit.Error {
	return &exit.Error{
		Code:   exit.Fuse,
		Err:    fmt.Errorf("the control group permits %s of memory, and a mount needs %s", size(limit), size(minMemory)),
		Remedy: "Raise its limit (memory.max, or --mem in Slurm).",
	}
}

// memoryTiers returns the free bytes of the file system of each tier in memory, by its index.
func memoryTiers(c *config.Config) map[int]int64 {
	ram := make(map[int]int64)
	for i, t := range c.Tiers {
		if free, ok := tmpfs(t.Path); ok {
			ram[i] = free
		}
	}
	return ram
}

// bound reduces the quotas of tiers in memory and the number of workers to what the plan permits.
func (p memoryPlan) bound(c *config.Config, ram map[int]int64, log *slog.Logger) {
	for i, free := range ram {
		q := &c.Tiers[i].Quota
		share := p.ram / int64(len(ram))
		if want := max(q.Bytes, int64(float64(free)*q.Percent/100)); want > share {
			log.Warn("tier in memory is reduced, because of the memory limit of the control group",
				"tier", c.Tiers[i].Name, "from", q.String(), "to", size(share))
			*q = config.Quota{Bytes: max(share, 1)} // 0 is no quota
		}
	}
	if c.Placement.Workers > p.workers {
		log.Info("fewer workers, because of the memory limit of the control group", "workers", p.workers)
		c.Placement.Workers = p.workers
	}
}

// tmpfs reports whether a path, or the parent of it that exists, is in memory, and the free bytes
// there. A file system that hangs is not.
func tmpfs(path string) (free int64, ok bool) {
	found := make(chan unix.Statfs_t, 1)
	err := atMost(endTime, func() error {
		var st unix.Statfs_t
		err := unix.Statfs(path, &st)
		for ; err != nil && path != filepath.Dir(path); err = unix.Statfs(path, &st) {
			path = filepath.Dir(path)
		}
		found <- st
		return err
	})
	if err != nil {
		return 0, false
	}
	st := <-found
	return int64(st.Bavail) * st.Bsize, st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC
}
