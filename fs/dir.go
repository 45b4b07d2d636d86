package fs

import (
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/milkweedfs/milkweed/metadata"
)

// A dirHandle is an open directory: a listing as it was when the directory was
// opened, or gone back to the start of.
//
// The kernel keeps what it reads here for the next open (FOPEN_CACHE_DIR). It
// drops that when the modification time of the directory is another, which
// does not tell of every change, and when an open lacks FOPEN_KEEP_CACHE. So an
// open has the flag only if all that the kernel has read since it last dropped
// what it had is of the same version, which Entry.CachedListing holds.
//
// The kernel puts together what it reads by way of several handles, and goes on
// in one listing at an offset of another. An offset is therefore the ID of the
// entry before it, from which to go on by name: a name that is in both
// listings is read once.
type dirHandle struct {
	entry *metadata.Entry

	mu       sync.Mutex // guards the following
	listing  metadata.Listing
	begun    bool // it was read from
	from, to int  // the entries of the last answer
}

// The offsets behind "." and "..", and what is added to an ID for the offset
// behind an entry; the root, which is in no directory, has ID 1.
const (
	behindSelf   = 1
	behindParent = 2
	behindEntry  = 1
)

// OpenDir opens a directory.
func (f *fileSystem) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	e, status := f.entry(in.NodeId)
	if status != fuse.OK {
		return status
	}
	r := newRequest(cancel)
	defer r.end()
	l, err := f.names.Listing(r, e)
	if err != nil {
		return f.errno(err)
	}
	out.Fh = f.dirs.add(&dirHandle{entry: e, listing: l})
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
	return f.list(cancel, in, func(name string, e *metadata.Entry, behind uint64) bool {
		return out.AddDirEntry(dirEntry(name, e, behind))
	})
}

// ReadDirPlus returns names and attributes from an offset on.
func (f *fileSystem) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.list(cancel, in, func(name string, e *metadata.Entry, behind uint64) bool {
		entry := out.AddDirLookupEntry(dirEntry(name, e, behind))
		if entry == nil {
			return false
		}
		if name != "." && name != ".." { // those are not looked up
			f.fill(e, entry)
		}
		return true
	})
}

func dirEntry(name string, e *metadata.Entry, behind uint64) fuse.DirEntry {
	return fuse.DirEntry{Name: name, Ino: e.ID(), Mode: e.Type(), Off: behind}
}

// list adds the names of a directory from an offset on, each with the offset
// behind it, until add has no room.
func (f *fileSystem) list(cancel <-chan struct{}, in *fuse.ReadIn, add func(string, *metadata.Entry, uint64) bool) fuse.Status {
	d, ok := f.dirs.get(in.Fh)
	if !ok {
		return fuse.EBADF
	}
	r := newRequest(cancel)
	defer r.end()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin(r, f.names, in.Offset); err != nil {
		return f.errno(err)
	}
	from, ok := d.behind(in.Offset, f.names)
	if !ok {
		return fuse.Status(syscall.ESTALE)
	}
	d.from, d.to = from, from
	if in.Offset < behindSelf && !add(".", d.entry, behindSelf) {
		return fuse.OK
	}
	if in.Offset < behindParent && !add("..", d.entry.Parent(), behindParent) {
		return fuse.OK
	}
	for _, e := range d.listing.Entries[from:] {
		if !add(e.Name(), e, e.ID()+behindEntry) {
			break
		}
		d.to++
	}
	return fuse.OK
}

// begin prepares to read from an offset: a reader that has gone back to the
// start gets the directory as it is now. d.mu must be held.
func (d *dirHandle) begin(r *request, names *metadata.Container, offset uint64) error {
	if d.begun && offset == 0 {
		l, err := names.Listing(r, d.entry)
		if err != nil {
			return err
		}
		d.listing, d.from, d.to = l, 0, 0
	}
	d.begun = true
	if d.entry.CachedListing().Load() != d.listing.Version {
		d.entry.CachedListing().Store(0) // the kernel may mix this with another version
	}
	return nil
}

// behind returns the position of the first entry behind an offset. In most
// cases that is in the last answer, of which the reader had no room for all. It
// reports false if the offset is of another listing, and the entry before it is
// not known any more. d.mu must be held.
func (d *dirHandle) behind(offset uint64, names *metadata.Container) (int, bool) {
	if offset <= behindParent {
		return 0, true
	}
	id := offset - behindEntry
	for i := d.to; i > d.from; i-- {
		if d.listing.Entries[i-1].ID() == id {
			return i, true
		}
	}
	if e := names.Get(id); e != nil && e.Parent() == d.entry {
		return d.after(e.Name()), true
	}
	i := slices.IndexFunc(d.listing.Entries, func(e *metadata.Entry) bool { return e.ID() == id })
	return i + 1, i >= 0
}

// after returns the position of the first entry whose name is after name; d.mu
// must be held.
func (d *dirHandle) after(name string) int {
	i, found := slices.BinarySearchFunc(d.listing.Entries, name, func(e *metadata.Entry, name string) int {
		return strings.Compare(e.Name(), name)
	})
	if found {
		i++
	}
	return i
}
