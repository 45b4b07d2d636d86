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
)

// inOrder is a predictor for jobs that open the files of a directory in the order of their
// names. It predicts the next ones. Several readers that share the work open files nearly in
// order, and may leave some out.
type inOrder struct {
	names *metadata.Container

	mu    panics.Mutex // guards the following
	dirs  perDirectory[orderedOpens]
	ready list.List // of *orderedOpens: those with predictions, the next one first
}

// orderedOpens is the state of inOrder for one directory.
type orderedOpens struct {
	// Of file numbers. There is one stream, whose Data counts the opens that moved on.
	positions sequential.Tracker[int]

	misses   int               // opens out of order, since the last prediction
	depth    int               // how many files are predicted
	ahead    []*metadata.Entry // those that were not returned yet, maxDepth at most
	furthest string            // the name of the last file that was predicted
	ready    *list.Element     // in inOrder.ready; nil if ahead is empty
}

func newInOrder(names *metadata.Container) *inOrder {
	return &inOrder{names: names, dirs: make(perDirectory[orderedOpens])}
}

// opened records an open of e, which is file i of its directory by name. noOrder means that most
// files of the dataset are opened in no order: some of these seem to be in order by chance. It
// reports whether inOrder recognizes the open, and whether next may return a file.
func (p *inOrder) opened(e *metadata.Entry, i int, noOrder bool) (recognized, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.dirs.get(e.Parent())
	if r == nil {
		r = &orderedOpens{positions: sequential.Tracker[int]{Max: 1, Behind: orderWindow, Ahead: orderWindow - 1}}
		r.positions.Access(0, 0) // the first file is the next one
		p.dirs.set(e.Parent(), r)
	}
	hits := orderHits + r.misses
	if noOrder {
		hits += orderWindow
	}
	last, moved := r.move(i, hits)
	if !moved {
		return false, false
	}
	p.extend(r, e, last+1)
	return true, r.ready != nil
}

// move records an open of file i. It returns the furthest file that was opened in order, and
// reports whether files that follow it are to be predicted, which takes a number of opens in order.
func (r *orderedOpens) move(i, hits int) (last int, moved bool) {
	before := r.positions.Latest().Next
	s, continues := r.positions.Access(int64(i), int64(i)+1)
	switch {
	case !continues:
		r.depth, r.furthest, r.ahead = 0, "", nil
		r.misses = min(r.misses+1, orderWindow)
		return 0, false
	case s.Next <= before: // a reader that lags behind another one
		return 0, false
	}
	if s.Data++; s.Data < hits {
		return 0, false
	}
	r.misses = 0
	r.depth = min(max(2*r.depth, minDepth), maxDepth)
	return i, true
}

// extend predicts the files of e's directory from a number on, within r.depth and maxAhead.
// It leaves out files that were predicted before or are placed. It compares names, since the
// numbers change when files appear or vanish. p.mu must be held.
func (p *inOrder) extend(r *orderedOpens, e *metadata.Entry, from int) {
	var bytes int64
	for i, next := range p.names.Siblings(e, from, r.depth) {
		if next.Unknown() {
			break // the lookups of the job will make it known
		}
		if !next.IsRegular() {
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
