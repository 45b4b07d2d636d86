package metadata

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"

	"github.com/milkweedfs/milkweed/drivers"
)

// A name that the source does not have was removed, unless the part of the source that it was in is gone.
// That is the root, which may be unmounted, or the directory of the current generation, which may be removed
// when there is a next one, as git-sync does. Then the missing name proves nothing: it stays cached, and its
// copies stay readable.

// errLost is the error of a request for a name in a part of the source that is gone.
var errLost = fmt.Errorf("it is gone: %w", syscall.ESTALE)

// sourceLost returns errLost if the part of the source that e is in is gone, and the error of the source if
// that does not say.
func (c *Container) sourceLost(ctx context.Context, e *Entry) error {
	part, stat := c.root, c.statRoot
	if top := c.Top(); top != c.root && e.isIn(top) {
		part, stat = top, func(ctx context.Context) (drivers.Info, error) { return c.source.Stat(ctx, top.Path()) }
	}
	info, err := stat(ctx)
	switch {
	case err == nil && (info.Nlink > 0 || c.byListing): // a Lister does not count links
		part.clearBits(lost)
		return nil
	case err == nil || isAbsent(err):
		part.setBits(lost)
		return errLost
	}
	return err
}

// statName requests the attributes of a name in dir. If the source does not have it, statName returns the
// error of sourceLost, if there is one. If the root has been replaced meanwhile, it asks the new one.
//
// A name that is not cached is just missing if a listing lacks it too, and the root was requested after that. The
// root of a Lister is not replaced.
func (c *Container) statName(ctx context.Context, dir *Entry, name string, cached *Entry) (drivers.Info, error) {
	before := c.roots.Load()
	info, err := c.source.Stat(ctx, pathOf(dir, name))
	if !isAbsent(err) || cached == nil && c.byListing && !c.HasGenerations() {
		return info, err
	}
	if cached == nil && c.lacks(dir, name) {
		c.confirmListings(ctx)
	} else {
		err = cmp.Or(c.sourceLost(ctx, cmp.Or(cached, dir)), err)
	}
	if c.roots.Load() != before {
		return c.source.Stat(ctx, pathOf(dir, name))
	}
	return info, err
}

// isIn reports whether e is a directory or is below it.
func (e *Entry) isIn(dir *Entry) bool {
	for e != dir && e.parent != nil {
		e = e.parent
	}
	return e == dir
}

// GenerationLost reports whether the source did not have the directory of the current generation when it
// was last asked. It makes no request.
func (c *Container) GenerationLost() bool {
	e := c.top.Load()
	return e != c.root && e.isLost()
}

// isLost reports whether e is a part of the source that is gone.
func (e *Entry) isLost() bool { return e.state.Load()&lost != 0 }

// withTop adds the directory of the current generation to the names that the source has listed in dir, if
// dir is the root and the source has it no longer. The lock of dir must be held.
func (c *Container) withTop(dir *Entry, listed []*Entry) []*Entry {
	top := c.top.Load()
	if top.parent != dir || top.Stale() || slices.ContainsFunc(listed, func(e *Entry) bool { return e.Name() == top.Name() }) {
		return listed
	}
	top.setBits(lost)
	return append(listed, top)
}

// Failed is called with the error of a request to the source for the content of e, a regular file or a piece
// of one. If the error says that the source has another version, or none, e becomes stale as by Changed, unless
// the part of the source that e is in is gone, or e was not compared with a root that has been replaced. Failed
// returns the error for the reader.
func (c *Container) Failed(ctx context.Context, e *Entry, err error) error {
	e = e.File()
	switch {
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, drivers.ErrChanged) || e.Stale():
		return err
	case c.sourceLost(ctx, e) == errLost, c.roots.Load() > 0 && e.validated.Load() <= c.distrusted.Load():
		return fmt.Errorf("%s: %w", e.Path(), errLost)
	}
	c.Changed(e)
	return err
}
