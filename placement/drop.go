package placement

import (
	"context"
	"errors"

	"github.com/milkweedfs/milkweed/tiers"
)

// A DropReport is the state of a call of Drop, or its result.
type DropReport struct {
	Copies int64  `json:"copies_removed"`        // that were removed
	Bytes  int64  `json:"bytes_removed"`         // room that these occupied; while one is open, it still does
	Failed int64  `json:"copies_failed"`         // that could not be removed
	Error  string `json:"first_error,omitempty"` // why one was not removed, or a tier not examined to the end
}

// Drop removes the copies of all files at and below the paths, which are those of a generation that is
// not used any more, or that a user has named. Open files stay readable, and later opens read the source,
// or copy the file again. A copy that is being made stays, unless it is of parts of a file that nobody reads.
// Drop calls report after each directory. The error is that of ctx, or that of the first tier that could not
// be examined; then the other tiers were.
func (h *Handler) Drop(ctx context.Context, paths []string, report func(DropReport)) error {
	h.levels.WaitScanned(ctx)
	var r DropReport
	var errs []error
	h.dropParts(paths, &r)
	report(r)
	for _, t := range h.levels.Tiers() {
		for _, root := range h.copiesOf(paths) {
			err := t.Available()
			if err == nil {
				err = t.Copies(ctx, root, func(copies []tiers.CopyInfo) error {
					for _, c := range copies {
						h.drop(ctx, t, c, &r)
					}
					report(r)
					return context.Cause(ctx)
				})
			}
			if err != nil && ctx.Err() == nil {
				errs = append(errs, err)
				break
			}
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(errs...)
}

// copiesOf returns the roots of the copies of all files at and below the paths, and of their pieces.
func (h *Handler) copiesOf(paths []string) (roots []tiers.CopyName) {
	for _, name := range paths {
		roots = append(roots, h.names.CopyName(name))
		if name != "." { // which includes the copies of pieces
			roots = append(roots, h.names.PieceCopies(name))
		}
	}
	return roots
}

// drop removes one copy that was found in a tier.
func (h *Handler) drop(ctx context.Context, t *tiers.Tier, c tiers.CopyInfo, r *DropReport) {
	var removed bool
	var err error
	if e := h.names.CachedCopy(c.Name); e != nil && e.Level() == t.Level() {
		removed, err = h.Retract(e)
		h.files.forgetRecent(e) // the room of a copy is returned when the last user has left
	} else {
		removed, err = t.RemoveFound(ctx, c)
	}
	if removed {
		r.Copies++
		r.Bytes += c.Room
	}
	if err != nil && ctx.Err() == nil {
		r.Failed++
		if r.Error == "" {
			r.Error = err.Error()
		}
	}
}
