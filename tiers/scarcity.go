package tiers

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

const (
	// scarcityTimeout bounds how long an operation waits for a descriptor.
	scarcityTimeout = 10 * time.Second

	// scarcityPause is the first pause between two attempts. The pauses double up to a second.
	scarcityPause = 10 * time.Millisecond

	// scarcityWarning is the time between two warnings.
	scarcityWarning = time.Minute
)

// A scarcity is the lack of file descriptors, of this process or of the machine. Operations that
// need one wait while unnecessary ones are closed.
type scarcity struct {
	log     *slog.Logger
	relieve atomic.Pointer[func()] // closes descriptors that are not needed now

	mu     panics.Mutex // held while relieve runs; guards the following
	warned time.Time
}

// OnScarcity registers relieve, which closes descriptors that are not needed now. It is called when
// an operation has failed with EMFILE or ENFILE, by one goroutine at a time. The operation is then
// repeated, for up to ten seconds.
func (h *Hierarchy) OnScarcity(relieve func()) { h.scarcity.relieve.Store(&relieve) }

// isScarcity reports whether err means that no descriptor is left.
func isScarcity(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// repeat calls f, and again while no descriptor is left.
func repeat[T any](ctx context.Context, s *scarcity, f func() (T, error)) (T, error) {
	v, err := f()
	if !isScarcity(err) {
		return v, err
	}
	deadline := time.Now().Add(scarcityTimeout)
	for pause := scarcityPause; isScarcity(err) && time.Now().Before(deadline); pause = min(2*pause, time.Second) {
		s.close(err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return v, err
		}
		v, err = f()
	}
	return v, err
}

// close closes what can be closed, unless another goroutine does.
func (s *scarcity) close(cause error) {
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.warned) > scarcityWarning {
		s.warned = now
		s.log.Warn("no descriptor is left; opens wait until one is free", "err", cause)
	}
	if f := s.relieve.Load(); f != nil {
		defer panics.Contain()
		(*f)()
	}
}
