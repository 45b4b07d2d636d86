package metadata

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// The sweep costs the source little:
//
//   - It makes one request at a time and at most sweepRate in a second.
//   - It uses the source for at most 1/sweepShare of the time: after a request that took 20 ms it
//     makes the next one after another 180 ms. A listing of a million names, which is one request
//     here, counts as long as it takes.
//   - A directory costs one Stat. It is listed only if its times show that a name in it has
//     changed, or cannot show that none has.
//   - Directories take at most sweepDirs of the requests if there are too many of them.
const (
	sweepRate  = 50
	sweepShare = 10
	sweepDirs  = 0.75
)

const (
	sweepScan    = 1 << 20 // number of entries that one pass examines in search of files
	sweepNames   = 1000    // a directory with more cached names is listed also if it never was before
	sweepFailing = 10      // a pass ends after this number of failed requests in a row
)

// A request of the sweep that takes longer than a time-out hangs. It continues, and the sweep goes on
// with other names. While maxHanging requests hang, the sweep makes none.
const (
	sweepStatTimeout = 5 * time.Second
	sweepListTimeout = time.Minute
	maxHanging       = 64
)

var errHangs = errors.New("the source does not answer")

// SweepCounters count the work of Sweep.
type SweepCounters struct {
	Stats    int64 `json:"stats" metric:"sweep_operations_total" labels:"operation=stat" help:"Names and directories compared with the source." family:"Requests of the background sweep, by kind. They are also in milkweed_source_operations_total."`
	ReadDirs int64 `json:"readdirs" metric:"sweep_operations_total" labels:"operation=readdir" help:"Directories listed because a name in them had changed."`
	Changes  int64 `json:"changes" metric:"sweep_changes_total" help:"Names that the sweep found added, removed or replaced."`
	Errors   int64 `json:"errors" metric:"sweep_errors_total" help:"Requests of the sweep that failed."`

	OldestSeconds int64 `json:"oldest_seconds" metric:"sweep_oldest_seconds" help:"The longest time that had passed since a name was last compared with the source, of the names that the last pass of the sweep compared."`
}

// Sweeps returns the counters of Sweep.
func (c *Container) Sweeps() SweepCounters { return drivers.Snapshot(&c.sweeps) }

// Sweep compares what is in use with the source in the background, until ctx is done, so that a
// change is seen within the window although names are cached for longer:
//
//   - every directory of which names are cached. Its times reveal names that were added, removed,
//     renamed or replaced by another file; then all names in it are validated.
//   - the files for which the kernel has a lookup count: first those that it has requested
//     something of since the last visit (Use), then others.
//
// The window holds for as many names as sweepRate requests per second allow, which is 1600 for a
// window of a minute. Of more names, each has its turn after about a second for 40 of them. If the
// source is a Lister, Sweep lists the cached directories, and does not request single names.
//
// A pass takes a third of the window and visits what was not validated since the start of the pass
// before. The time between two visits is therefore between a third of the window and the window.
//
// There is at most one call of Sweep at a time.
func (c *Container) Sweep(ctx context.Context, window time.Duration) {
	s := &sweep{c: c, period: window / 3}
	ctx = drivers.Background(ctx)
	start := time.Now()
	for sleepUntil(ctx, start.Add(s.period)) {
		start = time.Now()
		s.pass(ctx, start)
	}
}

// A sweep is the state of one call of Sweep.
type sweep struct {
	c      *Container
	period time.Duration // of a pass

	// The IDs at which the next pass begins.
	nextDir, nextUsed, nextHeld uint64

	next    time.Time     // of the next request
	failing int           // number of requests in a row that have failed
	oldest  time.Duration // since the last validation of a name that this pass has visited
	hanging hanging
}

// hanging are the paths whose requests hang. Its methods may be called concurrently.
type hanging struct {
	mu    panics.Mutex // guards the following
	paths map[string]bool
}

// has reports whether a request for path hangs.
func (h *hanging) has(path string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.paths[path]
}

// full reports whether maxHanging requests hang.
func (h *hanging) full() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.paths) >= maxHanging
}

// add adds a path until answered is closed.
func (h *hanging) add(path string, answered <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.paths == nil {
		h.paths = make(map[string]bool)
	}
	h.paths[path] = true
	go func() {
		defer panics.Contain()
		<-answered
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.paths, path)
	}()
}

// busy returns the part of a pass for the visits that are planned. The rest is for the names in
// changed directories.
func (s *sweep) busy() time.Duration { return s.period * 4 / 5 }

// pass visits the directories and files that are due, evenly spread over the time for them.
func (s *sweep) pass(ctx context.Context, start time.Time) {
	dirs, files := s.plan()
	s.failing, s.oldest = 0, 0
	interval := s.busy() / time.Duration(max(len(dirs)+len(files), 1))
	for i, e := range append(dirs, files...) {
		if s.hanging.has(e.Path()) || e.Stale() {
			continue
		}
		visit := s.file
		if e.IsDir() {
			visit = s.directory
		}
		if !sleepUntil(ctx, start.Add(time.Duration(i)*interval)) || !s.goesOn(ctx, e, visit(ctx, e)) {
			return
		}
	}
	atomic.StoreInt64(&s.c.sweeps.OldestSeconds, int64(s.oldest.Seconds()))
}

// plan returns the directories and the files for one pass.
func (s *sweep) plan() (dirs, files []*Entry) {
	budget := max(int(s.busy().Seconds()*sweepRate), 4)
	maxDirs := int(float64(budget) * sweepDirs)
	if s.c.byListing {
		maxDirs = budget
	}
	if s.dueDir(s.c.root) { // in every pass: it may have been replaced
		dirs = append(dirs, s.c.root)
	}
	for _, e := range s.c.table.directories(s.nextDir) {
		if len(dirs) == maxDirs {
			break
		}
		if e != s.c.root && s.dueDir(e) {
			dirs = append(dirs, e)
			s.nextDir = e.id + 1
		}
	}
	if s.c.byListing {
		return dirs, nil
	}
	collect := func(first *uint64, want func(*Entry) bool) {
		*first = s.c.table.scan(*first, sweepScan, func(e *Entry) bool {
			if s.dueFile(e) && want(e) {
				files = append(files, e)
			}
			return len(dirs)+len(files) < budget
		})
	}
	collect(&s.nextUsed, (*Entry).takeUsed)
	if planned := len(files); len(dirs)+planned < budget {
		collect(&s.nextHeld, func(e *Entry) bool { return true })
		files = append(files[:planned], without(files[planned:], files[:planned])...)
	}
	return dirs, files
}

// without returns the entries that are not in others.
func without(entries, others []*Entry) []*Entry {
	in := make(map[*Entry]bool, len(others))
	for _, e := range others {
		in[e] = true
	}
	var rest []*Entry
	for _, e := range entries {
		if !in[e] {
			rest = append(rest, e)
		}
	}
	return rest
}

// dueDir reports whether names of e are cached that were not compared with the source for a
// period.
func (s *sweep) dueDir(e *Entry) bool {
	d := e.dir
	d.mu.RLock()
	inUse := d.everListed || len(d.sorted)+len(d.extra)+len(d.missing) > 0 || e.lookups.Load() > 0
	due := inUse && !e.Stale() && s.c.table.get(e.id) == e && s.due(max(d.checked, d.listed))
	d.mu.RUnlock()
	return due && !e.isAbandoned()
}

// dueFile reports whether the kernel may have cached e, which is not a directory, and it was not
// validated for a period. After its TTL, the next lookup validates it.
func (s *sweep) dueFile(e *Entry) bool {
	validated := e.validated.Load()
	return !e.IsDir() && e.lookups.Load() > 0 && !e.Stale() && s.c.fresh(validated) && s.due(validated)
}

// due reports whether then, by Container.now, is before the start of the last pass. It is false
// for what was visited at the start of that pass, which would else be visited in every pass.
func (s *sweep) due(then uint32) bool {
	return then == 0 || s.c.since(then) > s.period+s.period/8
}

// goesOn reports whether the pass goes on after the visit of e returned err.
func (s *sweep) goesOn(ctx context.Context, e *Entry, err error) bool {
	switch {
	case ctx.Err() != nil:
		return false
	case err == nil || e.Stale():
		s.failing = 0
	default:
		s.failing++
		atomic.AddInt64(&s.c.sweeps.Errors, 1)
	}
	return s.failing < sweepFailing
}

// request calls f, which makes one request for path to the source, when the next one may be made,
// and counts it. If the request takes longer than limit, request returns, and f continues.
func request[T any](ctx context.Context, s *sweep, path string, limit time.Duration, counter *int64, f func() (T, error)) (v T, err error) {
	if !sleepUntil(ctx, s.next) {
		return v, context.Cause(ctx)
	}
	if s.hanging.full() {
		return v, errHangs
	}
	atomic.AddInt64(counter, 1)
	var (
		late     T
		lateErr  error
		answered = make(chan struct{})
		start    = time.Now()
		timeout  = time.NewTimer(limit)
	)
	defer timeout.Stop()
	go func() {
		defer close(answered)
		defer panics.Catch(&lateErr)
		late, lateErr = f()
	}()
	select {
	case <-answered:
		s.next = start.Add(max(time.Second/sweepRate, sweepShare*time.Since(start)))
		return late, lateErr
	case <-timeout.C:
		s.hanging.add(path, answered)
		return v, errHangs
	case <-ctx.Done():
		return v, context.Cause(ctx)
	}
}

// file validates one name, and counts a change.
func (s *sweep) file(ctx context.Context, e *Entry) error {
	s.oldest = max(s.oldest, s.c.since(max(e.validated.Load(), e.parent.dir.loaded.Load())))
	_, err := s.name(ctx, e.parent, e.Name())
	return err
}

// name validates one name and returns its entry.
func (s *sweep) name(ctx context.Context, dir *Entry, name string) (*Entry, error) {
	return request(ctx, s, pathOf(dir, name), sweepStatTimeout, &s.c.sweeps.Stats, func() (*Entry, error) {
		now, change, err := s.c.revalidateName(ctx, dir, name)
		if change != Unchanged {
			atomic.AddInt64(&s.c.sweeps.Changes, 1)
		}
		return now, err
	})
}

// directory validates a directory, and the names in it if its times do not prove that they are
// valid.
func (s *sweep) directory(ctx context.Context, e *Entry) error {
	c, d, requested := s.c, e.dir, s.c.now()
	if d.checked != 0 { // only the sweep writes it
		s.oldest = max(s.oldest, c.since(d.checked))
	}
	if !c.byListing {
		if now, err := s.directoryItself(ctx, e); err != nil || now != e {
			return err
		}
	}
	stamp := e.stamp()
	d.mu.RLock()
	valid := !c.byListing && d.stamp.proves(stamp.fileTimes, c.racy) || d.snapshot.Load() != nil
	d.mu.RUnlock()
	checked := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.checked = requested
		if !valid && !c.byListing {
			d.stamp = stamp
			c.changes.Add(1)
		}
	}
	if valid {
		checked()
		return nil
	}
	return s.names(ctx, e, checked)
}

// directoryItself validates the attributes of a directory and returns the entry of its name.
func (s *sweep) directoryItself(ctx context.Context, e *Entry) (*Entry, error) {
	if e.parent != nil {
		return s.name(ctx, e.parent, e.Name())
	}
	return request(ctx, s, e.Path(), sweepStatTimeout, &s.c.sweeps.Stats, func() (*Entry, error) { return e, s.c.refreshRoot(ctx) })
}

// names validates the names in a directory, and then calls checked. It does not list a directory
// that was never listed unless that is cheaper: its other names may be many.
func (s *sweep) names(ctx context.Context, dir *Entry, checked func()) error {
	entries, missing, many, everListed := dir.dir.known()
	if everListed || many || len(entries)+len(missing) > sweepNames {
		_, err := request(ctx, s, dir.Path(), sweepListTimeout, &s.c.sweeps.ReadDirs, func() (difference, error) {
			diff, err := s.c.relist(ctx, dir)
			atomic.AddInt64(&s.c.sweeps.Changes, int64(len(diff.added)+len(diff.removed)+len(diff.replaced)))
			if err == nil {
				checked() // here, so that a listing that takes long is not repeated
			}
			return diff, err
		})
		return err
	}
	for _, e := range entries {
		missing = append(missing, e.Name())
	}
	for _, name := range missing {
		if _, err := s.name(ctx, dir, name); err != nil {
			return err
		}
	}
	checked()
	return nil
}

// sleepUntil waits until t, and reports false if ctx is done.
func sleepUntil(ctx context.Context, t time.Time) bool {
	pause := time.Until(t)
	if pause <= 0 { // for which there is no timer, as in sleep of the package placement
		return ctx.Err() == nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
