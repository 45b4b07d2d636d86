package blobtest

import (
	"context"
	"sync"
	"time"
)

// burst is the time whose bytes an unused rateLimiter lets pass at once. It makes up
// for sleeps that take longer than requested, by less than this.
const burst = 5 * time.Millisecond

// A rateLimiter limits a stream of bytes to a rate. Its methods may be called
// concurrently. The zero value is ready to use.
type rateLimiter struct {
	mu   sync.Mutex // guards the following
	free time.Time  // when all bytes so far have passed
}

// reserve admits n bytes at a rate in bytes per second, and returns how long the
// caller must wait before it sends them. A rate of 0 is no limit.
func (l *rateLimiter) reserve(n int, rate int64) time.Duration {
	if rate <= 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if oldest := now.Add(-burst); l.free.Before(oldest) {
		l.free = oldest
	}
	l.free = l.free.Add(time.Duration(float64(n) / float64(rate) * float64(time.Second)))
	return l.free.Sub(now)
}

// sleep waits for d. It reports false if ctx was done first.
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
