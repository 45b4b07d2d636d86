package placement

import (
	"container/list"
	"sync"
	"time"

	"github.com/milkweedfs/milkweed/metadata"
)

// The rules of scattered.
const (
	scatteredHere  = 16      // files of a directory opened before others of it are prefetched
	moreHere       = 16      // others considered then, for each further file that is opened
	scatteredInAll = 64      // files opened before others of any directory are prefetched
	moreInAll      = 4       // others considered then, for each further file that is opened
	maxScattered   = 4 << 20 // size of such others, at most: requesting them takes longer than transferring them

	calmAfter = 5 * time.Minute // without opens out of order, after which those in all directories are counted anew
)

// scattered is a predictor for jobs that shuffle. Such a job does not reveal which file it
// opens next. From a source of drivers.LatencyRequest each file costs a reader the time of a
// request, and a job that reads one file at a time leaves the network idle. Other files of
// the directory are therefore predicted, in the order of their names, again from the first
// one after the last.
//
// When scatteredHere files of a directory have been opened, each further one that is opened
// for the first time adds moreHere files to those that are considered. When scatteredInAll
// files have been opened in all directories, each further one adds moreInAll: many datasets
// have many directories, of one class or of a few files each. Two rules limit the cost:
//
//   - Prefetch is in proportion to the opens. In a directory with n opened files, at most moreHere·n others are
//     prefetched, so that a job that reads a few files does not cause all to be fetched. As
//     files are distinguished by their numbers, this is approximate when the directory
//     changes, and when there are more than maxDirectories directories.
//   - Only small files are prefetched. Large ones saturate the network by themselves.
//
// Occasional opens in many directories are not a pattern. After calmAfter without an open
// out of order, the count in all directories starts again.
type scattered struct {
	names *metadata.Container

	mu    sync.Mutex // guards the following
	dirs  perDirectory[scatteredOpens]
	total int       // files opened out of order, in all directories
	last  time.Time // when the last of them was opened
	ready list.List // of *scatteredOpens: those with an allowance, the next one first
}

var _ predictor = (*scattered)(nil)

// scatteredOpens is what a job has opened in one directory, and which other files of it are
// considered. Files have numbers, in the order of their names.
type scatteredOpens struct {
	file      *metadata.Entry // a file of the directory
	opened    []uint64        // a bit for each file that was opened out of order
	count     int             // how many bits are set
	cursor    int             // the number of the next file to consider
	allowance int             // how many files may be considered
	ready     *list.Element   // in scattered.ready; nil if allowance is 0
}

func newScattered(names *metadata.Container) *scattered {
	return &scattered{names: names, dirs: make(perDirectory[scatteredOpens])}
}

func (p *scattered) opened(e *metadata.Entry, i int) (recognized, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.dirs.get(e.Parent())
	if r == nil {
		// The cursor starts here, and not at the first file: after the state of a
		// directory was forgotten, the same files would be considered again.
		r = &scatteredOpens{cursor: i + 1}
		p.dirs.set(e.Parent(), r)
	}
	if !r.mark(i) {
		return true, false
	}
	p.total++
	p.last = time.Now()
	r.file = e
	switch {
	case r.count > scatteredHere:
		r.allowance += moreHere
	case p.total > scatteredInAll:
		r.allowance += moreInAll
	}
	if r.allowance > 0 && r.ready == nil {
		r.ready = p.ready.PushBack(r)
	}
	return true, r.ready != nil
}

// mark records that file i was opened, and reports whether it was the first time.
func (r *scatteredOpens) mark(i int) bool {
	for len(r.opened) <= i/64 {
		r.opened = append(r.opened, 0)
	}
	bit := uint64(1) << (i % 64)
	if r.opened[i/64]&bit != 0 {
		return false
	}
	r.opened[i/64] |= bit
	r.count++
	return true
}

func (p *scattered) next() *metadata.Entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	for front := p.ready.Front(); front != nil; front = p.ready.Front() {
		r := front.Value.(*scatteredOpens)
		for r.allowance > 0 {
			r.allowance--
			files := p.names.Siblings(r.file, r.cursor, 1)
			if len(files) == 0 {
				r.cursor = 0
				continue
			}
			r.cursor++
			if e := files[0]; e.IsRegular() && e.Size() <= maxScattered {
				return e
			}
		}
		r.ready = nil
		p.ready.Remove(front)
	}
	return nil
}

func (p *scattered) prune(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.last) > calmAfter {
		p.total = 0
	}
	p.dirs.prune()
}
