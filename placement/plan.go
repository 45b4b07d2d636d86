package placement

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of the plan of a mount. What exceeds them is refused.
const (
	maxPlanned       = 1_000_000 // entries of all streams
	maxPlanMemory    = 14 << 20  // bytes that the entries take
	maxPlanStreams   = 256
	maxPlanEpochs    = 64 // of a stream
	maxPlanLead      = 1 << 16
	maxStreamName    = 128  // bytes
	maxPlannedPath   = 4096 // bytes
	planLead         = 64   // of a stream that states none
	planSlack        = 16   // how much further than the lead an open may be from the position
	planJump         = 1024 // how far ahead of the position an open moves it, at least
	planIdle         = time.Hour
	planThrough      = time.Minute // how long a stream is kept after its last entry was opened
	planRejectReason = 8           // reasons that are returned for one part
)

// The rules that bound what a wrong plan costs. A plan is trusted with some entries before the job
// has opened any, and with more for each entry that the job opens. It is suspended while few of the
// recent opens are planned.
const (
	untestedEntries = 1024    // looked up or copied before the first correct prediction
	untestedBytes   = 1 << 30 // copied before the first correct prediction
	trust           = 16      // entries, and multiples of its size, for each correct prediction
	judgedOpens     = 256     // opens after which a plan is judged; the share is that of the last 256 to 512
	correctShare    = 8       // a plan is suspended while less than one open in so many is correct
)

// A plan is what a job has said about the order in which it will open files: streams of paths, one
// for each process of the job that reads. It is a hint. Its methods may be called concurrently.
//
// Opens of the job move the position of a stream (opened), and workers take the entries that
// follow it (next). The plan knows no files, only names.
type plan struct {
	seed   maphash.Seed
	active atomic.Bool // there is a stream

	mu        sync.Mutex // guards the following
	streams   map[string]*planStream
	pack      packer
	planned   int // entries of all streams
	memory    int // bytes that they take
	spent     budget
	earned    budget
	recent    struct{ opens, correct int }
	suspended bool
	missing   map[uint32]struct{} // names that do not exist, by hash
	counters  PlanCounters
}

// A budget is a number of entries and of bytes.
type budget struct{ entries, bytes int64 }

// A planStream is the order in which one reader opens files.
type planStream struct {
	name   string
	lead   int64        // files that the loader requests before the job uses them
	epochs []*planEpoch // ascending
	at     place        // position of the job: after the furthest entry that it has opened
	next   place        // the next entry that is copied; not before at
	held   bool         // next returns nothing until release
	used   time.Time    // of the last open or new entry
	names  unpacker

	passed  int64 // entries between the first position and at
	correct int64 // opens that were predicted
	found   budget
}

// A planEpoch has the entries of one epoch of a stream.
type planEpoch struct {
	number int64
	sequence
}

// A place is an entry of a stream.
type place struct {
	epoch int64
	i     int64
}

func (a place) compare(b place) int {
	return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.i, b.i))
}

// A use is one entry of a plan: the use of a file by a stream.
type use struct {
	stream *planStream
	place
}

func newPlan() *plan {
	return &plan{seed: maphash.MakeSeed(), streams: make(map[string]*planStream), missing: make(map[uint32]struct{})}
}

// hash returns the hash of a path, which is not 0.
func (p *plan) hash(path string) uint32 { return uint32(maphash.String(p.seed, path)) | 1 }

// through reports whether the stream of u does not need the file any more: the job has opened a
// file that is at least the lead after u, or the stream is gone.
func (p *plan) through(u use) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streams[u.stream.name] != u.stream || u.stream.distance(u.place, u.stream.at) > u.stream.lead
}

// ahead returns how many entries the job opens before u. It is negative if it has passed u.
func (p *plan) ahead(u use) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return u.stream.distance(u.stream.at, u.place)
}

// hold makes next return u again, and nothing else of its stream, after the next call of release:
// there is no room for the file now.
func (p *plan) hold(u use) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if u.stream.next.compare(u.place) > 0 {
		u.stream.next = u.place
	}
	u.stream.held = true
}

// release ends the effect of hold on all streams. The caller then calls queue.feedPlanned.
func (p *plan) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.streams {
		s.held = false
	}
}

// distance returns the number of entries from a to b. It is negative if b is before a.
func (s *planStream) distance(a, b place) int64 {
	if a.compare(b) > 0 {
		return -s.distance(b, a)
	}
	if a.epoch == b.epoch {
		return b.i - a.i
	}
	var n int64
	for _, e := range s.epochs {
		switch {
		case e.number == a.epoch:
			n += max(e.end()-a.i, 0)
		case e.number == b.epoch:
			n += b.i - e.start()
		case a.epoch < e.number && e.number < b.epoch:
			n += e.end() - e.start()
		}
	}
	return n
}

// first returns the first entry from a on, and its chunk, or nil.
func (s *planStream) first(a place) (place, *chunk) {
	for _, e := range s.epochs {
		i := e.start()
		switch {
		case e.number < a.epoch:
			continue
		case e.number == a.epoch:
			i = max(i, a.i)
		}
		if c := e.at(i); c != nil {
			return place{e.number, max(i, c.start)}, c
		}
	}
	return a, nil
}

// next returns the entry of the plan that the job needs first, of those that were not returned yet.
func (p *plan) next() (path string, u use, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.suspended && p.affordable() {
		var (
			best *planStream
			from *chunk
			lead int64
		)
		for _, s := range p.streams {
			if s.held {
				continue
			}
			a, c := s.first(s.next)
			s.next = a
			if n := s.distance(s.at, a); c != nil && (best == nil || n < lead) {
				best, from, lead = s, c, n
			}
		}
		if best == nil {
			return "", use{}, false
		}
		u = use{best, best.next}
		path = best.names.name(from, u.i)
		best.next.i++
		if _, missing := p.missing[p.hash(path)]; path != "" && !missing {
			return path, u, true
		}
	}
	return "", use{}, false
}

// affordable reports whether more entries may be looked up and copied. p.mu must be held.
func (p *plan) affordable() bool {
	return p.spent.entries < untestedEntries+p.earned.entries && p.spent.bytes < untestedBytes+p.earned.bytes
}

// opened records an open, and reports whether it was predicted and whether next may return more.
func (p *plan) opened(path string, size int64) (predicted, more bool) {
	if !p.active.Load() {
		return false, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s, to, near := p.find(p.hash(path))
	p.judge(near)
	if s == nil {
		return false, false
	}
	s.used = time.Now()
	moved := max(s.distance(s.at, to)+1, 0)
	if near {
		s.correct++
		n := min(moved, s.lead+1)
		p.earned.entries += trust * n
		p.earned.bytes += trust * n * size
	}
	if moved > 0 {
		s.move(place{to.epoch, to.i + 1}, moved)
		p.forget(s)
	}
	return near, !p.suspended
}

// move moves the position of s.
func (s *planStream) move(to place, n int64) {
	s.at, s.passed = to, s.passed+n
	if s.next.compare(to) < 0 {
		s.next = to
	}
}

// forget frees the entries that s has passed. p.mu must be held.
func (p *plan) forget(s *planStream) {
	keep := s.lead + planSlack
	for len(s.epochs) > 1 && s.epochs[0].number < s.at.epoch && s.at.i-s.epochAt().start() > keep {
		p.free(s.epochs[0].drop(s.epochs[0].end()))
		s.epochs = s.epochs[1:]
	}
	if e := s.epochAt(); e != nil {
		p.free(e.drop(s.at.i - keep))
	}
}

// epochAt returns the epoch of the position, or nil.
func (s *planStream) epochAt() *planEpoch { return s.epoch(s.at.epoch) }

// epoch returns an epoch, or nil.
func (s *planStream) epoch(number int64) *planEpoch {
	for _, e := range s.epochs {
		if e.number == number {
			return e
		}
	}
	return nil
}

// free accounts for entries that were removed. p.mu must be held.
func (p *plan) free(entries, memory int) { p.planned, p.memory = p.planned-entries, p.memory-memory }

// find returns the entry with a hash that is nearest to the position of its stream, and whether it
// is as near as the lead allows. p.mu must be held.
func (p *plan) find(hash uint32) (stream *planStream, at place, near bool) {
	nearest := int64(-1)
	for _, s := range p.streams {
		a, ok := s.find(hash, -s.lead-planSlack, s.lead+planSlack)
		if n := max(s.distance(s.at, a), s.distance(a, s.at)); ok && (stream == nil || n < nearest) {
			stream, at, nearest = s, a, n
		}
	}
	if stream != nil {
		return stream, at, true
	}
	for _, s := range p.streams {
		if a, ok := s.find(hash, 0, max(planJump, 4*s.lead)); ok {
			return s, a, false
		}
	}
	return nil, place{}, false
}

// find returns an entry with a hash, at a distance from the position between from, which is not
// positive, and to. The start of a later epoch is near, too: the job may end an epoch early.
func (s *planStream) find(hash uint32, from, to int64) (place, bool) {
	for _, e := range s.epochs {
		lo, hi := e.start(), e.start()+to
		switch {
		case e.number < s.at.epoch: // its end, which other readers of the same stream may still open
			lo, hi = max(lo, e.end()+from), e.end()
		case e.number == s.at.epoch:
			if i := e.sequence.find(hash, s.at.i, s.at.i+to); i >= 0 {
				return place{e.number, i}, true
			}
			lo, hi = max(lo, s.at.i+from), s.at.i
		}
		if i := e.sequence.find(hash, lo, hi); i >= 0 {
			return place{e.number, i}, true
		}
	}
	return place{}, false
}

// judge records whether an open was predicted. p.mu must be held.
func (p *plan) judge(correct bool) {
	p.counters.Opens++
	if correct {
		p.counters.Correct++
		p.recent.correct++
	}
	if p.recent.opens++; p.recent.opens == 2*judgedOpens {
		p.recent.opens, p.recent.correct = p.recent.opens/2, p.recent.correct/2
	}
	p.suspended = p.recent.opens >= judgedOpens && p.recent.correct*correctShare < p.recent.opens
}

// prune forgets streams that are through or were not used for long.
func (p *plan) prune(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.streams {
		idle := now.Sub(s.used)
		if _, left := s.first(s.at); idle > planIdle || left == nil && idle > planThrough {
			p.remove(s)
		}
	}
}

// remove forgets a stream. p.mu must be held.
func (p *plan) remove(s *planStream) {
	for _, e := range s.epochs {
		p.free(e.drop(e.end()))
	}
	delete(p.streams, s.name)
	if len(p.streams) > 0 {
		return
	}
	p.active.Store(false)
	p.spent, p.earned, p.suspended = budget{}, budget{}, false
	p.recent.opens, p.recent.correct = 0, 0
	clear(p.missing)
}

// sorted returns the streams by name. p.mu must be held.
func (p *plan) sorted() []*planStream {
	var all []*planStream
	for _, s := range p.streams {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *planStream) int { return cmp.Compare(a.name, b.name) })
	return all
}
