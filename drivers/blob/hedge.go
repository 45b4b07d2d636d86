package blob

import (
	"context"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// sendHedged sends a request, and a second one if the first has no response after
// delay. It returns the first response that is no error, and cancels the other
// request. Stores answer about one request in a hundred much more slowly than the
// rest, and an epoch waits for all of them (Dean and Barroso, The Tail at Scale,
// CACM 2013).
func (o *object) sendHedged(ctx context.Context, off, n int64, delay time.Duration) (*body, *storeError) {
	type result struct {
		attempt int
		body    *body
		err     *storeError
	}
	var (
		results = make(chan result, 2)
		cancels []context.CancelFunc // of the attempts
	)
	send := func() {
		ctx, cancel := context.WithCancel(ctx)
		attempt := len(cancels)
		cancels = append(cancels, cancel)
		go func() {
			r := result{attempt: attempt, err: &storeError{errno: syscall.EIO, text: "the request has panicked"}}
			defer func() { results <- r }()
			defer panics.Contain()
			r.body, r.err = o.send(ctx, off, n)
		}()
	}
	send()
	hedge := time.NewTimer(delay)
	defer hedge.Stop()
	for received := 0; ; {
		select {
		case <-hedge.C:
			atomic.AddInt64(&o.bucket.counters.Hedges, 1)
			send()
			continue
		case r := <-results:
			received++
			cancelAttempt := cancels[r.attempt]
			if r.err != nil {
				cancelAttempt()
				if received < len(cancels) {
					continue // the other attempt may succeed
				}
				return nil, r.err
			}
			if received < len(cancels) {
				cancels[1-r.attempt]()
				go func() { // returns soon, because the attempt is cancelled
					defer panics.Contain()
					if other := <-results; other.body != nil {
						other.body.Close()
					}
				}()
			}
			cancel := r.body.cancel
			r.body.cancel = func() { cancel(); cancelAttempt() }
			return r.body, nil
		}
	}
}
