package placement

import (
	"maps"
	"sync"
	"time"

	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// ahead notices how the files of a directory are opened, and has others of them
// copied before they are opened.
//
// Where they are opened in the order of their names, the next ones are copied.
// Several readers that share the work open them nearly in order.
//
// A job that shuffles says nothing of what it opens next. Nothing is copied for
// it that it has not asked for, unless the source Lists, as drivers.Lister says:
// there each file costs a reader the time of a request, and a job that reads all
// of them one by one would leave the network idle. So when scatteredHere files of
// a directory have been opened, each further one that is opened for the first
// time has up to moreHere others of it copied, and when scatteredInAll have been
// opened in all directories, up to moreInAll: many datasets have many directories,
// of a class each, or of a few files. They are taken in the order of their names,
// round and round the directory. This is
//
//   - in proportion: of a directory with n opened files at most moreHere·n others
//     are copied, so that a job that reads a few does not have all fetched. As
//     files are told apart by their numbers, that is about right when the directory
//     changes, and when there are more than maxRuns directories;
//   - for small files only, as large ones keep the network busy by themselves;
//   - when there is nothing else to do, and maxLater files are waiting at most;
//   - if all files that are known of fit into the tiers together, or else while
//     less than half of the tiers' room is taken: what was placed stays, so that
//     others could take the room of what the job does read. A job that reads
//     some of the files, which fit into half of the room, has them all placed.
//
// A few files that are opened now and then, of many directories, are no job: what
// was opened out of order in all directories is counted anew when for calmAfter
// there was no such open.
type ahead struct {
	mu        sync.Mutex               // guards the following
	runs      map[*metadata.Entry]*run // by directory
	scattered int                      // files opened out of order, in all directories
	at        time.Time                // when the last of them was
}

// A run is how the files of one directory are being opened. Files have numbers,
// in the order of their names.
type run struct {
	last  int // the furthest that was opened in order
	hits  int // how often the next one opened was a little further on
	depth int // how many are copied ahead of last

	opened    []uint64 // a bit for each that was opened out of order, where the source Lists
	scattered int      // how many bits are set
	cursor    int      // where to look for others to copy
}

const (
	runWindow = 16       // how far from the last one an open may be in a run
	runHits   = 2        // opens in order before anything is copied ahead
	minDepth  = 8        // files copied ahead at first; it doubles with each open
	maxDepth  = 64       // files copied ahead at most
	maxAhead  = 64 << 20 // bytes copied ahead, beyond the next file
	maxRuns   = 1 << 14  // directories that are watched, in about 200 bytes and a bit for each file

	scatteredHere  = 16      // files of a directory opened before others of it are copied
	moreHere       = 16      // others looked at then, for each that is opened
	scatteredInAll = 64      // files opened before others of any directory are copied
	moreInAll      = 4       // others looked at then
	maxScattered   = 4 << 20 // bytes of such others: they take longer to be asked for than to be brought

	calmAfter = 5 * time.Minute // without opens out of order, after which they are counted anew
)

// A stretch is which files of a directory to copy ahead.
type stretch struct {
	from, n int  // their numbers
	inOrder bool // they are about to be opened
}

// opened takes notice of an open of e.
func (a *ahead) opened(h *Handler, e *metadata.Entry) {
	if len(h.levels.Tiers()) == 0 {
		return
	}
	i, listed := h.names.Index(e)
	if !listed {
		return
	}
	s := a.note(e.Parent(), i, h.remote)
	if s.n == 0 {
		return
	}
	siblings := h.names.Siblings(e, s.from, s.n)
	if s.inOrder {
		h.copyNext(siblings)
		return
	}
	h.copyOthers(siblings)
	if len(siblings) < s.n {
		a.rewind(e.Parent())
	}
}

// copyNext has files copied that are about to be opened.
func (h *Handler) copyNext(files []*metadata.Entry) {
	var bytes int64
	for i, e := range files {
		if !e.IsRegular() {
			continue
		}
		if bytes += e.Size(); bytes > maxAhead && i > 0 {
			return
		}
		h.prefetch(e, true)
	}
}

// copyOthers has small files copied that may be opened some time.
func (h *Handler) copyOthers(files []*metadata.Entry) {
	for _, e := range files {
		if e.IsRegular() && e.Size() <= maxScattered && h.spares(e.Size()) {
			h.prefetch(e, false)
		}
	}
}

// spares reports whether the tiers have room for a file that perhaps nobody will
// open, so that it takes none from those that somebody will.
func (h *Handler) spares(size int64) bool {
	var quota, taken int64
	for _, t := range h.levels.Tiers() {
		q, n := t.Room()
		quota, taken = quota+q, taken+n
	}
	if tiers.Footprint(h.names.Len(), h.names.Bytes()) <= quota {
		return true
	}
	return taken+h.spare.Load()+tiers.Footprint(1, size) <= quota/2
}

// prune forgets directories that are no more, and opens out of order when there
// have been none for long.
func (a *ahead) prune(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Sub(a.at) > calmAfter {
		a.scattered = 0
	}
	maps.DeleteFunc(a.runs, func(dir *metadata.Entry, _ *run) bool { return dir.Stale() })
}

// note takes notice that file i of dir was opened, and returns what is to be
// copied ahead.
func (a *ahead) note(dir *metadata.Entry, i int, lists bool) stretch {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.run(dir)
	if depth := r.next(i); depth > 0 {
		return stretch{r.last + 1, depth, true}
	}
	if !lists || !r.mark(i) {
		return stretch{}
	}
	a.scattered++
	a.at = time.Now()
	n := 0
	switch {
	case r.scattered > scatteredHere:
		n = moreHere
	case a.scattered > scatteredInAll:
		n = moreInAll
	}
	s := stretch{from: r.cursor, n: n}
	r.cursor += n
	return s
}

// rewind starts again at the first file of dir.
func (a *ahead) rewind(dir *metadata.Entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.run(dir).cursor = 0
}

// next takes notice that file i was opened, and returns how many after r.last
// are to be copied ahead because files are opened in order.
func (r *run) next(i int) int {
	switch d := i - r.last; {
	case d > 0 && d <= runWindow:
		r.last = i
		r.hits++
	case d <= 0 && d > -runWindow: // a reader that lags behind another
		return 0
	default:
		r.last, r.hits, r.depth = i, 0, 0
	}
	if r.hits < runHits {
		return 0
	}
	r.depth = min(max(2*r.depth, minDepth), maxDepth)
	return r.depth
}

// mark takes notice that file i was opened out of order, and reports whether it
// was for the first time.
func (r *run) mark(i int) bool {
	if r.scattered == 0 {
		r.cursor = i + 1 // so that a run that was forgotten does not begin where it did
	}
	for len(r.opened) <= i/64 {
		r.opened = append(r.opened, 0)
	}
	bit := uint64(1) << (i % 64)
	if r.opened[i/64]&bit != 0 {
		return false
	}
	r.opened[i/64] |= bit
	r.scattered++
	return true
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
// to: soon, or when there is nothing else to do and not too much that waits for
// it.
func (h *Handler) prefetch(e *metadata.Entry, soon bool) {
	if e.Level() != tiers.AtSource || e.Claimed() || !h.Fits(e.Size()) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil || h.fills[e] != nil || time.Now().Before(h.retries[e].at) ||
		!soon && !h.queue.hasRoom() || !e.Claim() {
		return
	}
	f := newFill(h, e)
	f.ahead = true
	h.fills[e] = f
	if soon {
		h.queue.hasten(f)
	} else {
		f.spare = tiers.Footprint(1, f.size)
		h.spare.Add(f.spare)
		h.queue.postpone(f)
	}
}
