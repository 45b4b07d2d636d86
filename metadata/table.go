package metadata

import (
	"sync"
	"sync/atomic"
)

// A table maps IDs to entries. IDs count up from 1 and are never reused. Readers take no
// lock.
type table struct {
	chunks atomic.Pointer[[]*chunk]
	live   atomic.Int64 // number of entries
	bytes  atomic.Int64 // total size of the regular files among them

	mu   sync.Mutex // guards the following, and changes of chunks
	last uint64     // the highest ID
}

// A chunk holds the entries of consecutive IDs.
type chunk [1024]atomic.Pointer[Entry]

// add gives e an ID and adds it.
func (t *table) add(e *Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	e.id = t.last
	var chunks []*chunk
	if p := t.chunks.Load(); p != nil {
		chunks = *p
	}
	i := int(e.id / uint64(len(chunk{})))
	if i == len(chunks) {
		grown := append(chunks, new(chunk)) // readers of the old slice do not read past its length
		chunks = grown
		t.chunks.Store(&grown)
	}
	chunks[i][e.id%uint64(len(chunk{}))].Store(e)
	t.live.Add(1)
	t.bytes.Add(e.bytes())
}

// slot returns where the entry with an ID is, or nil if there was never one.
func (t *table) slot(id uint64) *atomic.Pointer[Entry] {
	p := t.chunks.Load()
	if i := id / uint64(len(chunk{})); p != nil && i < uint64(len(*p)) {
		return &(*p)[i][id%uint64(len(chunk{}))]
	}
	return nil
}

// get returns the entry with an ID, or nil.
func (t *table) get(id uint64) *Entry {
	if s := t.slot(id); s != nil {
		return s.Load()
	}
	return nil
}

// remove removes e, if it is there.
func (t *table) remove(e *Entry) {
	if t.slot(e.id).CompareAndSwap(e, nil) {
		t.live.Add(-1)
		t.bytes.Add(-e.bytes())
	}
}
