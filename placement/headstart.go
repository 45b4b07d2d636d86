package placement

import (
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// headStarts hold background requests back for a demand read: none begins until the first block of
// the read has arrived, or would have arrived. Otherwise the other ranges of an opened file, and the
// files that its open predicts, would be requested in the same millisecond, and the block would
// share the network with theirs.
//
// The bytes of a request that is sent later by the time of a transfer also arrive later by that time.
// A head start therefore lasts at most twice as long as the block takes to be transferred, and at most
// a round trip. In a simulated first epoch over shuffled small files, head starts of a whole round
// trip took 1.3 to 1.7 times as long, because predicted files came too late.
//
// Demand reads that begin during a head start share it. While background requests are in flight, a
// read shares the network with these in any case; one head start is then followed by a pause of
// pauseShare times its length, so that readers which never rest do not stop the background work.
// A crowd of readers uses the network without background requests, and needs no head start.
//
// The methods may be called concurrently. The zero value gives no head starts.
type headStarts struct {
	roundTrip func() time.Duration // of the source; 0: not known yet
	over      func()               // is called, without a lock, when a head start has ended

	mu       panics.Mutex  // guards the following
	current  *headStart    // nil: background requests may begin
	next     time.Time     // when the pause ends
	transfer time.Duration // of a whole block, if it is the only one; 0: not known yet
}

const (
	minHeadStart = 100 * time.Microsecond // a source that answers faster needs none
	maxHeadStart = 100 * time.Millisecond
	pauseShare   = 8

	measuredBlock = 64 << 10 // bytes from which the transfer of a block is measured
)

// A headStart is the time from the first of some demand reads until all are answered or it expires.
type headStart struct {
	starts *headStarts
	began  time.Time
	expiry *time.Timer
	reads  int // that have begun; guarded by headStarts.mu, as is the following
	left   int // those without an answer
}

// begin begins the head start of a demand read, whose first block has some bytes, or joins the
// current one. busy means that background requests are in flight. If begin does not return nil, the
// caller calls answered.
func (s *headStarts) begin(bytes int64, busy bool) *headStart {
	if s.roundTrip == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.current; h != nil {
		h.reads++
		h.left++
		return h
	}
	now, length := time.Now(), s.length(bytes)
	if length < minHeadStart || busy && now.Before(s.next) {
		return nil
	}
	h := &headStart{starts: s, began: now, reads: 1, left: 1}
	h.expiry = time.AfterFunc(length, func() {
		defer panics.Contain()
		h.expire()
	})
	s.current = h
	return h
}

// length returns how long a head start for a block of some bytes lasts at most; s.mu must be held.
func (s *headStarts) length(bytes int64) time.Duration {
	most := s.roundTrip()
	if most == 0 {
		most = maxHeadStart
	}
	most = min(most, maxHeadStart)
	if s.transfer > 0 {
		most = min(most, 2*s.transfer)
	}
	return time.Duration(float64(most) * float64(bytes) / blockSize)
}

// answered records that the first block of a demand read, of n bytes, has arrived after a transfer
// of some time. If n is 0, it will not arrive.
func (h *headStart) answered(n int, took time.Duration) {
	s := h.starts
	s.mu.Lock()
	if n >= measuredBlock && took > 0 { // shared with the other reads
		s.measure(time.Duration(float64(took) * blockSize / float64(n*h.reads)))
	}
	h.left--
	ends := h.left == 0 && h.end()
	s.mu.Unlock()
	if ends {
		s.over()
	}
}

// measure records a transfer of a whole block; s.mu must be held. Like the baseline of the source,
// the estimate is a low one.
func (s *headStarts) measure(d time.Duration) {
	if s.transfer > 0 && d > s.transfer {
		d = s.transfer + (d-s.transfer)/16
	}
	s.transfer = d
}

// expire ends the head start although reads are not answered.
func (h *headStart) expire() {
	s := h.starts
	s.mu.Lock()
	ends := h.end()
	s.mu.Unlock()
	if ends {
		s.over()
	}
}

// end ends the head start, and reports whether it had not ended before; headStarts.mu must be held.
func (h *headStart) end() bool {
	s := h.starts
	if s.current != h {
		return false
	}
	now := time.Now()
	s.current, s.next = nil, now.Add(pauseShare*now.Sub(h.began))
	h.expiry.Stop()
	return true
}

// holds reports whether background requests must not begin.
func (s *headStarts) holds() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current != nil
}
