package placement

import (
	"math"
	"slices"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/tiers"
)

// epochs recognizes the epochs of a job in the opens of files. In an epoch the job opens each of
// its files, in any order, and it begins the next one when it has opened all of them. Nothing is
// known in advance: neither the files nor their number.
//
//  1. An epoch begins with the first open, or where the one before has ended.
//  2. A file that was opened in this epoch is opened again. That may be the beginning of the next
//     epoch, a *candidate*, from this open on.
//  3. A file is opened for the first time in this epoch. If the candidate has fewer than freshRatio
//     files for each such file, it was none: the files were opened twice in the epoch.
//  4. The candidate has a quarter of the files of the epoch. The epoch has ended where the
//     candidate has begun.
//
// An epoch also ends if no file is opened for maxPause. One of fewer than minFiles files is none.
//
// A file may be opened again soon after it was opened, before a 16th of the files of the epoch was
// opened in between: a program reads the header first, or the readers of a job share files. That
// does not matter. If other files, more than an eighth of those of the epoch, were opened again
// although the epoch went on, the epoch is *mixed*: several jobs read the dataset, or one reads it
// at random, and epochs are not recognizable.
//
// A validation set belongs to the epoch in which it is read. In a stateless mount, opens of files
// that the kernel has in its page cache are not seen: an epoch has only the other files, and is not
// recognized if these are less than a quarter of those of the epoch before.
//
// The memory is 4 bytes for each file that was opened in the epoch, in chunks of 1023 consecutive
// IDs.
type epochs struct {
	totals func() totals // the counters now

	mu        panics.Mutex // guards the following
	opens     uint32       // the number of the last open; the first one is 1
	numbers   openNumbers
	current   pass
	candidate pass
	lastOpen  time.Time
	ended     []Epoch // the last maxEpochs
	count     int64   // ended epochs that were not mixed
}

// The constants of epochs.
const (
	minFiles   = 8
	freshRatio = 8
	mixedRatio = 8
	soonShare  = 16
	maxPause   = 15 * time.Minute
	maxEpochs  = 16
)

// A pass is an epoch that may still go on, or a candidate.
type pass struct {
	from  uint32 // the number of its first open; 0: there is no pass
	files int64  // files opened in it

	// began has the counters before its first open. Those of a candidate are counters before the
	// first open that did not come soon after another one of the file.
	began totals

	again int64 // files that were opened again in the epoch, or in the candidate, and not soon
	fresh int64 // of a candidate: files that were not opened before in the epoch
}

// totals are the counters of a handler at one moment.
type totals struct {
	at     time.Time
	waited Waits
	opens  [tiers.MaxTiers + 1]Opens
	direct [tiers.MaxTiers + 1]Opens // those of opens that are in passthrough
	fills  Opens
	peers  Opens
}

// An Epoch is one pass of a job over its files.
type Epoch struct {
	Began  time.Time     // when the first file was opened
	Took   time.Duration // until the next epoch began; if there is none, until the last open
	Ended  bool
	Mixed  bool                      // it is none: files were opened again before others were
	Files  int64                     // files opened
	Opens  [tiers.MaxTiers + 1]Opens // by level
	Direct [tiers.MaxTiers + 1]Opens // those of them that were in passthrough
	Fills  Opens                     // of files whose copies were in flight
	Peers  Opens                     // of files that were read from other nodes without a copy
	Waited Waits
}

// opened records an open of the file with an ID. If it only continues to read the file, it does
// not count as another open.
func (e *epochs) opened(id uint64, continues bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	if e.opens == math.MaxUint32 || e.current.from != 0 && now.Sub(e.lastOpen) > maxPause {
		e.end(e.totals(), e.lastOpen)
		e.opens, e.numbers, e.current, e.candidate = 0, nil, pass{}, pass{}
	}
	e.lastOpen = now
	before := e.numbers.get(id)
	if continues && before != 0 {
		return
	}
	e.opens++
	e.numbers.set(id, e.opens)
	switch c := &e.candidate; {
	case e.current.from == 0:
		e.current = pass{from: e.opens, began: e.totals(), files: 1}
	case before < e.current.from:
		e.current.files++
		if c.from == 0 {
			break
		}
		if c.fresh++; c.fresh*freshRatio > c.files {
			e.current.again += c.again
			*c = pass{}
		}
	case c.from == 0 || before < c.from:
		e.repeated(before)
	}
}

// repeated records that a file was opened again, and not yet in the candidate.
func (e *epochs) repeated(before uint32) {
	c := &e.candidate
	if c.from == 0 {
		c.from = e.opens
	}
	c.files++
	if int64(e.opens-before) > e.current.files/soonShare {
		if c.again++; c.again == 1 {
			c.began = e.totals()
		}
	}
	if c.files < max(minFiles, e.current.files/4) || c.again < c.files/2 {
		return
	}
	e.current.files -= c.fresh
	e.end(c.began, c.began.at)
	e.current = pass{from: c.from, began: c.began, files: c.files + c.fresh}
	*c = pass{}
	e.numbers.forget(e.current.from)
}

// end ends the current epoch. now are the counters at its end.
func (e *epochs) end(now totals, at time.Time) {
	epoch, ok := e.current.epoch(now, at)
	if !ok {
		return
	}
	epoch.Ended = true
	if !epoch.Mixed {
		e.count++
	}
	if len(e.ended) == maxEpochs {
		e.ended = slices.Delete(e.ended, 0, 1)
	}
	e.ended = append(e.ended, epoch)
}

// epoch returns the epoch until now, and whether it has enough files to be one.
func (p *pass) epoch(now totals, at time.Time) (Epoch, bool) {
	if p.files < minFiles {
		return Epoch{}, false
	}
	epoch := Epoch{
		Began: p.began.at, Took: at.Sub(p.began.at), Files: p.files,
		Mixed:  p.again*mixedRatio > p.files,
		Fills:  now.fills.minus(p.began.fills),
		Peers:  now.peers.minus(p.began.peers),
		Waited: now.waited.minus(p.began.waited),
	}
	for l := range epoch.Opens {
		epoch.Opens[l] = now.opens[l].minus(p.began.opens[l])
		epoch.Direct[l] = now.direct[l].minus(p.began.direct[l])
	}
	return epoch, true
}

// list returns the last epochs, the oldest first, and the one that goes on. ended is the number of
// epochs that have ended, without the mixed ones.
func (e *epochs) list() (all []Epoch, ended int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	all = slices.Clone(e.ended)
	if epoch, ok := e.current.epoch(e.totals(), e.lastOpen); ok {
		all = append(all, epoch)
	}
	return all, e.count
}

// openNumbers holds the number of the last open of each file, by ID.
type openNumbers []*numberChunk

// A numberChunk is the part of openNumbers for consecutive IDs.
type numberChunk struct {
	newest  uint32       // the largest of the following
	numbers [1023]uint32 // a chunk has 4096 bytes, a size of the allocator
}

// get returns the number of the last open of a file, or 0.
func (n openNumbers) get(id uint64) uint32 {
	i := id / uint64(len(numberChunk{}.numbers))
	if i >= uint64(len(n)) || n[i] == nil {
		return 0
	}
	return n[i].numbers[id%uint64(len(numberChunk{}.numbers))]
}

// set sets the number of the last open of a file. It is larger than all before.
func (n *openNumbers) set(id uint64, number uint32) {
	i := int(id / uint64(len(numberChunk{}.numbers)))
	if i >= len(*n) {
		*n = append(*n, make(openNumbers, i+1-len(*n))...)
	}
	c := (*n)[i]
	if c == nil {
		c = new(numberChunk)
		(*n)[i] = c
	}
	c.newest = number
	c.numbers[id%uint64(len(c.numbers))] = number
}

// forget drops chunks without a number from a number on.
func (n openNumbers) forget(before uint32) {
	for i, c := range n {
		if c != nil && c.newest < before {
			n[i] = nil
		}
	}
}

// totals returns the counters now.
func (h *Handler) totals() totals {
	t := totals{at: time.Now(), waited: h.waited(), fills: drivers.Snapshot(&h.usage.fills), peers: h.peerOpens()}
	t.opens, t.direct = drivers.Snapshot(&h.usage.opens), drivers.Snapshot(&h.usage.passthrough)
	return t
}

// minus returns the difference of two counts.
func (o Opens) minus(earlier Opens) Opens {
	return Opens{o.Files - earlier.Files, o.Bytes - earlier.Bytes, o.Read - earlier.Read}
}
