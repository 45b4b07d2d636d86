package metadata

import (
	"path"
	"strings"

	"github.com/milkweedfs/milkweed/tiers"
)

// CopyName returns what the method CopyName of the entry of a path returns. The entry need not
// be loaded.
func (c *Container) CopyName(path string) tiers.CopyName { return tiers.CopyName(path) }

// FileOf returns the path of the file whose copy, or a piece of it, has a name.
func (c *Container) FileOf(name tiers.CopyName) string {
	if below, ok := strings.CutPrefix(string(name), piecesDir+"/"); ok && c.pieceSize > 0 {
		return path.Dir(below)
	}
	return string(name)
}

// CachedCopy returns the entry whose CopyName is name, or nil if it is not loaded. It may be a
// piece. Unlike Resolve, it makes no request to the source or to a tier, and reads no metadata
// snapshot.
func (c *Container) CachedCopy(name tiers.CopyName) *Entry {
	e := c.root
	if name == "." {
		return e
	}
	if below, ok := strings.CutPrefix(string(name), piecesDir+"/"); ok && c.pieceSize > 0 {
		file, piece := path.Split(below)
		if f := c.CachedCopy(tiers.CopyName(path.Clean(file))); f != nil {
			return pieceOf(c.CachedPieces(f), piece)
		}
		return nil
	}
	for elem := range strings.SplitSeq(string(name), "/") {
		if e == nil || e.dir == nil {
			return nil
		}
		e, _, _ = e.dir.find(elem)
	}
	return e
}
