package tiers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// errTimeout is the error of an operation that a tier did not answer in time.
var errTimeout = fmt.Errorf("no answer in time: %w", drivers.ErrAbandoned)

// await calls f on a goroutine of its own and waits for it, but no longer than
// until ctx is done or, if d is not 0, for d. When it does not wait to the end
// the error matches drivers.ErrAbandoned, and what f returns in the end is
// given to late, which may be nil.
//
// This is the one place where a goroutine may outlive whoever started it: a
// system call that hangs in a broken device cannot be ended, only left behind.
func await[T any](ctx context.Context, d time.Duration, f func() (T, error), late func(T)) (T, error) {
	if d == 0 && ctx.Done() == nil {
		return f()
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
		v, err := f()
		done <- result{v, err}
		if abandoned.Load() {
			// The waiter may have seen the result after all, or have
			// left it; whoever takes it out of the channel owns it.
			select {
			case r := <-done:
				if r.err == nil && late != nil {
					late(r.v)
				}
			default:
			}
		}
	}()
	var expired <-chan time.Time
	if d != 0 {
		timer := time.NewTimer(d)
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
	case r := <-done: // it came while we turned away
		return r.v, r.err
	default:
		var none T
		return none, err
	}
}

// A usage counts the operations that are under way on something that will be
// closed, so that a close is put off until the last of them, abandoned ones
// included, has returned. Otherwise an abandoned write could go on in whatever
// file was given the same descriptor next.
type usage struct {
	mu     sync.Mutex // guards the following
	n      int
	closed bool
}

// enter begins an operation.
func (u *usage) enter() {
	u.mu.Lock()
	u.n++
	u.mu.Unlock()
}

// leave ends an operation on c, and closes c if that was put off until now.
func (u *usage) leave(c io.Closer) {
	u.mu.Lock()
	u.n--
	last := u.closed && u.n == 0
	u.mu.Unlock()
	if last {
		c.Close()
	}
}

// close reports whether the caller must close now; if not, a leave will.
func (u *usage) close() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	again := u.closed
	u.closed = true
	return u.n == 0 && !again
}

// backingFile is the BackingFile of obj, which is not closed before release.
func backingFile(obj drivers.Object, u *usage, register func(fd uintptr) error) (release func(), err error) {
	b, ok := drivers.As[drivers.BackingFiler](obj)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	u.enter()
	done, err := b.BackingFile(register)
	if err != nil {
		u.leave(obj)
		return nil, err
	}
	return func() {
		done()
		u.leave(obj)
	}, nil
}
