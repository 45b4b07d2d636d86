package torture

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/milkweedfs/milkweed/placement"
)

// scrub verifies all copies while the daemon runs, and examines what that has found. A scrub is
// complete if it has read each copy in each tier: after it, no copy has a flipped bit, and no
// reader may be served one. A copy that it reports as corrupt must have been damaged.
func (s *suite) scrub(ctx context.Context) {
	began, before := time.Now(), s.oracle.flipsSoFar()
	report, err := s.daemon.scrub(ctx)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		s.verbosef("scrub: %v", err)
		s.summary.Events["scrub failed"]++
		return
	}
	for _, e := range report.Errors {
		if file, ok := s.fileOf(e.Path); e.Corrupt && !(ok && s.damaged[file]) && !(s.lossy >= 0 && e.Tier == "disk") {
			s.oracle.scrubWrong("%s in tier %s is reported as corrupt, but was not damaged: %s", e.Path, e.Tier, e.Error)
		}
	}
	if !isComplete(report) || s.moved == s.cycleNumber { // the daemon may still use a folder that is gone
		s.summary.Events["scrub of some copies"]++
		return
	}
	s.summary.Events["scrub"]++
	s.summary.Events["scrub: corrupt copies"] += int(report.CopiesCorrupt)
	for _, f := range before {
		for _, tier := range []string{s.daemon.memory, s.daemon.disk} {
			if !s.holds(tier, f) || s.oracle.isClosed(f.file) {
				continue
			}
			ok, location := s.isCopy(ctx, tier, f.file)
			if ok && s.holds(tier, f) { // it was not replaced meanwhile
				s.oracle.scrubWrong("bit %d of byte %d of %s, flipped %v before the scrub, is flipped in %s after it; the daemon says: %s",
					f.bit, f.off, s.model.Name(f.file), began.Sub(f.at).Round(time.Millisecond), tier, location)
			}
		}
	}
	s.oracle.scrubbed()
	maps.DeleteFunc(s.damaged, func(file int, _ bool) bool { return !s.isPlanted(file) })
	if s.lossy < s.cycleNumber { // in this cycle, a copy with lost writes may still be committed
		s.lossy = -1
	}
}

// isComplete reports whether a scrub has verified all copies.
func isComplete(r placement.ScrubReport) bool {
	return r.Ended && !r.Stopped && r.CopiesFailed == 0 && len(r.Skipped) == 0
}

// isCopy reports whether the daemon takes the file in a tier for a copy, and what it says. It does not if the
// file has lost the mode of a copy in a chmod, and its record in a power cut. Such a file is never read.
func (s *suite) isCopy(ctx context.Context, tier string, file int) (ok bool, location string) {
	name := s.model.Name(file)
	l, err := s.daemon.where(ctx, name)
	if err != nil {
		return true, err.Error()
	}
	return l.TierPath == filepath.Join(s.daemon.copies(tier), name), fmt.Sprintf("%+v", l)
}

// isPlanted reports whether a tier has a planted file in the place of a copy. One of another user is none of the
// daemon, until a power cut gives it back.
func (s *suite) isPlanted(file int) bool {
	for _, tier := range []string{s.daemon.memory, s.daemon.disk} {
		data, err := os.ReadFile(filepath.Join(s.daemon.copies(tier), s.model.Name(file)))
		if err == nil && bytes.HasPrefix(data, planted) {
			return true
		}
	}
	return false
}

// holds reports whether the copy of a file in a tier has the flipped bit f.
func (s *suite) holds(tier string, f flipped) bool {
	c, err := os.Open(filepath.Join(s.daemon.copies(tier), s.model.Name(f.file)))
	if err != nil {
		return false // it was removed
	}
	defer c.Close()
	page := make([]byte, pageSize)
	start := f.off - f.off%pageSize
	n, err := c.ReadAt(page, start)
	if err != nil && err != io.EOF || n < minRead {
		return false
	}
	newest := s.oracle.newest(f.file)
	if s.model.Identify(page[:n], f.file, newest, start) >= 0 {
		return false
	}
	d := s.model.Diff(page[:n], f.file, newest, start)
	return d.Flipped && d.First == f.off && d.Bit == f.bit
}
