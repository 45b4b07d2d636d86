package main

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"runtime"
	"runtime/metrics"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/drivers/peer"
	"github.com/milkweedfs/milkweed/drivers/posix"
	"github.com/milkweedfs/milkweed/tiers"
)

// The Go runtime ends the process if it needs a thread and cannot make one: when the processes of a job
// have reached a limit that they share with the daemon (ulimit -u, pids.max). It needs a thread for each
// system call in progress that blocks. It keeps the threads that it has. Package tiers admits no more calls
// than there are threads for.

// A threadReserve makes threads, if the threads of the daemon are limited. Each takes about 50 KiB of memory.
type threadReserve struct {
	log *slog.Logger

	mu      panics.Mutex // held while threads are made
	hidden  int64        // threads that count for the limit of the user and are not seen, at most
	counted time.Time    // when hidden was found out; zero: this process sees all threads
	refused time.Time    // when none could be made
	told    time.Time    // when that was logged
}

const (
	// minCalls is how many calls may block if there are not even threads for these.
	minCalls = 8

	// maxThreads is how many threads a daemon has at most. A Go program ends when it has 10,000.
	maxThreads = 9000

	// threadStep is how many threads are made before the limit is looked at again. Jobs use up threads
	// meanwhile.
	threadStep = 16

	// threadMargin is how many threads a daemon leaves when it makes more of them while jobs run.
	threadMargin = 128

	// countPause is the time before hidden threads are counted again.
	countPause = 3 * time.Second

	// refusedPause is the time before more threads are made when there could be no more.
	refusedPause = time.Second

	// threadWarning is the time between two warnings of a threadReserve.
	threadWarning = time.Minute
)

// reserveThreads makes the threads that a daemon with a number of background workers needs, while the
// limits allow it, and returns what they suffice for. Without a limit it makes none, and returns nil.
func reserveThreads(workers int, log *slog.Logger) *tiers.Threads {
	left, limit := config.ThreadsOf(os.Getpid())
	if limit == "" {
		return nil
	}
	r := &threadReserve{log: log}
	want := check.Threads(workers)
	if !config.SeesAllThreads() {
		r.count(want - threadsNow() + check.SpareThreads + threadStep)
		left = r.left()
	}
	r.reserve(want)
	have := min(want, threadsNow())
	calls := max(have-check.OtherThreads(), minCalls)
	if have < want {
		log.Warn("there may not be enough threads; calls of the source and the tiers wait for others, and the daemon ends if it needs one more than it can have",
			"limit", limit, "left", left, "wanted", want, "calls", calls)
	}
	posix.LimitThreads(r.more)
	peer.LimitThreads(r.more)
	return &tiers.Threads{Calls: int64(calls), More: r.more}
}

// maxCounts is how often hidden threads are counted again when a daemon starts.
const maxCounts = 3

// reserve makes threads until there are want of them, if the limits allow it. Hidden threads are counted as such only
// as far as there would still be enough: if other daemons have started since then, they are counted again.
func (r *threadReserve) reserve(want int) {
	for range maxCounts {
		r.add(want-threadsNow(), check.SpareThreads)
		if threadsNow() >= want || r.counted.IsZero() {
			return
		}
		r.count(want - threadsNow() + check.SpareThreads + threadStep)
	}
}

// more implements tiers.Threads.
func (r *threadReserve) more(n int) (made int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.refused) < refusedPause {
		return 0
	}
	if !r.counted.IsZero() && r.left() < int64(n+threadMargin) && time.Since(r.counted) > countPause {
		r.count(n + threadMargin + threadStep)
	}
	if made = r.add(n, threadMargin); made == n {
		return made
	}
	now := time.Now()
	if made == 0 {
		r.refused = now
	}
	if now.Sub(r.told) > threadWarning {
		r.told = now
		left, limit := config.ThreadsBeside(os.Getpid(), r.hidden)
		r.log.Warn("calls of the source or a tier may wait for others, because there may be no more threads", "limit", limit, "left", left)
	}
	return made
}

// add makes up to n threads while more than margin are left, and returns how many it has made.
func (r *threadReserve) add(n, margin int) int {
	return makeThreads(min(n, maxThreads-threadsNow()), func() int {
		return int(min(r.left(), threadStep+int64(margin))) - margin
	})
}

// left returns how many more threads this process may have.
func (r *threadReserve) left() int64 {
	left, _ := config.ThreadsBeside(os.Getpid(), r.hidden)
	return left
}

// count finds out how many threads are hidden at most, if n more are enough.
func (r *threadReserve) count(n int) {
	r.counted = time.Now()
	left, most := config.UserThreads(os.Getpid())
	if most == math.MaxInt64 {
		r.hidden = 0
		return
	}
	r.hidden = max(0, left-int64(countRoom(int(min(left, int64(n))))))
}

// countEnv is the environment variable of a process that countRoom has started. It has a number of threads.
const countEnv = "MILKWEED_COUNT_THREADS"

// countRoom returns how many threads may be made, up to n. It starts a process that makes them, and that the runtime
// ends at the limit: in a PID namespace, the kernel counts threads that nobody there sees.
func countRoom(n int) int {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", countEnv, n))
	threads, _ := cmd.Output() // a byte for each
	return len(threads)
}

// isCounting makes the threads that countRoom wants to know of, if this process is one that it has started.
func isCounting() bool {
	n, err := strconv.Atoi(os.Getenv(countEnv))
	if err != nil {
		return false
	}
	unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}) // its end is no fault
	os.Stdout.Write(make([]byte, threadsNow()))
	makeThreads(n-threadsNow(), func() int {
		os.Stdout.Write(make([]byte, 1))
		return 1
	})
	return true
}

// threadsNow returns how many threads the Go runtime has made. They stay.
func threadsNow() int {
	sample := []metrics.Sample{{Name: "/sched/threads/total:threads"}}
	metrics.Read(sample)
	return int(sample[0].Value.Uint64())
}

// makeThreads makes up to n threads, and returns how many it has made. Before the first and after each room
// threads, it asks again for how many there is room; it ends when there is none.
func makeThreads(n int, room func() int) (made int) {
	var locked, ended sync.WaitGroup
	release := make(chan struct{})
	before, may := threadsNow(), 0
	// A thread without work is used before one is made: before+n goroutines that have a thread each suffice.
	for holding := 0; made < n && holding < before+n; holding++ {
		if made >= may {
			if may = made + room(); made >= may {
				break
			}
		}
		locked.Add(1)
		ended.Go(func() {
			defer panics.Contain()
			runtime.LockOSThread() // other goroutines need other threads
			defer runtime.UnlockOSThread()
			locked.Done()
			<-release
		})
		locked.Wait()
		made = threadsNow() - before
	}
	close(release)
	ended.Wait()
	return min(made, max(n, 0))
}
