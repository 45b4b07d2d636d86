package fs

import (
	"sync/atomic"

	"golang.org/x/sys/cpu"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// handles is the table of open files or directories, by the handle IDs that were sent to
// the kernel. IDs are never reused. Methods may be called concurrently. The table is
// sharded, because every read looks its handle up: readers of different handles on
// different cores do not write to the same cache line.
type handles[T any] struct {
	last   atomic.Uint64 // the ID that was assigned last
	shards [64]handleShard[T]
}

type handleShard[T any] struct {
	mu   panics.RWMutex // guards the following
	open map[uint64]T

	_ cpu.CacheLinePad // keeps the next shard in another cache line
}

func (h *handles[T]) shard(id uint64) *handleShard[T] { return &h.shards[id%uint64(len(h.shards))] }

// add adds v and returns its ID, which is not 0.
func (h *handles[T]) add(v T) (id uint64) {
	id = h.last.Add(1)
	s := h.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = make(map[uint64]T)
	}
	s.open[id] = v
	return id
}

// get returns the value of an ID and reports whether the ID is in the table.
func (h *handles[T]) get(id uint64) (T, bool) {
	s := h.shard(id)
	s.mu.RLock()
	defer s.mu.RUnlock()
	v, ok := s.open[id]
	return v, ok
}

// remove is get that also removes the ID.
func (h *handles[T]) remove(id uint64) (T, bool) {
	s := h.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.open[id]
	delete(s.open, id)
	return v, ok
}

// removeAll empties the table and returns the values that were in it.
func (h *handles[T]) removeAll() []T {
	var all []T
	for i := range h.shards {
		s := &h.shards[i]
		s.mu.Lock()
		for _, v := range s.open {
			all = append(all, v)
		}
		s.open = nil
		s.mu.Unlock()
	}
	return all
}

// each calls f with each value. Calls may be concurrent with other methods, but f must not call
// them.
func (h *handles[T]) each(f func(T)) {
	for i := range h.shards {
		s := &h.shards[i]
		s.mu.RLock()
		for _, v := range s.open {
			f(v)
		}
		s.mu.RUnlock()
	}
}

// len returns the number of IDs in the table.
func (h *handles[T]) len() int {
	n := 0
	for i := range h.shards {
		s := &h.shards[i]
		s.mu.RLock()
		n += len(s.open)
		s.mu.RUnlock()
	}
	return n
}
