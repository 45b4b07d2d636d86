package placement

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/limit"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// ErrScrubInProgress is the error of Scrub while another scrub is in progress.
var ErrScrubInProgress = errors.New("another scrub of this mount is in progress")

// ScrubOptions configure a scrub.
type ScrubOptions struct {
	Path string // directory or file whose copies are verified; "." is the whole dataset
	Rate int64  // bytes per second that are read from the tiers; 0: no limit
}

// Scrub compares the copies in all tiers with their checksums. It reads the copies from their
// devices, whether or not they were compared before. It finds them in the tiers, and makes no
// request to the source, with one exception: it removes a corrupt copy, and copies the file
// again if its entry is loaded.
//
// A scrub has a low priority. It reads one block at a time, and delays each by up to
// maxScrubYield while readers wait for the tier or for the source. It calls report when it has
// begun and after each step; the calls are not concurrent. A tier that is down is skipped. The error is
// ErrScrubInProgress, or that of ctx. What Scrub finds is in the report only.
func (h *Handler) Scrub(ctx context.Context, opts ScrubOptions, report func(ScrubReport)) error {
	s := &scrub{
		handler: h, opts: opts, rate: limit.NewRate(opts.Rate), send: report,
		refetches: make(chan struct{}, h.workers()),
		report:    ScrubReport{Path: opts.Path, Started: time.Now()},
	}
	if !h.scrubs.begin(s) {
		return ErrScrubInProgress
	}
	s.update(func(*ScrubReport) {})
	h.levels.WaitScanned(ctx)
	if opts.Path == "." {
		s.expect()
	}
	for _, t := range h.levels.Tiers() {
		if err := s.tier(ctx, t); err != nil && ctx.Err() == nil {
			s.update(func(r *ScrubReport) { r.Skipped = append(r.Skipped, ScrubSkip{t.Name(), err.Error()}) })
		}
	}
	s.running.Wait()
	s.update(func(r *ScrubReport) { r.Ended, r.Stopped = true, ctx.Err() != nil })
	atomic.AddInt64(&h.scrubs.counters.Scrubs, 1)
	h.scrubs.end(s.snapshot())
	return context.Cause(ctx)
}

// ScrubStats returns the counters of the scrubs, the scrub in progress and the last one.
func (h *Handler) ScrubStats() ScrubStats {
	all := &h.scrubs
	stats := ScrubStats{ScrubCounters: drivers.Snapshot(&all.counters)}
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.current != nil {
		now := all.current.snapshot()
		stats.InProgress, stats.Current = true, &now
	}
	stats.Last = all.last
	if !all.lastEnd.IsZero() {
		stats.LastEnd = all.lastEnd.Unix()
	}
	return stats
}

// A scrub is one call of Scrub.
type scrub struct {
	handler   *Handler
	opts      ScrubOptions
	rate      *limit.Rate
	send      func(ScrubReport)
	running   sync.WaitGroup // files that are copied again
	refetches chan struct{}  // has an element for each of them

	mu     sync.Mutex // guards the following, and serializes send
	report ScrubReport
}

// update changes the report and sends it.
func (s *scrub) update(f func(r *ScrubReport)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.report)
	s.report.Seconds = time.Since(s.report.Started).Seconds()
	s.send(s.copyReport())
}

// snapshot returns the report.
func (s *scrub) snapshot() ScrubReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.report.Ended {
		s.report.Seconds = time.Since(s.report.Started).Seconds()
	}
	return s.copyReport()
}

// copyReport returns a copy of the report; s.mu must be held.
func (s *scrub) copyReport() ScrubReport {
	r := s.report
	r.Skipped, r.Errors = slices.Clone(r.Skipped), slices.Clone(r.Errors)
	return r
}

// expect enters what the tiers hold into the report.
func (s *scrub) expect() {
	for _, t := range s.handler.levels.Tiers() {
		if stats := t.Stats(); t.Available() == nil {
			s.update(func(r *ScrubReport) {
				r.CopiesExpected += stats.Files
				r.BytesExpected += stats.Used
			})
		}
	}
}

// tier verifies the copies of one tier. The error is the reason why it did not verify all.
func (s *scrub) tier(ctx context.Context, t *tiers.Tier) error {
	if err := t.Available(); err != nil {
		return err
	}
	roots := []tiers.CopyName{s.handler.names.CopyName(s.opts.Path)}
	if s.opts.Path != "." { // which includes the copies of pieces
		roots = append(roots, s.handler.names.PieceCopies(s.opts.Path))
	}
	for _, root := range roots {
		if err := s.copies(ctx, t, root); err != nil {
			return err
		}
	}
	return nil
}

// copies verifies the copies at and below a name.
func (s *scrub) copies(ctx context.Context, t *tiers.Tier, root tiers.CopyName) error {
	return t.Copies(ctx, root, func(copies []tiers.CopyInfo) error {
		s.update(func(r *ScrubReport) {
			for _, c := range copies {
				r.CopiesFound++
				r.BytesFound += c.Size
			}
		})
		for _, c := range copies {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := s.copy(ctx, t, c); err != nil {
				return err
			}
		}
		return nil
	})
}

// copy verifies one copy. The error means that the rest of the tier cannot be verified.
func (s *scrub) copy(ctx context.Context, t *tiers.Tier, c tiers.CopyInfo) error {
	counters := &s.handler.scrubs.counters
	err := s.verify(ctx, t, c.Name)
	switch {
	case err == nil:
		atomic.AddInt64(&counters.Right, 1)
		s.update(func(r *ScrubReport) { r.CopiesRight++ })
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, fs.ErrNotExist):
		s.update(func(r *ScrubReport) { r.CopiesGone++ })
	case errors.Is(err, errNotRemoved) || !errors.Is(err, drivers.ErrCorrupt):
		atomic.AddInt64(&counters.Failed, 1)
		s.update(func(r *ScrubReport) {
			r.CopiesFailed++
			r.add(ScrubError{string(c.Name), t.Name(), errors.Is(err, drivers.ErrCorrupt), err.Error()})
		})
		return t.Available()
	default:
		atomic.AddInt64(&counters.Corrupt, 1)
		s.update(func(r *ScrubReport) {
			r.CopiesCorrupt++
			r.BytesCorrupt += c.Size
			r.add(ScrubError{string(c.Name), t.Name(), true, err.Error()})
		})
	}
	return nil
}

// verify compares the copy of name with its checksums. If it is corrupt, verify removes it, and
// starts to copy the file again. The error then matches drivers.ErrCorrupt.
func (s *scrub) verify(ctx context.Context, t *tiers.Tier, name tiers.CopyName) error {
	err := s.compare(ctx, t, name)
	if !errors.Is(err, drivers.ErrCorrupt) {
		return err
	}
	e := s.handler.names.CachedCopy(name)
	if e == nil || e.Stale() {
		return err
	}
	s.handler.names.Doubt(e) // the kernel may have pages that it has read from the copy
	if !errors.Is(err, errNotRemoved) {
		s.refetch(ctx, e)
	}
	return err
}

// compare is verify, except that it does not copy the file again.
func (s *scrub) compare(ctx context.Context, t *tiers.Tier, name tiers.CopyName) error {
	o, err := t.OpenAny(ctx, name)
	if err == nil {
		defer o.Close() // before the file is copied again, so that its room is free
		err = tiers.CheckObject(ctx, o, func(n int) error { return s.pause(ctx, t, n) })
	}
	if errors.Is(err, drivers.ErrCorrupt) {
		found, failed := s.handler.discard(t, name, o, err)
		if e := s.handler.names.CachedCopy(name); e != nil { // one that is loaded later does not find the copy
			if found {
				e.Demote(t.Level())
			}
			s.handler.leaveCopy(ctx, e, t.Level())
		}
		if failed != nil {
			return errors.Join(errNotRemoved, err, failed)
		}
	}
	return err
}

// errNotRemoved is the error of verify for a corrupt copy that could not be removed.
var errNotRemoved = errors.New("the corrupt copy was not removed")

// refetch copies a file again, in the background.
func (s *scrub) refetch(ctx context.Context, e *metadata.Entry) {
	select {
	case s.refetches <- struct{}{}:
	case <-ctx.Done():
		return
	}
	s.update(func(r *ScrubReport) { r.RefetchPending++ })
	s.running.Go(func() {
		defer func() { <-s.refetches }()
		outcome, err := s.handler.Place(ctx, e)
		if err != nil {
			s.handler.log.Debug("file not copied again", "path", e.Path(), "err", err)
		}
		if outcome == Placed {
			atomic.AddInt64(&s.handler.scrubs.counters.Refetched, 1)
		}
		s.update(func(r *ScrubReport) {
			r.RefetchPending--
			if outcome == Placed {
				r.Refetched++
			} else {
				r.RefetchFailed++
			}
		})
	})
}

// A scrub yields to readers for up to maxScrubYield for each block. It examines every
// scrubPoll whether there are any.
const (
	maxScrubYield = 100 * time.Millisecond
	scrubPoll     = 5 * time.Millisecond
)

// pause is called after a block of n bytes. It waits for the rate limit and for readers.
func (s *scrub) pause(ctx context.Context, t *tiers.Tier, n int) error {
	atomic.AddInt64(&s.handler.scrubs.counters.Bytes, int64(n))
	s.update(func(r *ScrubReport) { r.BytesRead += int64(n) })
	if err := s.rate.Wait(ctx, int64(n)); err != nil {
		return context.Cause(ctx)
	}
	for waited := time.Duration(0); waited < maxScrubYield && (t.Busy() || s.handler.gate.demanded()); waited += scrubPoll {
		if err := sleep(ctx, scrubPoll); err != nil {
			return err
		}
	}
	return nil
}

// demanded reports whether a reader waits for the source.
func (g *gate) demanded() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting > 0
}

// leaveTimeout bounds how long leaveCopy waits for a file that is being opened.
const leaveTimeout = 5 * time.Second

// leaveCopy makes the open file of e, if there is one, move away from the copy on level l with its
// next read.
func (h *Handler) leaveCopy(ctx context.Context, e *metadata.Entry, l tiers.Level) {
	f := h.files.find(e)
	if f == nil {
		return
	}
	defer h.files.release(f)
	select {
	case f.moving <- struct{}{}: // a goroutine that has opened the copy has made it current
		defer func() { <-f.moving }()
	case <-time.After(leaveTimeout):
	case <-ctx.Done():
	}
	if v := f.current.Load(); v != nil && v.level == l && (v.fill == nil || isClosed(v.fill.ended)) {
		v.failed.Store(true)
	}
}
