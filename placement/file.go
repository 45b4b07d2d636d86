package placement

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// A file is an open file that is read where that is best at the moment. It
// begins on a copy, in a fill or at the source, and moves when a better place
// comes up or the one it has fails, in the middle of the file if need be: all
// places have the same bytes, for they are of one version.
type file struct {
	handler *Handler
	entry   *metadata.Entry
	at      atomic.Pointer[view] // where it was read last

	mu     sync.Mutex // guards the following, and the changing of at
	views  []*view    // all there ever were, to be closed with the file
	source *view      // the one at the source
}

var _ drivers.Object = (*file)(nil)

// A view is one place that a file is read from.
type view struct {
	drivers.Object             // nil if fill is set
	fill           *fill       // nil if Object is set
	level          tiers.Level // of the place
	failed         atomic.Bool // another place is to be found

	// Of a view at the source: the level that the file had when this view
	// was chosen, and when to look for a better one again.
	instead tiers.Level
	again   time.Time
}

// again is how often a file that is read from the source looks whether a tier
// has room for it now, or is well again.
const again = time.Second

// best reports whether v is the place to read the file whose level is l.
func (v *view) best(l tiers.Level, e *metadata.Entry) bool {
	switch {
	case v == nil || v.failed.Load():
		return false
	case v.fill != nil:
		return l == v.level || l == tiers.AtSource
	case v.level == tiers.AtSource:
		return l == v.instead && (!e.Claimed() || e.Stale()) && time.Now().Before(v.again)
	}
	return l == v.level
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
		if v.fill != nil {
			n, err := v.fill.ReadAt(ctx, p, off)
			if !errors.Is(err, errFailed) {
				return n, err
			}
			v.failed.Store(true)
			continue
		}
		n, err := v.ReadAt(ctx, p, off)
		switch {
		case err == nil, err == io.EOF && off+int64(n) == f.entry.Size():
			return n, err
		case v.level == tiers.AtSource:
			return n, f.sourceError(err)
		}
		v.failed.Store(true)
		f.handler.log.Debug("copy not readable", "path", f.entry.Path(), "err", err)
		if errors.Is(err, drivers.ErrChanged) || err == io.EOF { // somebody wrote to the copy
			f.entry.Demote(v.level)
		}
		if errors.Is(err, drivers.ErrAbandoned) {
			return 0, err
		}
	}
}

// sourceError turns a read at the source that ended early into the error that
// it is, and takes notice of another version.
func (f *file) sourceError(err error) error {
	if err == io.EOF {
		err = fmt.Errorf("%s: %w", f.entry.Path(), drivers.ErrChanged)
	}
	if errors.Is(err, drivers.ErrChanged) {
		f.handler.names.Changed(f.entry)
	}
	return err
}

// view returns the place to read the file from, going there if need be.
func (f *file) view(ctx context.Context) (*view, error) {
	e := f.entry
	if v := f.at.Load(); v.best(e.Level(), e) {
		return v, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if v := f.at.Load(); v.best(e.Level(), e) {
		return v, nil
	}
	v, err := f.choose(ctx)
	if err != nil {
		return nil, err
	}
	f.at.Store(v)
	return v, nil
}

// choose goes to the best place there is: a copy, a fill, the source. f.mu
// must be held.
func (f *file) choose(ctx context.Context) (*view, error) {
	e, h := f.entry, f.handler
	for range 4 { // a level may change under us, but not for ever
		l := e.Level()
		if l == tiers.AtSource {
			fill, err := h.join(ctx, e, false)
			switch {
			case err == nil:
				return f.keep(&view{fill: fill, level: fill.tier.Level()}), nil
			case errors.Is(err, errSettled):
				continue
			case f.source == nil && !errors.Is(err, errNoRoom) && !errors.Is(err, errBackoff):
				return nil, err
			}
			return f.openSource(ctx)
		}
		t := h.levels.Tier(l)
		obj, err := t.Open(ctx, e.Path(), e.Info())
		if err == nil {
			return f.keep(&view{Object: obj, level: l}), nil
		}
		switch {
		case errors.Is(err, drivers.ErrChanged): // another file has its name; the next fill removes it
			e.Demote(l)
		case errors.Is(err, fs.ErrNotExist):
			if e.Demote(l) {
				t.Lost(e.Size())
			}
		default: // the tier is not well; the copy may be
			return f.openSource(ctx)
		}
	}
	return f.openSource(ctx)
}

// openSource goes to the source; f.mu must be held.
func (f *file) openSource(ctx context.Context) (*view, error) {
	if f.source == nil {
		obj, err := openSource(ctx, f.handler, f.entry)
		if err != nil {
			return nil, err
		}
		f.source = f.keep(&view{Object: obj})
	}
	// A new view of the same object, since views do not change.
	return &view{Object: f.source.Object, instead: f.entry.Level(), again: time.Now().Add(again)}, nil
}

// keep remembers what must be closed with the file; f.mu must be held.
func (f *file) keep(v *view) *view {
	f.views = append(f.views, v)
	return v
}

// Info describes the version that is open.
func (f *file) Info() drivers.Info { return f.entry.Info() }

// Close closes the file.
func (f *file) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, v := range f.views {
		if v.fill != nil {
			v.fill.release()
		} else {
			v.Object.Close()
		}
	}
	f.views = nil
	return nil
}

// openSource opens e at the source, if that still has e's version.
func openSource(ctx context.Context, h *Handler, e *metadata.Entry) (drivers.Object, error) {
	obj, err := h.levels.Source().Open(ctx, e.Path())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		h.names.Changed(e)
		return nil, err
	case err != nil:
		return nil, err
	}
	if !obj.Info().SameVersion(e.Info()) {
		obj.Close()
		h.names.Changed(e)
		return nil, fmt.Errorf("%s: %w", e.Path(), drivers.ErrChanged)
	}
	return obj, nil
}
