package metadata

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// A directory holds the names of one directory that are cached. They are in two sorted
// slices. A name that is looked up is inserted into extra, which is short, because an
// insertion into sorted may move a million names. When extra has grown to the square root
// of sorted, it is merged into it.
type directory struct {
	mu          panics.RWMutex // guards the following, and the attributes of the entries
	sorted      []*Entry       // by name
	extra       []*Entry       // by name: the entries that are not in sorted
	shared      bool           // sorted was returned to a caller and must not be modified
	everListed  bool           // all names were known at some time
	listedAhead bool           // ListAhead has found all names at some time
	denied      bool           // the source has denied the last listing
	manyMissing bool           // there were more than maxMissing names in missing; it may be any name
	relist      bool           // a name was found that the listing lacks: the next one comes from the source
	removed     uint16         // counts names that were removed, except by a listing
	version     uint32         // counts changes of the set of entries
	retired     uint32         // counts entries that have lost their name
	checked     uint32         // time when Sweep last compared the directory with the source, by Container.now
	listed      uint32         // time when all names were last known, by Container.now; 0: they are not
	inFlight    *load          // nil: none

	missing  map[string]struct{} // names of which the kernel may have cached that they do not exist
	unlisted map[string]*Entry   // names that are not in sorted and extra; see unlisted.go
	stamp    stamp               // see stamp; not used if names are found by listing

	// If names are found by listing:
	failed      uint32            // time of the last listing, by Container.now, if it failed; else 0
	pages       uint32            // counts the pages that were requested
	invalidated map[string]uint32 // names that the cached listing does not cover, with pages at that time

	snapshot      atomic.Pointer[extent] // the names in the metadata snapshot; nil: none, or they are loaded
	loaded        atomic.Uint32          // time when they were loaded, by Container.now; 0: never
	device        uint32                 // shortDev of the first Info with a Dev, or 0; Entry.attributes guards it
	cachedListing atomic.Uint32          // see Entry.CachedListing

	// If the source is a drivers.Namer:
	ahead ahead
	batch *batch // the last one; nil: there was none
}

// countRetired returns the number of entries that have lost their name.
func (d *directory) countRetired() uint32 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.retired
}

// find returns the cached entry of a name or nil, the time when all names were last known,
// and whether the name is invalidated.
func (d *directory) find(name string) (e *Entry, listed uint32, invalidated bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	_, invalidated = d.invalidated[name]
	return d.get(name), d.listed, invalidated
}

// setRelist sets d.relist.
func (d *directory) setRelist(relist bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.relist = relist
}

// invalidate excepts a name without an entry from the cached listing. If too many names are
// invalidated, the listing is no longer cached; d.mu must be held.
func (d *directory) invalidate(name string) {
	if d.invalidated == nil {
		d.invalidated = make(map[string]uint32)
	}
	d.invalidated[name] = d.pages
	if d.manyInvalidated() {
		d.listed = 0
	}
}

// manyInvalidated reports whether a listing of the directory takes fewer requests than a
// Stat of each invalidated name; d.mu must be held.
func (d *directory) manyInvalidated() bool {
	return len(d.invalidated) > 1+(len(d.sorted)+len(d.extra))/pageSize
}

// search returns the position of a name in sorted entries, or that where it would be
// inserted, and whether it is there.
func search(entries []*Entry, name string) (int, bool) {
	return slices.BinarySearchFunc(entries, name, func(e *Entry, name string) int { return strings.Compare(e.Name(), name) })
}

// get returns the entry of a name or nil; d.mu must be held.
func (d *directory) get(name string) *Entry {
	if e := d.shown(name); e != nil {
		return e
	}
	return d.unlisted[name]
}

// shown is get for the names in a listing; d.mu must be held.
func (d *directory) shown(name string) *Entry {
	if i, ok := search(d.sorted, name); ok {
		return d.sorted[i]
	}
	if i, ok := search(d.extra, name); ok {
		return d.extra[i]
	}
	return nil
}

// hasOthers reports whether names are cached that an earlier listing had, and listed has not.
func (d *directory) hasOthers(listed []drivers.Info) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	cached := len(d.sorted) + len(d.extra)
	for _, info := range listed {
		if cached == 0 {
			return false
		}
		if d.shown(info.Name) != nil {
			cached--
		}
	}
	return cached > 0
}

// put sets the entry of e's name, which is then no longer invalidated; d.mu must be held.
func (d *directory) put(e *Entry) {
	if d.unlisted[e.Name()] != nil {
		d.unlisted[e.Name()] = e
		return
	}
	d.version++
	delete(d.invalidated, e.Name())
	if i, ok := search(d.sorted, e.Name()); ok {
		d.unshare()
		d.sorted[i] = e
		return
	}
	i, ok := search(d.extra, e.Name())
	if ok {
		d.extra[i] = e
		return
	}
	d.extra = slices.Insert(d.extra, i, e)
	if n := len(d.extra); n*n > 2*len(d.sorted) {
		d.merge()
	}
}

// delete removes the entry of a name, if there is one; d.mu must be held.
func (d *directory) delete(name string) {
	if d.unlisted[name] != nil {
		delete(d.unlisted, name)
		return
	}
	d.version++
	if i, ok := search(d.sorted, name); ok {
		d.unshare()
		d.sorted = slices.Delete(d.sorted, i, i+1)
	} else if i, ok := search(d.extra, name); ok {
		d.extra = slices.Delete(d.extra, i, i+1)
	}
}

// unshare copies sorted if it is shared; d.mu must be held.
func (d *directory) unshare() {
	if d.shared {
		d.sorted, d.shared = slices.Clone(d.sorted), false
	}
}

// merge moves the entries of extra to sorted, the last one first; d.mu must be held.
func (d *directory) merge() {
	if len(d.extra) == 0 {
		return
	}
	d.unshare()
	end := len(d.sorted)
	d.sorted = append(d.sorted, d.extra...)
	for n := len(d.extra); n > 0; n-- {
		e := d.extra[n-1]
		i, _ := search(d.sorted[:end], e.Name())
		copy(d.sorted[i+n:], d.sorted[i:end])
		d.sorted[i+n-1] = e
		end = i
	}
	d.extra = nil
}

// all returns the entries that a listing shows, sorted by name, in a slice that is never modified;
// d.mu must be held for writing.
func (d *directory) all() []*Entry {
	d.merge()
	d.shared = true
	return slices.Clip(d.sorted)
}

// listingVersion returns the version of the cached content; d.mu must be held.
func (d *directory) listingVersion() uint32 { return d.version + 1 }

// listing returns the cached content; d.mu must be held for writing.
func (d *directory) listing() Listing {
	return Listing{Entries: d.all(), Version: d.listingVersion()}
}

// replace sets the content to entries, the result of a listing, and those cached entries of
// other names that were validated after a time. Of several entries with the same name it keeps
// one. replace returns the entries that are no longer in the directory: those whose name has
// another one, and those whose name is not listed. d.mu must be held.
func (d *directory) replace(entries []*Entry, after uint32) (replaced, lacking []*Entry) {
	old := d.all()
	sortByName(entries)
	unique := entries[:0]
	for _, e := range entries {
		if n := len(unique); n == 0 || unique[n-1].Name() != e.Name() {
			unique = append(unique, e)
		} else if unique[n-1] != e {
			replaced = append(replaced, e)
		}
	}
	clear(entries[len(unique):])
	d.sorted, d.shared = unique, false
	rest := unique
	for _, e := range old {
		for len(rest) > 0 && rest[0].Name() < e.Name() {
			rest = rest[1:]
		}
		switch {
		case len(rest) > 0 && rest[0] == e: // it keeps its name
		case len(rest) > 0 && rest[0].Name() == e.Name():
			replaced = append(replaced, e)
		case e.validated.Load() > after:
			d.extra = append(d.extra, e)
		default:
			lacking = append(lacking, e)
		}
	}
	d.merge()
	if slices.Equal(d.sorted, old) { // readers keep the slice and the version that they have
		d.sorted, d.shared = old, true
	} else {
		d.version++
	}
	return replaced, lacking
}

// compareNames compares infos by name.
func compareNames(a, b drivers.Info) int { return strings.Compare(a.Name, b.Name) }

// sortByName sorts entries, which is cheap if they are sorted already.
func sortByName(entries []*Entry) {
	slices.SortFunc(entries, func(a, b *Entry) int { return strings.Compare(a.Name(), b.Name()) })
}
