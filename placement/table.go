package placement

import (
	"slices"
	"sync"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
)

// A table holds the open files of a handler: one for each entry, shared by all users of the
// entry. It is sharded by entry, so that concurrent opens and stateless reads do not contend
// for one lock. A file without users is closed, or becomes idle (idle.go). Its methods may be
// called concurrently.
type table struct {
	shards [64]shard
	idle   *idleCache
	recent *recentFiles
}

// A shard is the part of a table for some entries. A file gets its first user, and is closed
// or becomes idle after the last one, only under the lock of its shard.
type shard struct {
	mu   panics.RWMutex // guards the following, and file.closed
	open map[*metadata.Entry]*file
}

// newTable makes a table that keeps a number of files of the source open without users.
func newTable(idleHandles int) *table {
	return &table{idle: &idleCache{max: idleHandles}, recent: new(recentFiles)}
}

func (t *table) shard(e *metadata.Entry) *shard { return &t.shards[e.ID()%uint64(len(t.shards))] }

// acquire returns the open file of an entry, which the caller releases. If there is none,
// acquire makes one and reports fresh. It replaces a broken file, which its present users keep.
func (t *table) acquire(h *Handler, e *metadata.Entry) (f *file, fresh bool) {
	if f := t.find(e); f != nil {
		return f, false
	}
	f, replaced := t.replace(h, e)
	if replaced == f {
		return f, false
	}
	if replaced != nil {
		t.retire(replaced) // it may be idle
	}
	return f, true
}

// replace makes the open file of an entry, and returns it and the one that it replaces, or nil. If
// there is a usable file by now, replace returns it twice.
func (t *table) replace(h *Handler, e *metadata.Entry) (f, replaced *file) {
	s := t.shard(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	doubt, old := e.ResolveDoubt(), s.open[e]
	switch {
	case old == nil:
	case doubt:
		old.broken.Store(true)
	case !old.broken.Load(): // made meanwhile
		t.use(old)
		return old, old
	}
	f = newFile(h, e)
	f.users.Store(1)
	if s.open == nil {
		s.open = make(map[*metadata.Entry]*file)
	}
	s.open[e] = f
	return f, old
}

// find returns the open file of an entry, which the caller releases, or nil if there is none
// or if it is broken.
func (t *table) find(e *metadata.Entry) *file {
	s := t.shard(e)
	s.mu.RLock()
	defer s.mu.RUnlock()
	f := s.open[e]
	if f == nil || f.broken.Load() || e.Doubtful() {
		return nil
	}
	t.use(f)
	return f
}

// inUse reports whether an entry has an open file with users.
func (t *table) inUse(e *metadata.Entry) bool {
	s := t.shard(e)
	s.mu.RLock()
	defer s.mu.RUnlock()
	f := s.open[e]
	return f != nil && f.users.Load() > 0
}

// use adds a user of f. The lock of the shard must be held, at least for reading.
func (t *table) use(f *file) {
	if f.users.Add(1) == 1 {
		t.idle.remove(f)
	}
}

// release drops a user of f. The last one closes f, unless it becomes idle.
func (t *table) release(f *file) {
	if f.users.Add(-1) == 0 {
		t.retire(f)
	}
}

// retire lets f become idle, or closes it, if it has no user.
func (t *table) retire(f *file) {
	s := t.shard(f.entry)
	s.mu.Lock()
	switch {
	case f.users.Load() > 0 || f.closed: // used again, or closed by another goroutine
		s.mu.Unlock()
	case s.open[f.entry] == f && f.worthKeeping():
		dropped := t.idle.add(f)
		s.mu.Unlock()
		t.evict(dropped)
	default:
		t.forget(s, f)
		f.closed = true
		s.mu.Unlock()
		f.close()
	}
}

// evict closes files that are not to be idle any more, unless they have users again.
func (t *table) evict(dropped []*file) {
	gone := slices.DeleteFunc(dropped, func(f *file) bool {
		s := t.shard(f.entry)
		s.mu.Lock()
		defer s.mu.Unlock()
		if f.users.Load() > 0 || f.closed {
			return true
		}
		t.forget(s, f)
		f.closed = true
		return false
	})
	closeAll(gone)
}

// forget takes f out of the table. The lock of its shard, s, must be held.
func (t *table) forget(s *shard, f *file) {
	t.idle.remove(f)
	if s.open[f.entry] == f { // and not the file that has replaced it
		delete(s.open, f.entry)
	}
}

// keep holds f open for recentAge. The caller is a user of f.
func (t *table) keep(f *file) {
	f.users.Add(1) // dropped by dropRecent
	t.dropRecent(t.recent.add(f))
}

// unkeep drops f from recentFiles, if it is there.
func (t *table) unkeep(f *file) {
	if t.recent.remove(f) {
		t.dropRecent([]*file{f})
	}
}

// forgetRecent drops the open file of an entry from recentFiles, if it is there.
func (t *table) forgetRecent(e *metadata.Entry) {
	if f := t.find(e); f != nil {
		t.unkeep(f)
		t.release(f)
	}
}

// dropRecent releases files that keep has added. The next read of such a file opens
// it again, unless it becomes idle.
func (t *table) dropRecent(dropped []*file) {
	for _, f := range dropped {
		if !f.worthKeeping() {
			s := t.shard(f.entry)
			s.mu.Lock()
			t.forget(s, f)
			s.mu.Unlock()
		}
		t.release(f)
	}
}

// sweep drops recently read and idle files whose time is over.
func (t *table) sweep(now time.Time) {
	t.dropRecent(t.recent.expired(now))
	t.evict(t.idle.expired(now))
}

// close closes the files without users. From now on, no file becomes idle.
func (t *table) close() {
	t.dropRecent(t.recent.close())
	t.evict(t.idle.close())
}

// relieve closes the files without users.
func (t *table) relieve() {
	t.dropRecent(t.recent.clear())
	t.evict(t.idle.clear())
}

// closeAll closes files, several at a time: to a parallel file system each close may be a
// request.
func closeAll(gone []*file) {
	var closers sync.WaitGroup
	for part := range slices.Chunk(gone, len(gone)/16+1) {
		closers.Go(func() {
			defer panics.Contain()
			for _, f := range part {
				f.close()
			}
		})
	}
	closers.Wait()
}
