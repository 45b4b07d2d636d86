package placement

import (
	"context"
	"sync"

	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// Progress is the progress of a Warmup. When the Warmup has ended, Placed, Skipped, Failed and
// Elsewhere add up to Found, unless it was cancelled.
type Progress struct {
	Walking                        bool // more files may be found
	Found, Placed, Skipped, Failed Amount

	// Elsewhere is what other nodes are to place, and for which this one has no room to spare.
	Elsewhere Amount

	// Of an Estimate: the bytes that the copies that are missing take in the tiers, and the bytes that the
	// tiers have for them; and how many copies have no room for lack of inodes alone.
	Needed, Room, NoInodes int64
}

// An Amount is a number of files and the sum of their sizes.
type Amount struct{ Files, Bytes int64 }

func (a *Amount) add(bytes int64) {
	a.Files++
	a.Bytes += bytes
}

// addUnit adds a file, or a piece of one. The first piece counts as the file.
func (a *Amount) addUnit(e *metadata.Entry) {
	a.add(e.Size())
	if e.Offset() > 0 {
		a.Files--
	}
}

// listAhead is how many files a Warmup lists before they are copied, so that its total is known
// early.
const listAhead = 1 << 20

// Warmup places every regular file at and below the given entries, while it finds them, in no
// certain order. It returns when all are placed, skipped or failed. It calls report after each
// step, and failed for each file whose copy failed. A directory or a name that the source does
// not show counts as one empty file that failed. The calls are not concurrent. The error is
// ctx's.
//
// With peers, it places the files that this node owns, and then, from the peers, the others for
// which there is spare room.
func (h *Handler) Warmup(
	ctx context.Context, entries []*metadata.Entry, report func(Progress), failed func(*metadata.Entry, error),
) error {
	h.levels.WaitScanned(ctx) // before that, no tier accepts copies
	var (
		mu       sync.Mutex
		progress = Progress{Walking: true}
		placers  sync.WaitGroup
		files    = make(chan *metadata.Entry, listAhead)
		foreign  []*metadata.Entry // files and pieces
	)
	update := func(f func()) {
		mu.Lock()
		defer mu.Unlock()
		f()
		report(progress)
	}
	place := func(e *metadata.Entry) {
		outcome, err := h.Place(ctx, e)
		update(func() {
			switch outcome {
			case Placed:
				progress.Placed.addUnit(e)
			case Skipped:
				progress.Skipped.addUnit(e)
			case Failed:
				progress.Failed.addUnit(e)
				failed(e, err)
			case Elsewhere:
				progress.Elsewhere.addUnit(e)
			}
		})
	}
	start := func(files <-chan *metadata.Entry) {
		for range 2 * h.workers() { // so that no worker waits for the next file
			placers.Go(func() {
				for e := range files {
					if ctx.Err() != nil {
						return
					}
					place(e)
				}
			})
		}
	}
	start(files)
	err := h.names.Walk(ctx, entries, func(e *metadata.Entry, err error) error {
		if err == nil && !e.IsRegular() {
			return nil
		}
		if err != nil {
			update(func() {
				progress.Found.add(0)
				progress.Failed.add(0)
				failed(e, err)
			})
			return nil
		}
		update(func() { progress.Found.add(e.Size()) })
		units, err := h.unitsOf(ctx, e)
		if err != nil {
			return err
		}
		for _, u := range units {
			if h.rank(u) != 0 {
				foreign = append(foreign, u)
				continue
			}
			select {
			case files <- u:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	close(files)
	update(func() { progress.Walking = false })
	placers.Wait()
	if len(foreign) > 0 && ctx.Err() == nil {
		(&census{handler: h}).run(ctx)
		start(chanOf(foreign))
		placers.Wait()
	}
	if err == nil {
		err = ctx.Err()
	}
	return err
}

// unitsOf returns what of a file is placed by itself: its pieces, or the file. The error is ctx's.
func (h *Handler) unitsOf(ctx context.Context, e *metadata.Entry) ([]*metadata.Entry, error) {
	if h.names.HasPieces(e) && e.Level() == tiers.AtSource {
		return h.names.Pieces(ctx, e)
	}
	return []*metadata.Entry{e}, nil
}

// chanOf returns a closed channel that holds the entries.
func chanOf(entries []*metadata.Entry) <-chan *metadata.Entry {
	c := make(chan *metadata.Entry, len(entries))
	for _, e := range entries {
		c <- e
	}
	close(c)
	return c
}
