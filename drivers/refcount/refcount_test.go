package refcount

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestLastReleaseCloses(t *testing.T) {
	var c Count
	if !c.Acquire() || c.Release() {
		t.Error("a second user came and went, and was the last")
	}
	if !c.Release() {
		t.Error("the owner was not the last")
	}
	if c.Acquire() {
		t.Error("acquired after the last release")
	}
	defer func() {
		if recover() == nil {
			t.Error("one release too many did not panic")
		}
	}()
	c.Release()
}

// Of all users that release at once, one is the last.
func TestConcurrentReleases(t *testing.T) {
	for range 100 {
		var (
			c    Count
			last atomic.Int64
			wg   sync.WaitGroup
		)
		for range 8 {
			wg.Go(func() {
				for range 100 {
					if c.Acquire() && c.Release() {
						last.Add(1)
					}
				}
			})
		}
		if c.Release() {
			last.Add(1)
		}
		wg.Wait()
		if got := last.Load(); got != 1 {
			t.Fatalf("%d releases were the last, want 1", got)
		}
	}
}
