package metadata

import (
	"context"
	"sync"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// A background runs the goroutines of a container.
type background struct {
	ctx  context.Context // is cancelled by close
	stop context.CancelCauseFunc

	mu      panics.Mutex // held while a goroutine is started
	running sync.WaitGroup
}

// run calls f on a new goroutine, with a context that close cancels. After close it returns
// false.
func (b *background) run(f func(ctx context.Context)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx.Err() != nil {
		return false
	}
	b.running.Go(func() {
		defer panics.Contain()
		f(b.ctx)
	})
	return true
}

// close cancels the context and waits until all goroutines have returned.
func (b *background) close() {
	b.mu.Lock()
	b.stop(errClosed)
	b.mu.Unlock()
	b.running.Wait()
}
