package placement

import (
	"context"
	"errors"
	"io/fs"
	"sync/atomic"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// checks is the queue of copies that are compared with their checksums in the background. The
// kernel reads a copy directly only after all of its blocks have been compared. A copy of one
// block is compared when it is opened. A larger one is queued when it was placed or is opened,
// and until it has been compared it is read through the daemon.
type checks struct {
	queue   chan *metadata.Entry
	pending atomic.Int64 // copies that were added and not compared yet
}

// maxChecks is the number of copies that may wait. Further ones are queued by a later open.
const maxChecks = 1024

func newChecks() *checks { return &checks{queue: make(chan *metadata.Entry, maxChecks)} }

// add queues the copy of e, unless too many copies wait.
func (c *checks) add(e *metadata.Entry) {
	c.pending.Add(1)
	select {
	case c.queue <- e:
	default:
		c.pending.Add(-1)
	}
}

// checkCopies compares the queued copies, one after the other, until the handler is to stop.
func (h *Handler) checkCopies() {
	for {
		select {
		case e := <-h.checks.queue:
			h.checkQueued(e)
			h.checks.pending.Add(-1)
		case <-h.ctx.Done():
			return
		}
	}
}

// checkQueued compares the copy of e, unless that was done since it was queued.
func (h *Handler) checkQueued(e *metadata.Entry) {
	if err := h.checkCopy(h.ctx, e, true, func(int) error { return nil }); err != nil {
		h.log.Debug("copy not checked", "path", e.Path(), "err", err)
	}
}

// errNoCopy is the error of checkCopy for a file without a copy.
var errNoCopy = errors.New("no tier holds a copy")

// checkCopy compares the copy of e with its checksums. If once, it does nothing if that was done
// before. It calls pause after each block with its length, and stops when that returns an error.
// It removes a corrupt copy, and returns the error.
func (h *Handler) checkCopy(ctx context.Context, e *metadata.Entry, once bool, pause func(n int) error) error {
	l := e.Level()
	if l == tiers.AtSource {
		return errNoCopy
	}
	err := h.levels.Tier(l).Check(ctx, e.CopyName(), e.Info(), once, pause)
	switch {
	case errors.Is(err, drivers.ErrCorrupt):
		h.corrupt(e, l, err)
	case errors.Is(err, drivers.ErrChanged):
		e.Demote(l)
		return errNoCopy
	case errors.Is(err, fs.ErrNotExist):
		h.missing(e, l)
		return errNoCopy
	}
	return err
}
