package metadata

import (
	"context"
	"sync/atomic"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// The path of the source may lead to another directory during the mount: something is mounted there, or
// the directory was renamed and another one has its name. A driver that notices this reads the other
// directory from then on, and the Dev and Inode of its root differ. What is cached of the old one is then
// compared with the new one: names and attributes at their next use, and what the kernel has cached at
// once. Entries, copies and open files stay, as far as the new root has the same versions.

// A rootFile identifies the directory that was last known to be the root of the source.
type rootFile struct {
	mu         panics.Mutex // guards the following
	dev, inode uint64       // 0: the source has no such numbers, or no request was made yet

	listings  atomic.Uint64 // counts listings of directories that have ended
	confirmed atomic.Uint64 // the listings that had ended before the root was last requested
}

// replaced records the attributes of the root, and reports whether another directory was known before. It
// then calls found before any other call of replaced returns.
func (r *rootFile) replaced(info drivers.Info, found func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if info.Inode == 0 || r.dev == info.Dev && r.inode == info.Inode {
		return false
	}
	known := r.inode != 0
	r.dev, r.inode = info.Dev, info.Inode
	if known {
		found()
	}
	return known
}

// statRoot requests the attributes of the root of the source. If that is another directory than before,
// it distrusts everything that is cached.
func (c *Container) statRoot(ctx context.Context) (drivers.Info, error) {
	listings := c.rootFile.listings.Load()
	info, err := c.source.Stat(ctx, ".")
	if err != nil {
		return info, err
	}
	if c.rootFile.replaced(info, c.distrust) {
		c.log.Warn("the path of the source leads to another directory now; all names are compared with it")
		c.distrustAll()
	}
	c.rootFile.confirmed.Store(listings)
	return info, nil
}

// confirmListings makes fresh report false for a listing that was made in a root which has been replaced
// meanwhile, and which may have lost the names that are not in it. It requests the root, unless that was done
// after the last listing of any directory. While the source fails, listings count after one request.
func (c *Container) confirmListings(ctx context.Context) {
	r := &c.rootFile
	listings := r.listings.Load()
	if r.confirmed.Load() == listings {
		return
	}
	if _, err := c.statRoot(ctx); err != nil && ctx.Err() == nil {
		r.confirmed.Store(listings)
	}
}

// distrust makes all that is known by requests that were made before not fresh.
func (c *Container) distrust() {
	c.distrusted.Store(c.now())
	c.roots.Add(1)
}

// distrustAll makes the container compare everything with the source before its next use.
func (c *Container) distrustAll() {
	c.changes.Add(1)
	c.overtake()
	if c.snapshot != nil {
		c.snapshot.warned.Store(true) // it is no fault of the snapshot
		c.snapshot.ended.Store(true)
	}
	c.distrustBelow(c.root)
}

// distrustBelow makes Outdated yield all that the kernel has cached of dir and below it. The stamps of
// the directories prove nothing any more.
func (c *Container) distrustBelow(dir *Entry) {
	d := dir.dir
	d.mu.Lock()
	d.stamp = stamp{}
	entries := d.every()
	for name := range d.missing {
		c.outdated.add(dir, name, false)
	}
	d.mu.Unlock()
	c.contentChanged(dir)
	for _, e := range entries {
		e.clearBits(permitted | denied)
		if e.lookups.Load() > 0 {
			c.outdated.addName(e)
		}
		if e.dir != nil {
			c.distrustBelow(e)
		}
	}
}
