package placement

import (
	"maps"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// badCopies holds the copies of which a read failed, for ttl each. A tier may be
// healthy and fail in one file alone. Until the time is over, all users of the file read it from
// the source, so that a repeated read succeeds, also through a new open.
type badCopies struct {
	ttl time.Duration // sourceTTL, except in a test

	n atomic.Int64 // len(copies): a lookup takes no lock while there are none

	mu     panics.Mutex // guards the following
	copies map[*metadata.Entry]badCopy
}

// A badCopy is a copy of which a read failed.
type badCopy struct {
	level tiers.Level
	until time.Time
}

// add adds the copy of e on level l.
func (b *badCopies) add(e *metadata.Entry, l tiers.Level) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.copies == nil {
		b.copies = make(map[*metadata.Entry]badCopy)
	}
	b.copies[e] = badCopy{l, time.Now().Add(b.ttl)}
	b.n.Store(int64(len(b.copies)))
}

// has reports whether a read of the copy of e on level l failed a short time ago.
func (b *badCopies) has(e *metadata.Entry, l tiers.Level) bool {
	if b.n.Load() == 0 {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c, ok := b.copies[e]
	return ok && c.level == l && time.Now().Before(c.until)
}

// remove removes the copy of e, because another one was made.
func (b *badCopies) remove(e *metadata.Entry) {
	if b.n.Load() == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.copies, e)
	b.n.Store(int64(len(b.copies)))
}

// prune removes the copies whose time is over.
func (b *badCopies) prune(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.copies, func(_ *metadata.Entry, c badCopy) bool { return now.After(c.until) })
	b.n.Store(int64(len(b.copies)))
}
