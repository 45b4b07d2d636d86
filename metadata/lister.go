package metadata

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// If names are found by listing, a directory is listed when a name in it is needed:
//
//  1. A goroutine that needs the listing, and finds none that is cached, starts a load or
//     waits for the one in flight (joinLoad). The load belongs to the container: it
//     continues when the goroutines that wait for it have gone.
//  2. The names arrive in pages. Each page is merged into the directory when it arrives
//     (pageMerger.add), and lookups of its names return.
//  3. A lookup that has waited for lookupTimeout returns the cached entry, which a later
//     page validates or replaces. If there is none, it requests the single name.
//  4. When the load ends, names that were in no page are removed (pageMerger.end), and a
//     name that is not in the directory is known to be missing.
//  5. If the version of an entry turns out to be outdated, its name is invalidated
//     (Changed): only that name is requested, and the listing stays cached. If a listing
//     takes fewer requests than that, the directory is listed again.
//  6. After a listing has failed, no other is started for listingBackoff, or for the TTL if
//     that is shorter. Until then cached entries are returned, and only names without one
//     are requested.

// lookupTimeout bounds how long a lookup waits for a load, from the start of the load. One
// request lists a thousand names or more and mostly takes 20 to 200 ms; a million names take
// a thousand requests in sequence. A lookup that begins after this time does not wait.
const lookupTimeout = time.Second

// pageSize is an estimate of the number of names that one request lists.
const pageSize = 1000

// listingBackoff bounds the time after a failed listing in which a directory whose names were
// known before is not listed again. A shorter TTL bounds it too, because a container with a
// TTL of a second must not serve outdated names for ten.
const listingBackoff = 10 * time.Second

// maxListings bounds how often one call of Listing lists a directory because too many names
// were invalidated in the meantime.
const maxListings = 3

var (
	errClosed = errors.New("metadata container is closed")
	errNoPage = fmt.Errorf("no page of the listing has arrived within %v", lookupTimeout)
)

// joinLoad returns the load of dir that is in flight, and starts one if there is none, which is
// background work if ctx is. It returns nil if the listing is cached, and nil and true during the back-off after a
// failure.
func (c *Container) joinLoad(ctx context.Context, dir *Entry) (l *load, backoff bool) {
	d := dir.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case c.fresh(d.listed):
		return nil, false
	case d.inFlight != nil:
		return d.inFlight, false
	case d.failed != 0 && c.since(d.failed) < min(listingBackoff, c.ttl):
		return nil, true
	}
	return c.startPages(dir, drivers.IsBackground(ctx)), false
}

// startPages starts a load of dir, whose lock must be held. background reports that no reader is
// blocked on it.
func (c *Container) startPages(dir *Entry, background bool) *load {
	l := newLoad(c.now())
	dir.dir.inFlight = l
	started := c.background.run(func(ctx context.Context) {
		if background {
			ctx = drivers.Background(ctx)
		}
		c.runLoad(ctx, dir)
	})
	if !started {
		dir.dir.endLoad(errClosed)
	}
	return l
}

// lookupByListing is Lookup of a name that has no valid entry, in a directory whose listing
// is not cached.
func (c *Container) lookupByListing(ctx context.Context, dir *Entry, name string) (*Entry, error) {
	if dir.Stale() {
		return nil, syscall.ESTALE
	}
	l, backoff := c.joinLoad(ctx, dir)
	switch {
	case backoff:
		return c.lookupInBackoff(ctx, dir, name)
	case l == nil: // a load has ended since the caller looked
		return c.Lookup(ctx, dir, name)
	}
	timer := time.NewTimer(time.Until(l.start.Add(lookupTimeout)))
	defer timer.Stop()
	for {
		e, now := c.findSince(dir, name, l)
		if now.ended {
			return c.lookupAfterLoad(ctx, dir, name, now.err)
		}
		if e != nil {
			return e, nil
		}
		select {
		case <-now.updated:
		case <-timer.C:
			return c.lookupWithoutListing(ctx, dir, name)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// lookupWithoutListing is Lookup without waiting for the listing of the directory. It returns
// the cached entry, also if its TTL has expired, and requests the name if there is none.
func (c *Container) lookupWithoutListing(ctx context.Context, dir *Entry, name string) (*Entry, error) {
	if e, _, _ := dir.dir.find(name); e != nil && !e.Stale() {
		return e, nil
	}
	return c.lookupByStat(ctx, dir, name, nil)
}

// lookupInBackoff is lookupWithoutListing after a listing has failed. If the part of the
// source that dir is in is gone, a missing name is an error.
func (c *Container) lookupInBackoff(ctx context.Context, dir *Entry, name string) (*Entry, error) {
	e, err := c.lookupWithoutListing(ctx, dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		err = cmp.Or(c.sourceLost(ctx, dir), err)
	}
	return e, err
}

// findSince returns the entry of a name if it is valid or was validated after l was started,
// and the state of l.
func (c *Container) findSince(dir *Entry, name string, l *load) (*Entry, progress) {
	d := dir.dir
	d.mu.RLock()
	defer d.mu.RUnlock()
	e := d.get(name)
	if e != nil && !c.fresh(e.validated.Load()) && e.validated.Load() <= l.started {
		e = nil
	}
	return e, l.progress
}

// lookupAfterLoad is Lookup after a load of the directory has ended with err. If the load
// has failed, it returns the cached entry.
func (c *Container) lookupAfterLoad(ctx context.Context, dir *Entry, name string, err error) (*Entry, error) {
	e, _, invalidated := dir.dir.find(name)
	switch {
	case err != nil && e != nil && !dir.Stale():
		return e, nil
	case err != nil:
		return nil, err
	case e != nil:
		return e, nil
	case invalidated:
		return c.lookupByStat(ctx, dir, name, nil)
	}
	return nil, fs.ErrNotExist
}

// listingByPages is Listing if names are found by listing. It requests the names that were
// invalidated while the directory was listed, so that none is missing.
func (c *Container) listingByPages(ctx context.Context, dir *Entry) (Listing, error) {
	d := dir.dir
	for range maxListings {
		if dir.Stale() {
			return Listing{}, syscall.ESTALE
		}
		l, cachedOnly := c.joinLoad(ctx, dir)
		if l != nil {
			loaded, err := c.waitForLoad(ctx, dir, l)
			if err != nil {
				return Listing{}, err
			}
			cachedOnly = !loaded
		}
		if cachedOnly {
			break
		}
		complete, err := c.lookupInvalidated(ctx, dir)
		if err != nil {
			return Listing{}, err
		}
		if complete {
			break
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.listing(), nil
}

// waitForLoad waits until l, a load of dir, has ended. It reports false if the caller must
// use the cached content, because l has failed, or no page has arrived in time.
func (c *Container) waitForLoad(ctx context.Context, dir *Entry, l *load) (loaded bool, err error) {
	timer := time.NewTimer(time.Until(l.start.Add(lookupTimeout)))
	defer timer.Stop()
	for timedOut := false; ; {
		everListed, now := dir.dir.progress(l)
		cached := everListed && !dir.Stale()
		switch {
		case now.ended && now.err != nil && !cached:
			return false, now.err
		case now.ended:
			return now.err == nil, nil
		case timedOut && cached && !now.anyPage:
			c.warn(dir, errNoPage)
			return false, nil
		}
		select {
		case <-now.updated:
		case <-timer.C:
			timedOut = true
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// lookupInvalidated requests the invalidated names of dir from the source, and reports
// whether none is left. If they are too many, or a request fails or times out, the listing
// is no longer cached.
func (c *Container) lookupInvalidated(ctx context.Context, dir *Entry) (complete bool, err error) {
	d := dir.dir
	d.mu.RLock()
	names, tooMany := slices.Collect(maps.Keys(d.invalidated)), d.manyInvalidated()
	d.mu.RUnlock()
	if !tooMany && c.lookupEach(ctx, dir, names) {
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

// lookupEach requests names without an entry from the source, each within lookupTimeout. It
// stops at the first failure and reports whether there was none.
func (c *Container) lookupEach(ctx context.Context, dir *Entry, names []string) bool {
	lookup := func(name string) error {
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		_, err := c.lookupByStat(ctx, dir, name, nil)
		return err
	}
	for _, name := range names {
		if err := lookup(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}
