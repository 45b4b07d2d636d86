package metadata

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"syscall"

	"github.com/milkweedfs/milkweed/drivers"
)

// Lookup returns the entry of a name in a directory. The error for a missing name matches
// io/fs.ErrNotExist; the error for a stale directory is syscall.ESTALE. While the source
// fails, Lookup returns the entry that is cached, if there is one that is not Unknown; not if the
// source denies the name.
//
// A listing that lacks a name does not prove that the name is missing, so that Lookup requests it
// from the source (see unlisted.go). The error is ErrUnconfirmed if the source fails.
//
// If names are found by listing, listings are complete. Lookup lists the directory unless its listing
// is cached. It returns when the page with the name has arrived, or the listing has ended. After one
// second it returns the cached entry, or if there is none it requests the single name.
func (c *Container) Lookup(ctx context.Context, dir *Entry, name string) (*Entry, error) {
	d := dir.dir
	if d == nil {
		return nil, syscall.ENOTDIR
	}
	if err := c.loadSnapshot(ctx, dir); err != nil {
		return nil, err
	}
	e, listed, invalidated := d.find(name)
	if c.byName && e != nil {
		d.lookedUp(name)
	}
	switch {
	case e != nil && e.Unknown():
		return c.lookupUnknown(ctx, dir, e)
	case e != nil && c.fresh(e.validated.Load()):
		return e, nil
	case c.byListing && !c.fresh(listed):
		return c.lookupByListing(ctx, dir, name)
	case c.byListing && e == nil && !invalidated:
		return nil, fs.ErrNotExist
	}
	return c.lookupByStat(ctx, dir, name, e)
}

// lookupByStat requests one name from the source. cached is its entry, or nil.
func (c *Container) lookupByStat(ctx context.Context, dir *Entry, name string, cached *Entry) (*Entry, error) {
	requested := c.now()
	stat := c.statName
	if cached == nil && c.lacks(dir, name) {
		stat = c.statLacking
	}
	info, err := stat(ctx, dir, name, cached)
	switch {
	case err == ErrUnconfirmed:
		return nil, err
	case errors.Is(err, fs.ErrNotExist):
		if e := c.removeName(dir, name, requested); e != nil {
			return e, nil
		}
		return nil, err
	case err != nil && cached != nil && ctx.Err() == nil && !c.denies(err):
		c.warn(cached, err)
		cached.validated.Store(c.now())
		return cached, nil
	case err != nil:
		return nil, err
	}
	info.Name = name
	return c.merge(ctx, dir, info, requested)
}

// Refresh validates e at the source if its TTL has expired. If the source has another
// version, e becomes stale.
func (c *Container) Refresh(ctx context.Context, e *Entry) error {
	if c.fresh(e.validated.Load()) || e.Stale() {
		return nil
	}
	if e.parent != nil {
		_, err := c.Lookup(ctx, e.parent, e.Name())
		return err
	}
	if err := c.refreshRoot(ctx); err != nil {
		e.validated.Store(c.now())
	}
	return nil
}

// refreshRoot validates the root at the source. The root of a Lister has no attributes of its
// own.
func (c *Container) refreshRoot(ctx context.Context) error {
	requested := c.now()
	if c.byListing {
		c.root.validated.Store(requested)
		return nil
	}
	info, err := c.statRoot(ctx)
	switch {
	case err != nil:
		return err
	case !info.IsDir() || info.Nlink == 0:
		return errLost
	}
	mu := c.root.attributes()
	mu.Lock()
	defer mu.Unlock()
	c.renew(c.root, info, requested)
	return nil
}

// merge puts info into the directory and returns the entry that its name has then. info is
// the reply of the source to a request that was made at the time requested.
func (c *Container) merge(ctx context.Context, dir *Entry, info drivers.Info, requested uint32) (*Entry, error) {
	d := dir.dir
	d.mu.Lock()
	old := d.get(info.Name)
	if c.isNewer(old, requested) {
		d.mu.Unlock()
		return old, nil
	}
	if old != nil && old.matches(info) {
		c.renew(old, info, requested)
		d.mu.Unlock()
		return old, nil
	}
	d.mu.Unlock()

	// The tiers are examined without the lock. If another goroutine has put an entry there in
	// the meantime, that entry is used.
	e := makeEntry(dir, info, requested)
	copies := c.findCopies(ctx, e)
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.get(info.Name)
	switch {
	case dir.Stale(): // an entry that is added to a stale directory would never become stale
		return nil, syscall.ESTALE
	case now != nil && !now.Unknown() && (now != old || c.isNewer(now, requested)):
		return now, nil
	case now != nil && now.matches(info): // it was Unknown before
		c.renew(now, info, requested)
		return now, nil
	}
	return c.putVersion(dir, now, info, requested, copies), nil
}

// isNewer reports whether e, which may be nil, was validated by a request that was made
// after the time requested, so that the reply to the earlier request must not replace it.
// Replies overtake each other only if names are found by listing. The reply of a file system
// describes the state at the time of the reply, so there the last reply counts.
func (c *Container) isNewer(e *Entry, requested uint32) bool {
	return c.byListing && e != nil && !e.Stale() && e.validated.Load() > requested
}

// pathOf returns the path of a name in a directory.
func pathOf(dir *Entry, name string) string {
	if dir.parent == nil {
		return name
	}
	return dir.Path() + "/" + name
}

// validName reports whether name may be the name of an entry other than the root.
func validName(name string) bool {
	return name != "." && !strings.Contains(name, "/") && drivers.ValidName(name)
}
