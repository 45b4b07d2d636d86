package placement

import (
	"container/list"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/drivers/sequential"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// The rules of inOrder.
const (
	orderWindow = 16       // how far from the last file an open may be to be in order
	orderHits   = 2        // opens in order before anything is prefetched, more after opens in no order
	minDepth    = 8        // files prefetched ahead at first; each further open doubles the number
	maxDepth    = 64       // files prefetched ahead at most
	maxAhead    = 64 << 20 // bytes prefetched ahead at most, except that the next file may be larger
	fewPassed   = 16       // files passed in a directory, before those of all directories do not matter
	manyPassed  = 64       // files passed, after which all count half
)

// inOrder is a predictor for jobs that open the files of a directory in the order of their
// names. It predicts the next ones that are in the job's share. Several readers that divide the work
// open files nearly in order.
type inOrder struct {
	names *metadata.Container

	mu     panics.Mutex // guards the following
	dirs   perDirectory[orderedOpens]
	passed passed    // in all directories
	ready  list.List // of *orderedOpens: those with predictions, the next one first
}

// orderedOpens is the state of inOrder for one directory.
type orderedOpens struct {
	// Of file numbers. There is one stream, whose Data counts the opens that moved on.
	positions sequential.Tracker[int]

	misses   int               // opens out of order, since the last prediction
	share    share             // of the job, at the last open
	front    int               // position after the last file that was opened
	passed   passed            // files before front
	depth    int               // how many files are predicted
	ahead    []*metadata.Entry // those that were not returned yet, maxDepth at most
	furthest string            // the name of the last file that was predicted
	ready    *list.Element     // in inOrder.ready; nil if ahead is empty
}

func newInOrder(names *metadata.Container) *inOrder {
	return &inOrder{names: names, dirs: make(perDirectory[orderedOpens])}
}

// An opening is an open of a file of a directory that is listed.
type opening struct {
	entry *metadata.Entry
	i     int  // its position in the directory, by name
	first bool // the file was not opened before
	share share

	// noOrder means that most files of the dataset are opened in no order: some of these seem to be in order
	// by chance. fruitless means that most predictions were not opened.
	noOrder, fruitless bool
}

// opened records an open. It reports whether inOrder recognizes it, and whether next may return a file.
func (p *inOrder) opened(o opening) (recognized, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.dirs.get(o.entry.Parent())
	if r == nil {
		r = &orderedOpens{positions: sequential.Tracker[int]{Max: 1}}
		r.positions.Access(0, 0) // the first file is the next one
		p.dirs.set(o.entry.Parent(), r)
	}
	hits := orderHits + r.misses
	if o.noOrder {
		hits += orderWindow
	}
	step := o.share.step()
	r.positions.Behind, r.positions.Ahead = int64(orderWindow*step), int64((orderWindow-1)*step)
	if o.share != r.share {
		if r.share != (share{}) && r.share.step() != step {
			r.passed, p.passed = passed{}, passed{} // which counted others
		}
		r.share, r.depth, r.furthest, r.ahead = o.share, 0, "", nil
	}
	if o.first {
		p.pass(r, o)
	}
	switch {
	case !r.move(o.i, hits):
		return false, false
	case p.leavesOut(r, o):
		r.depth, r.furthest, r.ahead = 0, "", nil
		return true, false
	}
	r.depth = min(max(2*r.depth, minDepth), maxDepth)
	p.extend(r, o.entry, o.i+step, step)
	return true, r.ready != nil
}

// pass counts the files of the share that the job passes by an open: of the last 2·orderWindow up to that
// file, those that are not known to be empty, and the file. Each counts once, as passed when it or one after
// it is first opened, and as opened when it is. Those before the first file do not count.
func (p *inOrder) pass(r *orderedOpens, o opening) {
	if r.front > 0 {
		files, step := 0, o.share.step()
		n := min((o.i-r.front)/step+1, 2*orderWindow)
		for _, f := range p.names.Siblings(o.entry, o.i-(n-1)*step, n, step) {
			if f == o.entry || f.IsRegular() && (f.Unknown() || f.Size() > 0) && o.share.hasNumber(f) {
				files++
			}
		}
		r.passed.add(files)
		p.passed.add(files)
	}
	r.front = max(r.front, o.i+1)
}

// leavesOut reports whether the predictions in a directory do not pay: a job that has passed files in order
// has left out one in three, or more. Until some were passed, those of other directories show that.
func (p *inOrder) leavesOut(r *orderedOpens, o opening) bool {
	switch {
	case o.share == share{}:
		return false
	case r.passed.files < fewPassed:
		return o.fruitless || p.passed.isSparse()
	}
	return r.passed.isSparse()
}

// passed counts files that a job has passed in order, and those of them that it has opened.
type passed struct{ files, opened int }

// add records an open, by which the job has passed a number of files.
func (p *passed) add(files int) {
	p.files += files
	p.opened++
	if p.files >= manyPassed {
		p.files, p.opened = p.files/2, p.opened/2
	}
}

func (p *passed) isSparse() bool { return 2*p.files >= 3*p.opened && p.files > 0 }

// move records an open of file i. It reports whether files that follow it are to be predicted: it is the
// furthest one that was opened in order, after a number of opens in order.
func (r *orderedOpens) move(i, hits int) bool {
	before := r.positions.Latest().Next
	s, continues := r.positions.Access(int64(i), int64(i)+1)
	switch {
	case !continues:
		r.depth, r.furthest, r.ahead = 0, "", nil
		r.misses = min(r.misses+1, orderWindow)
		return false
	case s.Next <= before: // a reader that lags behind another one
		return false
	}
	if s.Data++; s.Data < hits {
		return false
	}
	r.misses = 0
	return true
}

// extend predicts files of e's directory, from a number on, that are in r.share, within r.depth and maxAhead.
// It leaves out files that were predicted before or are placed. It compares names, since the
// numbers change when files appear or vanish. p.mu must be held.
func (p *inOrder) extend(r *orderedOpens, e *metadata.Entry, from, step int) {
	var bytes int64
	for i, next := range p.names.Siblings(e, from, r.depth, step) {
		if next.Unknown() {
			break // the lookups of the job will make it known
		}
		if !next.IsRegular() || !r.share.hasNumber(next) {
			continue
		}
		if bytes += next.Size(); bytes > maxAhead && i > 0 {
			break
		}
		if next.Name() <= r.furthest {
			continue
		}
		r.furthest = next.Name()
		if next.Level() == tiers.AtSource {
			r.ahead = append(r.ahead, next)
		}
	}
	r.ahead = r.ahead[max(0, len(r.ahead)-maxDepth):] // the job has overtaken the others
	if r.ready == nil && len(r.ahead) > 0 {
		r.ready = p.ready.PushBack(r)
	}
}

func (p *inOrder) next() *metadata.Entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	for front := p.ready.Front(); front != nil; front = p.ready.Front() {
		r := front.Value.(*orderedOpens)
		if len(r.ahead) > 0 {
			e := r.ahead[0]
			r.ahead = r.ahead[1:]
			return e
		}
		r.ahead, r.ready = nil, nil
		p.ready.Remove(front)
	}
	return nil
}

func (p *inOrder) prune(time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dirs.prune()
}
