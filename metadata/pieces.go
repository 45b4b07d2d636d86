package metadata

import (
	"context"
	"path"
	"strconv"
	"strings"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/tiers"
)

// A large file can be divided into pieces, so that each of them has its own owner among the nodes of
// a job. A piece is an entry: it has a level, claims and copies, as a file does. It is in no
// directory, and the kernel never gets it. Its attributes are those of the file, except for the size.
//
// The copies of the pieces of FILE have the names piecesDir/FILE/INDEX.SIZE, where SIZE is the size
// of the file. If the source has something of the name piecesDir, it is not copied.
const piecesDir = ".milkweed-pieces"

// pieceTable holds the pieces of files.
type pieceTable struct {
	mu panics.Mutex // guards the following
	of map[*Entry][]*Entry
}

// makePiece returns the piece of a file with an index.
func makePiece(file *Entry, index, unit int64) *Entry {
	name := strconv.FormatInt(index, 10) + "." + strconv.FormatInt(file.size, 10)
	off := index * unit
	return &Entry{
		parent: file, text: name, nameLen: uint32(len(name)), kind: file.kind,
		size: min(unit, file.size-off), atime: off,
	}
}

// IsPiece reports whether the entry is a piece of a file.
func (e *Entry) IsPiece() bool { return e.parent != nil && e.parent.dir == nil }

// File returns the file that the entry is a piece of, or the entry itself.
func (e *Entry) File() *Entry {
	if e.IsPiece() {
		return e.parent
	}
	return e
}

// Offset returns where a piece begins in its file. It is 0 for a file.
func (e *Entry) Offset() int64 {
	if e.IsPiece() {
		return e.atime
	}
	return 0
}

// Unit returns the name of the file or piece among the nodes of a job: the path of the file or, of a
// piece, that path, a zero byte and the name of the piece.
func (e *Entry) Unit() string {
	if e.IsPiece() {
		return e.Path() + "\x00" + e.Name()
	}
	return e.Path()
}

// pieceInfo returns the attributes of a piece; e.attributes must be held.
func (e *Entry) pieceInfo() drivers.Info {
	info := e.parent.info()
	info.Name, info.Size, info.Blocks = e.Name(), e.size, drivers.FullBlocks(e.size)
	return info
}

// isReserved reports whether copies of the entry could have the names of those of pieces.
func (e *Entry) isReserved() bool {
	top := e.File()
	for top.parent != nil && top.parent.parent != nil {
		top = top.parent
	}
	return top.Name() == piecesDir
}

// HasPieces reports whether an entry is a file that is divided into pieces.
func (c *Container) HasPieces(e *Entry) bool {
	return c.pieceSize > 0 && e.placeable() && e.size > c.pieceSize && !e.IsPiece()
}

// PieceSize returns Options.PieceSize.
func (c *Container) PieceSize() int64 { return c.pieceSize }

// CachedPieces returns what Pieces returns, or nil if Pieces was not called. It makes no request.
func (c *Container) CachedPieces(e *Entry) []*Entry {
	c.pieces.mu.Lock()
	defer c.pieces.mu.Unlock()
	return c.pieces.of[e]
}

// Pieces returns the pieces of a file in their order, or nil if it has none. The first call lists the
// copies of them in the tiers, and removes those of other sizes of the file. The pieces of a stale
// file are stale. The slice must not be changed. The error is that of ctx.
func (c *Container) Pieces(ctx context.Context, e *Entry) ([]*Entry, error) {
	if !c.HasPieces(e) {
		return nil, nil
	}
	if all := c.CachedPieces(e); all != nil {
		return all, nil
	}
	retired := e.parent.dir.countRetired()
	all := make([]*Entry, 0, (e.size+c.pieceSize-1)/c.pieceSize)
	for i := range int64(cap(all)) {
		all = append(all, makePiece(e, i, c.pieceSize))
	}
	c.findPieces(ctx, e, all)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	outdated := e.parent.dir.countRetired() != retired
	c.pieces.mu.Lock()
	defer c.pieces.mu.Unlock()
	if others := c.pieces.of[e]; others != nil {
		return others, nil
	}
	for _, p := range all {
		p.id = c.table.newID()
		if outdated {
			p.setBits(unverified)
		}
	}
	if e.Stale() {
		setStale(all)
		return all, nil
	}
	if c.pieces.of == nil {
		c.pieces.of = make(map[*Entry][]*Entry)
	}
	c.pieces.of[e] = all
	return all, nil
}

// findPieces sets the levels of the pieces of e, and removes copies of other sizes of e.
func (c *Container) findPieces(ctx context.Context, e *Entry, all []*Entry) {
	copies := make(map[string]*nameCopies, len(all))
	for _, p := range all {
		copies[p.Name()] = new(nameCopies)
	}
	incomplete := false
	dir := c.PieceCopies(e.Path())
	for _, t := range c.levels.Tiers() {
		infos, err := t.ReadDirAny(ctx, dir)
		incomplete = incomplete || err != nil && !isAbsent(err)
		for _, info := range infos {
			switch n := copies[info.Name]; {
			case n != nil:
				n.copies = append(n.copies, makeTierCopy(t.Level(), info))
			case info.IsRegular() && isPieceName(info.Name) && t.Scanned() && !e.Stale():
				if err := t.RemoveAny(ctx, dir+"/"+tiers.CopyName(info.Name)); err != nil {
					c.log.Warn("outdated copy not removed", "path", e.Path(), "piece", info.Name, "err", err)
				}
			}
		}
	}
	for _, p := range all {
		n := copies[p.Name()]
		n.incomplete = incomplete
		p.setLevel(*n)
	}
}

// isPieceName reports whether a name has the form INDEX.SIZE. Another one may be that of a directory
// with the same path as an earlier file.
func isPieceName(name string) bool {
	index, size, _ := strings.Cut(name, ".")
	_, err1 := strconv.ParseUint(index, 10, 63)
	_, err2 := strconv.ParseUint(size, 10, 63)
	return err1 == nil && err2 == nil
}

// Piece returns the piece of e with a name, or nil. The error is that of Pieces.
func (c *Container) Piece(ctx context.Context, e *Entry, name string) (*Entry, error) {
	all, err := c.Pieces(ctx, e)
	return pieceOf(all, name), err
}

// pieceOf returns the piece with a name, or nil.
func pieceOf(all []*Entry, name string) *Entry {
	index, _, _ := strings.Cut(name, ".")
	i, err := strconv.ParseUint(index, 10, 31)
	if err != nil || i >= uint64(len(all)) || all[i].Name() != name {
		return nil
	}
	return all[i]
}

// retirePieces makes the pieces of e, which is stale, stale.
func (c *Container) retirePieces(e *Entry) {
	if c.pieceSize == 0 || !e.IsRegular() || e.Unknown() || e.size <= c.pieceSize {
		return
	}
	c.pieces.mu.Lock()
	defer c.pieces.mu.Unlock()
	setStale(c.pieces.of[e])
	delete(c.pieces.of, e)
}

func setStale(all []*Entry) {
	for _, p := range all {
		p.setBits(stale)
	}
}

// PieceCopies returns the directory of the copies of the pieces of the files at and below a path.
func (c *Container) PieceCopies(name string) tiers.CopyName {
	return tiers.CopyName(path.Join(piecesDir, name))
}
