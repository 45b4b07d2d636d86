package metadata

import (
	"context"
	"io/fs"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A Change is how a name at the source differs from the cached one.
type Change int

// The changes.
const (
	Unchanged Change = iota // the name has the same version
	Added                   // the name was not there before
	Removed                 // the name is gone, with all names below it
	Replaced                // the name has another version of a file, or another type
)

// String returns the name of the change.
func (c Change) String() string { return [...]string{"unchanged", "added", "removed", "replaced"}[c] }

// A difference is how the content of a directory has changed between two listings.
type difference struct {
	all                      bool // there was an earlier listing; otherwise a new name proves nothing
	added, removed, replaced []*Entry
	moved                    []*Entry       // that are listed now or no longer, and were not added or removed
	failed                   []drivers.Info // names that could not be compared
}

// found records that e was found in the place of old, or nil.
func (d *difference) found(e, old *Entry) {
	switch {
	case old != nil:
		d.replaced = append(d.replaced, e)
	case d.all:
		d.added = append(d.added, e)
	}
}

// isEmpty reports whether nothing has changed.
func (d *difference) isEmpty() bool {
	return len(d.added)+len(d.removed)+len(d.replaced)+len(d.moved) == 0
}

// revalidateName validates one name at the source, whether or not it is cached. It returns its
// entry, or nil if the source does not have the name. The error of a stale directory is
// syscall.ESTALE.
func (c *Container) revalidateName(ctx context.Context, dir *Entry, name string) (*Entry, Change, error) {
	requested := c.now()
	cached, _, _ := dir.dir.find(name)
	info, err := c.statName(ctx, dir, name, cached)
	switch {
	case dir.Stale():
		return nil, Unchanged, syscall.ESTALE
	case isAbsent(err) && cached == nil:
		return nil, Unchanged, nil
	case isAbsent(err):
		listed := cached != nil && !cached.isUnlisted()
		if e := c.removeName(dir, name, requested); e != nil {
			return e, Unchanged, nil
		}
		if listed {
			c.contentChanged(dir)
		}
		return nil, Removed, nil
	case err != nil:
		return nil, Unchanged, err
	}
	info.Name = name
	e, err := c.merge(ctx, dir, info, requested)
	switch {
	case err != nil || e == cached:
		return e, Unchanged, err
	case cached == nil:
		c.contentChanged(dir)
		return e, Added, nil
	}
	c.contentChanged(dir)
	return e, Replaced, nil
}

// confirmed is how long Confirm takes a reply of the source as the present state.
const confirmed = time.Second

// Confirm returns the entry that the name of e has at the source now. It makes a request unless one
// has confirmed e within the last second. The error for a missing name matches io/fs.ErrNotExist.
func (c *Container) Confirm(ctx context.Context, e *Entry) (*Entry, error) {
	if e.parent == nil || !e.Stale() && c.since(e.validated.Load()) < confirmed {
		return e, nil
	}
	now, _, err := c.revalidateName(ctx, e.parent, e.Name())
	if err == nil && now == nil {
		err = fs.ErrNotExist
	}
	return now, err
}

// contentChanged makes Outdated yield the content of e, if the kernel knows e.
func (c *Container) contentChanged(e *Entry) {
	if e.lookups.Load() > 0 {
		c.outdated.add(e, "", true)
	}
}

// Doubt makes e, a regular file or the file of a piece, Doubtful with its pieces, and then Outdated
// yield its content: what was read of it before may be wrong.
func (c *Container) Doubt(e *Entry) {
	e = e.File()
	e.setBits(doubtful)
	for _, p := range c.CachedPieces(e) {
		p.setBits(doubtful)
	}
	c.contentChanged(e)
}

// Settle compares a file with the source, and has the kernel drop the pages that it has cached of
// the file: while the file was being changed, they may have got different contents of one
// version. The error is that of the source; the pages are dropped in any case.
func (c *Container) Settle(ctx context.Context, e *Entry) error {
	if e.parent == nil || e.Stale() {
		return nil
	}
	_, _, err := c.revalidateName(ctx, e.parent, e.Name())
	if !e.Stale() {
		c.Doubt(e)
	}
	return err
}

// relist lists a directory at the source, whether or not its listing is cached, and returns how
// its content has changed. If it has, Outdated yields the listing.
func (c *Container) relist(ctx context.Context, dir *Entry) (difference, error) {
	var diff difference
	var err error
	if c.byListing {
		diff, err = c.relistByPages(ctx, dir)
	} else {
		diff, err = c.relistByReadDir(ctx, dir)
	}
	if err == nil && !diff.isEmpty() {
		c.contentChanged(dir)
	}
	return diff, err
}

func (c *Container) relistByReadDir(ctx context.Context, dir *Entry) (difference, error) {
	d := dir.dir
	if _, err := d.startLoad(ctx, func() bool { return false }); err != nil {
		return difference{}, err
	}
	diff, err := c.readDir(ctx, dir)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endLoad(err)
	return diff, err
}

// relistByPages waits for a load that begins after the call.
func (c *Container) relistByPages(ctx context.Context, dir *Entry) (difference, error) {
	d := dir.dir
	for {
		d.mu.Lock()
		l, mine := d.inFlight, false
		if l == nil {
			l, mine = c.startPages(dir, true), true
		}
		d.mu.Unlock()
		end, err := d.awaitEnd(ctx, l)
		if err != nil {
			return difference{}, err
		}
		if mine {
			return end.diff, end.err
		}
	}
}

// awaitEnd waits until l has ended and returns its state.
func (d *directory) awaitEnd(ctx context.Context, l *load) (progress, error) {
	for {
		_, now := d.progress(l)
		if now.ended {
			return now, nil
		}
		select {
		case <-now.updated:
		case <-ctx.Done():
			return progress{}, context.Cause(ctx)
		}
	}
}

// forgetSnapshot makes the container request the names of dir from the source, and not from the
// metadata snapshot, if they were not loaded yet. It reports whether that was so.
func (c *Container) forgetSnapshot(ctx context.Context, dir *Entry) (bool, error) {
	d := dir.dir
	started, err := d.startLoad(ctx, func() bool { return d.snapshot.Load() == nil })
	if !started {
		return false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.snapshot.Store(nil)
	d.endLoad(nil)
	return true, nil
}

// known returns the cached entries of dir, the names of which the kernel has cached that they
// are missing, and whether dir was ever listed. many reports that there are too many of these
// names to know them.
func (d *directory) known() (entries []*Entry, missing []string, many, everListed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	entries = d.all()
	if !d.everListed { // the kernel has none of those that ListAhead has found
		entries = slices.DeleteFunc(slices.Clone(entries), (*Entry).Unknown)
	}
	return entries, slices.Collect(maps.Keys(d.missing)), d.manyMissing, d.everListed
}
