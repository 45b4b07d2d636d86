package fs

import (
	"context"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/milkweedfs/milkweed/metadata"
)

// A dirHandle is an open directory: a listing as it was when it was begun.
type dirHandle struct {
	entry *metadata.Entry

	mu      sync.Mutex // guards the following
	entries []*metadata.Entry
	begun   bool
}

// OpenDir opens a directory.
func (f *fileSystem) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	e, status := f.entry(in.NodeId)
	if status != fuse.OK {
		return status
	}
	if !e.IsDir() {
		return fuse.ENOTDIR
	}
	out.Fh = f.dirs.add(&dirHandle{entry: e})
	return fuse.OK
}

// ReleaseDir closes a directory.
func (f *fileSystem) ReleaseDir(in *fuse.ReleaseIn) { f.dirs.remove(in.Fh) }

// ReadDir returns names from an offset on.
func (f *fileSystem) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.list(cancel, in, func(name string, e *metadata.Entry) bool {
		return out.AddDirEntry(dirEntry(name, e))
	})
}

// ReadDirPlus returns names and attributes from an offset on.
func (f *fileSystem) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.list(cancel, in, func(name string, e *metadata.Entry) bool {
		entry := out.AddDirLookupEntry(dirEntry(name, e))
		if entry == nil {
			return false
		}
		if name != "." && name != ".." { // those are not looked up
			f.fill(e, entry)
		}
		return true
	})
}

func dirEntry(name string, e *metadata.Entry) fuse.DirEntry {
	return fuse.DirEntry{Name: name, Ino: e.ID(), Mode: e.Type()}
}

// list adds the names of a directory from an offset on until add has no room.
// The offset of a name counts "." as 0, ".." as 1 and the entries from 2.
func (f *fileSystem) list(cancel <-chan struct{}, in *fuse.ReadIn, add func(string, *metadata.Entry) bool) fuse.Status {
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
	if in.Offset == 0 && !add(".", d.entry) {
		return fuse.OK
	}
	if in.Offset <= 1 && !add("..", d.entry.Parent()) {
		return fuse.OK
	}
	for i := max(in.Offset, 2) - 2; i < uint64(len(d.entries)); i++ {
		if e := d.entries[i]; !add(e.Name(), e) {
			break
		}
	}
	return fuse.OK
}

// begin lists the directory if that has not been done, or if the reader has
// gone back to the start; d.mu must be held.
func (d *dirHandle) begin(ctx context.Context, names *metadata.Container, offset uint64) error {
	if d.begun && offset > 0 {
		return nil
	}
	entries, err := names.List(ctx, d.entry)
	if err != nil {
		return err
	}
	d.entries, d.begun = entries, true
	return nil
}
