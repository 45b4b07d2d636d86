package metadata

import (
	"context"
	"errors"
	"slices"
	"syscall"

	"github.com/milkweedfs/milkweed/drivers"
)

// ListAhead lists a directory for prefetch, as background work, unless it was listed before. Its
// entries that were not cached are Unknown, unless the source returns attributes with a listing.
//
// Nobody has requested the listing, so that nothing else changes: a name that is not in it is still
// requested from the source when it is looked up, and a program that lists the directory gets
// another listing. A concurrent listing does not wait for this one.
//
// If names of the directory vanish meanwhile, the listing may still have them, and ListAhead takes
// another one. The error is errVanishing if that goes on.
func (c *Container) ListAhead(ctx context.Context, dir *Entry) error {
	ctx = drivers.Background(ctx)
	if err := c.loadSnapshot(ctx, dir); err != nil {
		return err
	}
	if c.byListing { // a lookup of any name would list the directory
		_, err := c.Listing(ctx, dir)
		return err
	}
	for range maxListings {
		if done, err := c.tryListAhead(ctx, dir); done || err != nil {
			return err
		}
	}
	return errVanishing
}

var errVanishing = errors.New("names have vanished while they were listed")

// tryListAhead is ListAhead with one listing. It reports false if that may have names that have vanished since.
func (c *Container) tryListAhead(ctx context.Context, dir *Entry) (done bool, err error) {
	d := dir.dir
	d.mu.RLock()
	done, removed := d.allNames(), d.removed
	d.mu.RUnlock()
	if done {
		return true, nil
	}
	requested := c.now()
	infos, _, err := c.names(ctx, dir)
	if err != nil {
		return false, err
	}
	copies := dirCopies{retired: d.countRetired()}
	if slices.ContainsFunc(infos, func(i drivers.Info) bool { return i.Err == nil }) {
		copies = c.listCopies(ctx, dir)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case dir.Stale():
		return false, syscall.ESTALE
	case d.everListed: // since then
		return true, nil
	case d.removed != removed:
		return false, nil
	}
	var added []*Entry
	for _, info := range infos {
		if validName(info.Name) && d.get(info.Name) == nil {
			e := makeEntry(dir, info, requested)
			c.addVersion(e, nil, copies.of(info.Name))
			added = append(added, e)
		}
	}
	d.listedAhead = true
	if len(added) > 0 {
		d.version++
		d.sorted, d.shared = slices.Concat(d.all(), added), false
		sortByName(d.sorted)
	}
	return true, nil
}

// allNames reports whether all names of the directory were known at some time; d.mu must be held.
func (d *directory) allNames() bool { return d.everListed || d.listedAhead }

// Cached returns the cached entries of a directory, sorted by name, without a request. listed
// reports whether the directory was ever listed; otherwise there are no entries. The slice is
// shared, and must not be modified.
func (c *Container) Cached(dir *Entry) (entries []*Entry, listed bool) {
	d := dir.dir
	d.mu.RLock()
	listed = d.allNames()
	d.mu.RUnlock()
	if !listed {
		return nil, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all(), true
}

// Known returns the entry that the name of e has with its attributes. If e is Unknown, it requests
// them from the source, as background work. No other name is requested, so that a caller that opens
// the file next can do so by what the driver keeps of this request.
func (c *Container) Known(ctx context.Context, e *Entry) (*Entry, error) {
	if !e.Unknown() {
		return e, nil
	}
	return c.lookupByStat(drivers.Background(ctx), e.parent, e.Name(), nil)
}

// Visit calls f for the entries that have one of n IDs from first on, except stale ones, in the
// order of their IDs. It returns the ID after these, or 0 if no entry has a higher one. The IDs
// begin at 1.
func (c *Container) Visit(first uint64, n int, f func(*Entry)) (next uint64) {
	for next = first; next < first+uint64(n); next++ {
		s := c.table.slot(next)
		if s == nil {
			return 0
		}
		if e := s.Load(); e != nil && !e.Stale() {
			f(e)
		}
	}
	return next
}

// IsDenied reports whether the source has denied the last listing of a directory.
func (c *Container) IsDenied(dir *Entry) bool {
	d := dir.dir
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.denied
}

// IsListed reports whether all names of a directory were known at some time.
func (c *Container) IsListed(dir *Entry) bool {
	d := dir.dir
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.allNames()
}
