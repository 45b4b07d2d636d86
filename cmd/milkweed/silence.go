package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// maxSilence is how long work that the user waits for may make no progress at the source.
const maxSilence = time.Minute

// A silence ends a context when no progress was made for a time. Its methods may be called concurrently.
type silence struct {
	mu    sync.Mutex
	timer *time.Timer
	limit time.Duration
}

// withSilence returns a context that is done, with an *exit.Error for the source as its cause, when
// progress has not been called for limit. The caller calls stop.
func withSilence(ctx context.Context, limit time.Duration) (_ context.Context, s *silence, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	s = &silence{limit: limit}
	s.timer = time.AfterFunc(limit, func() {
		defer panics.Contain()
		cancel(&exit.Error{
			Code: exit.Source, Err: fmt.Errorf("the source has not answered for %v", limit),
			Remedy: "Run it again when the source answers. `milkweed status` works in any case.",
		})
	})
	return ctx, s, func() { s.timer.Stop(); cancel(nil) }
}

// progress begins the time anew.
func (s *silence) progress() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer.Stop() {
		s.timer.Reset(s.limit)
	}
}
