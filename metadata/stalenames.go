package metadata

import (
	"context"
	"iter"
	"sync"
)

// maxStaleNames bounds the names for which the kernel has not been notified yet. The kernel
// detects further ones when the TTL of their dentries expires.
const maxStaleNames = 1 << 16

// staleNames is the set of names under which the kernel may have cached a stale entry.
type staleNames struct {
	mu      sync.Mutex // guards the following; no other lock is taken under it
	names   map[staleName]struct{}
	arrived chan struct{} // closed when names is no longer empty; nil if no goroutine waits
}

// A staleName is the name of a stale entry in its directory.
type staleName struct {
	dir  *Entry
	name string
}

// StaleNames yields each name under which the kernel may have cached an entry that became
// stale, because the name has another entry or none, until ctx is done. For a removed
// directory it yields only the name of the directory itself.
//
// It holds no lock while it yields, so that the caller may wait for the kernel, which may
// itself wait for a reply that needs the container. A name that becomes stale repeatedly
// before it is yielded is yielded once. While 65536 names wait, further ones are dropped.
// At most one goroutine calls StaleNames at a time.
func (c *Container) StaleNames(ctx context.Context) iter.Seq2[*Entry, string] {
	return func(yield func(*Entry, string) bool) {
		for {
			names, arrived := c.stale.take()
			for n := range names {
				if !yield(n.dir, n.name) {
					return
				}
			}
			select {
			case <-arrived:
			case <-ctx.Done():
				return
			}
		}
	}
}

// add adds the name of e.
func (s *staleNames) add(e *Entry) {
	if e.parent == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.names) == maxStaleNames {
		return
	}
	if s.names == nil {
		s.names = make(map[staleName]struct{})
	}
	s.names[staleName{e.parent, e.Name()}] = struct{}{}
	if s.arrived != nil {
		close(s.arrived)
		s.arrived = nil
	}
}

// take removes and returns all names, and a channel that is closed when others are added.
func (s *staleNames) take() (map[staleName]struct{}, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := s.names
	s.names = nil
	s.arrived = make(chan struct{})
	return names, s.arrived
}
