package placement

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// A planWindow holds copies of files that the owner of the mount has planned, and for which no tier has permanent room,
// in a share of the fastest tier. A file is copied shortly before the job uses it, and dropped after that.
//
// Such a copy is a fill that is never committed. It is read as a fill in flight is; the file keeps
// the level of the source and its claim. It lies among the incomplete copies of the tier, which
// removes them at its start, so that no copy of a window is taken for a permanent one.
//
// A copy without users is dropped when each of its uses is over: the job has passed it, and has
// closed it or has passed it by the lead of the loader. The latter is for reads that the daemon
// does not see, in stateless mode and from the page cache. If the window is full for a second
// without a drop, the copy that is needed last is dropped, for one that another stream needs
// earlier.
//
// Its methods may be called concurrently.
type planWindow struct {
	handler *Handler
	files   int           // copies at most: each has an open file
	wake    chan struct{} // of capacity 1

	mu      panics.Mutex // guards the following
	copies  map[*metadata.Entry]*windowed
	order   map[*planStream][]*windowed // the copies by their first use, in its order
	passed  map[*windowed]struct{}      // copies that may be over
	waiting []use                       // uses for which there was no room
	first   *use                        // the room that relieve has made is for this one, and for earlier ones
	dropped bool                        // a copy, since the last tick

	counters WindowCounters // updated atomically
}

// A windowed is one copy in the window.
type windowed struct {
	fill   *fill
	first  place // of its first use
	uses   []use // that are not over
	closed bool  // the job has opened the file, and closed it
}

// WindowCounters count what the window has done since the daemon started. The tags are those of
// tiers.TierCounters.
type WindowCounters struct {
	Copies  int64 `json:"copies" metric:"window_copies_total" help:"Planned files without permanent room that were copied to the window."`
	Used    int64 `json:"dropped" metric:"window_dropped_total" labels:"after=use" help:"Copies dropped after the job had read them." family:"Copies dropped from the window."`
	Unused  int64 `json:"dropped_before_use" metric:"window_dropped_total" labels:"after=no_use" help:"Copies dropped that the job had not read."`
	Stalled int64 `json:"stalls" metric:"window_stalls_total" help:"Seconds at whose end the window had been full without a drop, so that a copy was dropped for one that is needed earlier."`
}

// WindowStats describe the window at one moment.
type WindowStats struct {
	WindowCounters
	Size  int64 `json:"size_bytes" metric:"window_size_bytes" help:"Share of the fastest tier that is for planned files without permanent room."`
	Taken int64 `json:"used_bytes" metric:"window_used_bytes" help:"Bytes that copies in the window take."`
	Files int64 `json:"files" metric:"window_files" help:"Copies in the window."`
}

// minWindowFiles is how many copies a window may have in any case.
const minWindowFiles = 64

// newPlanWindow makes a window of a number of files.
func newPlanWindow(h *Handler, files int) *planWindow {
	return &planWindow{
		handler: h, files: max(files, minWindowFiles), wake: make(chan struct{}, 1),
		copies: make(map[*metadata.Entry]*windowed),
		order:  make(map[*planStream][]*windowed),
		passed: make(map[*windowed]struct{}),
	}
}

// WindowStats returns the state of the window.
func (h *Handler) WindowStats() WindowStats {
	w := h.window
	s := WindowStats{WindowCounters: drivers.Snapshot(&w.counters)}
	if t := w.tier(); t != nil {
		s.Size, s.Taken = t.Window()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s.Files = int64(len(w.copies))
	return s
}

// tier returns the tier that has the window, or nil.
func (w *planWindow) tier() *tiers.Tier {
	if all := w.handler.levels.Tiers(); len(all) > 0 {
		return all[0]
	}
	return nil
}

// withoutRoom is called for a planned file for which no tier has permanent room. It returns a fill
// in the window, or nil. If the window is full, withoutRoom reports held: the plan returns u again
// when it has room.
func (h *Handler) withoutRoom(e *metadata.Entry, u use) (f *fill, held bool) {
	w, t := h.window, h.window.tier()
	if t == nil || e.Size() == 0 || h.files.inUse(e) { // an open file is being read at the source
		return nil, false
	}
	if size, _ := t.Window(); t.Allocated(e.Size()) > size {
		return nil, false
	}
	for range 3 { // another worker may be faster
		if !w.hasRoom(t, e.Size(), u) {
			return nil, true
		}
		room, ok := t.ReserveWindow(h.ctx, e.Size())
		if !ok {
			continue
		}
		f = h.prefetch(e, room)
		if f == nil {
			room.Return()
			return nil, false
		}
		u.stream.plan.spend(budget{bytes: e.Size()})
		w.add(f, u)
		return f, false
	}
	return nil, false // the tier is not healthy
}

// hasRoom reports whether the window has room for size bytes. If not, or if an earlier use of the
// stream waits for room, u waits for it.
func (w *planWindow) hasRoom(t *tiers.Tier, size int64, u use) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	overtakes := func(other use) bool { return other.stream == u.stream && other.compare(u.place) < 0 }
	if len(w.copies) < w.files && t.FitsWindow(size) && !slices.ContainsFunc(w.waiting, overtakes) && !w.isPromised(u) {
		return true
	}
	w.waiting = append(w.waiting, u)
	u.hold()
	w.poke()
	return false
}

// isPromised reports whether the room is for a use that comes before u. A use that the job has
// passed does not come any more. w.mu must be held.
func (w *planWindow) isPromised(u use) bool {
	if w.first == nil || *w.first == u {
		return false
	}
	first := w.first.ahead()
	return first >= 0 && first < u.ahead()
}

// settled ends the promise of room for a use: it got room, or needs none.
func (w *planWindow) settled(u use) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.first != nil && *w.first == u {
		w.first = nil
	}
}

// poke makes run look for copies that are to be dropped.
func (w *planWindow) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// add records a new fill for a use, unless the fill has ended: a reader may have begun it.
func (w *planWindow) add(f *fill, u use) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.handler.has(f) { // otherwise its end calls remove later
		return
	}
	c := &windowed{fill: f, first: u.place, uses: []use{u}}
	w.copies[f.entry] = c
	order := w.order[u.stream]
	i := len(order)
	for i > 0 && order[i-1].first.compare(u.place) > 0 { // workers may overtake each other
		i--
	}
	w.order[u.stream] = slices.Insert(order, i, c)
}

// remove forgets a fill.
func (w *planWindow) remove(f *fill) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.copies[f.entry]; c != nil && c.fill == f {
		delete(w.copies, f.entry)
		delete(w.passed, c)
	}
}

// again records a further use of e, and reports whether the window has a copy of it.
func (w *planWindow) again(e *metadata.Entry, u use) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.copies[e]
	if c != nil && !slices.Contains(c.uses, u) {
		c.uses = append(c.uses, u)
		c.closed = false
	}
	return c != nil
}

// closed records that the last handle of e was closed.
func (w *planWindow) closed(e *metadata.Entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.copies[e]; c != nil {
		c.closed = true
		w.passed[c] = struct{}{}
		w.poke()
	}
}

// moved records that the job has opened a planned file.
func (w *planWindow) moved() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.copies) > 0 {
		w.poke()
	}
}

// stallTime is how long the window may be full before a copy is dropped that was not used.
const stallTime = time.Second

// run drops copies until the handler is to stop.
func (w *planWindow) run() {
	tick := time.NewTicker(stallTime)
	defer tick.Stop()
	for {
		select {
		case <-w.wake:
			w.drain()
		case <-tick.C:
			w.findUseless()
			w.drain()
			w.relieve()
		case <-w.handler.ctx.Done():
			return
		}
	}
}

// findUseless finds copies of versions that are gone, and copies that cannot be read.
func (w *planWindow) findUseless() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.copies {
		if c.isUseless() {
			w.passed[c] = struct{}{}
		}
	}
}

// isUseless reports whether the copy is of a version that is gone, or cannot be read.
func (c *windowed) isUseless() bool { return c.fill.entry.Stale() || c.fill.unreadable.Load() }

// drain drops the copies that are over.
func (w *planWindow) drain() {
	for _, c := range w.over() {
		w.handler.files.forgetRecent(c.fill.entry)
		w.drop(c, w.isOver)
	}
}

// over returns the copies that are over.
func (w *planWindow) over() (all []*windowed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for s, order := range w.order {
		for len(order) > 0 && (w.copies[order[0].fill.entry] != order[0] || w.isOver(order[0])) {
			if c := order[0]; w.copies[c.fill.entry] == c {
				w.passed[c] = struct{}{}
			}
			order = order[1:]
		}
		if w.order[s] = order; len(order) == 0 {
			delete(w.order, s)
		}
	}
	for c := range w.passed {
		if w.isOver(c) {
			all = append(all, c)
		}
	}
	return all
}

// isOver reports whether no use of c is left. w.mu must be held.
func (w *planWindow) isOver(c *windowed) bool {
	if c.isUseless() {
		return true
	}
	c.uses = slices.DeleteFunc(c.uses, func(u use) bool { return u.through() || c.closed && u.ahead() < 0 })
	return len(c.uses) == 0
}

// drop drops a copy, and reports success: it is complete, has no user, and may be dropped.
func (w *planWindow) drop(c *windowed, may func(*windowed) bool) bool {
	f := c.fill
	if !w.take(c, may) {
		return false
	}
	f.expel()
	counter := &w.counters.Unused
	if f.read.Load() {
		counter = &w.counters.Used
	}
	atomic.AddInt64(counter, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropped = true
	if len(w.waiting) > 0 {
		w.resume()
	}
	return true
}

// take takes a copy out of the window, and reports success, as drop does.
func (w *planWindow) take(c *windowed, may func(*windowed) bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !may(c) || !w.handler.unhold(c.fill) {
		return false
	}
	delete(w.copies, c.fill.entry)
	delete(w.passed, c)
	return true
}

// resume lets the plan go on where there was no room. w.mu must be held.
func (w *planWindow) resume() {
	w.waiting = nil
	w.handler.plans.of(nil).release()
	w.handler.queue.feedPlanned()
}

// relieve is called each stallTime. If uses have waited since the last call without a drop, it
// drops the copies that other streams need last, up to a sixteenth of the window, as far as they
// are needed later than the first of these uses for which there is such a copy.
func (w *planWindow) relieve() {
	for _, u := range w.stalled() {
		if w.makeRoom(u) {
			atomic.AddInt64(&w.counters.Stalled, 1)
			return
		}
	}
}

// stalled returns the uses that wait, the first one first, if no copy was dropped since the last
// call.
func (w *planWindow) stalled() (waiting []use) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.first = nil
	stalled := len(w.waiting) > 0 && !w.dropped
	if w.dropped = false; !stalled {
		return nil
	}
	waiting = w.waiting
	slices.SortFunc(waiting, func(a, b use) int { return cmp.Compare(a.ahead(), b.ahead()) })
	w.first = &waiting[0]
	w.resume() // a stream may be gone, or a tier have room
	return waiting
}

// makeRoom is relieve for the use u, and reports whether it has dropped a copy.
func (w *planWindow) makeRoom(u use) bool {
	next := u.ahead()
	c := w.last(u, next)
	if c == nil {
		return false
	}
	w.promise(u)
	size, _ := w.tier().Window()
	var freed int64
	any := func(*windowed) bool { return true }
	for ; c != nil && freed <= size/16 && w.drop(c, any); c = w.last(u, next) {
		freed += c.fill.size
	}
	return freed > 0
}

// promise keeps the room for u, and for earlier uses.
func (w *planWindow) promise(u use) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.first = &u
}

// last returns the copy of another stream than that of first that is needed last, if that is after
// the next opens, or nil.
func (w *planWindow) last(first use, next int64) (last *windowed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for s, order := range w.order {
		for n := len(order); n > 0 && w.copies[order[n-1].fill.entry] != order[n-1]; n-- {
			order = order[:n-1]
		}
		w.order[s] = order
		if s == first.stream || len(order) == 0 || len(order[len(order)-1].uses) == 0 {
			continue
		}
		c := order[len(order)-1]
		if ahead := c.uses[0].ahead(); ahead > next {
			last, next = c, ahead
		}
	}
	return last
}

// keep is commit for a fill in the window, which stays as it is.
func (f *fill) keep() {
	f.cancel()
	f.room.Written()
	if !f.handler.hold(f) {
		f.discard(errStopped)
		return
	}
	f.queue.remove(f)
	f.source.Close()
	atomic.AddInt64(&f.handler.window.counters.Copies, 1)
	f.handler.window.poke()
}

// expel ends a fill in the window that unhold has taken.
func (f *fill) expel() {
	f.copy.Abort()
	f.room.Return()
	close(f.ended)
	f.release()
}

// hold records that the window has a complete copy, and reports success: the handler goes on.
func (h *Handler) hold(f *fill) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	f.held = h.ctx.Err() == nil
	return f.held
}

// has reports whether f is the fill of its entry, and has not ended.
func (h *Handler) has(f *fill) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fills[f.entry] == f
}

// unhold takes a complete copy out of the window, and reports success: it has no user. Once the
// handler stops, it may have some, which keep it. The caller calls fill.expel.
func (h *Handler) unhold(f *fill) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !f.held || !f.refs.Last() && h.ctx.Err() == nil {
		return false
	}
	f.held = false
	delete(h.fills, f.entry)
	f.entry.Release()
	return true
}
