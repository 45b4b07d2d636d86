package placement

import (
	"container/list"
	"math"
	"slices"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// The rules of scattered.
const (
	minOpens     = 16      // files of a subtree opened out of order before others of it are prefetched
	fewOpens     = 4       // the same, beside a directory that the job has read in no order
	minTouched   = 8       // subdirectories with opened files that make a directory one dataset
	maxScattered = 4 << 20 // size of files that are prefetched before all others of the subtree

	opensPerListing = 4        // files opened for each request of a background listing
	listingPage     = 32 << 10 // bytes of a directory that one such request lists: about 1000 names
	maxPages        = 256      // requests that a listing counts as, at most: the size of a directory is a hint
	maxListings     = 8        // background listings of a subtree in flight

	looksPerOpen  = 1 << 12 // files that are left out at a time: meanwhile, no open is recorded
	othersPerOpen = 64      // files left out that are considered again, for each open

	calmAfter   = 5 * time.Minute // without opens of files that have no copy, after which all are counted anew
	maxSubtrees = 1 << 16         // directories that are remembered, before all are counted anew
)

// waste returns how many bytes may be prefetched that the job has not opened, as a multiple of
// those that it has opened, after it has opened a fraction f of the files.
//
// A job that reads a part of the files ends at some f, and the source then serves at most
// 1 + waste(f) times the bytes of the job. The f at which a job ends is unknown, so that the limit
// holds at each. A job that tries something out with a tenth of the files pays at most a fifth. Then
// the limit grows to nine tenths. A job that has read a third of the files in no order is taken to
// read all. What is promised is 1.25 at a tenth and 2.0 at three tenths; the limits are lower,
// because sizes and numbers of files are estimated before they are known.
//
// A prefetched file that the job opens does not count any more, and another one can follow. In a
// simulated epoch of four readers (2 ms, 200 MB/s, 2,000 files of 90 KB and 4 of 32 MiB), a limit
// that grows up to three tenths took 0.58 of the time of the source, and one that is nine tenths
// from a tenth on 0.54. The slope up to 0.15 is between them.
func waste(f float64) float64 {
	switch {
	case f <= 0:
		return 0
	case f < 0.1:
		return 0.2
	case f < 0.15:
		return 0.2 + 0.7*(f-0.1)/0.05
	case f < 1./3:
		return 0.9
	}
	return math.Inf(1)
}

// requestWaste is waste for a source of drivers.LatencyRequest. Each small file costs a reader the
// time of a request there, and a job that reads one file at a time leaves the network idle.
func requestWaste(f float64) float64 {
	switch {
	case f <= 0:
		return 0
	case f < 1./3:
		return 16
	}
	return math.Inf(1)
}

// scattered is a predictor for jobs that shuffle. Such a job does not reveal which file it opens
// next, but it will open most of them. Others are therefore predicted, in the order of the names,
// one directory after the other: file systems keep them together.
//
// What a job reads is a subtree: a directory, or, if files in at least minTouched subdirectories
// were opened, everything below it. So one of two directories, such as train and val, is not
// prefetched because the other one is read; but many directories of few files are one dataset. The
// subtree of a directory counts beside that around it only while it is read twice as densely, as
// by a job that reads one directory after the other. The rules:
//
//   - Prefetch is in proportion to the opens. The prefetched bytes that were not opened are limited
//     to a multiple of the opened ones (waste). The files of directories that were not listed are
//     estimated from those that were.
//   - Most opens of the subtree must be out of order. inOrder predicts better than scattered.
//   - Only files in the share of the job are predicted. The others are considered again when it has
//     another one.
//   - A directory that is not listed is listed in the background: first the subtree, then those
//     below it, each when its names are to be predicted. The opens limit the number of requests
//     for that. That they are needed for a directory of 1,000,000 names is known from its size.
//     Listed names may have no attributes. The worker requests them before it copies a file.
//   - Files of more than maxScattered come last: they saturate the network by themselves, and many
//     small files take less of it.
//   - Opens of files that have a copy do not begin anything. In an epoch in which all files are
//     placed, nothing is listed or requested.
//
// Prefetched files that the job does not open must not take the room of those that it does. See
// Handler.hasSpareRoom.
type scattered struct {
	names  *metadata.Container
	shares *shares
	waste  func(f float64) float64

	// room reports whether the tiers have room for a file that may never be opened, of a
	// dataset of a number of files and bytes.
	room func(size, files, bytes int64) bool

	// mine reports whether this node may prefetch a file, which other nodes may place. nil: always.
	mine func(*metadata.Entry) bool

	mu       panics.Mutex // guards the following
	subtrees map[*metadata.Entry]*subtree
	total    int                       // files that were opened
	opens    idSet                     // the same files
	ahead    map[uint64]int64          // sizes of files that were prefetched and not opened, by ID
	ordered  orderedPredictions        // of inOrder
	pending  map[*metadata.Entry]int64 // estimated sizes of files that next has returned
	last     time.Time                 // when a file without a copy was last opened
	ready    list.List                 // of *subtree: those that may have predictions, the next one first
}

// A subtree is a directory and everything below it. Its counters include the subtrees below it.
type subtree struct {
	dir    *metadata.Entry
	parent *subtree // nil for the root

	opened   int   // files that were opened
	shuffled int   // those of them that were opened out of order
	read     int64 // the size of the opened files
	unread   int64 // the size of files that were prefetched and not opened
	touched  int   // subdirectories with opened files
	example  bool  // a job has read a third of a subdirectory in no order
	part     int   // the job opens one of so many files
	before   int   // files that were opened while its share was another one
	since    int   // files that were opened before the first one of these, in all subtrees

	files  int // files of the directories that are listed
	leaves int // directories with files, and directories that are not listed
	listed int // directories with files that are listed

	// The following is of this directory alone.
	entries []*metadata.Entry // those that were not considered yet, if it is loaded
	share   nth               // by position, of the job, when it last had one
	others  []*metadata.Entry // those that were not in the share
	outside share             // because of which they are there; the zero value if there are several
	again   int               // files that must be opened before others are considered again
	loaded  bool              // it was found to be listed
	lister  *subtree          // the one for which next has returned the directory, or nil
	failed  bool              // the source did not answer a request for it, or for names in it

	// The following is the position of next in the subtree.
	begun    bool
	path     []*subtree        // from the subtree to the directory whose entries are considered
	found    []*subtree        // directories that have been listed meanwhile
	large    []*metadata.Entry // files that come last
	requests int               // requests for listings, by estimate
	listings int               // listings in flight
	ready    *list.Element     // in scattered.ready, or nil
}

func newScattered(names *metadata.Container, waste func(float64) float64, room func(size, files, bytes int64) bool) *scattered {
	p := &scattered{names: names, shares: newShares(), waste: waste, room: room}
	p.reset()
	return p
}

// reset forgets all opens; p.mu must be held, unless p is not shared yet.
func (p *scattered) reset() {
	p.subtrees = make(map[*metadata.Entry]*subtree)
	p.opens, p.ahead, p.pending = nil, make(map[uint64]int64), make(map[*metadata.Entry]int64)
	p.ordered = orderedPredictions{}
	p.ready.Init()
}

// opened records an open of e. inOrder means that inOrder recognizes it; missing, that e had no
// copy. It reports whether next may return a file.
func (p *scattered) opened(e *metadata.Entry, inOrder, missing bool) (more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if missing {
		p.last = time.Now()
	}
	if len(p.subtrees) >= maxSubtrees {
		p.reset()
	}
	d := p.subtrees[e.Parent()]
	if d == nil {
		if !missing {
			return false
		}
		d = p.subtree(e.Parent())
	}
	if !p.opens.add(e.ID()) {
		return false
	}
	if n, ok := p.ahead[e.ID()]; ok {
		delete(p.ahead, e.ID())
		d.prefetched(-n)
		if p.ordered.files.has(e.ID()) {
			p.ordered.unopened--
			p.ordered.opened++
		}
	}
	d.open(p.total, e.Size(), inOrder)
	p.total++
	p.divide(d)
	return p.announce(d)
}

// subtree returns the subtree of a directory; p.mu must be held.
func (p *scattered) subtree(dir *metadata.Entry) *subtree {
	s := p.subtrees[dir]
	if s == nil {
		s = &subtree{dir: dir, leaves: 1, part: 1}
		if up := dir.Parent(); up != dir {
			s.parent = p.subtree(up)
		}
		p.subtrees[dir] = s
	}
	return s
}

// open counts an open of a file of d, after total opens in all.
func (d *subtree) open(total int, size int64, inOrder bool) {
	for s := d; s != nil; s = s.parent {
		if s.opened == 0 {
			s.since = total
			if s.parent != nil {
				s.parent.touched++
			}
		}
		s.opened++
		s.read += size
		if !inOrder {
			s.shuffled++
		}
	}
}

// prefetched adds to the bytes of d that were prefetched and not opened.
func (d *subtree) prefetched(bytes int64) {
	for s := d; s != nil; s = s.parent {
		s.unread += bytes
	}
}

// load reports whether the entries of d are cached. p.mu must be held.
func (p *scattered) load(d *subtree) bool {
	if d.loaded {
		return true
	}
	entries, listed := p.names.Cached(d.dir)
	if !listed {
		return false
	}
	d.loaded, d.entries = true, entries
	files, dirs := 0, 0
	for _, e := range entries {
		switch {
		case e.IsDir():
			dirs++
		case mayBeFile(e):
			files++
		}
	}
	for s := d; s != nil; s = s.parent {
		s.files += files
		s.leaves += dirs
		if files > 0 {
			s.listed++
		} else {
			s.leaves--
		}
	}
	return true
}

// mayBeFile reports whether e is a regular file, or its type is not known.
func mayBeFile(e *metadata.Entry) bool { return e.IsRegular() || e.Unknown() && e.Type() == 0 }

// count estimates the number of files in d that the job opens. It returns 0 if that is unknown.
func (d *subtree) count() float64 {
	if !d.loaded || d.listed == 0 {
		return 0
	}
	n := float64(d.files) * max(1, float64(d.leaves)/float64(d.listed)) / float64(d.part)
	return max(n, float64(d.inShare()))
}

// inShare returns how many files were opened of those that count estimates.
func (d *subtree) inShare() int {
	if d.part > 1 {
		return d.opened - d.before
	}
	return d.opened
}

// needed returns how many files of d must be opened out of order before others are prefetched. A job
// that has read a third of one directory is likely to read the next one beside it.
func (d *subtree) needed() int {
	if d.parent != nil && d.parent.example {
		return fewOpens
	}
	return minOpens
}

// fraction returns which part of the files of d was opened. It leaves out the first files, which are
// needed: three of a directory of five mean nothing.
func (d *subtree) fraction() float64 {
	n := d.count()
	if n == 0 {
		return 0
	}
	return max(0, float64(d.inShare()-d.needed())/n)
}

// mean returns the mean size of the files of d that were opened.
func (d *subtree) mean() int64 { return d.read / max(1, int64(d.opened)) }

// announce adds those subtrees to p.ready that an open in d may allow to be prefetched further, and
// reports whether there is any. p.mu must be held.
func (p *scattered) announce(d *subtree) bool {
	var outer *subtree
	for _, s := range d.around() {
		p.load(s)
		if s.parent != nil && s.isShuffled() && s.fraction() >= 1./3 {
			s.parent.example = true
		}
		if s.isShuffled() && (outer == nil || p.concentrates(s, outer)) {
			p.push(s)
		}
		outer = s
	}
	return p.ready.Len() > 0
}

// isShuffled reports whether a job reads d in no order.
func (d *subtree) isShuffled() bool { return d.shuffled >= d.needed() && 2*d.shuffled >= d.opened }

// concentrates reports whether s, since its first open, has been read at least twice as densely as
// the subtree outer around it.
func (p *scattered) concentrates(s, outer *subtree) bool {
	share := float64(s.opened) / float64(p.total-s.since)
	return share*outer.count() >= 2*s.count()
}

// around returns d and the subtrees around it that are one dataset, the largest first.
func (d *subtree) around() []*subtree {
	all := []*subtree{d}
	for s := d.parent; s != nil; s = s.parent {
		if s.touched >= minTouched {
			all = append(all, s)
		}
	}
	slices.Reverse(all)
	return all
}

// push adds s to p.ready; p.mu must be held.
func (p *scattered) push(s *subtree) {
	if s.ready == nil {
		s.ready = p.ready.PushBack(s)
	}
}

// next returns a file to prefetch. It also returns directories, which are to be listed. The caller calls
// settle for each file, and listed for each directory.
func (p *scattered) next() *metadata.Entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	for front := p.ready.Front(); front != nil; front = p.ready.Front() {
		s := front.Value.(*subtree)
		if e := p.step(s); e != nil {
			return e
		}
		s.ready = nil
		p.ready.Remove(front)
	}
	return nil
}

// An allowance is what may be prefetched of a subtree now.
type allowance struct {
	bytes     int64
	requests  int // for listings
	unlimited bool
}

func (p *scattered) allowance(s *subtree) allowance {
	w := p.waste(s.fraction())
	if math.IsInf(w, 1) {
		return allowance{math.MaxInt64, math.MaxInt, true}
	}
	return allowance{int64(w*float64(s.read)) - s.unread, s.opened/opensPerListing - s.requests, false}
}

// step returns the next file of s, or the next directory to list, or nil. p.mu must be held.
func (p *scattered) step(s *subtree) *metadata.Entry {
	left := p.allowance(s)
	var (
		looked int      // entries that are not in the share
		in     *subtree // where it is
		share  share
	)
	if !s.begun {
		switch listed, asked := p.enter(s, s, left); {
		case asked:
			return s.dir
		case !listed:
			return nil
		}
		s.begun, s.path = true, append(s.path, s)
	}
	for {
		n := len(s.path)
		if n == 0 {
			if len(s.found) == 0 {
				return p.stepLarge(s, left)
			}
			s.path, s.found = append(s.path, s.found[0]), s.found[1:]
			continue
		}
		d := s.path[n-1]
		if len(d.entries) == 0 || d.failed {
			d.entries, s.path = nil, s.path[:n-1]
			continue
		}
		e := d.entries[0]
		if e.IsDir() && !e.Stale() {
			c := p.subtree(e)
			listed, asked := p.enter(s, c, left)
			if !listed && !asked && c.lister == nil && !c.failed {
				return nil
			}
			d.entries = d.entries[1:]
			if asked {
				return e
			}
			if listed {
				s.path = append(s.path, c)
			}
			continue
		}
		if d != in {
			in, share = d, p.shares.of(d.dir)
		}
		switch size := p.size(s, e); {
		case !p.wanted(e):
		case !share.has(p.names, e):
			d.leaveOut(e, share)
			if looked++; looked == looksPerOpen {
				d.entries = d.entries[1:]
				return nil
			}
		case size > maxScattered:
			s.large = append(s.large, e)
		case !p.take(s, d, e, size, left):
			return nil
		default:
			d.entries = d.entries[1:]
			return e
		}
		d.entries = d.entries[1:]
	}
}

// stepLarge is step after all small files.
func (p *scattered) stepLarge(s *subtree, left allowance) *metadata.Entry {
	if !left.unlimited || s.listings > 0 {
		return nil
	}
	for len(s.large) > 0 {
		e := s.large[0]
		d := p.subtree(e.Parent())
		switch share := p.shares.of(d.dir); {
		case !p.wanted(e):
		case !share.has(p.names, e):
			d.leaveOut(e, share)
		case !p.take(s, d, e, e.Size(), left):
			return nil
		default:
			s.large = s.large[1:]
			return e
		}
		s.large = s.large[1:]
	}
	return nil
}

// enter reports whether the entries of d, in s, are cached. If not, and d may be listed now, it
// reports that the caller lists it.
func (p *scattered) enter(s, d *subtree, left allowance) (listed, asked bool) {
	if p.load(d) {
		return true, false
	}
	n := 1 + min(d.dir.Info().Size/listingPage, maxPages)
	if d.lister != nil || d.failed || int64(left.requests) < n || s.listings == maxListings {
		return false, false
	}
	d.lister = s
	s.listings++
	s.requests += int(n)
	return false, true
}

// wanted reports whether a copy of e is of use.
func (p *scattered) wanted(e *metadata.Entry) bool {
	if e.Stale() || !mayBeFile(e) || e.Level() != tiers.AtSource || e.Claimed() || p.opens.has(e.ID()) {
		return false
	}
	_, pending := p.pending[e]
	_, ahead := p.ahead[e.ID()]
	return !pending && !ahead && (p.mine == nil || p.mine(e))
}

// leaveOut records that e, of d, is not in the share of the job.
func (d *subtree) leaveOut(e *metadata.Entry, s share) {
	if len(d.others) > 0 && d.outside != s {
		s = share{}
	}
	d.others, d.outside = append(d.others, e), s
}

// divide finds the share of the job in d, after an open in d. If it is another one, next considers the files
// that were left out again. That takes time for each of them, and is not done after each open. p.mu must
// be held.
func (p *scattered) divide(d *subtree) {
	now := p.shares.of(d.dir)
	is := now[byPosition]
	was := d.share
	isOther := is.part > 1 && was.part > 1 && (is.rest-was.rest)%min(is.part, was.part) != 0
	for s := d; s != nil; s = s.parent {
		s.part = p.shares.part(s.dir)
		if isOther {
			s.before = s.opened - 1
		}
	}
	if is.part > 1 {
		d.share = is
	}
	if len(d.others) == 0 || d.opened < d.again || d.outside == now {
		return
	}
	d.again = d.opened + len(d.others)/othersPerOpen
	d.entries, d.others = append(d.entries, d.others...), nil
	for s := d; s != nil; s = s.parent {
		if s.begun {
			s.found = append(s.found, d)
		}
	}
}

// size returns the size of e, or an estimate of it.
func (p *scattered) size(s *subtree, e *metadata.Entry) int64 {
	if e.Unknown() {
		return min(max(1, s.mean()), maxScattered)
	}
	return e.Size()
}

// take reports whether a file of d, in s, may be prefetched now, and counts it.
func (p *scattered) take(s, d *subtree, e *metadata.Entry, size int64, left allowance) bool {
	n := s.count()
	if size > left.bytes || !p.room(size, int64(n), int64(n)*s.mean()) {
		return false
	}
	p.pending[e] = size
	d.prefetched(size)
	return true
}

// settle ends the prediction of e, which next has returned. ok reports whether its copy was
// started, and now is its entry with attributes. It reports whether next may return another file.
func (p *scattered) settle(e, now *metadata.Entry, ok bool) (more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, pending := p.pending[e]
	d := p.subtrees[e.Parent()]
	if !pending || d == nil {
		return false
	}
	delete(p.pending, e)
	if !ok && n <= maxScattered && now.Size() > maxScattered { // its size was not known
		for s := d; s != nil; s = s.parent {
			if s.begun {
				s.large = append(s.large, now)
			}
		}
	}
	if ok && !p.opens.has(now.ID()) {
		p.ahead[now.ID()] = now.Size()
		n -= now.Size()
	}
	d.prefetched(-n)
	return n > 0 && p.announce(d)
}

// orderedPredictions are the predictions of inOrder of which copies were started.
type orderedPredictions struct {
	files            idSet
	opened, unopened int // numbers of them
}

// predictedInOrder records that a copy of e was started since inOrder has predicted it. It counts as the
// others do.
func (p *scattered) predictedInOrder(e *metadata.Entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := p.subtrees[e.Parent()]; d != nil && !p.opens.has(e.ID()) && p.ordered.files.add(e.ID()) {
		p.ahead[e.ID()] = e.Size()
		d.prefetched(e.Size())
		p.ordered.unopened++
	}
}

// order reports whether the files of a directory, or of a dataset that it belongs to, are read in no
// order, and whether less than half of the predictions of inOrder were opened, without the last maxDepth.
func (p *scattered) order(dir *metadata.Entry) (none, fruitless bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.subtrees[dir]
	none = d != nil && slices.ContainsFunc(d.around(), (*subtree).isShuffled)
	return none, p.ordered.unopened > maxDepth+p.ordered.opened
}

// fail records that the source did not answer a request for a name in a directory, or for its
// listing. The rest of it is not prefetched.
func (p *scattered) fail(dir *metadata.Entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := p.subtrees[dir]; d != nil {
		d.failed = true
	}
}

// listed records that the listing of dir, which next has returned, has ended. It reports whether
// next may return a file.
func (p *scattered) listed(dir *metadata.Entry) (more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.subtrees[dir]
	if d == nil || d.lister == nil {
		return false
	}
	d.lister.listings--
	loaded := p.load(d)
	for s := d; s != nil; s = s.parent {
		if s.begun && loaded {
			s.found = append(s.found, d)
		}
		if s.begun || s == d.lister && loaded {
			p.push(s)
		}
	}
	return p.ready.Len() > 0
}

func (p *scattered) prune(now time.Time) {
	p.shares.prune()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.subtrees) > 0 && now.Sub(p.last) > calmAfter {
		p.reset()
	}
}

// An idSet is a set of the IDs of entries, which are dense.
type idSet map[uint64]*[64]uint64

// add adds an ID, and reports whether it was not there.
func (s *idSet) add(id uint64) bool {
	if *s == nil {
		*s = make(idSet)
	}
	page := (*s)[id/4096]
	if page == nil {
		page = new([64]uint64)
		(*s)[id/4096] = page
	}
	word, bit := &page[id/64%64], uint64(1)<<(id%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}

// has reports whether an ID is there.
func (s idSet) has(id uint64) bool {
	page := s[id/4096]
	return page != nil && page[id/64%64]&(1<<(id%64)) != 0
}
