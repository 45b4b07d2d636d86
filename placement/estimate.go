package placement

import (
	"context"

	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// An Estimate is what a Warmup would copy, and whether the tiers have room for it. Bytes are sizes of files; needs and
// rooms are bytes in a tier, where a copy takes whole blocks.
type Estimate struct {
	Scanning bool `json:"scanning"` // directories are still being listed, and the numbers grow

	Files       int64 `json:"files"`        // files found
	Bytes       int64 `json:"bytes"`        // their sizes
	CopiedFiles int64 `json:"copied_files"` // of them, files that have a copy or are empty
	CopiedBytes int64 `json:"copied_bytes"`
	OtherFiles  int64 `json:"other_nodes_files"` // of them, files that other nodes are to copy
	OtherBytes  int64 `json:"other_nodes_bytes"`
	FailedFiles int64 `json:"failed_files"` // names and directories that the source does not show

	NeededBytes  int64 `json:"needed_bytes"`  // what copies of the other files take in the tiers
	RoomBytes    int64 `json:"room_bytes"`    // what the tiers that work have left for copies
	SkippedFiles int64 `json:"skipped_files"` // files for which there is no room
	SkippedBytes int64 `json:"skipped_bytes"`
}

// Estimate finds the files at and below the given entries, as Warmup does, and copies nothing. It calls report after each
// step, and failed for each name that the source does not show. The calls are not concurrent. The error is ctx's.
func (h *Handler) Estimate(ctx context.Context, entries []*metadata.Entry, report func(Estimate), failed func(*metadata.Entry, error)) error {
	h.levels.WaitScanned(ctx) // before that, no room is known
	now := Estimate{Scanning: true}
	var left []int64 // of each tier that accepts copies
	for _, t := range h.levels.Tiers() {
		if free := t.Free(ctx); t.Accepts() && free > 0 {
			left = append(left, free)
			now.RoomBytes += free
		}
	}
	place := func(e *metadata.Entry) {
		bytes := tiers.Allocated(e.Size())
		now.NeededBytes += bytes
		for i := range left {
			if bytes <= left[i] {
				left[i] -= bytes
				return
			}
		}
		now.SkippedBytes += e.Size()
		if e.Offset() == 0 { // otherwise it is a further piece of a file
			now.SkippedFiles++
		}
	}
	err := h.names.Walk(ctx, entries, func(e *metadata.Entry, err error) error {
		switch {
		case err != nil:
			now.FailedFiles++
			failed(e, err)
		case !e.IsRegular():
			return nil
		default:
			now.Files++
			now.Bytes += e.Size()
			if err := h.estimateFile(ctx, e, &now, place); err != nil {
				return err
			}
		}
		report(now)
		return nil
	})
	now.Scanning = false
	report(now)
	return err
}

// estimateFile counts a file, or its pieces, and calls place for what this node is to copy.
func (h *Handler) estimateFile(ctx context.Context, e *metadata.Entry, now *Estimate, place func(*metadata.Entry)) error {
	units := []*metadata.Entry{e}
	if h.names.HasPieces(e) && e.Level() == tiers.AtSource {
		var err error
		if units, err = h.names.Pieces(ctx, e); err != nil {
			return err
		}
	}
	count := func(files, bytes *int64, u *metadata.Entry) {
		*bytes += u.Size()
		if u.Offset() == 0 {
			*files++
		}
	}
	for _, u := range units {
		switch {
		case copied(u).Level() != tiers.AtSource || u.Size() == 0:
			count(&now.CopiedFiles, &now.CopiedBytes, u)
		case h.rank(u) != 0:
			count(&now.OtherFiles, &now.OtherBytes, u)
		default:
			place(u)
		}
	}
	return nil
}
