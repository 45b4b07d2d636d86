package blob

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// A retryPolicy bounds the retries of one operation. The retries of the vendors'
// libraries are disabled, because each library has its own policy.
type retryPolicy struct {
	firstBackoff time.Duration // bound of the first backoff; each bound is twice the one before
	maxBackoff   time.Duration // largest bound
	timeout      time.Duration // no backoff ends later than this after the first failure in a row
}

// openRetries is for the request that tests whether a bucket can be read: a user
// waits for the result at a terminal. readRetries is for all other requests. An error
// ends a job, and a store that restarts is back within the time-out of readRetries.
var (
	openRetries = retryPolicy{firstBackoff: 100 * time.Millisecond, maxBackoff: time.Second, timeout: 5 * time.Second}
	readRetries = retryPolicy{firstBackoff: 100 * time.Millisecond, maxBackoff: 5 * time.Second, timeout: 2 * time.Minute}
)

// A retrier is the retry state of one operation. It is for one goroutine.
type retrier struct {
	retryPolicy
	bucket *Bucket // which counts the retries, and whose credentials are renewed

	// The failures since the last success. Zero values: there were none.
	firstFailure time.Time
	backoffs     int
	renewals     int // after which the store has accepted the credentials
}

// maxRenewals bounds retrier.renewals: then the store refuses the request for another reason.
const maxRenewals = 2

// retrier returns the retry state of an operation that has not failed yet.
func (b *Bucket) retrier(p retryPolicy) retrier {
	return retrier{retryPolicy: p, bucket: b}
}

// succeeded records progress: the next failure is the first in a row.
func (r *retrier) succeeded() { *r = r.bucket.retrier(r.retryPolicy) }

// wait returns nil when it is time to retry after err. It returns err if a retry is
// useless or would be too late, and the cause of ctx if ctx is done.
func (r *retrier) wait(ctx context.Context, err *storeError) error {
	now := time.Now()
	if r.firstFailure.IsZero() {
		r.firstFailure = now
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err.isOfSignature():
		accepted, refused := r.bucket.renew(ctx, err)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case refused != nil:
			return refused
		case accepted && r.renewals == maxRenewals:
			return err
		case accepted:
			r.renewals++
			atomic.AddInt64(&r.bucket.counters.Retries, 1)
			return nil
		}
		now = time.Now()
	case !err.retryable:
		return err
	}
	// Full jitter: callers that failed together do not retry together.
	bound := min(r.firstBackoff<<min(r.backoffs, 16), r.maxBackoff)
	backoff := max(time.Duration(rand.Int64N(int64(bound)))+1, err.retryAfter)
	if now.Add(backoff).Sub(r.firstFailure) > r.timeout {
		return err
	}
	r.backoffs++
	timer := time.NewTimer(backoff)
	defer timer.Stop()
	select {
	case <-timer.C:
		atomic.AddInt64(&r.bucket.counters.Retries, 1)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
