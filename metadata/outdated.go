package metadata

import (
	"context"
	"iter"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// An Outdated is a part of the kernel's cache that no longer agrees with the container.
type Outdated struct {
	Entry   *Entry // the directory of Name, or the file or directory whose attributes have changed
	Name    string // the name whose dentry is outdated, positive or negative; "": the attributes of Entry
	Content bool   // if Name is "": the content of Entry is outdated too, its listing or its pages
}

// A part identifies an Outdated: the dentry of a name in e, or e itself if name is "".
type part struct {
	e    *Entry
	name string
}

// outdatedParts is the set of parts for which the kernel has not been notified yet. It has at
// most one part for each name and each node that the kernel has cached.
type outdatedParts struct {
	mu       panics.Mutex  // guards the following; no other lock is taken under it
	parts    map[part]bool // the value is Outdated.Content
	arrived  chan struct{} // closed when parts is no longer empty; nil if no goroutine waits
	taken    uint64        // number of batches that were taken
	finished uint64        // number of batches of which every part was yielded, and the yield has returned
	progress chan struct{} // closed when finished grows; nil if no goroutine waits
}

// Outdated yields each part of the kernel's cache that has become outdated, until ctx is done:
//
//   - the name of an entry that became stale, because the name has another entry or none, or that is to
//     be requested at its next use, because a listing lacks it;
//   - a name of which the kernel has cached that it is missing (HoldMissing), and that exists now, or
//     may exist by another spelling;
//   - an entry whose attributes have changed;
//   - a directory whose listing Revalidate or Sweep has found to be another one;
//   - a file whose content may have changed although its version is the same (Doubt).
//
// It yields nothing that the kernel has not cached. For a removed directory it yields only the
// name of the directory itself.
//
// It holds no lock while it yields, so that the caller may wait for the kernel, which may
// itself wait for a reply that needs the container. A part that becomes outdated repeatedly
// before it is yielded is yielded once. At most one goroutine calls Outdated at a time.
func (c *Container) Outdated(ctx context.Context) iter.Seq[Outdated] {
	return func(yield func(Outdated) bool) {
		for {
			parts, arrived := c.outdated.take()
			for p, content := range parts {
				if !yield(Outdated{p.e, p.name, content}) {
					return
				}
			}
			if len(parts) > 0 {
				continue
			}
			select {
			case <-arrived:
			case <-ctx.Done():
				return
			}
		}
	}
}

// WaitNotified waits until Outdated has yielded all parts that are outdated now, and its caller
// has asked for the next one. Then the kernel was notified of every change that the container
// has found so far. It must not be called from a request of the kernel, which may hold a lock
// that the notification needs.
func (c *Container) WaitNotified(ctx context.Context) error {
	o := &c.outdated
	o.mu.Lock()
	defer o.mu.Unlock()
	want := o.taken
	if len(o.parts) > 0 {
		want++
	}
	for o.finished < want {
		if o.progress == nil {
			o.progress = make(chan struct{})
		}
		progress := o.progress
		o.mu.Unlock()
		select {
		case <-progress:
		case <-ctx.Done():
		}
		o.mu.Lock()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// add adds the dentry of a name in e, or e itself if name is "".
func (o *outdatedParts) add(e *Entry, name string, content bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.parts == nil {
		o.parts = make(map[part]bool)
	}
	p := part{e, name}
	o.parts[p] = o.parts[p] || content
	if o.arrived != nil {
		close(o.arrived)
		o.arrived = nil
	}
}

// addName adds the name of an entry that is or was in its directory.
func (o *outdatedParts) addName(e *Entry) {
	if e.parent != nil {
		o.add(e.parent, e.Name(), false)
	}
}

// take finishes the batch that was taken before, and takes all parts. If there are none, it
// returns a channel that is closed when some are added.
func (o *outdatedParts) take() (map[part]bool, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.finished < o.taken {
		o.finished = o.taken
		if o.progress != nil {
			close(o.progress)
			o.progress = nil
		}
	}
	parts := o.parts
	o.parts = nil
	if len(parts) > 0 {
		o.taken++
		return parts, nil
	}
	o.arrived = make(chan struct{})
	return nil, o.arrived
}

// maxMissing bounds directory.missing.
const maxMissing = 4096

// addMissing adds a name to d.missing; d.mu must be held.
func (d *directory) addMissing(name string) {
	switch {
	case d.manyMissing:
	case len(d.missing) == maxMissing:
		d.missing, d.manyMissing = nil, true
	case d.missing == nil:
		d.missing = map[string]struct{}{name: {}}
	default:
		d.missing[name] = struct{}{}
	}
}

// removeMissing removes a name from d.missing, and reports whether the kernel may have cached
// that it is missing; d.mu must be held.
func (d *directory) removeMissing(name string) bool {
	_, ok := d.missing[name]
	delete(d.missing, name)
	return ok || d.manyMissing
}

// HoldMissing records that the kernel caches that a directory does not have a name, by a lookup that
// began at that time: Outdated yields the name when it exists, or may exist by another spelling. It
// reports false if it may exist already; then the kernel must not cache the reply. It must be called
// before the reply is sent to the kernel.
func (c *Container) HoldMissing(dir *Entry, name string, began time.Time) bool {
	d := dir.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.get(name) != nil || dir.Stale() || c.forgot.Load() >= int64(began.Sub(c.start)) {
		return false
	}
	d.addMissing(name)
	return true
}
