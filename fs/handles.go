package fs

import "sync"

// handles is a table of what the kernel has open, by the handle IDs that were sent to
// the kernel. IDs are never reused. Methods may be called concurrently.
type handles[T any] struct {
	mu   sync.RWMutex // guards the following
	last uint64       // the ID that was assigned last
	open map[uint64]T
}

// add adds v and returns its ID, which is not 0.
func (h *handles[T]) add(v T) (id uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open == nil {
		h.open = make(map[uint64]T)
	}
	h.last++
	h.open[h.last] = v
	return h.last
}

// get returns the value of an ID and reports whether the ID is in the table.
func (h *handles[T]) get(id uint64) (T, bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	v, ok := h.open[id]
	return v, ok
}

// remove is get that also removes the ID.
func (h *handles[T]) remove(id uint64) (T, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v, ok := h.open[id]
	delete(h.open, id)
	return v, ok
}

// removeAll empties the table and returns the values that were in it.
func (h *handles[T]) removeAll() []T {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []T
	for _, v := range h.open {
		all = append(all, v)
	}
	h.open = nil
	return all
}

// len returns the number of IDs in the table.
func (h *handles[T]) len() int {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return len(h.open)
}
