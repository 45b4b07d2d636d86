package placement

import (
	"context"
	"math"

	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// Estimate finds what Warmup would do for the given entries, and copies nothing. Its calls and its error
// are those of Warmup. Placed has the files that have copies already, or are empty; Skipped those for
// which there is no room, and Elsewhere those that other nodes are to place. The rest of Found is to be
// copied by this node, as are the files that are skipped: Needed has what these copies take, and Room
// what the tiers have for them. The room of copies of outdated versions counts as free: new ones replace
// them.
func (h *Handler) Estimate(
	ctx context.Context, entries []*metadata.Entry, report func(Progress), failed func(*metadata.Entry, error),
) error {
	h.levels.WaitScanned(ctx) // before that, no room is known
	e := estimate{handler: h, progress: Progress{Walking: true}, left: h.levels.Free(ctx)}
	e.countRoom()
	err := h.names.Walk(ctx, entries, func(file *metadata.Entry, err error) error {
		bytes := int64(0)
		if err == nil {
			if !file.IsRegular() {
				return nil
			}
			bytes = file.Size()
			if err = e.add(ctx, file); ctx.Err() != nil {
				return err
			}
		}
		e.progress.Found.add(bytes)
		if err != nil {
			e.progress.Failed.add(bytes)
			failed(file, err)
		}
		report(e.progress)
		return nil
	})
	e.progress.Walking = false
	report(e.progress)
	return err
}

// An estimate is one call of Estimate.
type estimate struct {
	handler  *Handler
	progress Progress
	left     []tiers.Room
}

// countRoom sets the Room and the Inodes of the progress.
func (e *estimate) countRoom() {
	counted := make(map[*int64]bool)
	for _, room := range e.left {
		e.progress.Room += room.Bytes
		switch {
		case room.Bytes == 0 || counted[room.Inodes]:
			continue
		case room.Inodes == nil:
			e.progress.Inodes = math.MaxInt64
			continue
		case e.progress.Inodes < math.MaxInt64:
			e.progress.Inodes += *room.Inodes
		}
		counted[room.Inodes] = true
	}
}

// add counts a file, or its pieces.
func (e *estimate) add(ctx context.Context, file *metadata.Entry) error {
	h, p := e.handler, &e.progress
	units, err := h.unitsOf(ctx, file)
	if err != nil {
		return err
	}
	for _, u := range units {
		switch {
		case copied(u).Level() != tiers.AtSource, u.Size() == 0, e.examine(ctx, u):
			p.Placed.addUnit(u)
		case !u.Placeable():
			return errReserved
		case h.rank(u) != 0:
			p.Elsewhere.addUnit(u)
		default:
			p.Needed += tiers.Allocated(u.Size())
			if !e.place(u) {
				p.Skipped.addUnit(u)
			}
		}
	}
	return nil
}

// examine looks for copies of an Unverified entry, as recheck does, and reports whether a tier has its
// version. What those of other versions take is free.
func (e *estimate) examine(ctx context.Context, u *metadata.Entry) bool {
	if !u.Unverified() {
		return false
	}
	for i, t := range e.handler.levels.Tiers() {
		info, err := t.Stat(ctx, u.CopyName())
		switch {
		case err != nil || !info.IsRegular():
		case u.Info().SameContent(info):
			return true
		case t.Accepts():
			bytes := tiers.Allocated(info.Size)
			e.left[i].Bytes += bytes
			e.progress.Room += bytes
			if inodes := e.left[i].Inodes; inodes != nil {
				*inodes++
				e.progress.Inodes = min(e.progress.Inodes, math.MaxInt64-1) + 1
			}
		}
	}
	return false
}

// place takes room for a copy, and reports whether a tier has it.
func (e *estimate) place(u *metadata.Entry) bool {
	bytes := tiers.Allocated(u.Size())
	for i, t := range e.handler.levels.Tiers() {
		left := &e.left[i]
		if bytes > left.Bytes || left.Inodes != nil && *left.Inodes <= 0 || t.Lacks(u.Size()) != nil {
			continue
		}
		left.Bytes -= bytes
		if left.Inodes != nil {
			*left.Inodes--
		}
		return true
	}
	return false
}
