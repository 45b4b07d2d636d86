package placement

import (
	"context"
	"sync"

	"github.com/milkweedfs/milkweed/metadata"
)

// Progress is the progress of a Warmup. When the Warmup has ended, Placed, Skipped and Failed
// add up to Found, unless it was cancelled.
type Progress struct {
	Walking                        bool // more files may be found
	Found, Placed, Skipped, Failed Amount
}

// An Amount is a number of files and the sum of their sizes.
type Amount struct{ Files, Bytes int64 }

func (a *Amount) add(bytes int64) {
	a.Files++
	a.Bytes += bytes
}

// listAhead is how many files a Warmup lists before they are copied, so that its total is known
// early.
const listAhead = 1 << 20

// Warmup places every regular file at and below the given entries, while it finds them, in no
// certain order. It returns when all are placed, skipped or failed. It calls report after each
// step, and failed for each file whose copy failed. A directory or a name that the source does
// not show counts as one empty file that failed. The calls are not concurrent. The error is
// ctx's.
func (h *Handler) Warmup(
	ctx context.Context, entries []*metadata.Entry, report func(Progress), failed func(*metadata.Entry, error),
) error {
	h.levels.WaitScanned(ctx) // before that, no tier accepts copies
	var (
		mu       sync.Mutex
		progress = Progress{Walking: true}
		placers  sync.WaitGroup
		files    = make(chan *metadata.Entry, listAhead)
	)
	update := func(f func()) {
		mu.Lock()
		defer mu.Unlock()
		f()
		report(progress)
	}
	for range 2 * h.workers { // so that no worker waits for the next file
		placers.Go(func() {
			for e := range files {
				if ctx.Err() != nil {
					return
				}
				outcome, err := h.Place(ctx, e)
				update(func() {
					switch outcome {
					case Placed:
						progress.Placed.add(e.Size())
					case Skipped:
						progress.Skipped.add(e.Size())
					case Failed:
						progress.Failed.add(e.Size())
						failed(e, err)
					}
				})
			}
		})
	}
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
		select {
		case files <- e:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	close(files)
	update(func() { progress.Walking = false })
	placers.Wait()
	if err == nil {
		err = ctx.Err()
	}
	return err
}
