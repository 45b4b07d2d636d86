package tiers

import (
	"math"
	"sync"
	"time"
)

// allocationUnit is what the size of a copy is rounded up to when it is
// counted: the block of the file systems that tiers are on, and the page of
// tmpfs. A million files of 100 bytes take 4 GB, not 100 MB.
const allocationUnit = 4096

// allocated returns the bytes that a copy of size bytes takes.
func allocated(size int64) int64 {
	size = min(size, math.MaxInt64-allocationUnit) // a sparse file may have any size
	return (size + allocationUnit - 1) / allocationUnit * allocationUnit
}

// space is the account of one tier. At any moment used+reserved is at most
// quota, unless the quota was lowered below what the tier already held, or a
// commit that was given up as hung succeeds after all.
type space struct {
	mu       sync.Mutex // guards the following
	quota    int64      // bytes; 0 until it is known
	used     int64      // bytes of committed copies
	reserved int64      // bytes of copies in flight
	files    int64      // committed copies
	noRoom   int64      // a copy of this size found the device full, 0: none has
	until    time.Time  // when noRoom is forgotten

	changing map[string]bool // names of which a copy is being committed or removed
}

// noRoomFor is how long copies are not tried that are as large as one that
// found the device full below its quota.
const noRoomFor = 10 * time.Second

// reserve takes bytes out of the account if they are there and the device,
// which has available bytes, has room for all that is reserved. What copies in
// flight have written is thus counted twice: where a device is nearly full, a
// copy is put off until they are complete, rather than fail halfway.
func (s *space) reserve(bytes, available int64, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noRoom > 0 && now.After(s.until) {
		s.noRoom = 0
	}
	switch {
	case s.noRoom > 0 && bytes >= s.noRoom:
		return false
	case bytes > s.left():
		return false
	case bytes > available-s.reserved:
		return false
	}
	s.reserved += bytes
	return true
}

// fits reports whether bytes could be reserved as far as the quota goes.
func (s *space) fits(bytes int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes <= s.left()
}

// left is what the quota leaves; s.mu must be held. What is used is less than
// nothing for a moment, when a copy is replaced before it was counted.
func (s *space) left() int64 { return s.quota - max(s.used, 0) - s.reserved }

// full notes that the device had no room for bytes.
func (s *space) full(bytes int64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noRoom == 0 || bytes < s.noRoom {
		s.noRoom = max(bytes, 1)
	}
	s.until = now.Add(noRoomFor)
}

// add changes the account of committed copies.
func (s *space) add(bytes, files int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used += bytes
	s.files += files
}

// begin begins to change the copy of name, and reports false if somebody else
// is doing so.
func (s *space) begin(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changing[name] {
		return false
	}
	if s.changing == nil {
		s.changing = make(map[string]bool)
	}
	s.changing[name] = true
	return true
}

// end ends what begin began.
func (s *space) end(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.changing, name)
}

// A Reservation is room in a tier for one copy. It is ended by Commit or by
// Return; a second end does nothing.
type Reservation struct {
	space *space
	bytes int64
	ended bool // guarded by space.mu
}

// Commit turns the reservation into a copy.
func (r *Reservation) Commit() { r.end(1) }

// Return gives the room back.
func (r *Reservation) Return() { r.end(0) }

func (r *Reservation) end(files int64) {
	r.space.mu.Lock()
	defer r.space.mu.Unlock()
	if r.ended {
		return
	}
	r.ended = true
	r.space.reserved -= r.bytes
	r.space.used += files * r.bytes
	r.space.files += files
}
