package placement

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/drivers/refcount"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// With peers, a large file is owned in pieces (metadata.Container.Pieces), so that it spreads over the
// nodes. A piece is filled, copied, read and shared as a small file is. A reader of the file reads
// each offset in the open file of its piece. The kernel gets no backing file: there is none of the
// whole file.
//
// A copy of the whole file, which a mount without peers has made, is read instead of the pieces, and
// the pieces are served from it.

// PieceSize is the size of a file above which the nodes of a job own its pieces, and that of a piece.
const PieceSize = 64 << 20

// A pieced is a large file that is read in its pieces.
type pieced struct {
	handler *Handler
	file    *metadata.Entry
	pieces  []*metadata.Entry
}

var (
	_ drivers.Object   = (*pieced)(nil)
	_ drivers.Verifier = (*pieced)(nil)
)

// Info implements drivers.Object.
func (o *pieced) Info() drivers.Info { return o.file.Info() }

// Close implements drivers.Object. The files of the pieces are closed soon after they were last read.
func (o *pieced) Close() error { return nil }

// ReadAt implements drivers.Object. The errors are those of file.ReadAt.
func (o *pieced) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	unit := o.handler.names.PieceSize()
	n := 0
	for n < len(p) {
		i := (off + int64(n)) / unit
		if i >= int64(len(o.pieces)) {
			return n, io.EOF
		}
		e := o.pieces[i]
		from := off + int64(n) - e.Offset()
		want := p[n:min(len(p), n+int(max(0, e.Size()-from)))]
		if len(want) == 0 {
			return n, io.EOF
		}
		m, err := o.readPiece(ctx, e, want, from)
		n += m
		switch {
		case errors.Is(err, drivers.ErrShort):
			return n, o.shortError(ctx, n, off, err)
		case err != nil && (err != io.EOF || m < len(want)):
			return n, err
		}
	}
	return n, nil
}

// shortError is file.readShort of a file whose end at the source may be that of a piece: it returns the
// error of a read at off that has returned n bytes and then err, which matches drivers.ErrShort.
func (o *pieced) shortError(ctx context.Context, n int, off int64, err error) error {
	if n > 0 {
		return io.EOF
	}
	i := off / o.handler.names.PieceSize()
	if i == 0 || off != o.pieces[i].Offset() {
		return err
	}
	before := o.pieces[i-1]
	if last, _ := o.readPiece(ctx, before, make([]byte, 1), before.Size()-1); last == 1 {
		return io.EOF
	}
	return err
}

// readPiece reads from the open file of a piece, which stays open for further reads.
func (o *pieced) readPiece(ctx context.Context, e *metadata.Entry, p []byte, off int64) (int, error) {
	f := o.acquire(e)
	defer o.handler.files.release(f)
	n, err := f.ReadAt(ctx, p, off)
	o.handler.settleFile(f)
	return n, err
}

// acquire returns the open file of a piece. The caller releases it.
func (o *pieced) acquire(e *metadata.Entry) *file {
	f, fresh := o.handler.files.acquire(o.handler, e)
	if fresh {
		f.stateless = true
		o.handler.files.keep(f)
	}
	return f
}

// awaitFirst opens the first piece, so that an open of the file notices that the source has another
// version as an open of a small file does.
func (o *pieced) awaitFirst(ctx context.Context) error {
	f := o.acquire(o.pieces[0])
	defer o.handler.files.release(f)
	v, err := f.enterView(ctx)
	if err != nil {
		return err
	}
	v.leave()
	err = f.awaitFirst(ctx)
	o.handler.settleFile(f)
	return err
}

// Verify implements drivers.Verifier, if a piece has no copy here. Like holdSource, it fails only if the
// source has another version, or none.
func (o *pieced) Verify(ctx context.Context) error {
	if o.level() != tiers.AtSource {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, holdTimeout)
	defer cancel()
	source, err := openForReader(ctx, o.handler, o.file)
	if err != nil {
		return o.handler.otherVersion(o.file, err)
	}
	defer source.Close()
	v, ok := drivers.As[drivers.Verifier](source)
	if !ok {
		return nil
	}
	return o.handler.otherVersion(o.file, v.Verify(ctx))
}

// otherVersion returns err if it says that the source has another version of a file, or none. Other errors
// do not concern the pieces that have copies, here or on other nodes.
func (h *Handler) otherVersion(file *metadata.Entry, err error) error {
	if errors.Is(err, drivers.ErrChanged) || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err != nil {
		h.log.Debug("source not opened", "path", file.Path(), "err", err)
	}
	return nil
}

// holdTimeout bounds how long an open waits for a source that may not be needed.
const holdTimeout = time.Second

// holdSource opens the source of an open file of which pieces have no copy here, until the file is
// closed. So the source still has the version when another file gets its name. If the source does not
// respond, the pieces are read from other nodes. holdSource fails only if the source has another version
// of the file, or no longer has it.
func (f *file) holdSource(ctx context.Context) error {
	v := f.current.Load()
	if v == nil || !v.inPieces || v.Object.(*pieced).level() != tiers.AtSource {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, holdTimeout)
	defer cancel()
	if f.startMoving(bounded) != nil {
		return nil
	}
	isHeld := f.source != nil
	<-f.moving
	if isHeld {
		return nil
	}
	source, err := openForReader(bounded, f.handler, f.entry)
	if err != nil {
		return f.handler.otherVersion(f.entry, err)
	}
	if f.startMoving(ctx) == nil {
		if f.source == nil {
			f.source, source = source, nil
		}
		<-f.moving
	}
	if source != nil {
		source.Close()
	}
	return nil
}

// Sources are the files of the source that are read in pieces. All readers of the pieces and handles of
// a file share one descriptor. Fills have their own.
type sources struct {
	mu panics.Mutex // guards the following
	of map[*metadata.Entry]*pieceSource
}

// A pieceSource is a file of the source that is read in pieces.
type pieceSource struct {
	users   int           // guarded by sources.mu
	opening chan struct{} // of capacity 1; the goroutine that has sent to it may change opened
	opened  *pieceObject  // nil before the first open
	failed  atomic.Pointer[pieceObject]
}

// A pieceObject is an open pieceSource. It may have users when the file was opened again.
type pieceObject struct {
	drivers.Object
	refs refcount.Count // the users, and one of the pieceSource
}

func (o *pieceObject) release() {
	if o.refs.Release() {
		o.Object.Close()
	}
}

// has reports whether a file has users.
func (s *sources) has(file *metadata.Entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[file] != nil
}

// acquire returns the pieceSource of a file. The caller releases it.
func (s *sources) acquire(file *metadata.Entry) *pieceSource {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.of[file]
	if p == nil {
		p = &pieceSource{opening: make(chan struct{}, 1)}
		if s.of == nil {
			s.of = make(map[*metadata.Entry]*pieceSource)
		}
		s.of[file] = p
	}
	p.users++
	return p
}

// release ends a use. The last one closes the file.
func (s *sources) release(file *metadata.Entry, p *pieceSource) {
	s.mu.Lock()
	p.users--
	last := p.users == 0
	if last {
		delete(s.of, file)
	}
	s.mu.Unlock()
	if last && p.opened != nil {
		p.opened.release()
	}
}

// open returns the open file, which the caller releases. It opens the file if it is not open, or if a
// read of it has failed: a server may have forgotten the descriptor. Where that is not possible, as
// another file has the name by now, the old descriptor stays in use.
func (p *pieceSource) open(ctx context.Context, h *Handler, file *metadata.Entry) (*pieceObject, error) {
	select {
	case p.opening <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-p.opening }()
	if old := p.opened; old == nil || p.failed.Load() == old {
		o, err := openSource(ctx, h, file)
		switch {
		case err == nil:
			p.opened = &pieceObject{Object: o}
			if old != nil {
				old.release()
			}
		case old == nil:
			return nil, err
		}
	}
	p.opened.refs.Acquire()
	return p.opened, nil
}

// A held is the use of a pieceObject.
type held struct {
	*pieceObject
	source *pieceSource
	close  func()
}

// Unwrap makes the methods of the file apply.
func (o *held) Unwrap() drivers.Object { return o.Object }

// ReadAt implements drivers.Object.
func (o *held) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	n, err := o.Object.ReadAt(ctx, p, off)
	if err != nil && err != io.EOF && !errors.Is(err, drivers.ErrShort) && ctx.Err() == nil {
		o.source.failed.Store(o.pieceObject)
	}
	return n, err
}

// Close implements drivers.Object.
func (o *held) Close() error {
	o.release()
	o.close()
	return nil
}

// openForReader is openSource for a reader, which may have many pieces of a file open.
func openForReader(ctx context.Context, h *Handler, e *metadata.Entry) (drivers.Object, error) {
	file := e.File()
	if !h.names.HasPieces(file) {
		return openSource(ctx, h, e)
	}
	p := h.sources.acquire(file)
	o, err := p.open(ctx, h, file)
	if err != nil {
		h.sources.release(file, p)
		return nil, err
	}
	return sectionOf(&held{o, p, func() { h.sources.release(file, p) }}, file, e), nil
}

// level returns the level of the lowest copy of a piece, or AtSource if a piece has none.
func (o *pieced) level() tiers.Level {
	lowest := tiers.AtSource
	for _, p := range o.pieces {
		l := p.Level()
		if l == tiers.AtSource {
			return l
		}
		lowest = max(lowest, l)
	}
	return lowest
}

// settleFile closes an open file soon that is not worth keeping open after a read.
func (h *Handler) settleFile(f *file) {
	if f.outdated() || f.staysAtSource() { // drop it from recentFiles: it is closed, or becomes idle
		h.files.unkeep(f)
	}
}

// copied returns the entry whose copy has the content of e: e, or the file of a piece if that has a
// copy.
func copied(e *metadata.Entry) *metadata.Entry {
	if file := e.File(); e.Level() == tiers.AtSource && file.Level() != tiers.AtSource {
		return file
	}
	return e
}

// A section is a piece of an open file.
type section struct {
	drivers.Object
	piece *metadata.Entry
}

var (
	_ drivers.Object      = (*section)(nil)
	_ drivers.Streamer    = (*section)(nil)
	_ drivers.Verifier    = (*section)(nil)
	_ drivers.Checksummer = (*section)(nil)
)

// sectionOf returns the part of o, an open file or copy, that e is. It is o unless e is a piece and of
// is its file.
func sectionOf(o drivers.Object, of, e *metadata.Entry) drivers.Object {
	if of == e {
		return o
	}
	return &section{o, e}
}

// Inner makes the optional methods apply only if the file has them.
func (s *section) Inner() drivers.Object { return s.Object }

// Info implements drivers.Object.
func (s *section) Info() drivers.Info { return s.piece.Info() }

// ReadAt implements drivers.Object.
func (s *section) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	size := s.piece.Size()
	if off >= size {
		return 0, io.EOF
	}
	want := p[:min(int64(len(p)), size-off)]
	n, err := s.Object.ReadAt(ctx, want, s.piece.Offset()+off)
	if n == len(want) && (err == nil || err == io.EOF) {
		err = nil
		if n < len(p) {
			err = io.EOF
		}
	}
	return n, err
}

// Stream implements drivers.Streamer.
func (s *section) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	o, ok := drivers.As[drivers.Streamer](s.Object)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return o.Stream(ctx, s.piece.Offset()+off, n)
}

// Verify implements drivers.Verifier.
func (s *section) Verify(ctx context.Context) error {
	o, ok := drivers.As[drivers.Verifier](s.Object)
	if !ok {
		return nil
	}
	return o.Verify(ctx)
}

// Checksums implements drivers.Checksummer. A piece begins at a block.
func (s *section) Checksums(first, n int64) ([]uint32, error) {
	o, ok := drivers.As[drivers.Checksummer](s.Object)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return o.Checksums(s.piece.Offset()/blockSize+first, n)
}

// A pieceFeed holds the files with pieces that this node may have to copy, in the order in which they
// were opened or predicted. Workers pull one piece at a time, after all fills that have begun: a file
// of 16,384 pieces has no more fills at a time than many small files have.
type pieceFeed struct {
	mu    panics.Mutex // guards the following
	files []*pieceCursor
	has   map[*metadata.Entry]bool // the files of the cursors
}

// A pieceCursor is a position in the pieces of a file.
type pieceCursor struct {
	file *metadata.Entry
	left []*metadata.Entry // those that were not pulled
}

// add adds a file, unless it is there.
func (q *pieceFeed) add(file *metadata.Entry, pieces []*metadata.Entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.has[file] {
		return
	}
	if q.has == nil {
		q.has = make(map[*metadata.Entry]bool)
	}
	q.has[file] = true
	q.files = append(q.files, &pieceCursor{file, pieces})
}

// next returns the next piece, or nil if there is none.
func (q *pieceFeed) next() *metadata.Entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.files) > 0 {
		c := q.files[0]
		if len(c.left) > 0 && !c.file.Stale() && c.file.Level() == tiers.AtSource {
			p := c.left[0]
			c.left = c.left[1:]
			return p
		}
		delete(q.has, c.file)
		q.files[0] = nil
		q.files = q.files[1:]
	}
	return nil
}

// nextPiece returns a prediction for the next piece that this node may copy, or nil.
func (h *Handler) nextPiece() prediction {
	for h.ctx.Err() == nil {
		p := h.pieces.next()
		if p == nil {
			return nil
		}
		if p.Level() == tiers.AtSource && !p.Claimed() && h.mayPrefetch(p) {
			return func() *fill { return h.prefetch(p, nil) }
		}
	}
	return nil
}

// nextPieceOrPlanned returns the next prediction of opened files or, after these, of the plan.
func (h *Handler) nextPieceOrPlanned() prediction {
	if p := h.nextPiece(); p != nil {
		return p
	}
	return h.nextPlanned()
}

// prefetchPieces is prefetch of a file with pieces: it returns the fill of the first one that this node
// may copy. The others follow in the planned feed.
func (h *Handler) prefetchPieces(e *metadata.Entry) *fill {
	pieces, err := h.names.Pieces(h.ctx, e)
	if err != nil || e.Level() != tiers.AtSource {
		return nil
	}
	for i, p := range pieces {
		if f := h.prefetch(p, nil); f != nil {
			h.fillPieces(e, pieces[i+1:])
			return f
		}
	}
	return nil
}

// fillPieces announces the pieces of an opened or predicted file: those that this node may copy are
// copied, as a small file is when it is opened.
func (h *Handler) fillPieces(file *metadata.Entry, pieces []*metadata.Entry) {
	h.pieces.add(file, pieces)
	h.queue.feedPlanned()
}

// findWhole examines the tiers for a copy of e, a file with pieces, as a whole, if there may be one:
// no fill of the file does. It reports whether there is one.
func (h *Handler) findWhole(e *metadata.Entry) bool {
	if !e.Unverified() || !e.Claim() {
		return false
	}
	found := h.recheck(e)
	if !found {
		e.Release()
	}
	return found
}

// dropPieces drops the copies of the pieces of e, of which a copy of the whole file is open.
func (h *Handler) dropPieces(e *metadata.Entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return
	}
	h.wg.Go(func() {
		defer panics.Contain()
		pieces, err := h.names.Pieces(h.ctx, e)
		for _, p := range pieces {
			if p.Level() == tiers.AtSource {
				continue
			}
			if _, err = h.Retract(p); err != nil {
				break
			}
		}
		if err != nil && h.ctx.Err() == nil {
			h.log.Warn("ranges of a copied file not removed", "path", e.Path(), "err", err)
		}
	})
}

// placePieces is Place of a file with pieces. The outcome is that of the file as a whole: it is placed
// when all of its pieces are.
func (h *Handler) placePieces(ctx context.Context, pieces []*metadata.Entry) (outcome Outcome, err error) {
	for _, p := range pieces {
		one, failure := h.Place(ctx, p)
		switch {
		case err != nil: // the first error counts
		case failure != nil:
			outcome, err = one, failure
		case one != Placed && outcome != Skipped:
			outcome = one
		}
		if ctx.Err() != nil {
			break
		}
	}
	return outcome, err
}

// countPieced counts the open of a file that is read in pieces, and reports whether a piece has no copy
// here.
func (h *Handler) countPieced(o *pieced) (missing bool) {
	l := o.level()
	if l == tiers.AtSource {
		h.peers.opens.add(o.file.Size())
		atomic.AddInt64(&h.peers.spare.opens, int64(len(o.pieces)-1)) // each piece counts as a file
		return true
	}
	h.usage.opens[l].add(o.file.Size())
	return false
}

// ownedBytes returns the room that this node is to give to a file.
func (h *Handler) ownedBytes(e *metadata.Entry) (bytes int64) {
	if !h.names.HasPieces(e) {
		if h.rank(e) == 0 {
			bytes = h.levels.Allocated(e.Size())
		}
		return bytes
	}
	pieces, _ := h.names.Pieces(h.ctx, e)
	for _, p := range pieces {
		if h.rank(p) == 0 {
			bytes += h.levels.Allocated(p.Size())
		}
	}
	return bytes
}
