package placement

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
)

// Bounds of a plan. What exceeds them is refused.
const (
	maxPlanEpochs  = 64 // of a stream
	maxPlanLead    = 1 << 16
	maxStreamName  = 128  // bytes
	maxPlannedPath = 4096 // bytes
	planLead       = 64   // of a stream that states none
	planSlack      = 16   // how much further than the lead an open may be from the position
	planVotes      = 4    // opens near each other that move a position to them from anywhere
	planSearch     = 16   // of how many unplanned opens one is searched for everywhere, while that is of no use
	planIdle       = time.Hour
	planThrough    = time.Minute // how long a stream is kept after its last entry was opened
	planHung       = time.Minute // how long files of a directory that hangs are left out
	planReasons    = 8           // reasons that are returned for one part
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
	user   atomic.Pointer[metadata.User] // who has handed it over; nil: the owner of the mount
	limit  planLimit                     // of that of the owner it does not change; of others, plans.mu guards it
	seed   maphash.Seed
	active atomic.Bool          // there is a stream
	need   atomic.Pointer[need] // nil: there is room for all planned files, as far as is known

	mu        panics.Mutex // guards the following
	streams   map[string]*planStream
	pack      packer
	planned   int // entries of all streams
	memory    int // bytes that they take
	spent     budget
	earned    budget
	recent    struct{ opens, correct int }
	suspended bool
	fruitless int                  // searches since one has found an entry
	sizes     sizeCounts           // of planned files
	missing   map[uint32]struct{}  // names that do not exist, by hash
	hung      map[string]time.Time // directories of which the source did not answer a request, and when
	counters  PlanCounters
}

// A budget is a number of entries and of bytes.
type budget struct{ entries, bytes int64 }

// A planLimit bounds one plan. What exceeds it is refused.
type planLimit struct {
	entries int // of all streams
	memory  int // bytes that they take
	streams int
}

// A planStream is the order in which one reader opens files.
type planStream struct {
	plan   *plan
	name   string
	lead   int64        // files that the loader requests before the job uses them
	epochs []*planEpoch // ascending
	at     place        // position of the job: after the furthest entry that it has opened
	next   place        // the next entry that is copied; not before at
	held   bool         // next returns nothing until release
	run    int          // how often the job has started again
	used   time.Time    // of the last open or new entry
	names  unpacker

	longest int64 // entries of its longest epoch
	passed  int64 // entries between the first position and at
	correct int64 // opens that were predicted
	found   budget
}

// A planEpoch has the entries of one epoch of a stream.
type planEpoch struct {
	number int64
	sequence
	other int64 // the last entry that was opened and is not near the position of the stream
	votes int   // how many of them were near each other
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
	run int // of the stream
}

// newPlan returns an empty plan of a user, or of the owner of the mount if u is nil.
func newPlan(u *metadata.User, limit planLimit) *plan {
	p := &plan{limit: limit, seed: maphash.MakeSeed(), streams: make(map[string]*planStream), missing: make(map[uint32]struct{}), hung: make(map[string]time.Time)}
	p.user.Store(u)
	return p
}

// hash returns the hash of a path, which is not 0.
func (p *plan) hash(path string) uint32 { return uint32(maphash.String(p.seed, path)) | 1 }

// ofOwner reports whether u is of the plan of the owner of the mount.
func (u use) ofOwner() bool { return u.stream.plan.user.Load() == nil }

// through reports whether the stream does not need the file any more: the job has opened a
// file that is at least the lead after u, or has started again, or the stream is gone.
func (u use) through() bool {
	p := u.stream.plan
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streams[u.stream.name] != u.stream || u.run != u.stream.run || u.stream.distance(u.place, u.stream.at) > u.stream.lead
}

// ahead returns how many entries the job opens before u. It is negative if it has passed u.
func (u use) ahead() int64 {
	p := u.stream.plan
	p.mu.Lock()
	defer p.mu.Unlock()
	return u.stream.distance(u.stream.at, u.place)
}

// hold makes plan.next return u again, unless the job has passed it by then, and nothing else of its
// stream, after the next call of release: there is no room for the file now.
func (u use) hold() {
	s := u.stream
	p := s.plan
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.next.compare(u.place) > 0 {
		s.next = u.place
	}
	if s.next.compare(s.at) < 0 {
		s.next = s.at
	}
	p.spent.entries--
	s.held = true
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

// next returns the entry that the job needs first, of those that were not returned yet and may be
// looked up and copied now. The path is "" if it was rejected, is known not to exist, or is in a
// directory that hangs.
func (p *plan) next() (path string, u use, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.suspended || p.spent.entries >= untestedEntries+p.earned.entries || p.spent.bytes >= untestedBytes+p.earned.bytes {
		return "", use{}, false
	}
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
	u = use{best, best.next, best.run}
	path = best.names.name(from, u.i)
	best.next.i++
	if _, missing := p.missing[p.hash(path)]; missing || p.isHung(path) {
		path = ""
	}
	return path, u, true
}

// opened records an open, and reports whether it was predicted and whether next may return more.
func (p *plan) opened(path string, size int64) (predicted, more bool) {
	if !p.active.Load() {
		return false, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	hash := p.hash(path)
	s, to := p.find(hash)
	p.judge(s != nil)
	if s == nil {
		return false, p.seek(hash) && !p.suspended
	}
	s.used = time.Now()
	s.correct++
	if moved := s.distance(s.at, to) + 1; moved > 0 {
		n := min(moved, s.lead+1)
		p.earned.entries += trust * n
		p.earned.bytes += trust * n * size
		p.move(s, to)
	}
	return true, !p.suspended
}

// seek looks everywhere for an entry that is not near the position of its stream: a job may have
// resumed elsewhere, and opens that the page cache or the kernel serves are not seen. One such
// open may be an accident. After several that are near each other, the position moves to them.
// seek reports whether it has. p.mu must be held.
func (p *plan) seek(hash uint32) (moved bool) {
	if (p.suspended || p.fruitless >= planVotes*planSearch) && p.counters.Opens%planSearch != 0 {
		return false // a search takes up to half a millisecond
	}
	p.fruitless++
	for _, s := range p.streams {
		for _, e := range s.epochs {
			i := e.find(hash, e.start(), e.end())
			if i < 0 {
				continue
			}
			if n := i - e.other; max(n, -n) > s.lead+planSlack {
				e.votes = 0
			}
			e.other, p.fruitless = i, 0
			if e.votes++; e.votes >= planVotes && s.at.compare(place{e.number, i}) < 0 {
				p.move(s, place{e.number, i})
				return true
			}
		}
	}
	return false
}

// move moves the position of s behind an entry that is after it, and frees the entries that s has
// passed. p.mu must be held.
func (p *plan) move(s *planStream, to place) {
	s.passed += s.distance(s.at, to) + 1
	s.at = place{to.epoch, to.i + 1}
	s.epoch(to.epoch).votes = 0
	if s.next.compare(s.at) < 0 {
		s.next = s.at
	}
	keep := s.lead + planSlack
	for s.epochs[0].number < s.at.epoch && s.at.i-s.epoch(s.at.epoch).start() > keep {
		p.free(s.epochs[0].drop(s.epochs[0].end()))
		s.epochs = s.epochs[1:]
	}
	p.free(s.epoch(s.at.epoch).drop(s.at.i - keep))
}

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

// find returns the entry with a hash that is nearest to the position of its stream, among those
// that are as near as the lead allows, or nil. p.mu must be held.
func (p *plan) find(hash uint32) (stream *planStream, at place) {
	nearest := int64(-1)
	for _, s := range p.streams {
		a, ok := s.find(hash)
		if n := s.distance(s.at, a); ok && (stream == nil || max(n, -n) < nearest) {
			stream, at, nearest = s, a, max(n, -n)
		}
	}
	return stream, at
}

// find returns an entry with a hash that is near the position, preferably after it. That may be in
// the next epoch, or in the one before, whose last files another process of the reader opens late.
func (s *planStream) find(hash uint32) (place, bool) {
	near := s.lead + planSlack
	behind, found := place{}, false
	for _, e := range s.epochs {
		here := e.start() // the position in e
		switch {
		case e.number < s.at.epoch:
			here = e.end()
		case e.number == s.at.epoch:
			here = s.at.i
		}
		if i := e.find(hash, here, here+near-s.distance(s.at, place{e.number, here})); i >= 0 {
			return place{e.number, i}, true
		}
		if i := e.find(hash, here-near, here); i >= 0 {
			behind, found = place{e.number, i}, true
		}
		if found && e.number == s.at.epoch {
			break // not in the next epoch: a worker opens its file later than the others
		}
	}
	return behind, found
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
	if p.suspended {
		p.need.Store(nil)
	}
}

// prune forgets streams that are through or were not used for long.
func (p *plan) prune(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.hung, func(_ string, since time.Time) bool { return now.Sub(since) > planHung })
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
	p.need.Store(nil)
	p.sizes = sizeCounts{}
	p.spent, p.earned, p.suspended = budget{}, budget{}, false
	p.recent.opens, p.recent.correct = 0, 0
	clear(p.missing)
	clear(p.hung)
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
