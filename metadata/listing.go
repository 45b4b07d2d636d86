package metadata

import (
	"context"
	"slices"
	"syscall"

	"github.com/milkweedfs/milkweed/drivers"
)

// A Listing is the content of a directory at one time.
type Listing struct {
	Entries []*Entry // sorted by name; shared, and must not be modified
	Version uint64   // differs if the Entries differ; never 0
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
		if !c.fresh(d.listed) {
			return false
		}
		l = d.listing()
		return true
	})
	if !started {
		return l, err
	}
	err = c.readDir(ctx, dir)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endLoad(err)
	if err != nil && (d.listed == 0 || dir.Stale() || ctx.Err() != nil) {
		return Listing{}, err
	}
	if err != nil {
		c.warn(dir, err)
		d.listed = c.now()
	}
	return d.listing(), nil
}

// readDir loads a directory by one ReadDir of the source.
func (c *Container) readDir(ctx context.Context, dir *Entry) error {
	requested := c.now()
	infos, err := c.source.ReadDir(ctx, dir.Path())
	if err != nil {
		return err
	}
	if len(infos) == 0 && c.sourceLost(ctx) {
		return syscall.ESTALE
	}
	copies := c.listCopies(ctx, dir)
	d := dir.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if dir.Stale() {
		return syscall.ESTALE
	}
	listed := make([]*Entry, 0, len(infos))
	for _, info := range infos {
		if !validName(info.Name) {
			continue // an error of the driver: the kernel would reject the name
		}
		e := d.get(info.Name)
		if !e.revalidate(info, requested) {
			old := e
			e = makeEntry(dir, info, requested)
			c.addVersion(e, old, copies.of(info.Name))
		}
		listed = append(listed, e)
	}
	for _, gone := range d.replace(listed, requested) {
		c.retire(gone)
	}
	d.listed, d.everListed = requested, true
	return nil
}

// revalidate applies info, the reply of the source to a listing that was requested at that
// time, to e, which may be nil. It reports whether e remains the entry of the name: a later
// lookup has validated it, or info describes the same version. e.attributes must be held.
func (e *Entry) revalidate(info drivers.Info, requested uint32) bool {
	switch {
	case e == nil:
		return false
	case e.validated.Load() > requested:
		return true
	case !e.matches(info):
		return false
	}
	e.set(info)
	e.validated.Store(requested)
	return true
}

// Index returns the position of e among the entries of its directory, which are sorted by
// name. listed reports whether the directory was ever listed and e was in that listing, or
// was merged into it later.
func (c *Container) Index(e *Entry) (i int, listed bool) {
	if e.parent == nil {
		return 0, false
	}
	d := e.parent.dir
	d.mu.RLock()
	defer d.mu.RUnlock()
	i, ok := search(d.sorted, e.Name())
	if !ok || !d.everListed || d.sorted[i] != e {
		return 0, false
	}
	return i, true
}

// Siblings returns up to n entries of e's directory, which may include e, that start at the
// position from, as returned by Index.
func (c *Container) Siblings(e *Entry, from, n int) []*Entry {
	if e.parent == nil {
		return nil
	}
	d := e.parent.dir
	d.mu.RLock()
	defer d.mu.RUnlock()
	from = min(max(from, 0), len(d.sorted))
	return slices.Clone(d.sorted[from:min(from+max(n, 0), len(d.sorted))])
}
