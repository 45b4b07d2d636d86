package placement

import (
	"maps"
	"sync"
	"time"

	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// ahead notices when the files of a directory are opened in the order of their
// names, and has the next ones copied before they are opened. Several readers
// that share the work open them nearly in order; a job that shuffles does not,
// and nothing is copied that it has not asked for.
type ahead struct {
	mu   sync.Mutex               // guards the following
	runs map[*metadata.Entry]*run // by directory
}

// A run is how the files of one directory are being opened. Files have numbers,
// in the order of their names.
type run struct {
	last  int // the furthest that was opened
	hits  int // how often the next one opened was a little further on
	depth int // how many are copied ahead of last
}

const (
	runWindow = 16       // how far from the last one an open may be in a run
	runHits   = 2        // opens in order before anything is copied ahead
	minDepth  = 8        // files copied ahead at first; it doubles with each open
	maxDepth  = 64       // files copied ahead at most
	maxAhead  = 64 << 20 // bytes copied ahead, beyond the next file
	maxRuns   = 1024     // directories that are watched
)

// opened takes notice of an open of e.
func (a *ahead) opened(h *Handler, e *metadata.Entry) {
	if len(h.levels.Tiers()) == 0 {
		return
	}
	i, listed := h.names.Index(e)
	if !listed {
		return
	}
	last, depth := a.note(e.Parent(), i)
	if depth == 0 {
		return
	}
	var bytes int64
	for i, s := range h.names.Siblings(e, last+1, depth) {
		if !s.IsRegular() {
			continue
		}
		if bytes += s.Size(); bytes > maxAhead && i > 0 {
			return
		}
		h.prefetch(s)
	}
}

// prune forgets directories that are no more.
func (a *ahead) prune() {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.runs, func(dir *metadata.Entry, _ *run) bool { return dir.Stale() })
}

// note takes notice that file i of dir was opened. It returns the furthest that
// was opened, and how many after that are to be copied ahead.
func (a *ahead) note(dir *metadata.Entry, i int) (last, depth int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.run(dir)
	switch d := i - r.last; {
	case d > 0 && d <= runWindow:
		r.last = i
		r.hits++
	case d <= 0 && d > -runWindow: // a reader that lags behind another
		return 0, 0
	default:
		*r = run{last: i}
	}
	if r.hits < runHits {
		return 0, 0
	}
	r.depth = min(max(2*r.depth, minDepth), maxDepth)
	return r.last, r.depth
}

// run returns the run of a directory, in place of another where there are many;
// a.mu must be held.
func (a *ahead) run(dir *metadata.Entry) *run {
	if r := a.runs[dir]; r != nil {
		return r
	}
	if a.runs == nil {
		a.runs = make(map[*metadata.Entry]*run)
	}
	for old := range a.runs {
		if len(a.runs) < maxRuns {
			break
		}
		delete(a.runs, old)
	}
	r := &run{last: -1}
	a.runs[dir] = r
	return r
}

// prefetch has the workers copy e, if it is at the source and has a tier to go
// to.
func (h *Handler) prefetch(e *metadata.Entry) {
	if e.Level() != tiers.AtSource || e.Claimed() || !h.Fits(e.Size()) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil || h.fills[e] != nil || time.Now().Before(h.retries[e].at) || !e.Claim() {
		return
	}
	f := newFill(h, e)
	f.ahead = true
	h.fills[e] = f
	h.queue.hasten(f)
}
