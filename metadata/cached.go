package metadata

import (
	"strings"

	"github.com/milkweedfs/milkweed/tiers"
)

// CopyName returns what the method CopyName of the entry of a path returns. The entry need not
// be loaded.
func (c *Container) CopyName(path string) tiers.CopyName { return tiers.CopyName(path) }

// CachedCopy returns the entry whose CopyName is name, or nil if it is not loaded. Unlike
// Resolve, it makes no request to the source or to a tier, and reads no metadata snapshot.
func (c *Container) CachedCopy(name tiers.CopyName) *Entry {
	e := c.root
	if name == "." {
		return e
	}
	for elem := range strings.SplitSeq(string(name), "/") {
		if e == nil || e.dir == nil {
			return nil
		}
		e, _, _ = e.dir.find(elem)
	}
	return e
}
