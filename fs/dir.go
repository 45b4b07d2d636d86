package fs

import (
	"slices"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
)

// An openDir is a directory that the kernel has open. Its listing is a snapshot, which is
// taken at the open and again when the reader seeks back to the start.
//
// The kernel caches the names that it reads for later opens (FOPEN_CACHE_DIR). It drops
// this cache when an open lacks FOPEN_KEEP_CACHE, and when the modification time of the
// directory is another one, which does not reveal every change. Therefore an open has
// FOPEN_KEEP_CACHE only if all names that the kernel has read since it last dropped the
// cache are of the current version of the listing. Entry.CachedListing holds that version.
//
// The kernel combines the names that it reads through several handles, and may continue
// one listing at an offset of another. An offset therefore contains the ID of the entry
// before it, and the listing continues after the name of that entry. A name that is in
// both listings is read once.
type openDir struct {
	entry *metadata.Entry
	node  uint64

	mu       panics.Mutex // guards the following
	listing  metadata.Listing
	started  bool // a READDIR was answered
	from, to int  // the entries of the last reply, as positions in listing.Entries
}

// The offsets after the names "." and "..". The offset after another entry is its ID plus
// offsetEntry; this is greater than offsetParent, since the ID 1 is that of the root, which
// is in no directory.
const (
	offsetSelf   = 1
	offsetParent = 2
	offsetEntry  = 1
)

// OpenDir opens a directory.
func (f *fileSystem) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	e, status := f.entry(in.NodeId)
	if status != fuse.OK {
		return status
	}
	r := f.newNameRequest(cancel)
	defer r.end()
	l, err := f.names.Listing(r, e)
	if err != nil {
		return f.status(err)
	}
	out.Fh = f.dirs.add(&openDir{entry: e, node: in.NodeId, listing: l})
	if !f.cachesListing(in.NodeId) {
		return fuse.OK
	}
	out.OpenFlags = fuse.FOPEN_CACHE_DIR
	if e.CachedListing().Swap(l.Version) == l.Version {
		out.OpenFlags |= fuse.FOPEN_KEEP_CACHE
	}
	return fuse.OK
}

// ReleaseDir closes a directory.
func (f *fileSystem) ReleaseDir(in *fuse.ReleaseIn) { f.dirs.remove(in.Fh) }

// ReadDir returns names from an offset on.
func (f *fileSystem) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.list(cancel, in, 0, func(name string, e *metadata.Entry, next uint64) bool {
		return out.AddDirEntry(dirEntry(name, nodeIn(in.NodeId, e), e, next))
	})
}

// minPlusEntry is the size of the shortest entry in the reply to READDIRPLUS: the attributes, the
// fixed part of a directory entry, and a name of up to 8 bytes.
const minPlusEntry = 128 + 24 + 8

// ReadDirPlus returns names from an offset on, and attributes of those that have them.
func (f *fileSystem) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.list(cancel, in, int(in.Size)/minPlusEntry, func(name string, e *metadata.Entry, next uint64) bool {
		node := nodeIn(in.NodeId, e)
		entry := out.AddDirLookupEntry(dirEntry(name, node, e, next))
		if entry == nil {
			return false
		}
		// The kernel does not count lookups of "." and "..". It looks up a name without a node
		// when it is used. That is the time to request the attributes, and to return an error.
		// The names of a listing belong to the epoch in which it arrives, so that a listing of the
		// root from before a switch must have no nodes.
		if name != "." && name != ".." && !e.Unknown() && !f.isSwitched(in.NodeId) {
			f.setEntry(entry, in.NodeId, node, e)
		}
		return true
	})
}

func dirEntry(name string, node uint64, e *metadata.Entry, next uint64) fuse.DirEntry {
	return fuse.DirEntry{Name: name, Ino: inodeNumber(node), Mode: e.Type(), Off: next}
}

// list calls add for the names of a directory from an offset on, each with the offset
// after it, until add returns false because the reply is full. The attributes of the first names,
// up to complete of them, are requested if the program seems to need them.
func (f *fileSystem) list(cancel <-chan struct{}, in *fuse.ReadIn, complete int, add func(string, *metadata.Entry, uint64) bool) fuse.Status {
	d, ok := f.dirs.get(in.Fh)
	if !ok {
		return statusBadHandle
	}
	r := f.newNameRequest(cancel)
	defer r.end()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.prepare(r, f.names, in.Offset); err != nil {
		return f.status(err)
	}
	from, ok := d.position(in.Offset, f.names)
	if !ok {
		return statusStale
	}
	d.from, d.to = from, from
	rest := d.listing.Entries[from:]
	f.names.Complete(r, d.entry, rest[:min(complete, len(rest))])
	if in.Offset < offsetSelf && !add(".", d.entry, offsetSelf) {
		return fuse.OK
	}
	if in.Offset < offsetParent && !add("..", d.entry.Parent(), offsetParent) {
		return fuse.OK
	}
	for _, e := range rest {
		if !isHidden(d.node, e) && !add(e.Name(), e, e.ID()+offsetEntry) {
			break
		}
		d.to++
	}
	return fuse.OK
}

// prepare prepares d for a read at an offset. A read at the start takes a new listing, except
// for the first one if the directory has not changed since the open: the kernel may have answered
// earlier reads from its cache. d.mu must be held.
func (d *openDir) prepare(r *request, names *metadata.Container, offset uint64) error {
	if offset == 0 && (d.started || d.entry.ListingVersion() != d.listing.Version) {
		l, err := names.Listing(r, d.entry)
		if err != nil {
			return err
		}
		d.listing, d.from, d.to = l, 0, 0
	}
	d.started = true
	if d.entry.CachedListing().Load() != d.listing.Version {
		d.entry.CachedListing().Store(0) // the kernel may combine two versions in its cache
	}
	return nil
}

// position returns the position in the listing of the first entry after an offset. It is
// usually in the last reply, part of which the reader had no room for. position reports
// false if the offset is of another listing and its entry no longer exists. d.mu must be
// held.
func (d *openDir) position(offset uint64, names *metadata.Container) (int, bool) {
	if offset <= offsetParent {
		return 0, true
	}
	id := offset - offsetEntry
	for i := d.to; i > d.from; i-- {
		if d.listing.Entries[i-1].ID() == id {
			return i, true
		}
	}
	if e := names.Get(id); e != nil && e.Parent() == d.entry {
		return d.positionAfter(e.Name()), true
	}
	i := slices.IndexFunc(d.listing.Entries, func(e *metadata.Entry) bool { return e.ID() == id })
	return i + 1, i >= 0
}

// positionAfter returns the position of the first entry whose name sorts after name. d.mu
// must be held.
func (d *openDir) positionAfter(name string) int {
	i, found := slices.BinarySearchFunc(d.listing.Entries, name, func(e *metadata.Entry, name string) int {
		return strings.Compare(e.Name(), name)
	})
	if found {
		i++
	}
	return i
}
