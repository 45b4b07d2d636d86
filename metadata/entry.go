package metadata

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/tiers"
)

// An Entry is one version of one file, or a directory, link or special file.
// A dataset has millions, so an Entry is kept under 200 bytes with all that
// belongs to it, of which name and version have up to 48. Its methods may be
// called concurrently.
type Entry struct {
	parent *Entry
	text   string // the name, and behind it the version: one allocation has both
	id     uint64
	dir    *directory // nil unless a directory

	kind    uint32 // the type in mode
	nameLen uint32 // how much of text is the name

	// The attributes are guarded by the lock of the directory that the
	// entry is in, the root's by its own. Size and mtime of a regular file
	// never change, nor does the version.
	size                   int64
	mtime, ctime, atime    int64 // seconds
	mtimeN, ctimeN, atimeN uint32
	mode, nlink, uid, gid  uint32
	rdev                   uint32

	checked atomic.Uint32 // when the source was last asked, by Container.now
	state   atomic.Uint32 // the level, and the bits below
	lookups atomic.Int64  // how often the kernel was told of the entry and has not forgotten it
}

// The bits of Entry.state above the level.
const (
	levelMask  = 0xff
	claimed    = 0x100 // somebody is copying the file
	stale      = 0x200 // the name has another version now, or none
	unverified = 0x400 // see Unverified
	skipped    = 0x800 // the file was skipped for want of room
)

// ID returns the number of the entry, which no other entry of the container
// ever has. It serves as inode number.
func (e *Entry) ID() uint64 { return e.id }

// Name returns the last element of the entry's path, "." for the root.
func (e *Entry) Name() string { return e.text[:e.nameLen] }

// version is Info.Version of what the entry was made from.
func (e *Entry) version() string { return e.text[e.nameLen:] }

// Path returns the path from the root, "." for the root.
func (e *Entry) Path() string {
	if e.parent == nil {
		return "."
	}
	n := -1
	for p := e; p.parent != nil; p = p.parent {
		n += int(p.nameLen) + 1
	}
	b := make([]byte, n)
	for p := e; p.parent != nil; p = p.parent {
		n -= int(p.nameLen)
		copy(b[n:], p.Name())
		if n > 0 {
			n--
			b[n] = '/'
		}
	}
	return string(b)
}

// CopyName returns the name of the file's copies in every tier.
func (e *Entry) CopyName() string { return e.Path() }

// Parent returns the directory that the entry is in, the root for the root.
func (e *Entry) Parent() *Entry {
	if e.parent == nil {
		return e
	}
	return e.parent
}

// Type returns the type bits of the entry's mode, S_IFREG of stat(2) and its
// like.
func (e *Entry) Type() uint32 { return e.kind }

// IsDir reports whether the entry is a directory.
func (e *Entry) IsDir() bool { return e.dir != nil }

// CachedListing holds the version of the listing that the kernel keeps of a directory,
// 0 if that is not known. It is here for whoever answers the kernel.
func (e *Entry) CachedListing() *atomic.Uint64 { return &e.dir.cachedListing }

// IsRegular reports whether the entry is a regular file.
func (e *Entry) IsRegular() bool { return drivers.Info{Mode: e.kind}.IsRegular() }

// IsSymlink reports whether the entry is a symbolic link.
func (e *Entry) IsSymlink() bool { return drivers.Info{Mode: e.kind}.IsSymlink() }

// Size returns the size of a regular file in bytes.
func (e *Entry) Size() int64 { return e.size }

// bytes is what the entry counts for in Container.Bytes.
func (e *Entry) bytes() int64 {
	if !e.IsRegular() {
		return 0
	}
	return e.size
}

// placeable reports whether copies are made of the entry. An empty file has
// nothing to copy.
func (e *Entry) placeable() bool { return e.IsRegular() && e.size > 0 }

// Info returns the attributes.
func (e *Entry) Info() drivers.Info {
	mu := e.attributes()
	mu.RLock()
	defer mu.RUnlock()
	return drivers.Info{
		Name: e.Name(), Version: e.version(), Mode: e.mode, Nlink: e.nlink, UID: e.uid, GID: e.gid, Rdev: e.rdev, Size: e.size,
		Mtime: time.Unix(e.mtime, int64(e.mtimeN)),
		Ctime: time.Unix(e.ctime, int64(e.ctimeN)),
		Atime: time.Unix(e.atime, int64(e.atimeN)),
	}
}

// attributes returns the lock that guards the attributes.
func (e *Entry) attributes() *sync.RWMutex { return &e.Parent().dir.mu }

// update sets the attributes.
func (e *Entry) update(info drivers.Info) {
	mu := e.attributes()
	mu.Lock()
	defer mu.Unlock()
	e.set(info)
}

// set sets the attributes to those of the same version; e.attributes must be
// held, or e not yet be shared.
func (e *Entry) set(info drivers.Info) {
	e.mode, e.nlink, e.uid, e.gid, e.rdev = info.Mode, info.Nlink, info.UID, info.GID, info.Rdev
	if e.size != info.Size { // read without the lock where it never changes
		e.size = info.Size
	}
	e.mtime, e.mtimeN = info.Mtime.Unix(), uint32(info.Mtime.Nanosecond())
	e.ctime, e.ctimeN = info.Ctime.Unix(), uint32(info.Ctime.Nanosecond())
	e.atime, e.atimeN = info.Atime.Unix(), uint32(info.Atime.Nanosecond())
}

// is reports whether info, which the source says, describes e and not another
// version; e.attributes must be held. A directory is itself whatever it holds.
//
// What has no Version is still e, if all else is the same: a source may leave the
// Version out now and then. But an e without one is not what has one: nobody can
// tell that it is the same content, and only the entry that has the Version will
// notice when it is not any more.
func (e *Entry) is(info drivers.Info) bool {
	if e.IsDir() || info.IsDir() {
		return e.IsDir() && info.IsDir()
	}
	return e.same(info) && (info.Version == "" || e.version() != "")
}

// same reports whether info, of the source or of a copy, is of e's version as far
// as both can tell; e.attributes must be held.
func (e *Entry) same(info drivers.Info) bool {
	return info.SameVersion(drivers.Info{
		Mode: e.kind, Size: e.size, Mtime: time.Unix(e.mtime, int64(e.mtimeN)), Version: e.version(),
	})
}

// locate sets the level of a new entry from what the tiers hold under its
// name: the fastest copy of the right version.
func (e *Entry) locate(held []heldCopy, doubt bool) {
	if !e.placeable() {
		return
	}
	for _, h := range held {
		if e.same(h.info()) {
			e.state.Store(uint32(h.level))
			return
		}
	}
	if doubt || len(held) > 0 {
		e.setBits(unverified)
	}
}

// Level returns where the best copy of the file is. It takes no lock.
func (e *Entry) Level() tiers.Level { return tiers.Level(e.state.Load() & levelMask) }

// Stale reports whether the entry's name has another version now, or none.
func (e *Entry) Stale() bool { return e.state.Load()&stale != 0 }

// Claim takes the right to copy the file. Of all who ask at once, one is told
// true, if the file is at the source and not claimed or stale. The claim ends
// with Publish or Release.
func (e *Entry) Claim() bool {
	for {
		s := e.state.Load()
		if !e.placeable() || s&(levelMask|claimed|stale) != 0 {
			return false
		}
		if e.state.CompareAndSwap(s, s|claimed) {
			return true
		}
	}
}

// Claimed reports whether somebody is copying the file.
func (e *Entry) Claimed() bool { return e.state.Load()&claimed != 0 }

// Unverified reports whether a tier may hold a copy under the entry's name, of its
// version or an outdated one, that Settle must look at.
func (e *Entry) Unverified() bool { return e.state.Load()&unverified != 0 }

// Publish ends a claim: there is a complete copy on level l.
func (e *Entry) Publish(l tiers.Level) {
	e.change(func(s uint32) uint32 { return s&stale | uint32(l) })
}

// Release ends a claim without a copy.
func (e *Entry) Release() {
	e.change(func(s uint32) uint32 { return s &^ claimed })
}

// Demote says that the copy on level l is not there any more, or not right. It
// reports whether this was news. Of a stale entry it never is: the copy under
// its name is another entry's business.
func (e *Entry) Demote(l tiers.Level) bool {
	for {
		s := e.state.Load()
		if tiers.Level(s&levelMask) != l {
			return false
		}
		if e.state.CompareAndSwap(s, s&^levelMask|unverified) {
			return s&stale == 0
		}
	}
}

// Retract begins to drop the copy on level l, while other goroutines may open the file: in
// one step it sets the level to AtSource, claims the entry and makes it Unverified. It
// reports whether the caller now has the claim. The caller removes the copy from its tier,
// calls Verified if that succeeded, and then Release. Until then the file is read from the
// source, and no goroutine can publish another copy or account for the loss of this one.
func (e *Entry) Retract(l tiers.Level) bool {
	for {
		s := e.state.Load()
		if l == tiers.AtSource || tiers.Level(s&levelMask) != l || s&(claimed|stale) != 0 {
			return false
		}
		if e.state.CompareAndSwap(s, s&^levelMask|claimed|unverified) {
			return true
		}
	}
}

// Verified ends the state Unverified: every tier was examined, and no tier holds an
// outdated copy.
func (e *Entry) Verified() { e.clearBits(unverified) }

// Skip says that no tier has room for the file, and reports whether it is the
// first time since the file was last placed.
func (e *Entry) Skip() bool { return e.state.Or(skipped)&skipped == 0 }

func (e *Entry) setBits(bits uint32)   { e.state.Or(bits) }
func (e *Entry) clearBits(bits uint32) { e.state.And(^bits) }

// change replaces the state by f of it.
func (e *Entry) change(f func(uint32) uint32) {
	for {
		s := e.state.Load()
		if e.state.CompareAndSwap(s, f(s)) {
			return
		}
	}
}

// A directory is what is known of the names in one directory. Its names are in
// two sorted slices: a name that is found goes into the short one, since the
// long one may have to move a million names for it. When the short one has
// grown to the square root of the long one it is merged.
type directory struct {
	mu       sync.RWMutex // guards the following, and the attributes of what is in the directory
	sorted   []*Entry     // by name
	extra    []*Entry     // by name: those not in sorted
	shared   bool         // sorted was given out, and must not be changed in place
	known    bool         // all names were known at some time
	failed   uint32       // when the last listing failed, if known, by Container.now, of a source that Lists; 0: it has not
	version  uint32       // counts changes of what entries there are
	removals uint32       // counts entries that have lost their name
	listed   uint32       // when all names were last known, by Container.now; 0: they are not
	asked    uint32       // counts the parts of listings that were asked for, of a source that Lists
	flight   *flight      // the load that is under way; nil: none is

	// Names without an entry for which a source that Lists is asked by a Stat,
	// whatever its listing has said; and what asked was when that began.
	doubts map[string]uint32

	saved         atomic.Pointer[block] // where the names are that Restore has brought; nil: they are loaded, or there are none
	cachedListing atomic.Uint64         // Entry.CachedListing
}

// A flight is a load of a directory that is under way.
type flight struct {
	at    uint32    // when it began, by Container.now
	began time.Time // the same

	progress // guarded by the lock of the directory
}

// A progress is how far a flight has come.
type progress struct {
	news  chan struct{} // closed when names have come, for another to take its place, and in the end
	came  bool          // names have
	ended bool
	err   error // in the end
}

// newFlight makes a flight that begins now, which is at by Container.now.
func newFlight(at uint32) *flight {
	return &flight{at: at, began: time.Now(), progress: progress{news: make(chan struct{})}}
}

// begin begins to load the directory, which must then be ended; one at a time
// does. It waits for a load that is under way. If done, which is called with
// d.mu held, says that no load is needed, begin reports false.
func (d *directory) begin(ctx context.Context, done func() bool) (bool, error) {
	for {
		d.mu.Lock()
		if done() {
			d.mu.Unlock()
			return false, nil
		}
		if d.flight == nil {
			d.flight = newFlight(0)
			d.mu.Unlock()
			return true, nil
		}
		news := d.flight.news
		d.mu.Unlock()
		select {
		case <-news:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// end ends the load that is under way; d.mu must be held.
func (d *directory) end(err error) {
	d.flight.ended, d.flight.err = true, err
	close(d.flight.news)
	d.flight = nil
}

// find returns the entry of a name, if it is known, when all names were, and
// whether this one is in doubt, which has no entry.
func (d *directory) find(name string) (e *Entry, listed uint32, doubt bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	_, doubt = d.doubts[name]
	return d.get(name), d.listed, doubt
}

// removed returns the number of entries that have lost their name.
func (d *directory) removed() uint32 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.removals
}

// progress returns how far f has come, and whether all names were known at some
// time.
func (d *directory) progress(f *flight) (known bool, now progress) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.known, f.progress
}

// doubtful reports whether so many names are in doubt that to ask for each would
// take more requests than to list the directory; d.mu must be held.
func (d *directory) doubtful() bool {
	return len(d.doubts) > 1+(len(d.sorted)+len(d.extra))/partSize
}

// doubt has a name in doubt, which has no entry. If it is one too many the listing
// is not believed any more; d.mu must be held.
func (d *directory) doubt(name string) {
	if d.doubts == nil {
		d.doubts = make(map[string]uint32)
	}
	d.doubts[name] = d.asked
	if d.doubtful() {
		d.listed = 0
	}
}

// search returns where a name is, or would be, in entries that are sorted.
func search(entries []*Entry, name string) (int, bool) {
	return slices.BinarySearchFunc(entries, name, func(e *Entry, name string) int { return strings.Compare(e.Name(), name) })
}

// get returns the entry of a name or nil; d.mu must be held.
func (d *directory) get(name string) *Entry {
	if i, ok := search(d.sorted, name); ok {
		return d.sorted[i]
	}
	if i, ok := search(d.extra, name); ok {
		return d.extra[i]
	}
	return nil
}

// put sets the entry of e's name, which is then not in doubt; d.mu must be held.
func (d *directory) put(e *Entry) {
	d.version++
	delete(d.doubts, e.Name())
	if i, ok := search(d.sorted, e.Name()); ok {
		d.own()
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

// delete forgets a name; d.mu must be held.
func (d *directory) delete(name string) {
	d.version++
	if i, ok := search(d.sorted, name); ok {
		d.own()
		d.sorted = slices.Delete(d.sorted, i, i+1)
	} else if i, ok := search(d.extra, name); ok {
		d.extra = slices.Delete(d.extra, i, i+1)
	}
}

// own makes sorted one that may be changed in place; d.mu must be held.
func (d *directory) own() {
	if d.shared {
		d.sorted, d.shared = slices.Clone(d.sorted), false
	}
}

// merge moves what is in extra to sorted, from the end on; d.mu must be held.
func (d *directory) merge() {
	if len(d.extra) == 0 {
		return
	}
	d.own()
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

// all returns the entries by name, in a slice that nobody will change; d.mu
// must be held for writing.
func (d *directory) all() []*Entry {
	d.merge()
	d.shared = true
	return slices.Clip(d.sorted)
}

// listing returns all there is; d.mu must be held for writing.
func (d *directory) listing() Listing {
	return Listing{Entries: d.all(), Version: uint64(d.version) + 1}
}

// replace makes entries, one of each name, all there is, with what was found
// after the time at, when entries were asked for. It returns those that are not
// any more; d.mu must be held.
func (d *directory) replace(entries []*Entry, at uint32) (gone []*Entry) {
	old := d.all()
	sortByName(entries)
	kept := entries[:0]
	for _, e := range entries {
		if n := len(kept); n == 0 || kept[n-1].Name() != e.Name() {
			kept = append(kept, e)
		} else if kept[n-1] != e {
			gone = append(gone, e)
		}
	}
	clear(entries[len(kept):])
	d.sorted, d.shared = kept, false
	rest := kept
	for _, e := range old {
		for len(rest) > 0 && rest[0].Name() < e.Name() {
			rest = rest[1:]
		}
		switch {
		case len(rest) > 0 && rest[0] == e: // it stays
		case (len(rest) == 0 || rest[0].Name() != e.Name()) && e.checked.Load() > at:
			d.extra = append(d.extra, e)
		default:
			gone = append(gone, e)
		}
	}
	d.settle(old)
	return gone
}

// sortByName sorts entries, which takes little if they are.
func sortByName(entries []*Entry) {
	slices.SortFunc(entries, func(a, b *Entry) int { return strings.Compare(a.Name(), b.Name()) })
}

// settle ends a replace of what was in old: if nothing has changed, old stays;
// d.mu must be held.
func (d *directory) settle(old []*Entry) {
	d.merge()
	if slices.Equal(d.sorted, old) {
		d.sorted, d.shared = old, true
	} else {
		d.version++
	}
}
