package main

import (
	"log/slog"
	"os"
	"runtime"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/tiers"
)

// The Go runtime ends the process if it needs a thread and cannot make one: when the processes of a job
// have reached a limit that they share with the daemon (ulimit -u, pids.max). It needs a thread for each
// system call in progress that blocks. It keeps the threads that it has. Package tiers admits no more calls
// than there are threads for.

// threadReserve makes threads, if the threads of the daemon are limited. Each takes about 50 KiB of
// memory.
type threadReserve struct {
	log  *slog.Logger
	pid  int // whose limits count
	mu   panics.Mutex
	told time.Time // when it was logged last that no more can be made
}

// reserveThreads makes the threads that a daemon with a number of background workers needs, while the
// limits allow it, and returns what they suffice for. Without a limit it makes none, and returns nil.
func reserveThreads(workers int, log *slog.Logger) *tiers.Threads {
	left, limit := config.ThreadsOf(os.Getpid())
	if limit == "" {
		return nil
	}
	n := int64(check.Threads(workers))
	if left-check.SpareThreads < n {
		n = max(left-check.SpareThreads, 0)
	}
	calls := max(int(n)-check.OtherThreads, minCalls)
	if n < int64(check.Threads(workers)) {
		log.Warn("there may not be enough threads; calls of the source and the tiers wait for others, and the daemon ends if it needs one more than it can have",
			"limit", limit, "left", left, "wanted", check.Threads(workers), "calls", calls)
	}
	makeThreads(int(n))
	r := &threadReserve{log: log, pid: os.Getpid()}
	return &tiers.Threads{Calls: calls, More: r.more}
}

// minCalls is how many calls may block if there are not even threads for these.
const minCalls = 8

// threadWarning is the time between two warnings of a threadReserve.
const threadWarning = time.Minute

// more implements tiers.Threads. It makes threads only while many more are left, because jobs use them
// up meanwhile.
func (r *threadReserve) more(n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	left, limit := config.ThreadsOf(r.pid)
	if left < int64(4*n+check.SpareThreads) {
		if now := time.Now(); now.Sub(r.told) > threadWarning {
			r.told = now
			r.log.Warn("calls of the source or a tier wait for others, because there may be no more threads", "limit", limit, "left", left)
		}
		return false
	}
	makeThreads(threadsNow() + n)
	return true
}

// threadsNow returns how many threads the Go runtime has made. They stay.
func threadsNow() int {
	sample := []metrics.Sample{{Name: "/sched/threads/total:threads"}}
	metrics.Read(sample)
	return int(sample[0].Value.Uint64())
}

// makeThreads makes threads until there are n.
func makeThreads(n int) {
	var locked, ended sync.WaitGroup
	release := make(chan struct{})
	// A thread without work is used before one is made: n goroutines that have a thread each suffice.
	for made := 0; made < n && threadsNow() < n; made++ {
		locked.Add(1)
		ended.Go(func() {
			defer panics.Contain()
			runtime.LockOSThread() // other goroutines need other threads
			defer runtime.UnlockOSThread()
			locked.Done()
			<-release
		})
		locked.Wait()
	}
	close(release)
	ended.Wait()
}
