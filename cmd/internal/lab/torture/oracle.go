package torture

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The times for which a change of the source or of the mount may be visible.
const (
	// attrTimeout is the value of the options attr_timeout and consistency. With the default of the
	// second, each mount may for a minute show a file as it was before if it was rewritten in place
	// before that mount.
	attrTimeout = time.Second

	// staleBound is how long a version may be read after it was superseded. The name is
	// revalidated after attrTimeout; a version with the modification time of the one before
	// is noticed later.
	staleBound = 20 * time.Second

	// raceBound is how long readers may see what the source held during a rewrite.
	raceBound = attrTimeout + 10*time.Second

	// grace is how long the error of a fault may arrive after the fault.
	grace = 2*attrTimeout + time.Second
)

// A window is a time in which errors are allowed.
type window struct {
	from, until time.Time // until is zero while it lasts
	file        int       // of which errors are allowed; -1 is all
	errnos      []unix.Errno
	why         string
}

// overlaps reports whether a read took place in the window.
func (w *window) overlaps(r Result) bool {
	return !r.End.Before(w.from) && (w.until.IsZero() || !r.Start.After(w.until))
}

// allows reports whether the error of a read is one of the window. A page fault reports every error as SIGBUS.
func (w *window) allows(r Result) bool {
	return slices.Contains(w.errnos, r.Errno) || r.Op == "page fault"
}

// A change is one version of a file at the source.
type change struct {
	began, ended time.Time // of the replacement or the rewrite; ended is zero during it
	inPlace      bool
}

// A flipped bit of a copy.
type flipped struct {
	file    int
	off     int64
	bit     int
	at      time.Time
	running bool      // a daemon ran, which may have verified the block before
	until   time.Time // when that daemon was replaced, or a scrub ended; zero until then
}

// An oracle knows what the readers may see, and judges what they saw.
type oracle struct {
	model Model
	log   func(format string, args ...any)

	mu       sync.Mutex // guards the following
	versions [][]change // by file and version
	windows  []*window
	flips    []*flipped
	mode     string
	denied   time.Time         // since when the daemon may not read what permissions deny; zero: it may
	closed   map[int]time.Time // by file: since when permissions deny it
	cycle    int               // for findings
	doing    string            // the last event, for findings
	seen     map[string]bool
	failure  error // of the suite itself
	summary  *Summary
}

func newOracle(m Model, s *Summary, log func(string, ...any)) *oracle {
	o := &oracle{model: m, log: log, versions: make([][]change, m.Count), closed: make(map[int]time.Time), seen: make(map[string]bool), summary: s}
	for f := range o.versions {
		o.versions[f] = []change{{}}
	}
	return o
}

// newest returns the latest version of a file.
func (o *oracle) newest(file int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.versions[file]) - 1
}

// beginChange announces the next version of a file, and returns it.
func (o *oracle) beginChange(file int, inPlace bool) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.versions[file] = append(o.versions[file], change{began: time.Now(), inPlace: inPlace})
	return len(o.versions[file]) - 1
}

// endChange records that the newest version of a file is complete.
func (o *oracle) endChange(file int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	v := o.versions[file]
	v[len(v)-1].ended = time.Now()
}

// allow opens a window, in which errors of a file, or of all if file is -1, are allowed.
// The caller calls end at its end; the window closes after a further time.
func (o *oracle) allow(file int, why string, after time.Duration, errnos ...unix.Errno) (end func()) {
	w := &window{from: time.Now(), file: file, why: why, errnos: errnos}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.windows = append(o.windows, w)
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		w.until = time.Now().Add(after)
	}
}

// forget drops the windows that have long been closed.
func (o *oracle) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.windows = slices.DeleteFunc(o.windows, func(w *window) bool {
		return !w.until.IsZero() && time.Since(w.until) > 4*Deadline
	})
}

// at records the event of a cycle that is in progress.
func (o *oracle) at(cycle int, doing string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.cycle, o.doing = cycle, doing
}

// ok reports whether nothing was found so far.
func (o *oracle) ok() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.summary.OK()
}

// mounting records that a daemon is about to start.
func (o *oracle) mounting() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.denied = time.Time{}
}

// mounted records that a daemon has started, which may not read what permissions deny if denied is set.
func (o *oracle) mounted(mode string, denied bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mode = mode
	if denied {
		o.denied = time.Now()
	}
	o.expire()
}

// expire ends the time in which the flips so far may be read. o.mu must be held.
func (o *oracle) expire() {
	for _, f := range o.flips {
		if f.until.IsZero() {
			f.until = time.Now()
		}
	}
}

// close records that permissions deny a file.
func (o *oracle) close(file int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed[file] = time.Now()
}

// reopen records that permissions will not deny a file any more.
func (o *oracle) reopen(file int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.closed, file)
}

// isClosed reports whether permissions deny a file.
func (o *oracle) isClosed(file int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, closed := o.closed[file]
	return closed
}

// flip records a flipped bit. running tells whether a daemon runs that may have verified
// the block before.
func (o *oracle) flip(file int, off int64, bit int, running bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flips = append(o.flips, &flipped{file: file, off: off, bit: bit, at: time.Now(), running: running})
}

// flipsSoFar returns the flipped bits.
func (o *oracle) flipsSoFar() (flips []flipped) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range o.flips {
		flips = append(flips, *f)
	}
	return flips
}

// scrubWrong records a flipped bit that a scrub has not found, or a right copy that it has
// reported as corrupt.
func (o *oracle) scrubWrong(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.summary.ScrubErrors++
	text := fmt.Sprintf(format, args...)
	o.report("scrub", "scrub:"+text, "%s", text)
}

// scrubbed records that a scrub has ended, which began after all flips so far.
func (o *oracle) scrubbed() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.expire()
}

// broken records an error of the suite itself.
func (o *oracle) broken(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failure == nil {
		o.failure = err
	}
}

func (o *oracle) err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failure
}

// refused records that a mount failed although the disk of the tier worked.
func (o *oracle) refused(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.summary.Errors++
	o.report("mount", fmt.Sprintf("mount:%d", o.cycle), "%v", err)
}

// untrue records a status that is not what is found otherwise.
func (o *oracle) untrue(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.summary.Errors++
	o.report("status", fmt.Sprintf("status:%d", o.cycle), format, args...)
}

// hang records a read that took longer than Deadline.
func (o *oracle) hang(t task, start time.Time, where string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.summary.Hangs++
	o.report("hang", fmt.Sprintf("hang:%s:%s", t.Kind, where),
		"%s of %s since %s: the threads wait in %s", t.Kind, o.model.Name(t.File), start.Format(time.TimeOnly), where)
}

// judge judges what one process has read.
func (o *oracle) judge(results []Result) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range results {
		o.summary.Reads[r.Kind]++
		o.summary.Opens++
		o.summary.Bytes += r.Bytes
		o.summary.Slowest = max(o.summary.Slowest, r.Took().Seconds())
		if r.Placed {
			o.summary.AcrossPromotion++
		}
		switch {
		case r.Diff != nil:
			o.wrong(r)
		case r.Errno != 0:
			o.failed(r)
		case r.Short:
			o.short(r)
		case o.mustFail(r):
			o.summary.DeniedReads++
			o.report("denied", fmt.Sprintf("denied:%d", r.File), "%s of %s, which was closed %v before",
				r.Kind, o.model.Name(r.File), r.Start.Sub(o.closed[r.File]).Round(time.Second))
		case r.Version >= 0:
			o.stale(r)
		}
	}
}

// wrong judges bytes that are of no version, or of several. o.mu must be held.
func (o *oracle) wrong(r Result) {
	if r.Diff.Flipped && o.mayServe(r) {
		o.summary.FlipsServed++
		return
	}
	if r.Diff.Mixture() && o.rewritten(r) {
		o.summary.Excused["a rewrite in place"]++
		return
	}
	cause := "content"
	switch {
	case r.Diff.Flipped:
		cause = "flip"
	case r.Diff.Mixture():
		cause = "mixture"
	case r.Diff.Planted:
		cause = "planted"
	case r.Diff.Zeros:
		cause = "zeros"
	}
	o.summary.WrongReads++
	o.report(cause, fmt.Sprintf("%s:%d", cause, r.File), "%s of %s: %v", r.Kind, o.model.Name(r.File), r.Diff)
}

// mayServe reports whether a flipped bit may be read: the file was opened before the flip,
// or the daemon may have verified the block before it and no scrub had ended.
func (o *oracle) mayServe(r Result) bool {
	return slices.ContainsFunc(o.flips, func(f *flipped) bool {
		same := f.file == r.File && f.off == r.Diff.First && f.bit == r.Diff.Bit
		inUse := f.running && (f.until.IsZero() || r.Start.Before(f.until))
		return same && (inUse || r.Start.Before(f.at))
	})
}

// rewritten reports whether a mixture of versions is what the source held during rewrites
// in place that the reader may have seen.
func (o *oracle) rewritten(r Result) bool {
	lowest, highest := slices.Min(r.Diff.Versions), slices.Max(r.Diff.Versions)
	if lowest < 0 {
		return false
	}
	for _, c := range o.versions[r.File][lowest+1 : highest+1] {
		if !c.inPlace || !c.ended.IsZero() && r.Start.After(c.ended.Add(raceBound)) {
			return false
		}
	}
	return true
}

// changedAround reports whether the file was changed at the source during a read, or at
// most d before it.
func (o *oracle) changedAround(r Result, d time.Duration) bool {
	return slices.ContainsFunc(o.versions[r.File], func(c change) bool {
		return !c.began.IsZero() && !r.End.Before(c.began) && (c.ended.IsZero() || r.Start.Before(c.ended.Add(d)))
	})
}

// failed judges an error. o.mu must be held.
func (o *oracle) failed(r Result) {
	for _, w := range o.windows {
		if (w.file < 0 || w.file == r.File) && w.allows(r) && w.overlaps(r) {
			o.summary.Excused[w.why]++
			return
		}
	}
	if r.Errno == unix.ESTALE && o.changedAround(r, staleBound) {
		o.summary.Excused["a new version"]++
		return
	}
	// A page fault reports every error as SIGBUS.
	if r.Op == "page fault" && o.changedAround(r, staleBound) {
		o.summary.Excused["a new version"]++
		return
	}
	o.summary.Errors++
	o.report("error", fmt.Sprintf("error:%s:%v:%d", r.Op, r.Errno, o.cycle), "%s of %s after %v: %s: %v (%s)",
		r.Kind, o.model.Name(r.File), r.Took().Round(time.Millisecond), r.Op, r.Errno, unix.ErrnoName(r.Errno))
}

// short judges a file whose size is not that of its version.
func (o *oracle) short(r Result) {
	if o.changedAround(r, staleBound) {
		o.summary.Excused["a new version"]++
		return
	}
	o.summary.WrongReads++
	o.report("size", fmt.Sprintf("size:%d:%d", r.File, r.Version), "%s of %s, version %d: wrong size", r.Kind, o.model.Name(r.File), r.Version)
}

// mustFail reports whether a file was opened that the daemon might not read for long.
func (o *oracle) mustFail(r Result) bool {
	since, closed := o.closed[r.File]
	return closed && r.Start.After(since.Add(staleBound)) && !o.denied.IsZero() && r.Start.After(o.denied)
}

// stale judges a version that was read whole.
func (o *oracle) stale(r Result) {
	later := o.versions[r.File][r.Version+1:]
	if len(later) == 0 || later[0].ended.IsZero() || r.Start.Before(later[0].ended.Add(staleBound)) {
		o.summary.Right++
		return
	}
	o.summary.StaleReads++
	o.report("stale", fmt.Sprintf("stale:%d:%d", r.File, r.Version), "%s of %s: version %d, %v after it was superseded",
		r.Kind, o.model.Name(r.File), r.Version, r.Start.Sub(later[0].ended).Round(time.Second))
}

// report logs a finding once. o.mu must be held.
func (o *oracle) report(cause, key, format string, args ...any) {
	o.summary.Causes[cause]++
	if o.seen[key] {
		return
	}
	o.seen[key] = true
	f := Finding{Cause: cause, Cycle: o.cycle, Event: o.doing, Mode: o.mode, Text: fmt.Sprintf(format, args...)}
	if len(o.summary.Findings) < maxFindings {
		o.summary.Findings = append(o.summary.Findings, f)
		o.log("%s: %s [cycle %d, %s, %s]", cause, f.Text, f.Cycle, f.Event, f.Mode)
	}
}
