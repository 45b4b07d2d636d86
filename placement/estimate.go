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
// what the tiers have for them. The room of copies of outdated versions counts as free: new ones replace
// them.
func (h *Handler) Estimate(
	ctx context.Context, entries []*metadata.Entry, report func(Progress), failed func(*metadata.Entry, error),
) error {
	h.levels.WaitScanned(ctx) // before that, no room is known
	e := newEstimate(h, h.levels.Free(ctx))
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
	room     []int64                    // bytes of each tier, with those of outdated copies; negative if it holds more than it may
	left     []tiers.Room               // of room, what the copies so far leave
	dirs     []map[*metadata.Entry]bool // of each tier: whether directories are there, or are made for these copies
}

// newEstimate returns an estimate for tiers that have left some room.
func newEstimate(h *Handler, left []tiers.Room) *estimate {
	e := &estimate{handler: h, progress: Progress{Walking: true}, left: left}
	for _, room := range left {
		e.room = append(e.room, room.Bytes)
		e.dirs = append(e.dirs, make(map[*metadata.Entry]bool))
	}
	e.countRoom()
	return e
}

// countRoom sets the Room of the progress.
func (e *estimate) countRoom() {
	e.progress.Room = 0
	for _, bytes := range e.room {
		e.progress.Room += max(bytes, 0)
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
			bytes, placed := e.place(ctx, u)
			p.Needed += bytes
			if !placed {
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
			bytes := t.Allocated(info.Size)
			e.room[i] += bytes
			e.left[i].Bytes += bytes
			e.countRoom()
			if inodes := e.left[i].Inodes; inodes != nil {
				*inodes++
			}
		}
	}
	return false
}

// place takes room for a copy, and reports whether a tier has it. It returns how many bytes the copy occupies there,
// or would occupy.
func (e *estimate) place(ctx context.Context, u *metadata.Entry) (bytes int64, placed bool) {
	lacksInodes := false
	for i, t := range e.handler.levels.Tiers() {
		left, bytes := &e.left[i], t.Allocated(u.Size())
		if bytes > left.Bytes || t.Lacks(u.Size()) != nil {
			continue
		}
		if left.Inodes != nil {
			dirs := e.missingDirs(ctx, i, u.File().Parent())
			needed := 1 + int64(len(dirs))
			if needed > *left.Inodes {
				lacksInodes = true
				continue
			}
			*left.Inodes -= needed
			for _, dir := range dirs {
				e.dirs[i][dir] = true
			}
		}
		left.Bytes -= bytes
		return bytes, true
	}
	if lacksInodes {
		e.progress.NoInodes++
	}
	return e.handler.levels.Allocated(u.Size()), false
}

// missingDirs returns the directories that a copy in dir needs in a tier and that are not there.
func (e *estimate) missingDirs(ctx context.Context, tier int, dir *metadata.Entry) (missing []*metadata.Entry) {
	for ; dir.Parent() != dir; dir = dir.Parent() {
		there, known := e.dirs[tier][dir]
		if !known {
			_, err := e.handler.levels.Tiers()[tier].Stat(ctx, dir.CopyName())
			there = err == nil
			e.dirs[tier][dir] = there
		}
		if there {
			break
		}
		missing = append(missing, dir)
	}
	return missing
}
