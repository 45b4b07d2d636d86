package metadata

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A file system may have names that its listings lack: other spellings where case is ignored, .snapshot,
// the directories that an automounter makes when they are used. A program uses them as at the source:
//
//  1. A name that is not cached is requested from the source by a Stat, also if a listing lacks it. The
//     kernel caches the answer, as any other.
//  2. A name that is found, and that the listing lacks, is in directory.unlisted: no listing shows it. It may
//     also be new, so that the next listing comes from the source.
//  3. A name that a listing lacks was removed if an earlier listing had it, or if the kernel does not know it.
//     Otherwise, and if it is a directory that the kernel knows, it is unlisted from now on and has expired: its
//     next use requests it. An unlisted name that the kernel does not know leaves the cache after its TTL.
//  4. When a listing has a new name, the kernel forgets that other spellings of it are missing. At a refresh, it
//     forgets all that are missing.
//  5. The sweep leaves an unlisted directory alone if the kernel does not know it: an automounter may unmount it.
//
// None of this holds if names are found by listing: there, a listing has all names.

// ErrUnconfirmed is the error of a lookup of a name that a cached listing lacks, while the source fails. It matches
// io/fs.ErrNotExist. The kernel must not cache it.
var ErrUnconfirmed = fmt.Errorf("not listed, and the source has failed to confirm that: %w", fs.ErrNotExist)

// While no name was found that a listing lacks, a lookup of such a name waits no longer than confirmTimeout. After
// one has waited in vain, others do not wait for confirmPause.
const (
	confirmTimeout = 5 * time.Second
	confirmPause   = 10 * time.Second
)

// every returns the entries of all names, in a slice that is never modified; d.mu must be held for writing.
func (d *directory) every() []*Entry {
	all := d.all()
	for _, e := range d.unlisted {
		all = append(all, e) // copies the slice, which is clipped
	}
	return all
}

// isUnlisted reports whether no listing shows e.
func (e *Entry) isUnlisted() bool {
	if e.parent == nil {
		return false
	}
	d := e.parent.dir
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.unlisted[e.Name()] == e
}

// put sets the entry of e's name, which the source has. The lock of d, the directory, must be held.
func (c *Container) put(d *directory, e *Entry) {
	if c.byListing || !d.everListed || d.get(e.Name()) != nil {
		d.put(e)
		return
	}
	d.setUnlisted(e)
	d.relist = true
	c.hidesNames.Store(true)
}

// setUnlisted sets the entry of e's name, which no listing shows; d.mu must be held.
func (d *directory) setUnlisted(e *Entry) {
	if d.unlisted == nil {
		d.unlisted = make(map[string]*Entry)
	}
	d.unlisted[e.Name()] = e
}

// lacks reports whether a cached listing of dir lacks a name that is not cached.
func (c *Container) lacks(dir *Entry, name string) bool {
	e, listed, _ := dir.dir.find(name)
	return !c.byListing && e == nil && c.fresh(listed)
}

// statLacking is statName for a name without a cached entry that a cached listing of dir lacks. The error is
// ErrUnconfirmed if the source fails, or hangs and is not known to have such names.
func (c *Container) statLacking(ctx context.Context, dir *Entry, name string, cached *Entry) (drivers.Info, error) {
	bounded := ctx
	if !c.hidesNames.Load() {
		if last := c.unanswered.Load(); last != 0 && c.since(last) < confirmPause {
			return drivers.Info{}, ErrUnconfirmed
		}
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, confirmTimeout)
		defer cancel()
	}
	info, err := c.statName(bounded, dir, name, cached)
	switch {
	case err == nil || ctx.Err() != nil || errors.Is(err, fs.ErrNotExist) || isOfName(err):
		return info, err
	case bounded.Err() != nil:
		c.unanswered.Store(c.now())
	}
	c.warn(dir, err)
	return info, ErrUnconfirmed
}

// isOfName reports whether err, of a Stat, is about the name. Other errors are about the source.
func isOfName(err error) bool {
	for _, e := range []error{fs.ErrPermission, syscall.EINVAL, syscall.ENAMETOOLONG, syscall.ENOTDIR, syscall.ELOOP, syscall.EILSEQ} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// unlist completes a listing of dir that was requested at that time: lacking are the entries whose names it lacks
// and that were not unlisted before. The lock of dir must be held.
func (c *Container) unlist(dir *Entry, lacking []*Entry, requested uint32, diff *difference) {
	d := dir.dir
	for name, e := range d.unlisted {
		switch shown := d.shown(name); {
		case shown == e:
			diff.moved = append(diff.moved, e)
		case shown == nil && (e.lookups.Load() > 0 || c.fresh(e.validated.Load())):
			continue
		default: // it has another version, or nobody knows it any more
			c.retire(e)
		}
		delete(d.unlisted, name)
	}
	for _, e := range lacking {
		if c.mayRemain(d, e, requested) {
			d.setUnlisted(e)
			diff.moved = append(diff.moved, e)
		} else {
			c.retire(e)
			diff.removed = append(diff.removed, e)
		}
	}
	c.forgetSpellings(dir, diff)
}

// mayRemain reports whether the source may have e, although the listing that was requested at that time lacks it, and
// makes e expire. If e was validated later, it is the listing that does not count any more. The lock of d, the
// directory, must be held.
func (c *Container) mayRemain(d *directory, e *Entry, requested uint32) bool {
	validated := e.validated.Load()
	if validated > requested {
		d.relist = true
		return true
	}
	if e.Unknown() || d.everListed && !e.IsDir() || e.lookups.Load() <= 0 {
		return false
	}
	d.relist = d.relist || validated == requested // it is not known which was first
	e.validated.Store(0)
	c.outdated.addName(e)
	return true
}

// isAbandoned reports whether the kernel does not know e, and no listing shows e or a directory that it is in.
func (e *Entry) isAbandoned() bool {
	if e.lookups.Load() > 0 {
		return false
	}
	for !e.isUnlisted() {
		if e = e.parent; e == nil {
			return false
		}
	}
	return true
}

// forgetSpellings makes Outdated yield the names in dir of which the kernel has cached that they are missing, and
// that are other spellings of those that a listing has found. The lock of dir must be held.
func (c *Container) forgetSpellings(dir *Entry, found *difference) {
	if len(found.added)+len(found.moved) == 0 {
		return
	}
	spellings := make(map[string]bool)
	if len(dir.dir.missing) > 0 {
		for _, e := range slices.Concat(found.added, found.moved) {
			spellings[strings.ToLower(e.Name())] = true
		}
	}
	c.forgetMissing(dir, func(name string) bool { return spellings[strings.ToLower(name)] })
}

// forgetMissing makes Outdated yield some of the names in dir of which the kernel has cached that they are missing.
// The lock of dir must be held.
func (c *Container) forgetMissing(dir *Entry, which func(name string) bool) {
	c.forgot.Store(int64(time.Since(c.start)))
	maps.DeleteFunc(dir.dir.missing, func(name string, _ struct{}) bool {
		if !which(name) {
			return false
		}
		c.outdated.add(dir, name, false)
		return true
	})
}

// forgetAllMissing is forgetMissing for all names, if a listing does not have all names.
func (c *Container) forgetAllMissing(dir *Entry) {
	if c.byListing {
		return
	}
	dir.dir.mu.Lock()
	defer dir.dir.mu.Unlock()
	c.forgetMissing(dir, func(string) bool { return true })
}

// expireUnlisted makes the entries of d that no listing shows expire, except those that the kernel knows, which it
// returns.
func (d *directory) expireUnlisted() (known []*Entry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.unlisted {
		if e.lookups.Load() > 0 {
			known = append(known, e)
		} else {
			e.validated.Store(0)
		}
	}
	return known
}
