package metadata

import "sync"

// maxReplyBytes bounds the size of each of the two maps of a replyCache.
const maxReplyBytes = 8 << 20

// A replyCache holds replies of the source about entries, such as their extended attributes. When
// the newer map is full, it becomes the older one, so that at least the last maxReplyBytes are
// cached.
type replyCache[V any] struct {
	mu           sync.Mutex // guards the following
	newer, older map[replyKey]cachedReply[V]
	bytes        int // the size of newer
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
