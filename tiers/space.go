package tiers

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// allocationUnit is the least unit to which the account rounds the size of a copy: the block
// size of most file systems, and the page size of tmpfs. A million files of 100 bytes occupy
// 4 GB, not 100 MB.
const allocationUnit = 4096

// Allocated returns the bytes that a copy of size bytes occupies on most file systems.
func Allocated(size int64) int64 { return AllocatedIn(allocationUnit, size) }

// AllocatedIn returns the bytes that a copy of size bytes occupies where the file system allocates
// multiples of unit, which is at least 1.
func AllocatedIn(unit, size int64) int64 {
	size = min(size, math.MaxInt64-unit) // a sparse file may have any size
	return (size + unit - 1) / unit * unit
}

// space is the account of one tier. A copy in flight counts with its size, rounded up to the unit of the
// file system, and a committed one with what it occupies. used+reserved never exceeds quota, with three
// exceptions: the tier held more when the quota was lowered, a commit succeeded after it was abandoned,
// or a copy occupies more than was reserved.
type space struct {
	unit  atomic.Int64 // of the file system, in bytes, as it is now; 0: not known
	basis int64        // the unit at the scan, to which sizes of committed copies are rounded; set before the first copy

	mu       panics.Mutex // guards the following
	quota    int64        // bytes; 0 until the tier has been scanned
	used     int64        // bytes of committed copies, and of removed ones that are still open
	reserved int64        // bytes of copies in flight, and of those in the window
	window   int64        // bytes of the quota that are for the window only
	windowed int64        // bytes of reserved that are in the window
	written  int64        // bytes of reserved that were written by copies that stay in flight for long
	files    int64        // committed copies
	short    shortage     // what the device lacks
	tooLarge int64        // what the smallest copy occupies that the file system does not allow; 0: it has allowed all

	changing  map[string]bool      // names whose copy is being committed or removed
	discarded map[string]bool      // names whose copy Discard has removed, until the next commit
	open      map[string]*openCopy // by name; a removed copy is not in the map
	oddities  oddities             // of committed copies
}

// An openCopy is a copy with open handles. The kernel keeps the disk blocks of a removed
// file until its last descriptor is closed, so the account keeps its bytes until then.
type openCopy struct {
	handles int
	removed bool
	bytes   int64 // what the last close returns, if removed
}

// reserve reserves bytes. It reports false if the account or the device,
// which has available bytes, cannot hold all that is reserved. The bytes that copies in
// flight have already written are counted twice, unless they are in s.written: on a nearly full
// device a copy is postponed until the others are complete, instead of failing halfway. The room
// is in the window if windowed is set, and outside of it otherwise.
func (s *space) reserve(bytes, available int64, windowed bool, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.lacksNow(bytes, now):
		return false
	case bytes > s.left(windowed):
		return false
	case bytes > available-(s.reserved-s.written):
		return false
	}
	s.reserved += bytes
	if windowed {
		s.windowed += bytes
	}
	return true
}

// resize changes the quota and the window in it.
func (s *space) resize(quota, window int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quota, s.window = quota, window
}

// fits reports whether the quota has room for bytes, in the window or outside of it, and the device has
// not lacked it a short time ago.
func (s *space) fits(bytes int64, windowed bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes <= s.left(windowed) && !s.lacksNow(bytes, time.Now())
}

// left returns the bytes that the quota leaves in the window or outside of it; s.mu must be held.
// The window has less than its size left if the tier held more when it was opened, and nothing if it
// was made smaller than what it holds. used is negative for a moment when a copy is replaced before
// the scan has counted it.
func (s *space) left(windowed bool) int64 {
	all, inWindow := s.quota-max(s.used, 0)-s.reserved, max(s.window-s.windowed, 0)
	if windowed {
		return min(all, inWindow)
	}
	return all - inWindow
}

// add changes the account of committed copies.
func (s *space) add(bytes, files int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used += bytes
	s.files += files
}

// begin marks the copy of name as being changed. It reports false if it already is.
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

// end marks the change of the copy of name as complete.
func (s *space) end(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.changing, name)
}

// acquire adds an open handle of the copy of name. It is called before the copy is
// opened, so that the bytes of a copy that is removed in between are kept.
func (s *space) acquire(name string) *openCopy {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.open[name]
	if c == nil {
		if s.open == nil {
			s.open = make(map[string]*openCopy)
		}
		c = new(openCopy)
		s.open[name] = c
	}
	c.handles++
	return c
}

// release drops an open handle. The last one of a removed copy returns its bytes.
func (s *space) release(name string, c *openCopy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.handles--
	switch {
	case c.handles > 0:
	case c.removed:
		s.used -= c.bytes
	default:
		delete(s.open, name)
	}
}

// removed takes a removed or replaced copy of name off the account: its file at once, and
// its bytes when no handle is open on it.
func (s *space) removed(name string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files--
	c := s.open[name]
	if c == nil {
		s.used -= bytes
		return
	}
	c.removed, c.bytes = true, bytes
	delete(s.open, name)
}

// A Reservation is room in a tier for one copy, or for a part of one. Commit or Return ends it; a second
// call of either does nothing. A Reservation in the window is not committed.
type Reservation struct {
	tier     *Tier
	bytes    int64
	size     int64 // of the copy, or of its part
	windowed bool  // see ReserveWindow
	retry    bool  // the device lacked something for such a copy before
	written  int64 // bytes of the room; guarded by space.mu
	ended    bool  // guarded by space.mu
}

// Bytes returns the room. It is not called during Extend.
func (r *Reservation) Bytes() int64 { return r.bytes }

// Shrink makes r the room for size bytes of the copy, which are fewer. It is not called during Extend.
func (r *Reservation) Shrink(size int64) {
	s := &r.tier.space
	less := r.bytes - r.tier.Allocated(size)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.ended || less <= 0 {
		return
	}
	r.bytes, r.size = r.bytes-less, size
	s.reserved -= less
	if r.windowed {
		s.windowed -= less
	}
}

// Extend makes r the room for size bytes of the copy, and reports success, as Reserve does. If r has room
// for as many, it does nothing. Calls of Extend, and that of Commit, are not concurrent.
func (r *Reservation) Extend(ctx context.Context, size int64) bool {
	if size <= r.size {
		return true
	}
	more, ok := r.tier.take(ctx, size, r.bytes, r.windowed)
	return ok && r.extend(size, more)
}

// extend adds bytes that were taken, unless r has ended.
func (r *Reservation) extend(size, more int64) bool {
	retry := r.tier.Lacks(size) != nil
	s := &r.tier.space
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.ended {
		s.reserved -= more
		if r.windowed {
			s.windowed -= more
		}
		return false
	}
	r.bytes, r.size, r.retry = r.bytes+more, size, r.retry || retry
	return true
}

// Written records that a copy in the window is complete.
func (r *Reservation) Written() { r.Wrote(r.bytes) }

// Wrote records that bytes of a copy were written that may stay in flight for long. The device has that much
// less room, so they do not count as room that it must have.
func (r *Reservation) Wrote(bytes int64) {
	s := &r.tier.space
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes = min(bytes, r.bytes-r.written); !r.ended {
		r.written += bytes
		s.written += bytes
	}
}

// Commit turns the reservation into a committed copy.
func (r *Reservation) Commit() {
	r.end(1)
	if r.retry {
		r.tier.endShortage(func(s shortage) bool { return r.bytes >= s.bytes })
	}
}

// Return returns the room.
func (r *Reservation) Return() { r.end(0) }

func (r *Reservation) end(files int64) {
	s := &r.tier.space
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.ended {
		return
	}
	r.ended = true
	s.reserved -= r.bytes
	if r.windowed {
		s.windowed -= r.bytes
	}
	s.written -= r.written
	s.used += files * s.rounded(r.size)
	s.files += files
}
