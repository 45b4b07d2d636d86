package peer

import (
	"context"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// pingTimeout bounds a ping of a peer whose last answer was quick.
const pingTimeout = time.Second

const (
	// maxPingTimeout bounds a ping of a peer whose last answer was slow, which may take maxPace times as
	// long as that.
	maxPingTimeout = 4 * time.Second
	maxPace        = 4

	// steps is the number of parts in which within counts.
	steps = 20
)

// bound returns a context for one request that the peer answers at once.
func (p *peer) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return within(ctx, min(max(pingTimeout, maxPace*time.Duration(p.pace.Load())), maxPingTimeout))
}

// within returns a context that is done after d. While this process gets no processor, since the machine
// is overloaded or suspended, at most one of the steps passes: an answer that has arrived meanwhile is
// in time.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer panics.Contain()
		defer close(done)
		step := time.NewTimer(d / steps)
		defer step.Stop()
		for range steps {
			select {
			case <-step.C:
				step.Reset(d / steps)
			case <-ctx.Done():
				return
			}
		}
		stop(context.DeadlineExceeded)
	}()
	return ctx, func() {
		stop(context.Canceled)
		<-done
	}
}
