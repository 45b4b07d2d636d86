package metadata

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// Listxattr returns the names of the user attributes of an entry, each followed by a NUL. The
// reply of the source is cached as long as the attributes of the entry.
func (c *Container) Listxattr(ctx context.Context, e *Entry) ([]byte, error) {
	return c.xattr(ctx, e, "", func() ([]byte, error) {
		names, err := c.source.Listxattr(ctx, e.Path())
		var list []byte
		for _, name := range names {
			list = append(append(list, name...), 0)
		}
		return list, err
	})
}

// Getxattr returns a user attribute of an entry. The reply of the source is cached as long as the
// attributes of the entry. The error for a missing attribute is syscall.ENODATA.
func (c *Container) Getxattr(ctx context.Context, e *Entry, attr string) ([]byte, error) {
	value, err := c.xattr(ctx, e, attr, func() ([]byte, error) {
		value, err := c.source.Getxattr(ctx, e.Path(), attr)
		switch {
		case errors.Is(err, syscall.ENODATA):
			return nil, nil
		case err == nil && value == nil:
			value = []byte{}
		}
		return value, err
	})
	if err == nil && value == nil {
		err = syscall.ENODATA
	}
	return value, err
}

// HasACLs reports whether the file system of the source has POSIX ACLs. If the source does not
// say, it may have them.
func (c *Container) HasACLs(ctx context.Context) bool {
	_, _, err := c.source.ACL(ctx, ".")
	return !errors.Is(err, syscall.ENOTSUP)
}

// ACL returns the access ACL of an entry in the format of drivers.ACLXattr, or nil if it has none.
// The reply of the source is cached as long as the attributes of the entry. If the path has
// another version by now, the error is syscall.ESTALE: the ACL of one version must not control
// access to another version.
func (c *Container) ACL(ctx context.Context, e *Entry) ([]byte, error) {
	if e.IsSymlink() {
		return nil, nil
	}
	return c.xattr(ctx, e, drivers.ACLXattr, func() ([]byte, error) {
		requested := c.now()
		acl, info, err := c.source.ACL(ctx, e.Path())
		switch {
		case errors.Is(err, syscall.ENOTSUP): // on another file system than the root
			return nil, nil
		case err != nil || e.parent == nil:
			return acl, err
		}
		info.Name = e.Name()
		now, err := c.merge(ctx, e.parent, info, requested)
		if err == nil && now != e {
			err = syscall.ESTALE
		}
		return acl, err
	})
}

// absent returns the bit of the state of an entry that makes a request for an attribute unnecessary.
func absent(attr string) uint32 {
	if attr == drivers.ACLXattr {
		return noACL
	}
	return noXattrs
}

// xattr returns the reply of the source about an attribute of e, or about the list of them if
// attr is "". It calls request if the reply is not cached, once for all callers that wait for it.
func (c *Container) xattr(ctx context.Context, e *Entry, attr string, request func() ([]byte, error)) ([]byte, error) {
	if c.ttl == 0 {
		return request()
	}
	if err := c.Refresh(ctx, e); err != nil {
		return nil, err
	}
	if e.Stale() {
		return nil, syscall.ESTALE // the path has another file
	}
	key, times := replyKey{e.id, attr}, e.lockedTimes()
	cached := func() (value []byte, ok bool) {
		if e.state.Load()&absent(attr) != 0 {
			return nil, true
		}
		return c.xattrs.get(key, times)
	}
	if value, ok := cached(); ok {
		return value, nil
	}
	return c.xattrs.request(ctx, key, times, func() ([]byte, error) {
		if value, ok := cached(); ok { // another request has just ended
			return value, nil
		}
		value, err := request()
		switch {
		case err != nil || time.Since(times.newest()) < c.racy: // the next change may leave the times as they are
		case len(value) == 0 && (attr == "" || attr == drivers.ACLXattr):
			e.setIfUnchanged(absent(attr), times)
		default:
			c.xattrs.put(key, cachedReply[[]byte]{value, len(value), times})
		}
		return value, err
	})
}

// lockedTimes returns the times in the attributes of e.
func (e *Entry) lockedTimes() fileTimes {
	mu := e.attributes()
	mu.RLock()
	defer mu.RUnlock()
	return e.times()
}

// setIfUnchanged sets bits of the state of e if its attributes still have the times t. The bits
// end with the next change of the attributes.
func (e *Entry) setIfUnchanged(bits uint32, t fileTimes) {
	e.ifUnchanged(t, func() { e.setBits(bits) })
}

// ifUnchanged calls f if the attributes of e still have the times t.
func (e *Entry) ifUnchanged(t fileTimes, f func()) {
	mu := e.attributes()
	mu.RLock()
	defer mu.RUnlock()
	if e.times() == t {
		f()
	}
}
