package manifest

import (
	"context"
	"sync"

	"github.com/milkweedfs/milkweed/drivers"
)

// A rootFile identifies the directory that was the root of the source when its manifests were read.
type rootFile struct {
	mu         sync.Mutex // held while the root is compared
	known      bool
	dev, inode uint64
}

// Follow makes the driver call load for the manifest of a source whose root has been replaced by another
// directory, because the manifest is a file in it. Follow is called before any other method.
func (d *Driver) Follow(load func(ctx context.Context) (*Manifest, error)) { d.again = load }

// statRoot is Stat of the root. It is the only request that the driver sends for a name, and it finds out
// whether the root is another directory by now. Manifests that were read in the old one are then
// forgotten; that of the whole source is read again, and without it the root cannot be used.
func (d *Driver) statRoot(ctx context.Context) (drivers.Info, error) {
	fixed := d.fixed.Load()
	if _, ok := drivers.As[drivers.Lister](d.inner); ok && fixed != nil { // a bucket has no such root
		return fixed.dirs["."].info("."), nil
	}
	info, err := d.inner.Stat(ctx, ".")
	if err != nil {
		return drivers.Info{}, err
	}
	if err := d.compareRoot(ctx, info); err != nil {
		return drivers.Info{}, pathError("stat", ".", err)
	}
	if fixed = d.fixed.Load(); fixed != nil {
		listed := fixed.dirs["."].info(".")
		listed.Dev, listed.Inode = info.Dev, info.Inode
		return listed, nil
	}
	return info, nil
}

// compareRoot reads the manifests again if the root, which info describes, is another directory than
// before.
func (d *Driver) compareRoot(ctx context.Context, info drivers.Info) error {
	r := &d.root
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known && (r.dev != info.Dev || r.inode != info.Inode) {
		var m *Manifest
		if d.again != nil {
			var err error
			if m, err = d.again(ctx); err != nil {
				return err
			}
			d.fixed.Store(m)
		}
		if m != nil || d.fixed.Load() == nil {
			d.mu.Lock()
			d.loaded, d.changes, d.rejected = nil, nil, nil
			d.mu.Unlock()
		}
	}
	r.known, r.dev, r.inode = true, info.Dev, info.Inode
	return nil
}
