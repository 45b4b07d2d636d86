package metadata

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/milkweedfs/milkweed/drivers"
)

// Unsized reports whether e is a regular file of size 0 that may have content, because its source shows no size
// for some files (drivers.Info.Unsized). Permit ends that for an empty file, until its attributes change, and for the
// TTL at most.
func (e *Entry) Unsized() bool { return e.state.Load()&unsized != 0 }

// Full reports whether e is Unsized and is known to have content.
func (e *Entry) Full() bool { return e.state.Load()&full != 0 }

// proveEmpty is the request of Permit for an Unsized file. It opens the file at the source and reads a byte. The error
// is drivers.ErrUnsized if there is one: a file without a known size has no copies, and the kernel reads nothing of it.
// If the source fails, a file that was empty before is still empty.
func (c *Container) proveEmpty(ctx context.Context, e *Entry) error {
	info := e.Info()
	err := c.openEmpty(ctx, e)
	switch {
	case err == nil && c.isSettled(info):
		e.ifUnchanged(timesOf(info), func() { e.setBits(wasEmpty); e.clearBits(unsized) })
	case errors.Is(err, drivers.ErrChanged), errors.Is(err, fs.ErrNotExist):
		c.Changed(e)
	case errors.Is(err, drivers.ErrUnsized):
		if _, _, failed := c.revalidateName(ctx, e.parent, e.Name()); failed == nil && e.Stale() {
			return openError(e, drivers.ErrChanged) // some sources show the size of an open file
		}
		e.clearBits(wasEmpty)
		e.setIfUnchanged(full, timesOf(info))
		if c.mayWarn(&c.warnedFull) {
			c.log.Warn("file not readable through Milkweed", "path", e.Path(), "err", err)
		}
		return openError(e, err)
	case err != nil && ctx.Err() == nil && !isOfName(err) && e.state.Load()&wasEmpty != 0:
		c.warn(e, err)
		return nil
	}
	return err
}

// openEmpty opens an Unsized file at the source, and returns nil if it is empty.
func (c *Container) openEmpty(ctx context.Context, e *Entry) error {
	result := c.Opening(e)
	obj, err := c.source.Open(ctx, e.Path())
	result(err)
	if err != nil {
		return err
	}
	defer obj.Close()
	if err = drivers.CheckEmpty(ctx, obj); errors.Is(err, syscall.ESRCH) { // in /proc, of a process that has ended
		err = openError(e, fs.ErrNotExist)
	}
	return err
}
