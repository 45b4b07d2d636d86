package placement

import (
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

// A file is an open file that is read where that is best at the moment, for all
// who have it open. It begins on a copy, in a fill or at the source. A copy or a fill is left when
// it fails, in the middle of the file if need be, and the source when a tier
// has the file or has room for it: all places have the same bytes, for they
// are of one version.
type file struct {
	handler *Handler
	entry   *metadata.Entry
	since   time.Time            // when it was opened
	at      atomic.Pointer[view] // where it is read now; nil: nowhere yet

	broken atomic.Bool // the source has failed, and is to be opened again

	users int  // guarded by files.mu
	stay  stay // likewise

	moving chan struct{}  // has room for one, whoever changes the following
	source drivers.Object // the file at the source, once it was needed
}

var _ drivers.Object = (*file)(nil)

func newFile(h *Handler, e *metadata.Entry) *file {
	return &file{handler: h, entry: e, since: time.Now(), moving: make(chan struct{}, 1)}
}

// A view is one place that a file is read from. It is closed when the file has
// gone elsewhere and the last read in it has ended.
type view struct {
	drivers.Object              // nil if fill is set
	fill           *fill        // nil if Object is set
	level          tiers.Level  // of the place
	failed         atomic.Bool  // another place is to be found
	users          atomic.Int32 // reads under way, and the file whose place it is

	// Of a view at the source: the level that the file had when this view
	// was chosen, and when to look for a better one again.
	instead tiers.Level
	again   time.Time
}

// again is how often a file that is read from the source looks whether a tier
// has room for it now, or is well again.
const again = time.Second

// best reports whether v is the place to read e from. A copy that works is
// kept when it is removed or superseded, for there may be no other with the
// version that is open.
func (v *view) best(e *metadata.Entry) bool {
	switch {
	case v == nil || v.failed.Load():
		return false
	case v.fill != nil || v.level != tiers.AtSource:
		return true
	}
	return v.instead == e.Level() && (!e.Claimed() || e.Stale()) && time.Now().Before(v.again)
}

// enter begins a read, unless the view is closed.
func (v *view) enter() bool {
	for {
		n := v.users.Load()
		if n == 0 {
			return false
		}
		if v.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// leave ends a read.
func (v *view) leave() {
	switch {
	case v.users.Add(-1) > 0:
	case v.fill != nil:
		v.fill.release()
	case v.level != tiers.AtSource: // the object there is the file's
		v.Object.Close()
	}
}

// ReadAt reads the file, as drivers.Object says. The error is the source's or
// ctx's, except that one which matches drivers.ErrAbandoned may also be that
// of a tier which did not answer: the caller calls again, with another buffer.
func (f *file) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off >= f.entry.Size() {
		return 0, io.EOF
	}
	for {
		v, err := f.view(ctx)
		if err != nil {
			return 0, err
		}
		n, err := f.readAt(ctx, v, p, off)
		v.leave()
		if !errors.Is(err, errFailed) || errors.Is(err, drivers.ErrAbandoned) {
			return n, err
		}
	}
}

// readAt reads from one view. An error that matches errFailed is not the
// source's, and the view is not to be used again.
func (f *file) readAt(ctx context.Context, v *view, p []byte, off int64) (int, error) {
	if v.fill != nil {
		n, err := v.fill.ReadAt(ctx, p, off)
		if !errors.Is(err, errFailed) {
			return n, err
		}
		v.failed.Store(true)
		if !errors.Is(err, drivers.ErrAbandoned) {
			if werr := v.fill.wait(ctx); werr != nil { // or it would be joined again
				return 0, werr
			}
		}
		return 0, err
	}
	n, err := v.ReadAt(ctx, p, off)
	switch {
	case err == nil, err == io.EOF && off+int64(n) == f.entry.Size():
		return n, err
	case v.level == tiers.AtSource:
		return n, f.sourceError(ctx, err)
	}
	v.failed.Store(true)
	f.handler.log.Debug("copy not readable", "path", f.entry.Path(), "err", err)
	if errors.Is(err, drivers.ErrChanged) || err == io.EOF { // somebody wrote to the copy
		f.entry.Demote(v.level)
	}
	return 0, fmt.Errorf("%w: %w", errFailed, err)
}

// sourceError turns a read at the source that ended early into the error that
// it is, and takes notice of another version. What has failed once may do so
// until it is opened again, as what a server has forgotten does.
func (f *file) sourceError(ctx context.Context, err error) error {
	if ctx.Err() == nil && !f.broken.Swap(true) {
		f.handler.log.Warn("source not readable", "path", f.entry.Path(), "err", err)
	}
	if err == io.EOF {
		err = fmt.Errorf("%s: %w", f.entry.Path(), drivers.ErrChanged)
	}
	if errors.Is(err, drivers.ErrChanged) {
		f.handler.names.Changed(f.entry)
	}
	return err
}

// view returns the place to read the file from, going there if need be. The
// caller leaves it.
func (f *file) view(ctx context.Context) (*view, error) {
	if v := f.at.Load(); v.best(f.entry) && v.enter() {
		return v, nil
	}
	select {
	case f.moving <- struct{}{}:
		defer func() { <-f.moving }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	old := f.at.Load()
	if old.best(f.entry) && old.enter() {
		return old, nil
	}
	v, err := f.choose(ctx, old)
	if err != nil {
		return nil, err
	}
	v.users.Store(2) // the file and the caller
	f.at.Store(v)
	if old != nil {
		old.leave()
	}
	return v, nil
}

// choose goes to the best place there is: a copy, a fill, the source. It is
// called by whoever is moving.
func (f *file) choose(ctx context.Context, old *view) (*view, error) {
	e, h := f.entry, f.handler
	for range 4 { // a level may change under us, but not for ever
		l := e.Level()
		if l == tiers.AtSource {
			fill, err := h.join(ctx, e, false)
			switch {
			case err == nil:
				return &view{fill: fill, level: fill.tier.Level()}, nil
			case errors.Is(err, errSettled):
				continue
			case f.source == nil && !isElsewhere(err):
				return nil, err
			}
			return f.atSource(ctx)
		}
		if old != nil && old.level == l && old.fill == nil && old.failed.Load() {
			return f.atSource(ctx) // not there again so soon: a bad disk may fail in this file alone
		}
		t := h.levels.Tier(l)
		obj, err := t.Open(ctx, e.CopyName(), e.Info())
		if err == nil {
			return &view{Object: obj, level: l}, nil
		}
		switch {
		case errors.Is(err, drivers.ErrChanged): // another file has its name; the next fill removes it
			e.Demote(l)
		case errors.Is(err, fs.ErrNotExist):
			if e.Demote(l) {
				t.Lost(e.Size())
			}
		default: // the tier is not well; the copy may be
			return f.atSource(ctx)
		}
	}
	return f.atSource(ctx)
}

// isElsewhere reports whether err, of join, only says that there is no fill to
// read from.
func isElsewhere(err error) bool {
	return errors.Is(err, errNoRoom) || errors.Is(err, errBackoff) || errors.Is(err, errStopped)
}

// atSource goes to the source. It is called by whoever is moving.
func (f *file) atSource(ctx context.Context) (*view, error) {
	if f.source == nil {
		obj, err := openSource(ctx, f.handler, f.entry)
		if err != nil {
			return nil, err
		}
		f.source = obj
	}
	return &view{Object: f.source, instead: f.entry.Level(), again: time.Now().Add(again)}, nil
}

// Info describes the version that is open.
func (f *file) Info() drivers.Info { return f.entry.Info() }

// stays reports whether the file is read from the source, and will be: no tier
// has room for it.
func (f *file) stays() bool {
	v := f.at.Load()
	return v != nil && v.level == tiers.AtSource && v.fill == nil && f.handler.full(f.entry.Size())
}

// verify finds out whether the source still has the version that is open, where
// the file is read from it and it can tell.
func (f *file) verify(ctx context.Context, v *view) error {
	o, ok := drivers.As[drivers.Verifier](v.Object)
	if !ok || v.level != tiers.AtSource {
		return nil
	}
	if err := o.Verify(ctx); err != nil {
		return f.sourceError(ctx, err)
	}
	return nil
}

// filled reports whether the file is read from a fill that has ended: a copy is
// read with less ado.
func (f *file) filled() bool {
	v := f.at.Load()
	return v != nil && v.fill != nil && isClosed(v.fill.ended)
}

// Close gives the file back.
func (f *file) Close() error {
	f.handler.files.release(f, false)
	return nil
}

// close closes the file when nobody has it any more.
func (f *file) close() {
	if v := f.at.Swap(nil); v != nil {
		v.leave()
	}
	if f.source != nil {
		f.source.Close()
	}
}

// openSource opens e at the source, if that still has e's version; of a source
// that Lists this shows when it is read.
func openSource(ctx context.Context, h *Handler, e *metadata.Entry) (drivers.Object, error) {
	obj, err := h.levels.Source().OpenVersion(ctx, e.Path(), e.Info())
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, drivers.ErrChanged) {
		h.names.Changed(e)
	}
	return obj, err
}
