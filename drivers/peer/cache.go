package peer

import (
	"container/list"
	"context"
	"errors"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// cacheBlocks is the number of blocks in the cache of a node.
const cacheBlocks = 64

// A blockCache holds the blocks of which readers have requested a part, such as the 128 KiB of a
// request of the kernel: a block is requested and verified as a whole. Readers of the same block
// share one request.
type blockCache struct {
	max int

	mu     panics.Mutex // guards the following
	blocks map[blockKey]*list.Element
	order  list.List // of *cachedBlock, the one that was used last first
}

// A blockKey is a block of an open file, by its offset.
type blockKey struct {
	object *object
	off    int64
}

// A cachedBlock is a block in the cache, or on its way there.
type cachedBlock struct {
	key   blockKey
	ready chan struct{} // closed when the following are set
	data  []byte
	err   error
}

// get returns the block of o at an offset, which has n bytes. Unless it is in the cache, fetch gets
// it. The error is that of fetch, or ctx's. The caller does not change the block.
func (c *blockCache) get(ctx context.Context, o *object, off, n int64, fetch func([]byte) error) ([]byte, error) {
	for {
		b, found := c.find(blockKey{o, off})
		if !found {
			data := make([]byte, n)
			if b.err = panics.Do(func() error { return fetch(data) }); b.err != nil {
				c.drop(b)
			}
			b.data = data
			close(b.ready)
			return b.data, b.err
		}
		select {
		case <-b.ready:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if b.err == nil || errors.Is(b.err, errNoPeer) {
			return b.data, b.err
		}
		if ctx.Err() != nil { // b.err is that of the context of another reader
			return nil, context.Cause(ctx)
		}
	}
}

// find returns a block and reports whether it was found. Otherwise, the block is a new one.
func (c *blockCache) find(key blockKey) (b *cachedBlock, found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.blocks[key]; e != nil {
		c.order.MoveToFront(e)
		return e.Value.(*cachedBlock), true
	}
	if c.blocks == nil {
		c.blocks = make(map[blockKey]*list.Element)
	}
	if len(c.blocks) >= c.max {
		c.removeElement(c.order.Back())
	}
	b = &cachedBlock{key: key, ready: make(chan struct{})}
	c.blocks[key] = c.order.PushFront(b)
	return b, false
}

// drop removes a block, if it is still in the cache.
func (c *blockCache) drop(b *cachedBlock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.blocks[b.key]; e != nil && e.Value == b {
		c.removeElement(e)
	}
}

// remove removes the blocks of an object.
func (c *blockCache) remove(o *object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range c.blocks {
		if key.object == o {
			c.removeElement(e)
		}
	}
}

// removeElement removes an element. c.mu must be held.
func (c *blockCache) removeElement(e *list.Element) {
	delete(c.blocks, e.Value.(*cachedBlock).key)
	c.order.Remove(e)
}
