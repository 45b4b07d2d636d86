package metadata

import (
	"context"
	"encoding/binary"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/milkweedfs/milkweed/drivers"
)

// A User is a user of the mount other than that of this process. The daemon decides for such a user as
// the kernel does in a mount with allow_other: by the mode, the owner, the group and the ACL of each
// entry. Capabilities of the user are not known, and do not count.
type User struct {
	UID    uint32
	Groups []uint32 // the effective one and all others
}

// CallerKey is the key of the ID of the user, a uint32, who has made a request of the kernel, in its context.
type CallerKey struct{}

// ResolveAs is Resolve for a user, who may read the entry. Otherwise the error matches fs.ErrPermission.
// ResolveAs looks up no name in a directory that the user may not search, so that the error says nothing
// of it.
func (c *Container) ResolveAs(ctx context.Context, u User, name string) (*Entry, error) {
	e := c.root
	if err := c.require(ctx, u, c.Top(), syscall.S_IXOTH); err != nil {
		return nil, err
	}
	if name = path.Clean(name); name != "." {
		for elem := range strings.SplitSeq(name, "/") {
			if e != c.root || elem != c.Generation() { // otherwise its parent is no directory of the path in the mount
				if err := c.require(ctx, u, e, syscall.S_IXOTH); err != nil {
					return nil, err
				}
			}
			var err error
			if e, err = c.Lookup(ctx, e, elem); err != nil {
				return nil, err
			}
		}
	}
	return e, c.require(ctx, u, e, syscall.S_IROTH)
}

// require returns an error unless u has the right on e that a bit of the mode for others stands for.
func (c *Container) require(ctx context.Context, u User, e *Entry, bit uint32) error {
	if err := c.Refresh(ctx, e); err != nil {
		return err
	}
	acl, err := c.ACL(ctx, e)
	if err != nil {
		return err
	}
	if !u.has(bit, e.Info(), acl) {
		return denial(e)
	}
	return nil
}

// has reports whether u has the right that a bit of the mode for others stands for.
func (u User) has(bit uint32, info drivers.Info, acl []byte) bool {
	switch {
	case u.UID == info.UID:
		return info.Mode>>6&bit != 0
	case len(acl) > 0 && info.Mode&syscall.S_IRWXG != 0: // as in acl_permission_check of Linux
		return u.hasByACL(bit, info, acl)
	case slices.Contains(u.Groups, info.GID):
		return info.Mode>>3&bit != 0
	}
	return info.Mode&bit != 0
}

// The tags of the entries of an ACL in drivers.ACLXattr.
const (
	aclUser     = 0x02
	aclGroupObj = 0x04
	aclGroup    = 0x08
	aclMask     = 0x10
	aclOther    = 0x20
)

// The format of drivers.ACLXattr: a version, and entries with a tag, permissions and an ID.
const (
	aclVersion   = 2
	aclHeader    = 4
	aclEntrySize = 8
)

// hasByACL is has for a user other than the owner, by the algorithm in acl(5). An ACL that is not in the
// format permits nothing.
func (u User) hasByACL(bit uint32, info drivers.Info, acl []byte) bool {
	if len(acl) < aclHeader || (len(acl)-aclHeader)%aclEntrySize != 0 || binary.LittleEndian.Uint32(acl) != aclVersion {
		return false
	}
	mask, other := uint32(syscall.S_IRWXO), uint32(0)
	var user, group uint32 // the permissions of the entry of the user, and of those of its groups that have the right
	named, member := false, false
	for acl = acl[aclHeader:]; len(acl) > 0; acl = acl[aclEntrySize:] {
		tag, permissions, id := binary.LittleEndian.Uint16(acl), uint32(binary.LittleEndian.Uint16(acl[2:])), binary.LittleEndian.Uint32(acl[4:])
		switch {
		case tag == aclUser && id == u.UID:
			named, user = true, permissions
		case tag == aclGroupObj && slices.Contains(u.Groups, info.GID), tag == aclGroup && slices.Contains(u.Groups, id):
			member, group = true, group|permissions
		case tag == aclMask:
			mask = permissions
		case tag == aclOther:
			other = permissions
		}
	}
	switch {
	case named:
		return user&mask&bit != 0
	case member:
		return group&mask&bit != 0
	}
	return other&bit != 0
}
