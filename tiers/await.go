package tiers

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// errTimeout is the error of an operation that a tier did not complete in time.
var errTimeout = fmt.Errorf("no answer in time: %w", drivers.ErrAbandoned)

// await calls f on a goroutine of its own and waits for its result until ctx is done
// or, if timeout is not 0, until timeout has passed. If it stops waiting, the error
// matches drivers.ErrAbandoned, and await passes a later result without an error to
// late, which may be nil. A panic of f is an error. When f and late have returned, await
// calls end, unless it is nil.
//
// The goroutine may outlive its caller, as those of closer may: a system call that hangs
// in a broken device cannot be ended, only abandoned.
func await[T any](ctx context.Context, timeout time.Duration, f func() (T, error), late func(T), end func()) (T, error) {
	if end == nil {
		end = func() {}
	}
	if timeout == 0 && ctx.Done() == nil {
		defer end()
		return caught(f)
	}
	type result struct {
		v   T
		err error
	}
	var (
		done      = make(chan result, 1)
		abandoned atomic.Bool
	)
	go func() {
		defer end()
		v, err := caught(f)
		done <- result{v, err}
		if abandoned.Load() {
			// The waiter may still have received the result, or may have left
			// it. The goroutine that takes it out of the channel owns it.
			select {
			case r := <-done:
				if r.err == nil && late != nil {
					defer panics.Contain()
					late(r.v)
				}
			default:
			}
		}
	}()
	var expired <-chan time.Time
	if timeout != 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		expired = timer.C
	}
	var err error
	select {
	case r := <-done:
		return r.v, r.err
	case <-expired:
		err = errTimeout
	case <-ctx.Done():
		err = fmt.Errorf("%w: %w", drivers.ErrAbandoned, context.Cause(ctx))
	}
	abandoned.Store(true)
	select {
	case r := <-done: // it arrived at the same moment
		return r.v, r.err
	default:
		var none T
		return none, err
	}
}

// caught calls f. A panic of f is an error.
func caught[T any](f func() (T, error)) (v T, err error) {
	defer panics.Catch(&err)
	return f()
}
