package main

import (
	"bytes"
	"context"
	"os"
	"runtime/pprof"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/fs"
)

const (
	// watchEvery is the time between two steps of the watchdog.
	watchEvery = 5 * time.Second

	// stuckAfter is the age from which a request counts as stuck.
	stuckAfter = time.Minute

	// reportEvery is the least time between two reports of stuck requests.
	reportEvery = 10 * time.Minute

	// hopelessAfter is the time after which the daemon ends because of what can never end.
	hopelessAfter = time.Minute
)

// A watchdog reports requests that take long, and ends the daemon because of what can never end.
// The source may hang, so that a request may take long. Four things only a fault of the daemon can
// cause:
//
//   - A function panics while it holds a lock that requests share (panics.Broken).
//   - A status takes a minute. It calls neither the source nor a tier, and takes locks that
//     requests share: one of them was never released.
//   - A request goes on a minute after its interruption. All waits end with their request.
//   - The kernel waits for a reply that it has rejected (fs.Mount.AwaitLostReply).
//
// The kernel does not let a process end that waits for the reply to a request. When the daemon has
// ended, the process gets ENOTCONN or ECONNABORTED, and a supervisor mounts again.
type watchdog struct {
	broken <-chan struct{}
	stuck  func() fs.Stuck
	status func()
	report func(fs.Stuck)
	end    func(reason string)

	reported time.Time     // when stuck requests were last reported
	answered chan struct{} // closed when the status in progress is complete; nil: none is in progress
	waited   time.Duration // for that status
}

// watch runs the watchdog until ctx is done.
func (d *daemon) watch(ctx context.Context) {
	w := &watchdog{
		broken: panics.Broken(),
		stuck:  func() fs.Stuck { return d.mount.Stuck(stuckAfter) },
		status: func() { d.Status(ctx) },
		report: func(s fs.Stuck) {
			d.log.Warn("requests take long", "requests", s.Requests, "oldest", s.Oldest.Round(time.Second), "stacks", fs.Stacks())
		},
		end: d.die,
	}
	tick := time.NewTicker(watchEvery) // drops ticks while this process is stopped
	defer tick.Stop()
	w.run(ctx, tick.C)
}

// watchReplies ends the daemon when a request will never get a reply, until ctx is done.
func (d *daemon) watchReplies(ctx context.Context) {
	err := d.mount.AwaitLostReply(ctx, d.connection)
	switch {
	case err == nil:
		d.die("the kernel waits for a reply that it has rejected")
	case ctx.Err() == nil:
		d.log.Warn("replies are not watched", "err", err)
	}
}

// run examines the daemon at each tick, until ctx is done.
func (w *watchdog) run(ctx context.Context, tick <-chan time.Time) {
	for {
		select {
		case <-w.broken:
			w.end("a function has panicked while it held a lock that requests share")
			return
		case now := <-tick:
			w.step(now)
		case <-ctx.Done():
			return
		}
	}
}

// step examines the daemon once.
func (w *watchdog) step(now time.Time) {
	if s := w.stuck(); s.Abandoned > hopelessAfter {
		w.end("a request goes on after its interruption")
	} else if s.Requests > 0 && now.Sub(w.reported) > reportEvery {
		w.reported = now
		w.report(s)
	}
	if w.answered == nil {
		w.ask()
		return
	}
	select {
	case <-w.answered:
		w.ask()
	default:
		if w.waited += watchEvery; w.waited > hopelessAfter {
			w.end("a lock that all requests share is held for ever")
		}
	}
}

// ask starts a status.
func (w *watchdog) ask() {
	answered := make(chan struct{})
	w.answered, w.waited = answered, 0
	go func() {
		defer close(answered)
		defer panics.Contain()
		w.status()
	}()
}

// die logs the stacks of all goroutines and ends the process. It ends the connection first, because
// a thread that hangs in a system call delays the end of the process.
func (d *daemon) die(reason string) {
	var stacks bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&stacks, 1)
	d.log.Error("the daemon ends: "+reason, "stacks", stacks.String())
	d.connection.Abort()
	d.messages.flush()
	os.Exit(1)
}
