package placement

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// A file is one open version of a file, shared by all its users. It is read in its current
// view, and moves to another one in the middle of the file if need be: from a copy or a fill
// when that fails, and from the source when a tier has the file or has room for it. All views
// have the same bytes, because they are of one version.
type file struct {
	handler *Handler
	entry   *metadata.Entry
	opened  time.Time            // when the file was made
	current atomic.Pointer[view] // nil before the first read

	broken    atomic.Bool // the source has failed: the next open needs a new file
	stateless bool        // it is read without being opened; set before the first read
	forPeer   bool        // another node reads it (shared.go); set before the first read

	end    atomic.Int64  // where its last read ended
	users  atomic.Int64  // handles, stateless reads, and one for recentFiles
	closed bool          // guarded by shard.mu
	idle   idleSlot      // guarded by idleCache.mu
	recent *list.Element // guarded by recentFiles.mu; nil if the file is not there

	moving chan struct{}  // of capacity 1; the goroutine that has sent to it may change the following, and current
	source drivers.Object // the file at the source; nil before it was needed
	remote drivers.Object // the file at the peers; nil before it was needed
}

var (
	_ drivers.Object       = (*file)(nil)
	_ drivers.BackingFiler = (*file)(nil)
	_ drivers.Splicer      = (*file)(nil)
)

func newFile(h *Handler, e *metadata.Entry) *file {
	return &file{handler: h, entry: e, opened: time.Now(), moving: make(chan struct{}, 1)}
}

// ReadAt implements drivers.Object. It makes one attempt. If a copy or a fill fails, the error
// matches drivers.ErrRetry, and the caller repeats the read. The retries end:
//
//   - A copy that failed is not used again for sourceTTL (badcopies.go); the file moves to the
//     source, or to another copy.
//   - A fill that failed is not joined again, since ReadAt returns after its end, or marks it as
//     unreadable while it is being committed. The backoff of failed copies delays the next fill,
//     and the file moves to the source.
//   - At the source the file stays for sourceTTL, and an error of the source does not match
//     drivers.ErrRetry.
func (f *file) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off >= f.entry.Size() {
		return 0, io.EOF
	}
	began := time.Now()
	ctx, op := f.trace(ctx)
	v, err := f.enterView(ctx)
	if err != nil {
		op.endRead(nil, off, 0, err)
		return 0, err
	}
	defer v.leave()
	n, err := f.readIn(ctx, v, p, off)
	if err == nil || err == io.EOF { // otherwise the reader may repeat the read
		f.handler.usage.read(f, v, off, n, began)
	}
	op.endRead(v, off, n, err)
	return n, err
}

// readIn is ReadAt in a view.
func (f *file) readIn(ctx context.Context, v *view, p []byte, off int64) (int, error) {
	if v.fill != nil {
		return f.readFill(ctx, v, p, off)
	}
	n, err := f.readView(ctx, v, p, off)
	switch {
	case v.inPieces:
		return n, err
	case err == nil, err == io.EOF && off+int64(n) == f.entry.Size():
		return n, err
	case v.atSource() && errors.Is(err, drivers.ErrShort),
		v.atPeers && err == io.EOF: // the peers have turned to the source, and the file ends there
		return f.readShort(ctx, v, n, off, err)
	case v.atSource():
		return n, f.sourceError(ctx, err)
	}
	v.failed.Store(true)
	f.handler.bad.add(v.copied, v.level)
	f.handler.log.Debug("copy not readable", "path", f.entry.Path(), "err", err)
	switch {
	case errors.Is(err, drivers.ErrCorrupt), err == io.EOF:
		f.handler.corrupt(v.copied, v.level, v.copy(), err)
	case errors.Is(err, drivers.ErrChanged): // another file has the name
		v.copied.Demote(v.level)
	}
	return 0, fmt.Errorf("%w: %w", errFailed, err)
}

// readView is ReadAt in a copy or at the source. Reads of copies are measured by their tier.
func (f *file) readView(ctx context.Context, v *view, p []byte, off int64) (int, error) {
	if !v.atSource() || v.inPieces || f.forPeer { // otherwise the wait is recorded elsewhere
		return v.ReadAt(ctx, p, off)
	}
	start := time.Now()
	n, err := v.ReadAt(ctx, p, off)
	if v.atPeers {
		took := time.Since(start)
		f.handler.waits.peers.Observe(took)
		attribute(ctx, CausePeers, took)
		return n, err
	}
	f.handler.waits.atSource(ctx, time.Since(start), f.handler.levels.Source().BaseLatency())
	return n, err
}

// readFill is ReadAt in a fill.
func (f *file) readFill(ctx context.Context, v *view, p []byte, off int64) (int, error) {
	n, err := v.fill.ReadAt(ctx, p, off)
	if !errors.Is(err, errFailed) {
		return n, err
	}
	v.failed.Store(true)
	if v.fill.unreadable.Load() { // join does not return this fill; its commit may take long
		return 0, err
	}
	if ended := v.fill.wait(ctx); ended != nil { // ctx is done
		if errors.Is(err, drivers.ErrAbandoned) {
			return 0, fmt.Errorf("%w: %w", drivers.ErrAbandoned, ended)
		}
		return 0, ended
	}
	return 0, err // the next read will not join this fill again
}

// readShort returns the result of a read that has returned n bytes and err, which matches
// drivers.ErrShort: the bytes, or io.EOF at the end of the file. A read that begins after the end
// is an error. The kernel takes the end of a short reply as the end of the file, and an empty reply
// to a read ahead may overtake the reply that has the end; the kernel would then fill the file up
// with zeros.
func (f *file) readShort(ctx context.Context, v *view, n int, off int64, err error) (int, error) {
	if n > 0 || off+f.entry.Offset() == 0 {
		return n, io.EOF
	}
	if off > 0 {
		if last, _ := v.ReadAt(ctx, make([]byte, 1), off-1); last == 1 {
			return 0, io.EOF
		}
	}
	return 0, err
}

// sourceError turns a failed read at the source into the error that the reader gets, and
// records that the source has another version. A file that has failed once may fail until it
// is opened again, for example if a server has forgotten the handle.
func (f *file) sourceError(ctx context.Context, err error) error {
	if ctx.Err() == nil && !f.broken.Swap(true) {
		f.handler.log.Log(ctx, drivers.WarnLevel(err), "source not readable", "path", f.entry.Path(), "err", err)
	}
	if err == io.EOF {
		err = fmt.Errorf("%s: %w", f.entry.Path(), drivers.ErrChanged)
	}
	return f.handler.names.Failed(ctx, f.entry, err)
}

// enterView returns the current view, after a move to another one if need be. The caller
// leaves it.
func (f *file) enterView(ctx context.Context) (*view, error) {
	if v := f.current.Load(); v.usable(f.entry) && v.enter() {
		return v, nil
	}
	if err := f.startMoving(ctx); err != nil {
		return nil, err
	}
	defer func() { <-f.moving }()
	old := f.current.Load()
	if old.usable(f.entry) && old.enter() {
		return old, nil
	}
	v, err := f.choose(ctx)
	if err != nil {
		return nil, err
	}
	v.enter()
	f.current.Store(v)
	if old != nil {
		old.leave()
	}
	return v, nil
}

// startMoving sends to f.moving. It waits while another reader moves the file.
func (f *file) startMoving(ctx context.Context) error {
	select {
	case f.moving <- struct{}{}:
		return nil
	default:
	}
	start := time.Now()
	defer func() {
		took := time.Since(start)
		f.handler.waits.fill.Observe(took)
		attribute(ctx, CauseFill, took)
	}()
	select {
	case f.moving <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// choose makes a view of the best place: a copy, a fill, the peers or the source. The caller has sent
// to f.moving.
func (f *file) choose(ctx context.Context) (*view, error) {
	e, h := f.entry, f.handler
	for range 4 { // the level may change meanwhile, but this must end
		c := copied(e)
		l := c.Level()
		if l == tiers.AtSource {
			if h.names.HasPieces(e) {
				if h.findWhole(e) {
					continue
				}
				return f.inPieces(ctx)
			}
			fill, err := h.join(ctx, e, f.purpose())
			switch {
			case err == nil:
				return &view{fill: fill, level: fill.tier.Level()}, nil
			case errors.Is(err, errPublished):
				continue
			case f.source == nil && f.remote == nil && !isElsewhere(err) && !h.sources.has(e.File()):
				return nil, err
			}
			return f.below(ctx, err)
		}
		if h.bad.has(c, l) {
			return f.below(ctx, errBackoff)
		}
		start := time.Now()
		obj, err := h.levels.Tier(l).Open(ctx, c.CopyName(), c.Info())
		if !f.forPeer {
			took := time.Since(start)
			h.waits.opens[l-1].Observe(took)
			attribute(ctx, CauseTier, took)
		}
		if err == nil {
			return &view{Object: sectionOf(obj, c, e), level: l, copied: c}, nil
		}
		switch {
		case errors.Is(err, drivers.ErrChanged): // another file has the name; the next fill removes it
			c.Demote(l)
		case errors.Is(err, drivers.ErrCorrupt):
			h.corrupt(c, l, nil, err)
		case errors.Is(err, fs.ErrNotExist):
			h.missing(c, l)
		default: // the tier is not healthy; the copy may be
			return f.below(ctx, errBackoff)
		}
	}
	return f.below(ctx, errClaimed)
}

// purpose is why the file joins fills.
func (f *file) purpose() purpose {
	if f.forPeer {
		return forPeer
	}
	return forReader
}

// below makes a view at the peers or at the source, because there is no copy and no fill. For
// another node, there is none if the file was not open before. cause, which isElsewhere, is the
// reason. The caller has sent to f.moving.
func (f *file) below(ctx context.Context, cause error) (*view, error) {
	switch {
	case f.forPeer && f.current.Load() == nil:
		return nil, cause
	case f.handler.names.HasPieces(f.entry): // its copy cannot be read, and nodes share only its pieces
		return f.inPieces(ctx)
	case f.handler.peers == nil, f.forPeer, errors.Is(cause, errRacy), errors.Is(cause, errStopped):
		return f.atSource(ctx)
	}
	return f.atPeers(ctx)
}

// inPieces makes a view in the pieces of the file. If that is stale, they are those of the view before.
// The caller has sent to f.moving.
func (f *file) inPieces(ctx context.Context) (*view, error) {
	var pieces []*metadata.Entry
	if old := f.current.Load(); old != nil && old.inPieces && f.entry.Stale() {
		pieces = old.Object.(*pieced).pieces
	} else {
		var err error
		if pieces, err = f.handler.names.Pieces(ctx, f.entry); err != nil {
			return nil, err
		}
	}
	v := sourceView(&pieced{f.handler, f.entry, pieces}, f.entry)
	v.inPieces = true
	return v, nil
}

// atPeers makes a view at the peers. The caller has sent to f.moving.
func (f *file) atPeers(ctx context.Context) (*view, error) {
	if f.remote == nil {
		obj, err := f.handler.openAtPeers(ctx, f.entry)
		if err != nil {
			return nil, err
		}
		f.remote = f.handler.peers.ahead.Wrap(obj)
	}
	v := sourceView(f.remote, f.entry)
	v.atPeers = true
	return v, nil
}

// atSource makes a view at the source. The caller has sent to f.moving.
func (f *file) atSource(ctx context.Context) (*view, error) {
	if f.source == nil {
		start := time.Now()
		obj, err := openForReader(ctx, f.handler, f.entry)
		if !f.forPeer {
			took := time.Since(start)
			f.handler.waits.latency.Observe(took)
			attribute(ctx, CauseLatency, took)
		}
		if err != nil {
			return nil, err
		}
		f.source = f.handler.ahead.Wrap(obj)
	}
	return sourceView(f.source, f.entry), nil
}

// openSource opens e at the source, if that still has the version of e. A source that is a
// drivers.VersionOpener may return the error of the wrong version later, from a read.
func openSource(ctx context.Context, h *Handler, e *metadata.Entry) (drivers.Object, error) {
	file := e.File()
	decided := h.names.Opening(file)
	obj, err := h.levels.Source().OpenVersion(ctx, file.Path(), file.Info())
	decided(err)
	if errors.Is(err, drivers.ErrMismatch) {
		h.mismatched(e, err)
	}
	if err != nil {
		return nil, h.names.Failed(ctx, e, err)
	}
	return sectionOf(obj, file, e), nil
}

// Info describes the version that is open.
func (f *file) Info() drivers.Info { return f.entry.Info() }

// awaitFirst waits for the first block, if the file is read in a fill whose open does not find out
// that the source has another version. If another fill takes over, it waits for that.
func (f *file) awaitFirst(ctx context.Context) error {
	for {
		v := f.current.Load()
		if v != nil && v.inPieces {
			return v.Object.(*pieced).awaitFirst(ctx)
		}
		if v == nil || v.fill == nil || !f.handler.objectStore && !v.fill.foreign || !v.enter() {
			return nil
		}
		err := v.fill.awaitFirst(ctx)
		v.leave()
		if err != nil || v.fill.blocks.failure() != errTakenOver {
			return err
		}
		v.failed.Store(true)
		if v, err = f.enterView(ctx); err != nil {
			return err
		}
		v.leave()
	}
}

// leaveFailed makes the file move to another view if it is read in a fill that has failed: the
// source may have recovered since.
func (f *file) leaveFailed() {
	if v := f.current.Load(); v != nil && v.fill != nil && v.fill.blocks.failure() != nil {
		v.failed.Store(true)
	}
}

// verified returns a view that verify approves: v, or another one after v's fill has failed. It leaves v if
// it does not return that.
func (f *file) verified(ctx context.Context, v *view) (*view, error) {
	for {
		err := f.verify(ctx, v)
		if err == nil {
			return v, nil
		}
		ended := v.fill != nil && !f.entry.Stale() && v.fill.wait(ctx) == nil // otherwise the next view may be in it
		v.leave()
		if !ended {
			return nil, err
		}
		if v, err = f.enterView(ctx); err != nil {
			return nil, err
		}
	}
}

// verify checks that the source still has the version that is open, if the file is read there, or in an old
// fill, and its Object is a drivers.Verifier. Otherwise the fill fails.
func (f *file) verify(ctx context.Context, v *view) error {
	obj := v.Object
	switch {
	case v.fill != nil && v.fill.isOld():
		obj = v.fill.source
	case !v.atSource():
		return nil
	}
	o, ok := drivers.As[drivers.Verifier](obj)
	if !ok {
		return nil
	}
	start := time.Now()
	err := o.Verify(ctx)
	took := time.Since(start)
	f.handler.waits.latency.Observe(took)
	attribute(ctx, CauseLatency, took)
	switch {
	case err == nil:
		return nil
	case v.fill == nil:
		return f.sourceError(ctx, err)
	case ctx.Err() == nil:
		v.failed.Store(true)
		err = f.handler.names.Failed(ctx, f.entry, err)
		v.fill.fail(err)
	}
	return err
}

// staysAtSource reports whether the file is read from the source, and no tier has room for it.
func (f *file) staysAtSource() bool {
	v := f.current.Load()
	return v != nil && v.atSource() && !v.inPieces && f.handler.full(f.entry.Size())
}

// outdated reports whether the file should be closed when it has no user: the source has failed, the
// name has another version, or the file is read in a fill that has ended, while a copy is
// read more cheaply.
func (f *file) outdated() bool {
	if f.broken.Load() || f.entry.Stale() {
		return true
	}
	v := f.current.Load()
	return v != nil && v.fill != nil && isClosed(v.fill.ended)
}

// worthKeeping reports whether the file may become idle.
func (f *file) worthKeeping() bool { return !f.outdated() && f.staysAtSource() }

// Close ends the use of the file.
func (f *file) Close() error {
	f.handler.files.release(f)
	return nil
}

// close closes the file. It has no users.
func (f *file) close() {
	if v := f.current.Swap(nil); v != nil {
		v.leave()
		if !f.stateless {
			f.handler.window.closed(f.entry)
		}
	}
	for _, o := range [...]drivers.Object{f.source, f.remote} {
		if o != nil {
			o.Close()
		}
	}
}
