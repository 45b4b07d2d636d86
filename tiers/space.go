package tiers

import (
	"sync"
	"time"
)

// allocationUnit is what the size of a copy is rounded up to when it is
// counted: the block of the file systems that tiers are on, and the page of
// tmpfs. A million files of 100 bytes take 4 GB, not 100 MB.
const allocationUnit = 4096

// allocated returns the bytes that a copy of size bytes takes.
func allocated(size int64) int64 {
	return (size + allocationUnit - 1) / allocationUnit * allocationUnit
}

// space is the account of one tier. At any moment used+reserved is at most
// quota, unless the quota was lowered below what the tier already held.
type space struct {
	mu       sync.Mutex // guards the following
	quota    int64      // bytes; 0 until it is known
	used     int64      // bytes of committed copies
	reserved int64      // bytes of copies in flight
	files    int64      // committed copies
	noRoom   int64      // a copy of this size found the device full, 0: none has
	until    time.Time  // when noRoom is forgotten
}

// noRoomFor is how long copies are not tried that are as large as one that
// found the device full below its quota.
const noRoomFor = 10 * time.Second

// reserve takes bytes out of the account if they are there and the device,
// which has available bytes, has room for all that is reserved.
func (s *space) reserve(bytes, available int64, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noRoom > 0 && now.After(s.until) {
		s.noRoom = 0
	}
	switch {
	case s.noRoom > 0 && bytes >= s.noRoom:
		return false
	case bytes > s.quota-s.used-s.reserved:
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
	return bytes <= s.quota-s.used-s.reserved
}

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
	s.used = max(s.used+bytes, 0)
	s.files = max(s.files+files, 0)
}

// A Reservation is room in a tier for one copy. It is ended by Commit or by
// Return; a second end does nothing. It is used by one goroutine at a time.
type Reservation struct {
	space *space
	bytes int64
	ended bool
}

// Commit turns the reservation into a copy.
func (r *Reservation) Commit() { r.end(1) }

// Return gives the room back.
func (r *Reservation) Return() { r.end(0) }

func (r *Reservation) end(files int64) {
	if r.ended {
		return
	}
	r.ended = true
	r.space.mu.Lock()
	defer r.space.mu.Unlock()
	r.space.reserved -= r.bytes
	r.space.used += files * r.bytes
	r.space.files += files
}
