package tiers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// A tier is slow if its reads take long, on average over a window, and the source would take much
// less. It is then down until its reads are fast again, or those of the source are slow, too. The
// limits are far from what a working disk does, also one that many processes use at once.
const (
	slowReads  = 3                      // reads of a window at least
	slowWindow = 5 * time.Second        // length of a window at least
	slowRead   = 250 * time.Millisecond // a mean that is shorter is never slow
	busyRead   = 20 * time.Millisecond  // nor is one that is shorter when divided by the operations in flight
	slowFactor = 4                      // how many times faster the source must be
	fastRead   = slowRead / 2           // the time that each read of a probe may take, for the tier to be used again

	// A disk that is slow only while it is used would be left and used again all the time.
	// Therefore the window doubles each time, unless the tier was not slow for resetWindow.
	maxWindow   = 10 * time.Minute
	resetWindow = time.Hour
)

// A slowError is the cause of a tier that is down because it is slow.
type slowError struct {
	tier, source time.Duration // means of reads
}

func (e *slowError) Error() string {
	return fmt.Sprintf("slow: reads take %v, those of the source %v", e.tier.Round(time.Millisecond), e.source.Round(10*time.Microsecond))
}

// speed measures how long the reads of a tier on a disk take.
type speed struct {
	suspected chan time.Duration // receives the mean of a window in which reads took long

	mu     panics.Mutex // guards the following
	reads  int          // in this window
	total  time.Duration
	queued int           // sum, over the reads, of the operations that were in flight
	began  time.Time     // when the first read of the window began
	length time.Duration // of the window, at least
	slow   time.Time     // when the tier was last found to be slow
}

func newSpeed() speed { return speed{suspected: make(chan time.Duration, 1)} }

// add records a read that has just ended, and before which a number of operations were in flight.
func (s *speed) add(took time.Duration, inFlight int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.reads == 0 {
		s.began = now.Add(-took)
	}
	s.reads++
	s.total += took
	s.queued += max(inFlight, 1)
	if now.Sub(s.slow) > resetWindow {
		s.length = slowWindow
	}
	if s.reads < slowReads || now.Sub(s.began) < s.length {
		return
	}
	mean := s.total / time.Duration(s.reads)
	if mean >= slowRead && s.total/time.Duration(s.queued) >= busyRead {
		select {
		case s.suspected <- mean:
		default:
		}
	}
	s.reads, s.total, s.queued = 0, 0, 0
}

// isSlow records that the tier is slow.
func (s *speed) isSlow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.length = min(2*s.length, maxWindow)
	s.slow = time.Now()
}

// restart begins a new window.
func (s *speed) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads, s.total, s.queued = 0, 0, 0
	select {
	case <-s.suspected:
	default:
	}
}

// slowCause returns why the tier is slow, or nil if it is not down for that reason.
func (t *Tier) slowCause() *slowError {
	var slow *slowError
	if _, cause := t.health.get(); errors.As(cause, &slow) {
		return slow
	}
	return nil
}

// judge takes the tier down if the source is much faster than the mean of its reads. If the source
// was not read lately, judge reads the beginning of one file, whose path is the name of its copy.
func (t *Tier) judge(ctx context.Context, mean time.Duration) {
	if _, known := t.source.pace.mean(); !known {
		for _, name := range t.recent.pick(1) {
			t.source.measure(ctx, name, t.opts.Timeout)
		}
	}
	source, known := t.source.pace.mean()
	if !known || mean < slowFactor*source {
		return
	}
	t.speed.isSlow()
	t.health.note(reading, &slowError{mean, source})
}

// sourceIsSlow reports whether the source is no alternative to a tier that was found to be slow.
func (t *Tier) sourceIsSlow(slow *slowError) bool {
	source, known := t.source.pace.mean()
	return known && slow.tier < slowFactor/2*source
}

// measure reads the beginning of a file, for pace. It does so once in paceAge at most.
func (s *Source) measure(ctx context.Context, name string, timeout time.Duration) {
	if !s.pace.startMeasuring() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	o, err := s.Open(ctx, name)
	if err != nil {
		return
	}
	defer o.Close()
	o.ReadAt(ctx, make([]byte, min(o.Info().Size, drivers.ChecksumBlock)), 0)
}

// A pace is how long the reads of the source take now.
type pace struct {
	mu       panics.Mutex // guards the following
	inFlight int
	recent   time.Duration // of successful reads, a moving average
	failed   bool          // the last read has failed
	ended    time.Time     // when the last read ended
	progress time.Time     // when the last read ended or the only one in flight began
	measured time.Time     // when measure last read a file
}

// paceAge is how long the average of the last reads counts.
const paceAge = time.Minute

// startMeasuring reports whether measure may read a file now.
func (p *pace) startMeasuring() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(p.measured) < paceAge {
		return false
	}
	p.measured = now
	return true
}

// begin records that a read begins now.
func (p *pace) begin(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inFlight++; p.inFlight == 1 {
		p.progress = now
	}
}

// end records that a read ends now, which took some time. ctx is that of its caller.
func (p *pace) end(ctx context.Context, now time.Time, took time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight--
	if err != nil && (ctx.Err() != nil || harmless(reading, err)) {
		return // it shows nothing about the source
	}
	p.failed = err != nil
	switch {
	case p.failed:
	case now.Sub(p.ended) > paceAge:
		p.recent = took
	default:
		p.recent += (took - p.recent) / 8
	}
	p.ended, p.progress = now, now
}

// mean returns how long a read takes: the average of the last reads or, if that is longer, the time
// for which none of the reads in flight has ended. If the source fails, it is endless. It reports
// false if the source was not read lately.
func (p *pace) mean() (d time.Duration, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(p.ended) <= paceAge {
		d, known = p.recent, true
		if p.failed {
			return endless, true
		}
	}
	if stalled := now.Sub(p.progress); p.inFlight > 0 && stalled > d {
		return stalled, true
	}
	return d, known
}

const endless = time.Duration(1<<63-1) / slowFactor
