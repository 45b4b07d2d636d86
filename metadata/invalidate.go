package metadata

import "github.com/milkweedfs/milkweed/tiers"

// Changed invalidates e, or the file of a piece: the caller has found that the source has another
// version of it, or none. e becomes stale, and the next lookup of its name finds the new version.
//
// If names are found by listing, that lookup is a Stat of the single name, and the other
// names of the listing stay cached. If so many names of the directory are invalidated that
// a listing takes fewer requests, the directory is listed again.
func (c *Container) Changed(e *Entry) {
	e = e.File()
	if e.parent == nil {
		return
	}
	d := e.parent.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.get(e.Name()) == e {
		c.overtake()
		c.remove(d, e)
		if c.byListing {
			d.invalidate(e.Name())
		}
	}
}

// Renew replaces e, a file with a copy, by another entry of the same version, and reports success.
// e becomes stale, so that later opens of its name get another node. It fails if e is stale or has
// an owner.
func (c *Container) Renew(e *Entry) bool {
	if e.parent == nil {
		return false
	}
	d := e.parent.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	level := e.Level()
	if d.get(e.Name()) != e || level == tiers.AtSource || e.Claimed() {
		return false
	}
	next := makeEntry(e.parent, e.info(), e.validated.Load())
	copied := tierCopy{level: level, mode: e.kind, size: e.size, mtime: e.mtime, mtimeN: e.mtimeN}
	next.setBits(e.state.Load() & (permitted | denied))
	c.addVersion(next, e, nameCopies{copies: []tierCopy{copied}, retired: d.retired})
	d.put(next)
	c.retire(e)
	return true
}

// removeName removes a name that the source did not have, according to a request that was
// made at that time. If the name has an entry that was validated later, removeName keeps
// the entry and returns it.
func (c *Container) removeName(dir *Entry, name string, requested uint32) *Entry {
	d := dir.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.invalidated, name)
	e := d.get(name)
	if c.isNewer(e, requested) {
		return e
	}
	if e != nil {
		c.remove(d, e)
	}
	return nil
}

// remove removes e from d and makes it stale; d.mu must be held.
func (c *Container) remove(d *directory, e *Entry) {
	c.changes.Add(1)
	if !c.byListing && d.shown(e.Name()) == e {
		d.relist = true // other names may have changed too; one ReadDir shows all of them
	}
	d.removed++
	d.delete(e.Name())
	c.retire(e)
}

// retire makes e and all entries below it stale, because its name has another entry now, or
// none. If the kernel has cached e, Outdated yields the name; the kernel reaches the
// entries below by that name. The lock of e's directory must be held.
func (c *Container) retire(e *Entry) {
	e.parent.dir.retired++
	if e.Unknown() {
		e.parent.dir.ahead.unknown.Add(-1)
	}
	c.markStale(e)
	if e.lookups.Load() > 0 {
		c.outdated.addName(e)
	}
}

// retireAll is retire for several entries of one directory.
func (c *Container) retireAll(entries []*Entry) {
	for _, e := range entries {
		c.retire(e)
	}
}

// LeftCopy records that a tier holds a copy of e, which became stale while the copy was being
// committed. The present entry of the name, and one that is made from an examination of the
// tiers in progress, are then Unverified, so that the copy is found and removed. If e is a piece of a
// file of another size than the present one, the next call of Pieces removes the copy.
func (c *Container) LeftCopy(e *Entry) {
	file := e.File()
	if file.parent == nil {
		return
	}
	dir := c.current(file.parent)
	if dir == nil {
		return // it is gone, and with it all names below
	}
	d := dir.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	d.retired++
	now := d.get(file.Name())
	if e.IsPiece() {
		c.leftPiece(now, e)
		return
	}
	if now != nil && now != e {
		now.setBits(unverified)
	}
}

// current returns the present entry of the path of dir, which may be stale, or nil if the
// path has no directory.
func (c *Container) current(dir *Entry) *Entry {
	if dir.parent == nil {
		return c.root
	}
	parent := c.current(dir.parent)
	if parent == nil {
		return nil
	}
	d := parent.dir
	d.mu.RLock()
	defer d.mu.RUnlock()
	if now := d.get(dir.Name()); now != nil && now.IsDir() {
		return now
	}
	return nil
}

// markStale makes e and all entries below it stale, and removes from the table those that
// have no lookup count.
func (c *Container) markStale(e *Entry) {
	e.setBits(stale)
	c.retirePieces(e)
	if e.dir != nil {
		e.dir.mu.Lock()
		below := e.dir.every()
		e.dir.mu.Unlock()
		for _, b := range below {
			c.markStale(b)
		}
	}
	if e.lookups.Load() == 0 {
		c.table.remove(e)
	}
}

// Hold adds one to the kernel's lookup count of e. It must be called before the reply that
// contains e is sent to the kernel.
func (c *Container) Hold(e *Entry) {
	e.lookups.Add(1)
	if e.Stale() { // it became stale after it was found, perhaps before retire could see the count
		c.outdated.addName(e)
	}
}

// Forget subtracts n from the kernel's lookup count of the entry with an ID. A stale entry
// is freed when its count is 0.
func (c *Container) Forget(id, n uint64) {
	if e := c.Get(id); e != nil && e.lookups.Add(-int64(n)) <= 0 && e.Stale() {
		c.table.remove(e)
	}
}
