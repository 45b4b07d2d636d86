package main

import (
	"log/slog"
	"os"
	"runtime"
	"sync"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// The Go runtime ends the process if it needs a thread and cannot make one: when the processes of a job
// have reached a limit that they share with the daemon (ulimit -u, pids.max). It needs a thread for each
// system call in progress that blocks. It keeps the threads that it has.

// reserveThreads makes the threads that a daemon with a number of background workers needs, while the
// limits allow it. Each takes about 50 KiB of memory; without a limit, none is made.
func reserveThreads(workers int, log *slog.Logger) {
	left, limit := config.ThreadsOf(os.Getpid())
	if limit == "" {
		return
	}
	n := int64(check.Threads(workers))
	if left-check.SpareThreads < n {
		log.Warn("there may not be enough threads; the daemon ends if it needs one more than it can have",
			"limit", limit, "left", left, "wanted", n)
		n = left - check.SpareThreads
	}
	var locked, ended sync.WaitGroup
	release := make(chan struct{})
	for range max(n, 0) {
		locked.Add(1)
		ended.Go(func() {
			defer panics.Contain()
			runtime.LockOSThread() // other goroutines need other threads
			defer runtime.UnlockOSThread()
			locked.Done()
			<-release
		})
	}
	locked.Wait()
	close(release)
	ended.Wait()
}
