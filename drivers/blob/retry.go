package blob

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// A patience is how long, and how often, a store is asked again. The libraries
// of the vendors may not: each has its own idea of it, and the one that goes on in
// the middle of a body (errTwice) neither pauses nor looks at what it gets.
type patience struct {
	first time.Duration // the longest first pause; each is twice as long
	most  time.Duration // but no longer than this
	limit time.Duration // no pause begins when so long has passed without success
}

// opening is for the request that shows whether a bucket can be read: whoever
// mounts it waits for the answer. Reading is for all others. A job that gets an
// error ends; a store that restarts is back in less.
var (
	opening = patience{first: 100 * time.Millisecond, most: time.Second, limit: 5 * time.Second}
	reading = patience{first: 100 * time.Millisecond, most: 5 * time.Second, limit: 2 * time.Minute}
)

// An effort is the asking of one thing until it succeeds. The zero value of the
// last fields is one that has not begun.
type effort struct {
	patience
	retries *int64 // counts the requests that are sent again

	since   time.Time // of the first failure in a row
	pauses  int       // in a row
	renewed bool      // other credentials were looked for
}

// succeeded says that something has come: what fails next is another failure.
func (e *effort) succeeded() { *e = effort{patience: e.patience, retries: e.retries} }

// again waits until it is time to ask again, if err is one for which that is to
// be done, and else returns err.
func (e *effort) again(ctx context.Context, v vendor, err *storeError) error {
	now := time.Now()
	if e.since.IsZero() {
		e.since = now
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err.renew && !e.renewed && v.renew(err.began):
		e.renewed = true
		atomic.AddInt64(e.retries, 1)
		return nil
	case !err.again:
		return err
	}
	// Full jitter: callers that failed together do not come back together.
	bound := min(e.first<<min(e.pauses, 16), e.most)
	pause := max(time.Duration(rand.Int64N(int64(bound)))+1, err.after)
	if now.Add(pause).Sub(e.since) > e.limit {
		return err
	}
	e.pauses++
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		atomic.AddInt64(e.retries, 1)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// errStalled is the cause of a request that was ended because nothing came.
var errStalled = errors.New("no answer in time")

// A watchdog ends a request for which nothing comes while somebody waits for it.
type watchdog struct {
	ctx   context.Context
	timer *time.Timer
	stall time.Duration
}

// watched returns a context for one request, and what watches it from now on.
// The context is done when nothing has come for so long.
func watched(ctx context.Context, stall time.Duration) (context.Context, *watchdog, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watchdog{ctx: ctx, timer: time.AfterFunc(stall, func() { cancel(errStalled) }), stall: stall}
	return ctx, w, func() {
		w.timer.Stop()
		cancel(context.Canceled)
	}
}

// watch says that somebody waits.
func (w *watchdog) watch() { w.timer.Reset(w.stall) }

// rest says that nobody waits any more, because something has come, or err. It
// returns err, or that of the watchdog if it has ended the request.
func (w *watchdog) rest(err error) error {
	w.timer.Stop()
	if err != nil && errors.Is(context.Cause(w.ctx), errStalled) {
		return errStalled
	}
	return err
}
