package metadata

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A copy is opened only if the source would let the user of this process open the file. Permit
// decides that for each state of the attributes of the file and of the directories above it:
//
//  1. by these attributes, where they decide (drivers.Permitter);
//  2. by the open that has made the copy (Opening), so that what this process has copied from the
//     source costs no request;
//  3. by a request (tiers.Source.Access), for copies from other nodes, copies of an earlier process
//     that has left no metadata snapshot, and files whose attributes have changed.
//
// A permission lasts until the attributes change, and the metadata snapshot contains it. A denial
// lasts until the source confirms the attributes: a ticket may expire, and be renewed.

// Permit returns nil if the source lets the user of this process open a regular file, or the file of a
// piece. The error matches fs.ErrPermission if it does not, and is that of the source if it does not
// answer and no earlier decision stands. A file that is no longer there is permitted if the
// attributes do not deny it: its name is the concern of Lookup. The error for an Unsized file matches
// drivers.ErrUnsized if it has content, and fs.ErrNotExist if it is no longer there.
func (c *Container) Permit(ctx context.Context, e *Entry) error {
	e = e.File()
	if known, err := c.decided(e); known {
		return err
	}
	_, err := c.accesses.request(ctx, replyKey{id: e.id}, e.lockedTimes(), func() (struct{}, error) {
		known, err := c.decided(e)
		switch {
		case known: // another request has just ended
			return struct{}{}, err
		case e.Unsized():
			return struct{}{}, c.proveEmpty(ctx, e)
		}
		result := c.Opening(e)
		err = c.source.Access(ctx, e.Path())
		result(err)
		return struct{}{}, err
	})
	if errors.Is(err, fs.ErrNotExist) && !e.Unsized() {
		return nil
	}
	return err
}

// IsPermitted reports whether Permit would return nil without a request.
func (c *Container) IsPermitted(e *Entry) bool {
	known, err := c.decided(e.File())
	return known && err == nil
}

// decided reports whether it is known what Permit returns for e, which is then err.
func (c *Container) decided(e *Entry) (known bool, err error) {
	if e.Full() {
		return true, openError(e, drivers.ErrUnsized)
	}
	if c.mayDeny {
		if known, err = c.permits(e); !known || err != nil {
			return known, err
		}
	}
	return !e.Unsized(), nil
}

// permits reports whether it is known whether the source lets the user of this process open e, and
// returns an error if it does not.
func (c *Container) permits(e *Entry) (known bool, err error) {
	known = true
	for p := e; ; p = p.parent {
		switch state := p.state.Load(); {
		case state&permitted != 0:
		case state&denied != 0:
			return true, denial(e)
		default:
			info := p.Info()
			switch permits, decided := c.permitsByAttributes(p, info); {
			case !decided:
				known = false
			case permits:
				p.setIfUnchanged(permitted, timesOf(info))
			default:
				return true, denial(e)
			}
		}
		if p.parent == nil {
			return known, nil
		}
	}
}

func denial(e *Entry) error { return openError(e, syscall.EACCES) }

func openError(e *Entry, err error) error {
	return &fs.PathError{Op: "open", Path: e.Path(), Err: err}
}

// permitsByAttributes is drivers.Permitter.Permits for e, which has the attributes info.
func (c *Container) permitsByAttributes(e *Entry, info drivers.Info) (permits, known bool) {
	if !e.sharesDevice(c.root) {
		return false, false
	}
	return c.source.Permits(info, e.state.Load()&noACL != 0)
}

// sharesDevice reports whether e is on the file system of root.
func (e *Entry) sharesDevice(root *Entry) bool {
	dir := e
	if e.dir == nil {
		dir = e.parent
	}
	return dir.device() == root.device()
}

// device returns directory.device.
func (e *Entry) device() uint32 {
	mu := e.attributes()
	mu.RLock()
	defer mu.RUnlock()
	return e.dir.device
}

// Opening is called before the source is asked to open e, a regular file or a piece of one. The caller
// passes the result to the function that it returns, which records what that decides.
func (c *Container) Opening(e *Entry) (result func(error)) {
	if !c.mayDeny {
		return func(error) {}
	}
	e = e.File()
	info := e.Info()
	var above []*Entry // that are not known to be permitted, with their times
	var times []fileTimes
	for p := e.parent; p != nil; p = p.parent {
		if p.state.Load()&permitted == 0 {
			above, times = append(above, p), append(times, p.lockedTimes())
		}
	}
	return func(err error) {
		switch {
		case errors.Is(err, fs.ErrPermission):
			e.setIfUnchanged(denied, timesOf(info))
		case err != nil:
		case c.isSettled(info):
			e.setIfUnchanged(permitted, timesOf(info))
			for i, p := range above {
				p.setIfUnchanged(permitted, times[i])
			}
		}
	}
}

// isSettled reports whether the next change of a file will change its times.
func (c *Container) isSettled(info drivers.Info) bool {
	age := time.Since(info.Ctime)
	return age < 0 || age >= c.racy
}

// denies reports whether err says that the source denies a name. A bucket may do so because its
// credentials have expired.
func (c *Container) denies(err error) bool { return c.mayDeny && errors.Is(err, fs.ErrPermission) }

// permittedRoot returns rootState, or "" if the root is not known to be permitted.
func (c *Container) permittedRoot() string {
	state := c.rootState()
	if c.root.state.Load()&permitted == 0 {
		return ""
	}
	return state
}

// rootState identifies the state of the attributes of the root.
func (c *Container) rootState() string {
	i := c.root.Info()
	return fmt.Sprint(i.Mode, i.UID, i.GID, i.Ctime.UnixNano())
}
