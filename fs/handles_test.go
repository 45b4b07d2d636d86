package fs

import (
	"sync"
	"testing"
)

// The table returns what was added until it is removed, and gives no ID twice, while many
// goroutines use it.
func TestHandles(t *testing.T) {
	var (
		h       handles[int]
		workers sync.WaitGroup
		ids     sync.Map
	)
	const each = 1000
	for w := range 8 {
		workers.Go(func() {
			for i := range each {
				v := w*each + i
				id := h.add(v)
				if _, twice := ids.LoadOrStore(id, v); twice || id == 0 {
					t.Errorf("ID %d is 0 or was given before", id)
				}
				if got, ok := h.get(id); !ok || got != v {
					t.Errorf("get %d: got %d, %v, want %d", id, got, ok, v)
				}
				if i%2 == 0 {
					continue
				}
				if got, ok := h.remove(id); !ok || got != v {
					t.Errorf("remove %d: got %d, %v, want %d", id, got, ok, v)
				}
				if _, ok := h.get(id); ok {
					t.Errorf("ID %d is still there after it was removed", id)
				}
			}
		})
	}
	workers.Wait()
	const left = 8 * each / 2
	if got := h.len(); got != left {
		t.Errorf("len: got %d, want %d", got, left)
	}
	seen := make(map[int]bool)
	for _, v := range h.removeAll() {
		seen[v] = true
	}
	if len(seen) != left || h.len() != 0 {
		t.Errorf("removeAll: got %d values and left %d, want %d and 0", len(seen), h.len(), left)
	}
}

// Each goroutine looks up a handle of its own, as readers of different files do. The first
// handles are in neighbouring shards.
func BenchmarkHandles(b *testing.B) {
	var h handles[openFile]
	b.RunParallel(func(pb *testing.PB) {
		id := h.add(openFile{})
		for pb.Next() {
			if _, ok := h.get(id); !ok {
				b.Error("the handle is gone")
			}
		}
	})
}
