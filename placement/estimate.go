package placement

import (
	"context"

	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// Estimate finds what Warmup would do for the given entries, and copies nothing. Its calls and its error
// are those of Warmup. Placed has the files that have copies already, or are empty; Skipped those for
// which there is no room, and Elsewhere those that other nodes are to place. The rest of Found is to be
// copied by this node, as are the files that are skipped: Needed has what these copies take, and Room
// what the tiers have for them.
func (h *Handler) Estimate(
	ctx context.Context, entries []*metadata.Entry, report func(Progress), failed func(*metadata.Entry, error),
) error {
	h.levels.WaitScanned(ctx) // before that, no room is known
	progress := Progress{Walking: true}
	left := h.levels.Free(ctx)
	for _, bytes := range left {
		progress.Room += bytes
	}
	fits := func(e *metadata.Entry, bytes int64) bool {
		for i, t := range h.levels.Tiers() {
			if bytes <= left[i] && t.Lacks(e.Size()) == nil {
				left[i] -= bytes
				return true
			}
		}
		return false
	}
	err := h.names.Walk(ctx, entries, func(e *metadata.Entry, err error) error {
		switch {
		case err != nil:
			progress.Found.add(0)
			progress.Failed.add(0)
			failed(e, err)
			report(progress)
			return nil
		case !e.IsRegular():
			return nil
		}
		progress.Found.add(e.Size())
		units, err := h.unitsOf(ctx, e)
		if err != nil {
			return err
		}
		for _, u := range units {
			switch {
			case copied(u).Level() != tiers.AtSource, u.Size() == 0:
				progress.Placed.addUnit(u)
			case h.rank(u) != 0:
				progress.Elsewhere.addUnit(u)
			default:
				bytes := tiers.Allocated(u.Size())
				progress.Needed += bytes
				if !fits(u, bytes) {
					progress.Skipped.addUnit(u)
				}
			}
		}
		report(progress)
		return nil
	})
	progress.Walking = false
	report(progress)
	return err
}
