package blob

import (
	"context"
	"sync/atomic"
	"time"
)

// race sends a request, and another one if the first is not answered after
// hedge. It returns the first answer that is no error, and ends the other
// request. Stores answer one request in a hundred much more slowly than the
// rest, and an epoch waits for all of them (Dean and Barroso, The Tail at Scale,
// CACM 2013).
func (o *object) race(ctx context.Context, off, n int64, hedge time.Duration) (*body, *storeError) {
	type answer struct {
		racer int
		body  *body
		err   *storeError
	}
	var (
		answers = make(chan answer, 2)
		ends    []context.CancelFunc // of the racers
	)
	send := func() {
		ctx, end := context.WithCancel(ctx)
		racer := len(ends)
		ends = append(ends, end)
		go func() {
			b, err := o.request(ctx, off, n)
			answers <- answer{racer, b, err}
		}()
	}
	send()
	late := time.NewTimer(hedge)
	defer late.Stop()
	for got := 0; ; {
		select {
		case <-late.C:
			atomic.AddInt64(&o.bucket.counters.Hedges, 1)
			send()
			continue
		case a := <-answers:
			got++
			end := ends[a.racer]
			if a.err != nil {
				end()
				if got < len(ends) {
					continue // the other one may do better
				}
				return nil, a.err
			}
			if got < len(ends) {
				ends[1-a.racer]()
				go func() { // it returns soon, because it was ended
					if loser := <-answers; loser.body != nil {
						loser.body.Close()
					}
				}()
			}
			cancel := a.body.cancel
			a.body.cancel = func() { cancel(); end() }
			return a.body, nil
		}
	}
}
