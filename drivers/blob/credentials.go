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
//  1. A request is refused, because its credentials have expired or are unknown. Bucket.renew starts a
//     refusal, and looks the credentials up again. All other requests wait.
//  2. The refused request is repeated once, for one byte or one key. If the store accepts it, all
//     requests continue, and no reader sees an error.
//  3. Otherwise all requests fail at once, with the error of the store, which is logged once. One
//     goroutine looks the credentials up and repeats the request, at increasing intervals, until the
//     store accepts them.

// The pause between two repetitions of a refused request doubles from the first one to the last one.
var (
	firstRenewal = time.Second
	lastRenewal  = 30 * time.Second
)

// A refusal is a time during which the store refuses the credentials.
type refusal struct {
	since   time.Time
	decided chan struct{} // closed when the request was repeated once

	err atomic.Pointer[storeError] // for readers; nil until decided is closed, and if the store accepts the credentials
}

// credentialState is what is known of the credentials of a bucket.
type credentialState struct {
	current atomic.Pointer[refusal] // nil: the store accepts the credentials

	mu       sync.Mutex // guards the following
	accepted time.Time  // the end of the last refusal
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

// renew looks the credentials up again after a request has failed with err. It returns nil if the request is
// to be repeated, and the error for the reader otherwise. Concurrent calls share one lookup and one request.
func (b *Bucket) renew(ctx context.Context, err *storeError) *storeError {
	r := b.credentials.refuse(b, err)
	if r == nil {
		return nil
	}
	select {
	case <-r.decided:
		return r.err.Load()
	case <-ctx.Done():
		return err
	}
}

// refuse returns the current refusal, and starts one if there is none. It returns nil if the store has
// accepted other credentials since the request that has failed with err.
func (c *credentialState) refuse(b *Bucket, err *storeError) *refusal {
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
	stall := b.stallTimeout
	c.wg.Go(func() {
		defer panics.Contain()
		defer c.end(r)
		b.regain(ctx, r, err, stall)
	})
	return r
}

// end ends a refusal.
func (c *credentialState) end(r *refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel()
	c.accepted = time.Now()
	c.current.Store(nil)
	if r.err.Load() == nil {
		close(r.decided)
	}
}

// regain repeats the request that was refused with err until the store accepts it, or ctx is done. If the
// first repetition has no answer, the requests that wait for it are sent: they have retries.
func (b *Bucket) regain(ctx context.Context, r *refusal, err *storeError, stall time.Duration) {
	kind, key := err.kind, err.key
	if b.vendor.refreshCredentials(err.began) {
		atomic.AddInt64(&b.counters.Retries, 1)
		if err = b.repeat(ctx, kind, key, stall); err == nil || !err.refresh {
			return
		}
	}
	r.err.Store(b.unusable(ctx, err))
	if b.connected {
		b.log.Warn("the store refuses the credentials: only files with a copy can be read", "err", r.err.Load().text, "remedy", r.err.Load().remedy)
	}
	close(r.decided)
	for pause := firstRenewal; ; pause = min(2*pause, lastRenewal) {
		select {
		case <-time.After(pause/2 + rand.N(pause/2+1)): // the nodes of a cluster do not look them up together
		case <-ctx.Done():
			return
		}
		b.vendor.refreshCredentials(time.Now())
		atomic.AddInt64(&b.counters.Retries, 1)
		switch err := b.repeat(ctx, kind, key, stall); {
		case ctx.Err() != nil:
			return
		case err != nil && err.refresh:
			r.err.Store(b.unusable(ctx, err))
		case err == nil || !err.retryable:
			b.log.Info("the store accepts the credentials again")
			return
		}
	}
}

// repeat sends a request for the first byte of an object, or for the first key with a prefix.
func (b *Bucket) repeat(ctx context.Context, kind requestKind, key string, stall time.Duration) *storeError {
	ctx, watchdog, cancel := withWatchdog(ctx, stall)
	defer cancel()
	ctx, t := withTrace(ctx, kind, watchdog)
	var err error
	if kind == get {
		body, failure := b.vendor.read(ctx, key, "", 0, 1)
		if err = failure; err == nil {
			body.Close()
		}
	} else {
		_, err = b.vendor.list(ctx, key, "/", "", 1)
	}
	if err = watchdog.disarm(err); err != nil {
		return b.classify(t, key, err)
	}
	return nil
}

// unusable returns the error of readers while the store refuses the credentials with err.
func (b *Bucket) unusable(ctx context.Context, err *storeError) *storeError {
	err = b.explain(ctx, err)
	return &storeError{errno: syscall.EACCES, text: err.text, remedy: err.remedy, kind: err.kind, key: err.key, reported: true}
}
