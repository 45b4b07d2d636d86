package blob

import (
	"context"
	"errors"
	"time"
)

// errStalled is the cause of a request's context when the watchdog has cancelled
// the request.
var errStalled = errors.New("no response in time")

// A watchdog cancels a request for which no data arrives while a caller waits.
type watchdog struct {
	ctx   context.Context
	timer *time.Timer
	stall time.Duration
}

// withWatchdog returns a context for one request and its watchdog, which is armed.
// The caller calls the CancelFunc when the request has ended.
func withWatchdog(ctx context.Context, stall time.Duration) (context.Context, *watchdog, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watchdog{ctx: ctx, timer: time.AfterFunc(stall, func() { cancel(errStalled) }), stall: stall}
	return ctx, w, func() {
		w.timer.Stop()
		cancel(context.Canceled)
	}
}

// arm restarts the time-out: a caller waits for data.
func (w *watchdog) arm() { w.timer.Reset(w.stall) }

// disarm stops the time-out: no caller waits. It returns err, the result of the
// wait, or errStalled if the watchdog has cancelled the request.
func (w *watchdog) disarm(err error) error {
	w.timer.Stop()
	if err != nil && errors.Is(context.Cause(w.ctx), errStalled) {
		return errStalled
	}
	return err
}
