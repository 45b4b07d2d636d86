package blob

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// This file keeps requests from a store that refuses the credentials:
//
//  1. A request is refused, because its credentials have expired or are unknown, or because a clock is wrong.
//     Bucket.renew starts a refusal: one goroutine looks the credentials up again, and requests the listing of Open
//     with one key, and once more with the time of the store (clock.go). All other requests wait.
//  2. If the store accepts that, all requests continue, and no reader sees an error. A request that is
//     refused soon after that is refused for another reason, such as a proxy that changes some keys.
//  3. If the store refuses that too, all requests fail at once, with its error, which is logged once. The
//     goroutine goes on, at increasing intervals, until the store accepts the credentials.

// The pause between two attempts to renew the credentials doubles from the first one to the last one.
var (
	firstRenewal = time.Second
	lastRenewal  = 30 * time.Second
)

// acceptedTTL is for how long the store is taken to accept credentials that it has just accepted.
const acceptedTTL = 10 * time.Second

// A refusal is a time during which the store refuses the credentials.
type refusal struct {
	since   time.Time
	decided chan struct{} // closed when the store has refused renewed credentials, or at the end

	err atomic.Pointer[storeError] // for readers; nil until decided is closed, and if the store accepts the credentials
}

// credentialState is what is known of the credentials of a bucket.
type credentialState struct {
	current atomic.Pointer[refusal] // nil: the store accepts the credentials

	mu       sync.Mutex // guards the following
	accepted time.Time  // when the store accepted the credentials after it had refused a request
	closed   bool
	cancel   context.CancelFunc // of the goroutine
	wg       sync.WaitGroup
}

// close ends the refusal, and waits for its goroutine.
func (c *credentialState) close() {
	c.mu.Lock()
	c.closed = true
	if c.cancel != nil {
		c.cancel()
	}
	c.mu.Unlock()
	c.wg.Wait()
}

// acceptedSince reports whether the store has accepted the credentials since a request began.
func (c *credentialState) acceptedSince(began time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return began.Before(c.accepted)
}

// justAccepted reports whether the store had just accepted the credentials when a request began.
func (c *credentialState) justAccepted(began time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return began.After(c.accepted) && began.Before(c.accepted.Add(acceptedTTL))
}

// admit returns the error of requests while the store refuses the credentials, nil if a request may be
// sent. It waits while renewed credentials are tried.
func (b *Bucket) admit(ctx context.Context) *storeError {
	r := b.credentials.current.Load()
	if r == nil {
		return nil
	}
	select {
	case <-r.decided:
		return r.err.Load()
	case <-ctx.Done():
		return nil // the request fails with the cause of ctx
	}
}

// renew looks the credentials up again after a request has failed with err. accepted means that the store has
// accepted the credentials since. refused is the error for the reader if it has refused them, and nil as well
// if it has not answered. Concurrent calls share one refusal.
func (b *Bucket) renew(ctx context.Context, err *storeError) (accepted bool, refused *storeError) {
	r := b.refuse(err)
	if r == nil {
		return true, nil
	}
	select {
	case <-r.decided:
		return b.credentials.acceptedSince(err.began), r.err.Load()
	case <-ctx.Done():
		return false, err
	}
}

// refuse returns the current refusal, and starts one if there is none. It returns nil if the store has
// accepted the credentials since the request that has failed with err began.
func (b *Bucket) refuse(err *storeError) *refusal {
	c := &b.credentials
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.current.Load()
	switch {
	case r != nil:
		return r
	case err.began.Before(c.accepted):
		return nil
	}
	r = &refusal{since: time.Now(), decided: make(chan struct{})}
	if c.closed {
		r.err.Store(err)
		close(r.decided)
		return r
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.current.Store(r)
	c.cancel = cancel
	c.wg.Go(func() {
		defer panics.Contain()
		accepted := false
		defer func() { c.end(r, accepted) }()
		accepted = b.regain(ctx, r, err)
	})
	return r
}

// end ends a refusal, because the store has accepted the credentials or has not answered.
func (c *credentialState) end(r *refusal, accepted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel()
	if accepted {
		c.accepted = time.Now()
	}
	c.current.Store(nil)
	if r.err.Load() == nil {
		close(r.decided)
	}
}

// regain renews the credentials, and decides r. err is the refusal of a request. regain returns true when
// the store accepts the credentials, and false if ctx is done, or if r is not decided and the store does not
// answer for a time: it may accept them.
func (b *Bucket) regain(ctx context.Context, r *refusal, err *storeError) (accepted bool) {
	retry := b.retrier(openRetries)
	began, pause := err.began, firstRenewal
	for {
		b.vendor.refreshCredentials(began)
		answer := b.probeTime(ctx)
		switch {
		case ctx.Err() != nil:
			return false
		case answer.accepts():
			if r.err.Load() != nil {
				b.log.Info("the store accepts the credentials again")
			}
			return true
		case !answer.refresh && r.err.Load() == nil:
			if retry.wait(ctx, answer) != nil {
				return false
			}
			continue
		case answer.refresh:
			b.decide(ctx, r, answer)
		}
		select {
		case <-time.After(pause/2 + rand.N(pause/2+1)): // the nodes of a cluster do not look them up together
		case <-ctx.Done():
			return false
		}
		began, pause = time.Now(), min(2*pause, lastRenewal)
	}
}

// accepts reports whether a store that has answered with e accepts the credentials; nil is success.
func (e *storeError) accepts() bool {
	return e == nil || e.status != 0 && !e.refresh && !e.retryable
}

// decide lets all requests fail with err, by which the store refuses the credentials.
func (b *Bucket) decide(ctx context.Context, r *refusal, err *storeError) {
	err = b.explain(ctx, err)
	err = &storeError{errno: syscall.EACCES, text: err.text, remedy: err.remedy, reported: true}
	if r.err.Swap(err) != nil {
		return
	}
	if b.connected {
		b.log.Warn("the store refuses the credentials: only files with a copy can be read", "err", err.text, "remedy", err.remedy)
	}
	close(r.decided)
}

// probe requests one key, as Open does.
func (b *Bucket) probe(ctx context.Context) *storeError {
	if _, t, err := b.listPage(ctx, b.location.Prefix, "", "", 1); err != nil {
		return b.classify(t, err)
	}
	return nil
}
