package metadata

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"syscall"

	"github.com/milkweedfs/milkweed/drivers"
)

// runLoad lists dir and ends its load.
func (c *Container) runLoad(ctx context.Context, dir *Entry) {
	diff, err := c.listPages(ctx, dir)
	if isAbsent(err) {
		err = c.directoryMissing(ctx, dir, err)
	}
	if err != nil && ctx.Err() == nil && !dir.Stale() {
		c.warn(dir, err)
	}
	d := dir.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failed = 0
	if err != nil && d.everListed {
		d.failed = c.now()
	}
	d.inFlight.diff = diff
	d.endLoad(err)
}

// directoryMissing invalidates dir after err, which means that the source does not have it.
// An object store has no empty directory except its root. If the part of the source that dir is in
// is gone, no name is invalidated.
func (c *Container) directoryMissing(ctx context.Context, dir *Entry, err error) error {
	lost := errLost
	if dir.parent != nil {
		lost = c.sourceLost(ctx, dir)
	}
	if lost != nil {
		return fmt.Errorf("%w: %v", lost, err)
	}
	c.Changed(dir)
	return err
}

// listPages lists dir and merges the pages into it.
func (c *Container) listPages(ctx context.Context, dir *Entry) (difference, error) {
	m := &pageMerger{c: c, dir: dir, copies: c.listCopies(ctx, dir)}
	m.begin()
	if err := c.source.List(ctx, dir.Path(), m.add); err != nil {
		return m.diff, err
	}
	err := m.end()
	return m.diff, err
}

// A pageMerger merges the pages of a listing into the directory.
type pageMerger struct {
	c      *Container
	dir    *Entry
	copies dirCopies

	started   uint32   // time of the request for the first page, by Container.now
	firstPage uint32   // number of that page, by directory.pages
	requested uint32   // time of the request for the next page, by Container.now
	nextPage  uint32   // number of that page, by directory.pages
	listed    []*Entry // of all pages that have arrived
	diff      difference
}

// begin must be called before the first page is requested.
func (m *pageMerger) begin() {
	d := m.dir.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	m.countRequest()
	m.started, m.firstPage = m.requested, m.nextPage
	m.diff.all = d.everListed
	m.listed = make([]*Entry, 0, len(d.sorted))
}

// countRequest records that a page is requested now. The lock of the directory must be held.
func (m *pageMerger) countRequest() {
	d := m.dir.dir
	d.pages++
	m.requested, m.nextPage = m.c.now(), d.pages
}

// add merges a page and wakes the lookups that wait for it.
func (m *pageMerger) add(infos []drivers.Info) error {
	d := m.dir.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.dir.Stale() {
		return syscall.ESTALE
	}
	for _, info := range infos {
		if !validName(info.Name) {
			continue // an error of the driver: the kernel would reject the name
		}
		if page, ok := d.invalidated[info.Name]; ok && page >= m.nextPage {
			continue // the name was invalidated after the page was requested
		}
		m.listed = append(m.listed, m.entry(info))
	}
	m.countRequest()
	d.pageArrived()
	return nil
}

// entry returns the entry of a name in a page, which is then in the directory. Its lock must
// be held.
func (m *pageMerger) entry(info drivers.Info) *Entry {
	d := m.dir.dir
	old := d.get(info.Name)
	if m.c.remains(old, info, m.requested) {
		return old
	}
	e := makeEntry(m.dir, info, m.requested)
	m.c.addVersion(e, old, m.copies.of(info.Name))
	m.c.changes.Add(1)
	m.diff.found(e, old)
	d.put(e)
	if old != nil {
		m.c.retire(old)
	}
	return e
}

// end makes the names in the pages the content of the directory. It keeps names that were
// looked up since the listing began. It drops names that were invalidated since their page
// arrived.
func (m *pageMerger) end() error {
	sortByName(m.listed) // before the lock is taken
	d := m.dir.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.dir.Stale() {
		return syscall.ESTALE
	}
	m.listed = slices.DeleteFunc(m.listed, (*Entry).Stale)
	replaced, lacking := d.replace(m.c.withTop(m.dir, m.listed), m.started)
	m.c.retireAll(replaced)
	m.c.retireAll(lacking)
	m.diff.removed = lacking
	maps.DeleteFunc(d.invalidated, func(_ string, page uint32) bool { return page < m.firstPage })
	d.listed, d.everListed = m.started, true
	m.c.changes.Add(1)
	if d.manyInvalidated() {
		d.listed = 0
	}
	return nil
}
