package metadata

import (
	"context"
	"errors"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// maxReplyBytes bounds the size of each of the two maps of a replyCache.
const maxReplyBytes = 8 << 20

// A replyCache holds replies of the source about entries, such as their extended attributes. When
// the newer map is full, it becomes the older one, so that at least the last maxReplyBytes are
// cached.
type replyCache[V any] struct {
	mu           panics.Mutex // guards the following
	newer, older map[replyKey]cachedReply[V]
	bytes        int // the size of newer
	inFlight     map[flightKey]*flight[V]
}

// A flightKey is a replyKey for a state of the entry.
type flightKey struct {
	replyKey
	times fileTimes
}

// A flight is a request to the source for which several callers wait.
type flight[V any] struct {
	ended chan struct{} // closed after the following were set
	value V
	err   error
}

// errNoReply is the error of a flight whose request has not returned, because it has panicked.
var errNoReply = errors.New("the request has not returned")

// request returns the reply of f. Calls for the same key and times at the same time share one
// call of f, unless the context of its caller ends it.
func (c *replyCache[V]) request(ctx context.Context, k replyKey, t fileTimes, f func() (V, error)) (V, error) {
	key := flightKey{k, t}
	for {
		own := &flight[V]{ended: make(chan struct{}), err: errNoReply}
		c.mu.Lock()
		other := c.inFlight[key]
		if other == nil {
			if c.inFlight == nil {
				c.inFlight = make(map[flightKey]*flight[V])
			}
			c.inFlight[key] = own
		}
		c.mu.Unlock()
		if other == nil {
			defer c.land(key, own)
			own.value, own.err = f()
			return own.value, own.err
		}
		select {
		case <-other.ended:
		case <-ctx.Done():
			var none V
			return none, context.Cause(ctx)
		}
		if !errors.Is(other.err, context.Canceled) && !errors.Is(other.err, context.DeadlineExceeded) {
			return other.value, other.err
		}
	}
}

// land ends a flight.
func (c *replyCache[V]) land(key flightKey, own *flight[V]) {
	c.mu.Lock()
	delete(c.inFlight, key)
	c.mu.Unlock()
	close(own.ended)
}

// A replyKey names an attribute of an entry, or the list of its attributes if attr is "".
type replyKey struct {
	id   uint64
	attr string
}

// A cachedReply is a reply of the source. It is valid while the entry has the same times: every
// change of the file changes the change time.
type cachedReply[V any] struct {
	value V
	size  int // of value, in bytes
	times fileTimes
}

// get returns the value of a key if it is cached and the entry had the times t.
func (c *replyCache[V]) get(k replyKey, t fileTimes) (value V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.newer[k]
	if !ok {
		if r, ok = c.older[k]; ok {
			c.add(k, r)
		}
	}
	return r.value, ok && r.times == t
}

func (c *replyCache[V]) put(k replyKey, r cachedReply[V]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(k, r)
}

// add is put; c.mu must be held.
func (c *replyCache[V]) add(k replyKey, r cachedReply[V]) {
	const overhead = 160 // bytes of a key and a reply in the map
	if c.newer == nil || c.bytes > maxReplyBytes {
		c.older, c.newer, c.bytes = c.newer, make(map[replyKey]cachedReply[V]), 0
	}
	c.newer[k] = r
	c.bytes += overhead + len(k.attr) + r.size
}
