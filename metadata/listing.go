package metadata

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A source that Lists is asked for a directory when a name in it is wanted:
//
//  1. Whoever needs the listing and finds none that is believed begins a flight,
//     or joins the one that is under way (join). It belongs to the container, and
//     goes on when those who wait for it have gone.
//  2. The names come in parts. Each part is put into the directory as it comes
//     (arrivals.add), and who waits for one of its names is answered.
//  3. A lookup that has run out of patience takes what was known of its name
//     before, which a part that is still to come will confirm or supersede. Only
//     for a name that is not known it asks.
//  4. In the end the names go that were in no part (arrivals.end), and what is
//     not in the directory is believed not to be there.
//  5. A name whose entry turns out to be of a version that is no more is then in
//     doubt (Changed): it alone is asked for, and the listing stays. If that would
//     take more requests than to list the directory, it is listed again.
//  6. If a listing fails, no other is begun for a while (respite): what was known
//     is served, and only names that are not known are asked for.

// patience is how long a lookup waits for the listing of its directory, counted
// from when that began. One request lists a thousand names or more, mostly within
// 20 to 200 ms; a million names take a thousand of them, one after another. Who
// comes after this time, when it has turned out to be one of the long ones, does
// not wait at all.
const patience = time.Second

// partSize is how many names one request lists, at a guess.
const partSize = 1000

// respite is for how long no other listing of a directory is begun when one has
// failed and its names were known before.
const respite = 10 * time.Second

// maxRounds is how often a directory is listed for one Listing, because so many of
// its names were found changed meanwhile.
const maxRounds = 3

var (
	errClosed = errors.New("name space is closed")
	errSilent = fmt.Errorf("nothing of the listing has come within %v", patience)
)

// join returns the listing of dir that is under way, which it begins if there is
// none. It returns nil if there is a listing that is believed; or, and then it
// reports failing, if the last one has failed and it is too early for another.
func (c *Container) join(dir *Entry) (f *flight, failing bool) {
	d := dir.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case c.fresh(d.listed):
		return nil, false
	case d.flight != nil:
		return d.flight, false
	case d.failed != 0 && time.Duration(c.now()-d.failed)*tick < respite:
		return nil, true
	}
	f = newFlight(c.now())
	d.flight = f
	if !c.background.begin(func(ctx context.Context) { c.fly(ctx, dir, f) }) {
		d.end(errClosed)
	}
	return f, false
}

// lookupListed is Lookup of a name that is not known for certain.
func (c *Container) lookupListed(ctx context.Context, dir *Entry, name string) (*Entry, error) {
	if dir.Stale() {
		return nil, syscall.ESTALE
	}
	f, failing := c.join(dir)
	switch {
	case failing:
		return c.lookupFailing(ctx, dir, name)
	case f == nil: // somebody was faster
		return c.Lookup(ctx, dir, name)
	}
	timer := time.NewTimer(time.Until(f.began.Add(patience)))
	defer timer.Stop()
	for {
		e, ended, news := c.arrived(dir, name, f)
		if ended {
			return c.afterListing(ctx, dir, name, f.err)
		}
		if e != nil {
			return e, nil
		}
		select {
		case <-news:
		case <-timer.C:
			return c.lookupUnlisted(ctx, dir, name)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// lookupUnlisted is Lookup in a directory whose listing is not to be waited for:
// it returns what was known of the name before. For one that is not known it asks.
func (c *Container) lookupUnlisted(ctx context.Context, dir *Entry, name string) (*Entry, error) {
	if e, _, _ := dir.dir.find(name); e != nil && !e.Stale() {
		return e, nil
	}
	return c.ask(ctx, dir, name, nil)
}

// lookupFailing is lookupUnlisted after a listing has failed: then the whole
// source may have gone, of which a name that is not there says nothing.
func (c *Container) lookupFailing(ctx context.Context, dir *Entry, name string) (*Entry, error) {
	e, err := c.lookupUnlisted(ctx, dir, name)
	if errors.Is(err, fs.ErrNotExist) && c.sourceLost(ctx) {
		return nil, syscall.ESTALE
	}
	return e, err
}

// arrived returns the entry of a name if it has come since the flight f began,
// whether f has ended, and what to wait for if neither is so.
func (c *Container) arrived(dir *Entry, name string, f *flight) (e *Entry, ended bool, news <-chan struct{}) {
	d := dir.dir
	d.mu.RLock()
	defer d.mu.RUnlock()
	e = d.get(name)
	if e != nil && !c.fresh(e.checked.Load()) && e.checked.Load() <= f.at {
		e = nil
	}
	return e, f.ended, f.news
}

// afterListing answers for a name when its directory has just been listed, or
// could not be because of err: then a name that was known is still found.
func (c *Container) afterListing(ctx context.Context, dir *Entry, name string, err error) (*Entry, error) {
	e, _, doubt := dir.dir.find(name)
	switch {
	case err != nil && e != nil && !dir.Stale():
		return e, nil
	case err != nil:
		return nil, err
	case e != nil:
		return e, nil
	case doubt:
		return c.ask(ctx, dir, name, nil)
	}
	return nil, fs.ErrNotExist
}

// listListed is Listing. Names that were found changed while the directory was
// listed are looked at once more, so that none is left out.
func (c *Container) listListed(ctx context.Context, dir *Entry) (Listing, error) {
	d := dir.dir
	for range maxRounds {
		if dir.Stale() {
			return Listing{}, syscall.ESTALE
		}
		f, failing := c.join(dir)
		if f != nil {
			answered, err := c.await(ctx, dir, f)
			if err != nil {
				return Listing{}, err
			}
			failing = !answered
		}
		if failing {
			break
		}
		whole, err := c.dispel(ctx, dir)
		if err != nil {
			return Listing{}, err
		}
		if whole {
			break
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.listing(), nil
}

// await waits for the end of f, a listing of dir. It reports false if what was
// known of dir before has to do, since f has failed, or nothing of it has come in
// time.
func (c *Container) await(ctx context.Context, dir *Entry, f *flight) (answered bool, err error) {
	timer := time.NewTimer(time.Until(f.began.Add(patience)))
	defer timer.Stop()
	for late := false; ; {
		known, now := dir.dir.progress(f)
		known = known && !dir.Stale()
		switch {
		case now.ended && now.err != nil && !known:
			return false, now.err
		case now.ended:
			return now.err == nil, nil
		case late && known && !now.came:
			c.warn(dir, errSilent)
			return false, nil
		}
		select {
		case <-now.news:
		case <-timer.C:
			late = true
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// dispel asks the source for the names of dir that are in doubt, and reports
// whether none is left. If they are too many for that, or the source does not
// answer in time, the listing is not believed any more.
func (c *Container) dispel(ctx context.Context, dir *Entry) (whole bool, err error) {
	d := dir.dir
	d.mu.RLock()
	names, tooMany := slices.Collect(maps.Keys(d.doubts)), d.doubtful()
	d.mu.RUnlock()
	if !tooMany && c.askAll(ctx, dir, names) {
		return true, nil
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listed = 0
	return false, nil
}

// askAll asks the source for names that have no entry, and reports whether it has
// answered for all of them, for each in time.
func (c *Container) askAll(ctx context.Context, dir *Entry, names []string) bool {
	for _, name := range names {
		if err := c.askInTime(ctx, dir, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

// askInTime asks the source for a name that has no entry, with patience.
func (c *Container) askInTime(ctx context.Context, dir *Entry, name string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := c.ask(ctx, dir, name, nil)
	return err
}

// fly lists dir, and ends f.
func (c *Container) fly(ctx context.Context, dir *Entry, f *flight) {
	err := c.listParts(ctx, dir)
	if isAbsent(err) {
		err = c.vanished(ctx, dir, err)
	}
	if err != nil && ctx.Err() == nil && !dir.Stale() {
		c.warn(dir, err)
	}
	d := dir.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failed = 0
	if err != nil && d.known {
		d.failed = c.now()
	}
	d.end(err)
}

// vanished takes notice that the source has no directory dir any more, as err
// says. An object store has none that is empty, but for its root: if that is not
// there, it says nothing of the names.
func (c *Container) vanished(ctx context.Context, dir *Entry, err error) error {
	if dir.parent == nil || c.sourceLost(ctx) {
		return fmt.Errorf("the source has gone: %v: %w", err, syscall.ESTALE)
	}
	c.Changed(dir)
	return err
}

// listParts lists dir, and takes in what comes.
func (c *Container) listParts(ctx context.Context, dir *Entry) error {
	name := dir.Path()
	a := &arrivals{c: c, dir: dir, copies: c.copies(ctx, dir)}
	a.begin()
	if err := c.source.List(ctx, name, a.add); err != nil {
		return err
	}
	return a.end()
}

// The arrivals are what has come of a listing that is under way.
type arrivals struct {
	c      *Container
	dir    *Entry
	copies copies
	began  uint32   // when the first part was asked for, by Container.now
	first  uint32   // the number of that, by directory.asked
	at     uint32   // when the part was asked for that is to come
	part   uint32   // the number of that
	seen   []*Entry // in all parts that have come
}

// begin takes notice that the first part is asked for.
func (a *arrivals) begin() {
	d := a.dir.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	a.next()
	a.began, a.first = a.at, a.part
	a.seen = make([]*Entry, 0, len(d.sorted))
}

// next takes notice that another part is asked for; the lock of the directory must
// be held.
func (a *arrivals) next() {
	d := a.dir.dir
	d.asked++
	a.at, a.part = a.c.now(), d.asked
}

// add takes in a part, and has those look who wait for it.
func (a *arrivals) add(infos []drivers.Info) error {
	d := a.dir.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if a.dir.Stale() {
		return syscall.ESTALE
	}
	for _, info := range infos {
		if !validName(info.Name) {
			continue // no driver should, and no kernel could, say this
		}
		if since, doubt := d.doubts[info.Name]; doubt && since >= a.part {
			continue // the part may be older than the doubt
		}
		a.seen = append(a.seen, a.entry(info))
	}
	a.next()
	d.flight.came = true
	close(d.flight.news)
	d.flight.news = make(chan struct{})
	return nil
}

// entry returns the entry of what a part has, which is now in the directory; its
// lock must be held.
func (a *arrivals) entry(info drivers.Info) *Entry {
	d := a.dir.dir
	old := d.get(info.Name)
	switch {
	case old != nil && old.checked.Load() > a.at: // a lookup knows better
		return old
	case old != nil && old.is(info):
		old.set(info)
		old.checked.Store(a.at)
		return old
	}
	e := makeEntry(a.dir, info, a.at)
	a.c.addVersion(e, old, a.copies.of(info.Name))
	d.put(e)
	if old != nil {
		a.c.supersede(old)
	}
	return e
}

// end makes what has come all there is, with what was looked up since the listing
// began, and without what was found changed since it came.
func (a *arrivals) end() error {
	sortByName(a.seen) // without the lock
	d := a.dir.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if a.dir.Stale() {
		return syscall.ESTALE
	}
	a.seen = slices.DeleteFunc(a.seen, (*Entry).Stale)
	for _, gone := range d.replace(a.seen, a.began) {
		a.c.supersede(gone)
	}
	maps.DeleteFunc(d.doubts, func(_ string, since uint32) bool { return since < a.first })
	d.listed, d.known = a.began, true
	if d.doubtful() {
		d.listed = 0
	}
	return nil
}

// A background is where what a container does on its own account runs.
type background struct {
	ctx  context.Context // is done when the container is closed
	stop context.CancelCauseFunc

	mu      sync.Mutex // guards the beginning of what is in running
	running sync.WaitGroup
}

// begin runs f on a goroutine of its own, until end at most. After that it reports
// false.
func (b *background) begin(f func(ctx context.Context)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx.Err() != nil {
		return false
	}
	b.running.Go(func() { f(b.ctx) })
	return true
}

// end ends all that runs, and waits for it.
func (b *background) end() {
	b.mu.Lock()
	b.stop(errClosed)
	b.mu.Unlock()
	b.running.Wait()
}
