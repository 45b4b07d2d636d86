package limit

import "context"

// A Rate is a rate limit on work that is not an operation of a Driver, such as reading copies
// to verify them. Its methods may be called concurrently.
type Rate struct{ limiter limiter }

// NewRate returns a limit of some units per second, such as bytes; 0 is no limit.
func NewRate(perSecond int64) *Rate {
	r := new(Rate)
	r.limiter.set(perSecond)
	return r
}

// Wait returns when the rate admits n more units, or with the error of ctx.
func (r *Rate) Wait(ctx context.Context, n int64) error { return r.limiter.wait(ctx, n) }
