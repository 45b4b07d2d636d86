package placement

import (
	"math/bits"
)

// Planned files that do not fit into the tiers together compete for the room. A file of s bytes
// that is placed saves the latency l of the source and s/b of its bandwidth in each epoch: l/s + 1/b
// for each byte of room. So the smallest files save the most, and each is used as often as the
// others. Until all planned files were looked up once, a file is therefore placed only if it leaves
// room for the smaller ones that follow. Their sizes are estimated from those of the files that were
// looked up so far, which in a random order are a sample of all.

// sizeCounts counts files by size, in four classes for each power of two. The zero value has none.
type sizeCounts struct {
	room  [4 * 64]int64 // that the files of a class take in a tier
	files int64         // of all classes
}

// class returns the class of a size.
func class(size int64) int {
	if size < 4 {
		return int(max(size, 0))
	}
	shift := bits.Len64(uint64(size)) - 3
	return 4*shift + int(size>>shift)
}

// add counts a file, to which this node is to give some room.
func (s *sizeCounts) add(size, own int64) {
	s.room[class(size)] += own
	s.files++
}

// need is the room that is left, for each class, to the files of smaller classes.
type need [len(sizeCounts{}.room)]int64

// need returns the need of a number of files of which sizes were not counted yet, and whose sizes
// are like those that were. It is nil if there is room for all.
func (s *sizeCounts) need(files, room int64) *need {
	var n need
	left := float64(max(files-s.files, 0)) / float64(s.files)
	sum := 0.0
	for c, r := range s.room {
		n[c] = int64(sum * left)
		sum += float64(r)
	}
	if sum/float64(s.files)*float64(files) <= float64(room) {
		return nil
	}
	return &n
}

// estimateEvery is how often the need is estimated: after so many files.
const estimateEvery = 32

// saw records the size of a planned file, to which this node is to give the room own, and estimates the
// need if the tiers have some room in all.
func (u use) saw(size, room, own int64) {
	p := u.stream.plan
	p.mu.Lock()
	defer p.mu.Unlock()
	u.stream.found.entries++
	u.stream.found.bytes += size
	if !p.active.Load() { // it was dropped meanwhile
		return
	}
	p.sizes.add(size, own)
	if p.sizes.files%estimateEvery != 0 {
		return
	}
	p.need.Store(p.sizes.need(p.files(), room))
}

// files returns the number of files that the streams name. p.mu must be held.
func (p *plan) files() (n int64) {
	for _, s := range p.streams {
		n += s.longest
	}
	return n
}

// leavesRoom reports whether a file of some size is not placed, because smaller files of the plan of the owner
// need the room. Those of other users take no room from files that somebody opens.
func (h *Handler) leavesRoom(size int64) bool {
	n := h.plans.of(nil).need.Load()
	if n == nil {
		return false
	}
	quota, taken := h.room()
	return quota-taken-h.levels.Allocated(size) < n[class(size)]
}

// room returns the quota of all tiers, and how much of it copies take.
func (h *Handler) room() (quota, taken int64) {
	for _, t := range h.levels.Tiers() {
		q, n := t.Room()
		quota, taken = quota+q, taken+n
	}
	return quota, taken
}
