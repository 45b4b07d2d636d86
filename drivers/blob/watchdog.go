package blob

import (
	"context"
	"errors"
	"time"
)

// errStalled is the cause of a request's context when the watchdog has cancelled
// the request.
var errStalled = errors.New("no response in time")

// minProgress is the number of bytes that a response must transfer within the stall
// time-out, and an operation between two failures, to count as progress. A store that
// sends a byte now and then is of no more use than one that hangs.
const minProgress = 1 << 10

// A watchdog cancels a request that makes too little progress while a caller waits. It
// is for one goroutine at a time.
type watchdog struct {
	ctx   context.Context
	timer *time.Timer
	stall time.Duration

	left  time.Duration // how long callers may still wait for minProgress bytes
	since time.Time     // when the caller began to wait
	bytes int           // received since left was last set to stall
}

// withWatchdog returns a context for one request and its watchdog, which is armed.
// The caller calls the CancelFunc when the request has ended.
func withWatchdog(ctx context.Context, stall time.Duration) (context.Context, *watchdog, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watchdog{ctx: ctx, timer: time.AfterFunc(stall, func() { cancel(errStalled) }), stall: stall}
	w.restart()
	return ctx, w, func() {
		w.timer.Stop()
		cancel(context.Canceled)
	}
}

// restart restarts the time-out: a caller waits.
func (w *watchdog) restart() {
	w.left, w.bytes = w.stall, 0
	w.arm()
}

// arm continues the time-out: a caller waits for more data.
func (w *watchdog) arm() {
	w.since = time.Now()
	w.timer.Reset(w.left)
}

// received records that n bytes have arrived.
func (w *watchdog) received(n int) {
	if w.bytes += n; w.bytes >= minProgress {
		w.restart()
	}
}

// disarm stops the time-out: no caller waits. It returns err, the result of the
// wait, or errStalled if the watchdog has cancelled the request.
func (w *watchdog) disarm(err error) error {
	w.timer.Stop()
	w.left -= time.Since(w.since)
	if err != nil && errors.Is(context.Cause(w.ctx), errStalled) {
		return errStalled
	}
	return err
}
