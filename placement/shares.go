package placement

import (
	"path"
	"strconv"
	"strings"

	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
)

// shares finds which files of a directory a job opens if that is every n-th one, in any order: its share
// of a list of files, as Dataset.shard of tf.data makes it. A step is the distance from a file of a
// directory to the one that is opened next. All steps of such a job are multiples of n. Those of a job
// that opens all files, or a random part of them, are not.
//
// Steps are counted by the positions of the files among the names of the directory, and by the numbers
// in their names, since some numbers may be missing. They count for the directories around, too, so
// that one open in another directory shows which of its files follow. The methods may be called
// concurrently.
type shares struct {
	off bool // set before the first open: shares are not looked for

	mu   panics.Mutex // guards the following
	dirs perDirectory[directorySteps]
}

// The rules of shares.
const (
	maxPart  = 32 // the largest n
	surePart = 16 // multiples that are enough to find n; all steps, without the first one, if there were fewer
	fewParts = 2  // but at least so many
	mostPart = 64 // multiples that count
	ownSteps = 32 // steps of a directory before those around it do not matter
)

// The kinds of steps.
const (
	byPosition = iota
	byNumber
)

// directorySteps are the steps of a directory and of those below it, by kind.
type directorySteps [byNumber + 1]steps

// steps are steps of one kind.
type steps struct {
	multiples [maxPart + 1]uint8 // by n: steps that are multiples of it, less surePart for each one that is not
	count     uint8              // steps, up to ownSteps
	largest   uint8              // n of which the steps are multiples; 0: there is none

	// Where the next step in the directory begins: at the last file that was opened, unless the step to that
	// was not a multiple of n. The job may only have looked at it.
	last  int
	known bool // there is one
}

// A share is which files of a directory a job opens, by kind. The zero value has all.
type share [byNumber + 1]nth

// An nth has the numbers that leave a rest when they are divided by part.
type nth struct {
	part int // 0 and 1: it has all numbers
	rest int // -1: which ones it has is not known
}

func (c nth) has(n int) bool { return c.part <= 1 || n%c.part == c.rest }

// has reports whether e is in the share.
func (s *share) has(names *metadata.Container, e *metadata.Entry) bool {
	if c := s[byPosition]; c.part > 1 {
		if i, listed := names.Index(e); !listed || !c.has(i) {
			return false
		}
	}
	return s.hasNumber(e)
}

// hasNumber is has by the number of e.
func (s *share) hasNumber(e *metadata.Entry) bool {
	c := s[byNumber]
	if c.part <= 1 {
		return true
	}
	n, ok := number(e.Name())
	return ok && c.has(n)
}

// step returns the distance of its files, by position.
func (s *share) step() int { return max(1, s[byPosition].part) }

func newShares() *shares { return &shares{dirs: make(perDirectory[directorySteps])} }

// opened records the first open of e, and returns what the job opens of its directory. If that is listed, e
// is file i by name.
func (s *shares) opened(e *metadata.Entry, i int, listed bool) share {
	if s.off {
		return share{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if listed {
		s.add(e.Parent(), byPosition, i)
	}
	if n, ok := number(e.Name()); ok {
		s.add(e.Parent(), byNumber, n)
	}
	return s.share(e.Parent())
}

// of returns what a job opens of a directory.
func (s *shares) of(dir *metadata.Entry) share {
	if s.off {
		return share{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.share(dir)
}

// part returns n if a job surely opens one of n files of a directory. The numbers in the names do not show
// that: all of them may be multiples of 10.
func (s *shares) part(dir *metadata.Entry) int {
	if s.off {
		return 1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if counted := s.counted(dir)[byPosition]; counted.count > surePart {
		return counted.part()
	}
	return 1
}

// add records an open of a file of dir, which is at a position or has a number. s.mu must be held.
func (s *shares) add(dir *metadata.Entry, kind, at int) {
	own := &s.dirs.of(dir)[kind]
	if !own.known {
		own.last, own.known = at, true
		return
	}
	step := at - own.last
	for d := dir; ; d = d.Parent() {
		s.dirs.of(d)[kind].add(step)
		if d == d.Parent() {
			break
		}
	}
	if step%s.counted(dir)[kind].part() == 0 {
		own.last = at
	}
}

// noSteps are those of a directory in which nothing was opened.
var noSteps directorySteps

// counted returns the steps that count for a directory, by kind: its own or, if they are few, those of a
// directory around it. s.mu must be held.
func (s *shares) counted(dir *metadata.Entry) (counted [len(noSteps)]*steps) {
	for d := dir; ; d = d.Parent() {
		around, isRoot := s.dirs.get(d), d == d.Parent()
		if around == nil {
			around = &noSteps
		}
		missing := false
		for kind := range counted {
			if counted[kind] == nil && (isRoot || around[kind].count >= ownSteps) {
				counted[kind] = &around[kind]
			}
			missing = missing || counted[kind] == nil
		}
		if !missing {
			return counted
		}
	}
}

// share is of; s.mu must be held.
func (s *shares) share(dir *metadata.Entry) (result share) {
	own := s.dirs.get(dir)
	for kind, counted := range s.counted(dir) {
		c := nth{part: counted.part(), rest: -1}
		if own != nil && own[kind].known {
			c.rest = own[kind].last % c.part
		}
		result[kind] = c
	}
	return result
}

// prune forgets directories that no longer exist.
func (s *shares) prune() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirs.prune()
}

// add adds a step.
func (s *steps) add(step int) {
	for n := 2; n <= maxPart; n++ {
		if m := &s.multiples[n]; step%n == 0 {
			*m = min(*m+1, mostPart)
		} else {
			*m -= min(*m, surePart)
		}
	}
	s.count = min(s.count+1, ownSteps)
	s.largest = 0
	for n, m := range s.multiples {
		if m >= max(fewParts, min(s.count-1, surePart)) {
			s.largest = uint8(n)
		}
	}
}

// part returns the largest n of which the steps are multiples, or 1.
func (s *steps) part() int { return max(1, int(s.largest)) }

// number returns the last number in a name, without its extension if there is one before that.
func number(name string) (n int, ok bool) {
	base := strings.TrimSuffix(name, path.Ext(name))
	isDigit := func(r rune) bool { return r >= '0' && r <= '9' }
	for _, text := range []string{base, name} {
		end := strings.LastIndexFunc(text, isDigit) + 1
		if end == 0 {
			continue
		}
		from := strings.LastIndexFunc(text[:end], func(r rune) bool { return !isDigit(r) }) + 1
		n, err := strconv.Atoi(text[from:end])
		return n, err == nil
	}
	return 0, false
}
