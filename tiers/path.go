package tiers

import (
	"context"
	"errors"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// pathInterval is the time between two checks of the path of a tier that is healthy.
const pathInterval = 20 * time.Second

// CheckPaths compares the folders of the tiers with what has their paths now, and has a tier whose path
// leads elsewhere probed, which opens what is there. The tiers do so by themselves every pathInterval.
func (h *Hierarchy) CheckPaths(ctx context.Context) {
	for _, t := range h.tiers {
		t.checkPath(ctx)
	}
}

// checkPath is CheckPaths for one tier. It is no test of the disk: without an answer it does nothing.
func (t *Tier) checkPath(ctx context.Context) {
	c, ok := drivers.As[drivers.PathChecker](t.store)
	if !ok || !t.probing.CompareAndSwap(false, true) {
		return
	}
	_, err := await(ctx, t.opts.Timeout, func() (struct{}, error) {
		defer t.probing.Store(false)
		return struct{}{}, c.CheckPath(ctx)
	}, nil, nil)
	if err != nil && !errors.Is(err, drivers.ErrAbandoned) {
		t.health.note(writing, err)
	}
}
