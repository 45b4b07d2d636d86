package metadata

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"syscall"

	"github.com/milkweedfs/milkweed/drivers"
)

// A Listing is the content of a directory at one time.
type Listing struct {
	Entries []*Entry // sorted by name; shared, and must not be modified
	Version uint32   // differs if the Entries differ; never 0
}

// ListingVersion returns the version of the cached content of a directory. Unlike
// Container.Listing, it makes no request.
func (e *Entry) ListingVersion() uint32 {
	e.dir.mu.RLock()
	defer e.dir.mu.RUnlock()
	return e.dir.listingVersion()
}

// List returns the Entries of Listing.
func (c *Container) List(ctx context.Context, dir *Entry) ([]*Entry, error) {
	l, err := c.Listing(ctx, dir)
	return l.Entries, err
}

// Listing returns the content of a directory. It allocates nothing while the directory does
// not change. It waits until all names are known, or ctx is done. If the source fails, or no
// page of a listing arrives within a second, it returns the cached content, if there is any.
func (c *Container) Listing(ctx context.Context, dir *Entry) (Listing, error) {
	d := dir.dir
	if d == nil {
		return Listing{}, syscall.ENOTDIR
	}
	if err := c.loadSnapshot(ctx, dir); err != nil {
		return Listing{}, err
	}
	if c.byListing {
		return c.listingByPages(ctx, dir)
	}
	var l Listing
	started, err := d.startLoad(ctx, func() bool {
		if !c.fresh(d.listed) || d.relist {
			return false
		}
		l = d.listing()
		return true
	})
	if !started {
		return l, err
	}
	_, err = c.readDir(ctx, dir)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endLoad(err)
	if err != nil && (d.listed == 0 || dir.Stale() || ctx.Err() != nil || c.denies(err)) {
		return Listing{}, err
	}
	if err != nil {
		c.warn(dir, err)
		d.listed, d.relist = c.now(), false
	}
	return d.listing(), nil
}

// readDir loads the names of a directory, and returns how its content has
// changed since it was loaded before.
func (c *Container) readDir(ctx context.Context, dir *Entry) (difference, error) {
	dir.dir.setRelist(false)
	requested, stamp := c.now(), dir.stamp()
	before := c.roots.Load()
	infos, complete, err := c.names(ctx, dir)
	if isAbsent(err) || err == nil && (len(infos) == 0 || dir.dir.hasOthers(infos)) {
		err = cmp.Or(c.sourceLost(ctx, dir), err)
		if c.roots.Load() != before { // that was the old root
			infos, complete, err = c.names(ctx, dir)
		}
	}
	if err != nil {
		dir.dir.setRelist(true)
		return difference{}, err
	}
	c.rootFile.listings.Add(1)
	copies := dirCopies{retired: dir.dir.countRetired()}
	if slices.ContainsFunc(infos, func(i drivers.Info) bool { return i.Err == nil }) {
		copies = c.listCopies(ctx, dir)
	}
	d := dir.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if dir.Stale() {
		return difference{}, syscall.ESTALE
	}
	diff := difference{all: d.everListed}
	listed := make([]*Entry, 0, len(infos))
	for _, info := range infos {
		if !validName(info.Name) {
			continue // an error of the driver: the kernel would reject the name
		}
		e := d.get(info.Name)
		if info.Err != nil && !errors.Is(info.Err, drivers.ErrNoAttributes) {
			diff.failed = append(diff.failed, info)
		}
		if !c.remains(e, info, requested) {
			old := e
			e = makeEntry(dir, info, requested)
			c.addVersion(e, old, copies.of(info.Name))
			diff.found(e, old)
		}
		listed = append(listed, e)
	}
	replaced, lacking := d.replace(c.withTop(dir, listed), math.MaxUint32)
	c.retireAll(replaced)
	c.unlist(dir, lacking, requested, &diff)
	d.listed, d.everListed = requested, true
	c.changes.Add(1)
	if complete {
		d.stamp = stamp
	}
	return diff, nil
}

// renew applies info, a reply of the source to a request that was made at the time requested
// and that describes the version of e. e.attributes must be held.
func (c *Container) renew(e *Entry, info drivers.Info, requested uint32) {
	same := !e.IsRegular() || info.SameContent(e.info())
	changed := e.set(info)
	e.clearBits(denied | lost | full)
	if info.Unsized && c.ttlsUntil(requested) != c.ttlsUntil(e.validated.Load()) {
		e.setBits(unsized) // so that the sweep, which renews e before its TTL expires, does not prolong what a read has shown
	}
	if changed && e.lookups.Load() > 0 {
		c.outdated.add(e, "", false)
	}
	if changed && !e.IsDir() {
		c.overtake()
	}
	if changed || c.snapshotTTL == 0 { // then the snapshot contains the time of validation
		c.changes.Add(1)
	}
	if !same {
		c.Doubt(e)
	}
	e.validated.Store(requested)
}

// remains applies info, the reply of the source to a listing that was requested at that
// time, to e, which may be nil. It reports whether e remains the entry of the name: a later
// lookup has validated it, or info describes the same version, or info has an error and does not
// show that the type has changed. e.attributes must be held.
func (c *Container) remains(e *Entry, info drivers.Info, requested uint32) bool {
	switch {
	case e == nil:
		return false
	case e.validated.Load() > requested:
		return true
	case info.Err != nil:
		return info.Type() == 0 || info.Type() == e.kind
	case !e.matches(info):
		return false
	}
	c.renew(e, info, requested)
	return true
}

// Index returns the position of e among the entries of its directory, which are sorted by
// name. listed reports whether the directory was ever listed, by ListAhead included, and e was in
// that listing, or was merged into it later.
func (c *Container) Index(e *Entry) (i int, listed bool) {
	if e.parent == nil {
		return 0, false
	}
	d := e.parent.dir
	d.mu.RLock()
	defer d.mu.RUnlock()
	i, ok := search(d.sorted, e.Name())
	if !ok || !d.allNames() || d.sorted[i] != e {
		return 0, false
	}
	return i, true
}

// Siblings returns up to n entries of e's directory, which may include e: those at the position from, as
// returned by Index, and at every step-th position after it.
func (c *Container) Siblings(e *Entry, from, n, step int) (found []*Entry) {
	if e.parent == nil {
		return nil
	}
	d := e.parent.dir
	d.mu.RLock()
	defer d.mu.RUnlock()
	for i := max(from, 0); i < len(d.sorted) && len(found) < n; i += step {
		found = append(found, d.sorted[i])
	}
	return found
}
