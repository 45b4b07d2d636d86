package blobtest

import (
	"context"
	"sync"
	"time"
)

// credit is how far a pacer that was not used lags behind the clock: so many
// bytes pass at once. Sleeps are longer than they should be by less than this.
const credit = 5 * time.Millisecond

// A pacer lets bytes pass at a rate.
type pacer struct {
	mu   sync.Mutex // guards the following
	free time.Time  // when all that was let pass is through
}

// pass returns how long n bytes must wait for those before them, at so many
// bytes per second; 0 is no limit.
func (p *pacer) pass(n int, rate int64) time.Duration {
	if rate <= 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if oldest := now.Add(-credit); p.free.Before(oldest) {
		p.free = oldest
	}
	p.free = p.free.Add(time.Duration(float64(n) / float64(rate) * float64(time.Second)))
	return p.free.Sub(now)
}

// sleep waits, and reports false if ctx was done first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
