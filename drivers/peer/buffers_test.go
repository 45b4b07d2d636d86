package peer

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// Peers that keep their buffers leave some to others.
func TestBuffersAreShared(t *testing.T) {
	const total = 81
	least := total // that the greedy peers leave
	for greedy := 1; greedy <= 4; greedy++ {
		least = least * 2 / 3
		b := newBuffers(total)
		ctx, cancel := context.WithCancel(context.Background())
		var all sync.WaitGroup
		for range greedy {
			p := holder{peer: new(peer)}
			for range total {
				all.Go(func() {
					if buf, err := b.get(ctx, p); err == nil {
						<-ctx.Done()
						b.put(p, buf)
					}
				})
			}
		}
		drivertest.Eventually(t, "all requests have a buffer or wait", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.waiting.Len()+total-len(b.free) == greedy*total
		})
		if free := b.idle(); free < least || greedy == 1 && free > least {
			t.Errorf("%d greedy peers leave %d of %d buffers, want %d", greedy, free, total, least)
		}
		p := holder{peer: new(peer)}
		buf, err := b.get(context.Background(), p)
		if err != nil {
			t.Fatal(err)
		}
		b.put(p, buf)
		cancel()
		all.Wait()
		if b.idle() != total || b.waiting.Len() != 0 || len(b.held) != 0 {
			t.Errorf("at the end: %d buffers are free, %d requests wait", b.idle(), b.waiting.Len())
		}
	}
}

// A buffer that is returned goes to a request that waits. One that is cancelled leaves nothing
// behind.
func TestBuffersAreHandedOn(t *testing.T) {
	b, p := newBuffers(3), holder{peer: new(peer)}
	buf, err := b.get(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	other := holder{peer: new(peer)}
	taken, err := b.get(context.Background(), other)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *[block]byte)
	go func() {
		buf, _ := b.get(context.Background(), p)
		got <- buf
	}()
	drivertest.Eventually(t, "the second request waits", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.waiting.Len() == 1
	})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.get(ctx, p); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that was cancelled: %v", err)
	}
	b.put(other, taken)
	b.put(p, buf)
	b.put(p, <-got)
	if b.idle() != 3 || b.waiting.Len() != 0 || len(b.held) != 0 {
		t.Errorf("at the end: %+v", b)
	}
}
