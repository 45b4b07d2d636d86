package metadata

import (
	"context"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// FindsHoles reports whether the source can locate the holes of files.
func (c *Container) FindsHoles() bool { return c.source.FindsHoles() }

// holesTimeout bounds how long Holes waits for the source. The caller can do without its reply.
const holesTimeout = 2 * time.Second

// Holes returns the first drivers.MaxHoles holes of a file, by offset. It requests them once for
// each sparse file, and never for others. If the path has another version by now, the error is
// syscall.ESTALE.
func (c *Container) Holes(ctx context.Context, e *Entry) ([]drivers.Hole, error) {
	if !e.Info().IsSparse() {
		return nil, nil
	}
	key, times := replyKey{id: e.id}, e.lockedTimes()
	if holes, ok := c.holes.get(key, times); ok {
		return holes, nil
	}
	ctx, stop := context.WithTimeout(ctx, holesTimeout)
	defer stop()
	return c.holes.request(ctx, key, times, func() ([]drivers.Hole, error) {
		if holes, ok := c.holes.get(key, times); ok { // another request has just ended
			return holes, nil
		}
		holes, info, err := c.source.Holes(ctx, e.Path())
		switch {
		case err != nil:
			return nil, err
		case timesOf(info) != times || info.Size != e.Size():
			return nil, syscall.ESTALE
		case time.Since(times.newest()) >= c.racy: // otherwise the next change may leave the times as they are
			c.holes.put(key, cachedReply[[]drivers.Hole]{holes, 16 * len(holes), times})
		}
		return holes, nil
	})
}
