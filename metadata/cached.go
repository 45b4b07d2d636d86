package metadata

import (
	"path"
	"strconv"
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

// SourceOf returns the path of the file that a copy is of. If it is the copy of a piece, SourceOf also
// returns the size of that file, and else -1. A container that divides no files finds those pieces, too.
func (c *Container) SourceOf(name tiers.CopyName) (file string, size int64) {
	below, ok := strings.CutPrefix(string(name), piecesDir+"/")
	if ok {
		file, piece := path.Split(below)
		index, of, _ := strings.Cut(piece, ".")
		_, err := strconv.ParseInt(index, 10, 64)
		if n, sizeErr := strconv.ParseInt(of, 10, 64); err == nil && sizeErr == nil && n > 0 && file != "" {
			return path.Clean(file), n
		}
	}
	return string(name), -1
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
