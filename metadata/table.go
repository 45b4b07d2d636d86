package metadata

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// A table maps IDs to entries. IDs count up from 1 and are never reused. Readers take no
// lock.
type table struct {
	chunks atomic.Pointer[[]*chunk]
	live   atomic.Int64 // number of entries
	bytes  atomic.Int64 // total size of the regular files among them whose attributes are known

	mu     panics.Mutex // guards the following, and changes of chunks
	last   uint64       // the highest ID
	dirs   []*Entry     // the directories, by ID; some were removed
	tidyAt int          // the length of dirs at which removed ones are taken out
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
	for i >= len(chunks) {
		grown := append(chunks, new(chunk)) // readers of the old slice do not read past its length
		chunks = grown
		t.chunks.Store(&grown)
	}
	chunks[i][e.id%uint64(len(chunk{}))].Store(e)
	t.live.Add(1)
	t.countBytes(e, 1)
	if e.IsDir() {
		t.addDir(e)
	}
}

// newID returns an ID for a piece, which is not in the table.
func (t *table) newID() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	return t.last
}

// addDir adds e to dirs; t.mu must be held.
func (t *table) addDir(e *Entry) {
	if len(t.dirs) >= t.tidyAt {
		t.dirs = slices.DeleteFunc(t.dirs, func(e *Entry) bool { return t.get(e.id) != e })
		t.tidyAt = max(1024, 2*len(t.dirs))
	}
	t.dirs = append(t.dirs, e)
}

// directories returns the directories in the order of their IDs, from the ID first on and then
// from the beginning. They include some that were removed.
func (t *table) directories(first uint64) []*Entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, _ := slices.BinarySearchFunc(t.dirs, first, func(e *Entry, id uint64) int { return cmp.Compare(e.id, id) })
	return slices.Concat(t.dirs[i:], t.dirs[:i])
}

// scan calls f for up to n entries in the order of their IDs, from the ID first on and then from
// the beginning, until f returns false. It returns the ID at which the next scan begins.
func (t *table) scan(first uint64, n int, f func(*Entry) bool) (next uint64) {
	t.mu.Lock()
	last := t.last
	t.mu.Unlock()
	for range min(uint64(n), last) {
		if first < 1 || first > last {
			first = 1
		}
		e := t.get(first)
		first++
		if e != nil && !f(e) {
			break
		}
	}
	return first
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
		t.countBytes(e, -1)
	}
}

// countBytes adds n times the size of e to bytes.
func (t *table) countBytes(e *Entry, n int64) {
	if e.IsRegular() && !e.Unknown() {
		t.bytes.Add(n * e.size)
	}
}
