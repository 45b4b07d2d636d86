package metadata

import "sync"

// maxUntold is how many names may wait to be told. Of more, the kernel finds
// out when the time is over for which it was told to believe them.
const maxUntold = 1 << 16

// A watcher tells of names under which the kernel knows a stale entry.
type watcher struct {
	f func(dir *Entry, name string) // nil: nobody wants to know

	mu      sync.Mutex // guards the following; nothing is locked or waited for under it
	untold  map[staleName]struct{}
	telling bool // a goroutine is
}

// A staleName is the name of a stale entry, in its directory.
type staleName struct {
	dir  *Entry
	name string
}

// Watch has f called for each name under which the kernel may know an entry
// that has become stale, because the name has another entry now or none. Of a
// directory that has gone only its own name is told, not those below.
//
// The calls come one after another, on a goroutine of their own that holds no
// lock, so f may wait for the kernel, and the kernel for answers of the
// container. The goroutine is there only while names wait; it ends when all are
// told. A name that becomes stale again while it waits is told once. If f falls
// behind by more than 65536 names, further ones are left out.
//
// Watch must be called before the first Lookup.
func (c *Container) Watch(f func(dir *Entry, name string)) { c.watch.f = f }

// tell has f called for the name of e.
func (w *watcher) tell(e *Entry) {
	if w.f == nil || e.parent == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.untold) == maxUntold {
		return
	}
	if w.untold == nil {
		w.untold = make(map[staleName]struct{})
	}
	w.untold[staleName{e.parent, e.Name()}] = struct{}{}
	if !w.telling {
		w.telling = true
		go w.run()
	}
}

// run tells of all names that wait.
func (w *watcher) run() {
	for names := w.take(); len(names) > 0; names = w.take() {
		for n := range names {
			w.f(n.dir, n.name)
		}
	}
}

// take returns the names that wait; when none do, telling ends.
func (w *watcher) take() map[staleName]struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	names := w.untold
	w.untold = nil
	w.telling = len(names) > 0
	return names
}
