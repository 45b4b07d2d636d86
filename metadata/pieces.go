package metadata

import (
	"context"
	"path"
	"slices"
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

// pieceTable holds the pieces of files that are not stale.
type pieceTable struct {
	mu   panics.Mutex // guards the following
	of   map[*Entry][]*Entry
	left map[*Entry][]*tiers.Tier // which may have copies for the file that are of none of its pieces
}

// leave records that tiers may have copies for e that are of none of its pieces; t.mu must be held.
func (t *pieceTable) leave(e *Entry, in []*tiers.Tier) {
	if len(in) == 0 || t.of[e] == nil {
		return
	}
	if t.left == nil {
		t.left = make(map[*Entry][]*tiers.Tier)
	}
	for _, tier := range in {
		if !slices.Contains(t.left[e], tier) {
			t.left[e] = append(t.left[e], tier)
		}
	}
}

// takeLeft returns the pieces of e and, to one caller, the tiers of left that can be written.
func (t *pieceTable) takeLeft(e *Entry) (all []*Entry, in []*tiers.Tier) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.left[e]) == 0 {
		return t.of[e], nil
	}
	var rest []*tiers.Tier
	for _, tier := range t.left[e] {
		if tier.Accepts() {
			in = append(in, tier)
		} else {
			rest = append(rest, tier)
		}
	}
	t.left[e] = rest
	return t.of[e], in
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
	return c.pieceSize > 0 && e.Placeable() && e.size > c.pieceSize && !e.IsPiece()
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
// copies of them in the tiers, and removes what else is there for the path of the file. Later calls do
// that again in tiers where it was not possible, or where LeftCopy has been called since. The pieces of
// a stale file are stale, and others in each call. The slice must not be changed. The error is that of
// ctx.
func (c *Container) Pieces(ctx context.Context, e *Entry) ([]*Entry, error) {
	if !c.HasPieces(e) {
		return nil, nil
	}
	if all, left := c.pieces.takeLeft(e); all != nil {
		if len(left) > 0 {
			c.tidyPieces(ctx, e, all, left)
		}
		return all, nil
	}
	d := e.parent.dir
	retired := d.countRetired()
	all := make([]*Entry, 0, (e.size+c.pieceSize-1)/c.pieceSize)
	for i := range int64(cap(all)) {
		all = append(all, makePiece(e, i, c.pieceSize))
	}
	left := c.findPieces(ctx, e, all)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	d.mu.RLock() // LeftCopy comes before or after the following
	defer d.mu.RUnlock()
	c.pieces.mu.Lock()
	defer c.pieces.mu.Unlock()
	if others := c.pieces.of[e]; others != nil {
		return others, nil
	}
	outdated := d.retired != retired
	if outdated {
		left = c.levels.Tiers()
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
	c.pieces.leave(e, left)
	return all, nil
}

// findPieces sets the levels of the pieces of e, and removes what else is there for the path of e. It
// returns the tiers in which that was not possible.
func (c *Container) findPieces(ctx context.Context, e *Entry, all []*Entry) (left []*tiers.Tier) {
	copies := make([]nameCopies, len(all))
	incomplete := false
	dir := c.PieceCopies(e.Path())
	for _, t := range c.levels.Tiers() {
		infos, err := t.ReadDirAny(ctx, dir)
		incomplete = incomplete || err != nil && !isAbsent(err)
		for _, info := range infos {
			if p := pieceOf(all, info.Name); p != nil && !info.IsDir() {
				n := &copies[p.Offset()/c.pieceSize]
				n.copies = append(n.copies, makeTierCopy(t.Level(), info))
			}
		}
		if !c.tidyTier(ctx, t, e, all, infos, err) {
			left = append(left, t)
		}
	}
	mu := e.attributes()
	mu.RLock()
	defer mu.RUnlock()
	for i, p := range all {
		copies[i].incomplete = incomplete
		p.setLevel(copies[i])
	}
	return left
}

// tidyPieces removes what tiers have for the path of e, except for the copies of its pieces.
func (c *Container) tidyPieces(ctx context.Context, e *Entry, all []*Entry, in []*tiers.Tier) {
	var left []*tiers.Tier
	for _, t := range in {
		infos, err := t.ReadDirAny(ctx, c.PieceCopies(e.Path()))
		if !c.tidyTier(ctx, t, e, all, infos, err) {
			left = append(left, t)
		}
	}
	c.pieces.mu.Lock()
	defer c.pieces.mu.Unlock()
	c.pieces.leave(e, left)
}

// tidyTier is tidyPieces in one tier, where infos and err are the listing of the copies for the path of
// e. It reports whether nothing is left to remove.
func (c *Container) tidyTier(ctx context.Context, t *tiers.Tier, e *Entry, all []*Entry, infos []drivers.Info, err error) bool {
	dir := c.PieceCopies(e.Path())
	switch {
	case err != nil && isAbsent(err):
		return c.clearPath(ctx, t, e, dir)
	case err != nil:
		return false
	}
	ok := true
	for _, info := range infos {
		if pieceOf(all, info.Name) == nil || info.IsDir() {
			ok = c.removeOther(ctx, t, e, dir+"/"+tiers.CopyName(info.Name), info) && ok
		}
	}
	return ok
}

// clearPath removes the copy that has the name of dir, which is not a directory, or of one above it: the
// source had a file where the path of e has a directory.
func (c *Container) clearPath(ctx context.Context, t *tiers.Tier, e *Entry, dir tiers.CopyName) bool {
	for name := dir; name != piecesDir; name = tiers.CopyName(path.Dir(string(name))) {
		info, err := t.StatAny(ctx, name)
		switch {
		case err == nil && info.IsDir():
			return true
		case err == nil:
			return c.removeOther(ctx, t, e, name, info)
		case !isAbsent(err):
			return false
		}
	}
	return true
}

// removeOther removes the copy of name, or all below it if it is a directory, and reports success. Once
// e is stale, they may be those of its successor and stay.
func (c *Container) removeOther(ctx context.Context, t *tiers.Tier, e *Entry, name tiers.CopyName, info drivers.Info) bool {
	if e.Stale() || !t.Scanned() {
		return false
	}
	if !info.IsDir() {
		err := t.RemoveAny(ctx, name)
		if err != nil {
			c.log.Warn("outdated copy not removed", "path", e.Path(), "copy", string(name), "err", err)
		}
		return err == nil
	}
	infos, err := t.ReadDirAny(ctx, name)
	ok := err == nil || isAbsent(err)
	for _, info := range infos {
		ok = c.removeOther(ctx, t, e, name+"/"+tiers.CopyName(info.Name), info) && ok
	}
	return ok
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
	delete(c.pieces.left, e)
}

// leftPiece is LeftCopy of a copy of a piece. now is the present entry of the name of its file, or nil;
// the lock of its directory must be held.
func (c *Container) leftPiece(now, piece *Entry) {
	c.pieces.mu.Lock()
	defer c.pieces.mu.Unlock()
	if p := pieceOf(c.pieces.of[now], piece.Name()); p == nil {
		c.pieces.leave(now, c.levels.Tiers())
	} else if p != piece {
		p.setBits(unverified)
	}
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
