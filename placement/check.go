package placement

import (
	"errors"
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
	early   bool // copies are queued when they are placed: the kernel may read them directly
	queue   chan *metadata.Entry
	pending atomic.Int64 // copies that were added and not compared yet
}

// maxChecks is the number of copies that may wait. Further ones are queued by a later open.
const maxChecks = 1024

func newChecks(early bool) *checks {
	return &checks{early: early, queue: make(chan *metadata.Entry, maxChecks)}
}

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

// checkQueued compares the copy of e with its checksums, unless that was done since it was queued.
// It removes a corrupt copy. Other errors are left to the next open.
func (h *Handler) checkQueued(e *metadata.Entry) {
	l := e.Level()
	if l == tiers.AtSource {
		return
	}
	o, err := h.levels.Tier(l).Open(h.ctx, e.CopyName(), e.Info())
	if err == nil {
		defer o.Close()
		if c, ok := drivers.As[drivers.Checker](o); !ok || c.Checked() {
			return
		}
		err = tiers.CheckObject(h.ctx, o, func(int) error { return nil })
	}
	if errors.Is(err, drivers.ErrCorrupt) {
		h.corrupt(e, l, o, err)
	} else if err != nil {
		h.log.Debug("copy not checked", "path", e.Path(), "err", err)
	}
}
