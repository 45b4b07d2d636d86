package placement

import (
	"container/list"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// An idleCache keeps files of the source open that no tier has room for and that have no
// user, for the next epoch. It drops the least recently used one when there are too many.
// Its lock is taken when a file loses its last user or gets its first one, and not by reads.
type idleCache struct {
	max int // number of files

	mu     panics.Mutex  // guards the following, and file.idle
	lru    list.List     // of *file: the least recently used one first
	cursor *list.Element // in lru: where the next sweep begins
	closed bool          // every file is dropped
}

// An idleSlot is the position of a file in an idleCache.
type idleSlot struct {
	elem  *list.Element // nil: the file is not there
	since time.Time
}

// maxIdle is how long a file stays idle: longer than an epoch takes, and not for ever, since
// the file may have been removed from the source.
const maxIdle = 24 * time.Hour

// maxSweep is the number of files that one sweep examines.
const maxSweep = 4096

// add adds a file, if it is not there, and returns those that are dropped.
func (c *idleCache) add(f *file) (dropped []*file) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.idle.elem != nil {
		return nil
	}
	f.idle = idleSlot{c.lru.PushBack(f), time.Now()}
	if c.lru.Len() > c.max || c.closed {
		dropped = append(dropped, c.drop(c.lru.Front()))
	}
	return dropped
}

// remove removes a file, if it is there.
func (c *idleCache) remove(f *file) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.idle.elem != nil {
		c.drop(f.idle.elem)
	}
}

// drop removes a file and returns it; c.mu must be held.
func (c *idleCache) drop(e *list.Element) *file {
	if c.cursor == e {
		c.cursor = e.Next()
	}
	f := c.lru.Remove(e).(*file)
	f.idle = idleSlot{}
	return f
}

// expired drops files that have been idle for maxIdle, or whose entry is stale. One call
// examines up to maxSweep files, and the next one continues there.
func (c *idleCache) expired(now time.Time) (dropped []*file) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cursor == nil {
		c.cursor = c.lru.Front()
	}
	for n := 0; n < maxSweep && c.cursor != nil; n++ {
		e := c.cursor
		c.cursor = e.Next()
		if f := e.Value.(*file); f.entry.Stale() || now.Sub(f.idle.since) > maxIdle {
			dropped = append(dropped, c.drop(e))
		}
	}
	return dropped
}

// close drops all files, now and later.
func (c *idleCache) close() (dropped []*file) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return c.dropAll()
}

// clear drops all files.
func (c *idleCache) clear() (dropped []*file) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropAll()
}

// dropAll drops all files; c.mu must be held.
func (c *idleCache) dropAll() (dropped []*file) {
	for e := c.lru.Front(); e != nil; e = c.lru.Front() {
		dropped = append(dropped, c.drop(e))
	}
	return dropped
}

// len returns the number of files.
func (c *idleCache) len() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(c.lru.Len())
}

// recentFiles keeps files open that are read without being opened, in a stateless mount: the
// next read is likely to follow. A file is kept for recentAge after its first read, also if
// reads continue, so that the file is opened again after its copy was placed or removed.
type recentFiles struct {
	mu     panics.Mutex // guards the following, and file.recent
	fifo   list.List    // of *file: the oldest first
	closed bool         // every file is dropped
}

const (
	recentAge = 2 * time.Second
	maxRecent = 1024 // number of files
)

// add adds a file that was just opened, and returns those that are dropped.
func (r *recentFiles) add(f *file) (dropped []*file) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.recent = r.fifo.PushBack(f)
	if r.fifo.Len() > maxRecent || r.closed {
		dropped = append(dropped, r.drop(r.fifo.Front()))
	}
	return dropped
}

// remove removes a file, and reports whether it was there.
func (r *recentFiles) remove(f *file) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.recent == nil {
		return false
	}
	r.drop(f.recent)
	return true
}

// drop removes a file and returns it; r.mu must be held.
func (r *recentFiles) drop(e *list.Element) *file {
	f := r.fifo.Remove(e).(*file)
	f.recent = nil
	return f
}

// expired drops the files that are older than recentAge.
func (r *recentFiles) expired(now time.Time) (dropped []*file) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for e := r.fifo.Front(); e != nil && now.Sub(e.Value.(*file).opened) > recentAge; e = r.fifo.Front() {
		dropped = append(dropped, r.drop(e))
	}
	return dropped
}

// close drops all files, now and later.
func (r *recentFiles) close() (dropped []*file) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return r.dropAll()
}

// clear drops all files.
func (r *recentFiles) clear() (dropped []*file) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dropAll()
}

// dropAll drops all files; r.mu must be held.
func (r *recentFiles) dropAll() (dropped []*file) {
	for e := r.fifo.Front(); e != nil; e = r.fifo.Front() {
		dropped = append(dropped, r.drop(e))
	}
	return dropped
}
