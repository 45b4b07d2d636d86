package placement

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// ErrPrepareRoom is the error of Prepare if the tiers have no room for what is to be copied.
var ErrPrepareRoom = errors.New("the tiers have no room for it")

// PrepareOptions configure a call of Prepare.
type PrepareOptions struct {
	TrustMtime bool // files with the same path, size and modification time have the same content
	Partial    bool // what has no room is skipped; otherwise nothing is copied then
}

// A PrepareReport is the state of a call of Prepare, or its result. When it has ended, the amounts
// after Found add up to Found, unless it was cancelled or refused.
type PrepareReport struct {
	Walking   bool   // more files may be found
	Found     Amount // in the generation
	Present   Amount // with a copy before
	Shared    Amount // of them, files that share the copy of another generation now
	Copied    Amount
	Skipped   Amount // no tier has room
	Elsewhere Amount // on other nodes
	Failed    Amount
	Need      int64 // bytes of room that copies need, when Walking has ended
	Room      int64 // bytes of room that the tiers had then
}

// Prepare fills the tiers with the files of a generation, whose directory is root, in the background
// and behind all readers. A file that is known to be the same as that of the same path below base, the
// current generation, shares the copy of that, if there is one: it is copied neither from the source
// nor in the tier. Known are files that the driver of the source can compare (drivers.Comparer), which
// takes two requests for each file that may be a hard link.
//
// It calls report after each step, and failed for each file whose copy failed, as Warmup does; the
// calls are not concurrent. If the tiers have no room for the others, the error matches ErrPrepareRoom,
// and nothing was copied. Otherwise the error is that of ctx.
func (h *Handler) Prepare(
	ctx context.Context, root, base *metadata.Entry, opts PrepareOptions, report func(PrepareReport), failed func(*metadata.Entry, error),
) error {
	h.levels.WaitScanned(ctx) // before that, no tier accepts copies
	p := &preparation{handler: h, opts: opts, root: root, base: base, send: report, failed: failed, report: PrepareReport{Walking: true}}
	ctx = drivers.Background(ctx)
	if err := p.find(ctx); err != nil {
		return err
	}
	each(ctx, comparisons, p.todo, func(f *preparedFile) { f.same = f.same && p.isSame(ctx, f) })
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := p.checkRoom(); err != nil {
		return err
	}
	each(ctx, 2*h.workers(), p.todo, func(f *preparedFile) { p.settle(ctx, f) })
	return context.Cause(ctx)
}

// A preparation is one call of Prepare.
type preparation struct {
	handler    *Handler
	opts       PrepareOptions
	root, base *metadata.Entry
	send       func(PrepareReport)
	failed     func(*metadata.Entry, error)
	todo       []*preparedFile
	listed     *metadata.Entry   // the directory below root whose files were compared last
	names      []*metadata.Entry // in the directory of the same path below base, sorted

	mu     sync.Mutex // guards the following, and serializes send and failed
	report PrepareReport
}

// A preparedFile is a file without a copy.
type preparedFile struct {
	e    *metadata.Entry
	twin *metadata.Entry // the file of the same path in the base, with a copy; nil: there is none
	same bool            // twin may have the same content, and after isSame it has
}

func (p *preparation) update(f func(r *PrepareReport)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.report)
	p.send(p.report)
}

// fail counts a file whose copy failed.
func (p *preparation) fail(e *metadata.Entry, err error) {
	p.update(func(r *PrepareReport) {
		r.Failed.add(e.Size())
		p.failed(e, err)
	})
}

// find finds the files without a copy, and their twins.
func (p *preparation) find(ctx context.Context) error {
	err := p.handler.names.Walk(ctx, []*metadata.Entry{p.root}, func(e *metadata.Entry, err error) error {
		switch {
		case err != nil:
			p.update(func(r *PrepareReport) { r.Found.add(0) })
			p.fail(e, err)
			return nil
		case !e.IsRegular():
			return nil
		}
		present := e.Level() != tiers.AtSource || e.Size() == 0
		p.update(func(r *PrepareReport) {
			r.Found.add(e.Size())
			if present {
				r.Present.add(e.Size())
			}
		})
		if present {
			return nil
		}
		f := &preparedFile{e: e, twin: p.twin(ctx, e)}
		f.same = f.twin != nil && f.twin.Size() == e.Size()
		p.todo = append(p.todo, f)
		return nil
	})
	p.update(func(r *PrepareReport) { r.Walking = false })
	return err
}

// twin returns the file of the same path as e in the base, if that has a copy, or nil. The directory of
// that is listed once, for all of its files.
func (p *preparation) twin(ctx context.Context, e *metadata.Entry) *metadata.Entry {
	dir := e.Parent()
	if dir != p.listed {
		p.listed, p.names = dir, nil
		below := strings.TrimPrefix(dir.Path(), p.root.Path())
		if d, err := p.handler.names.Resolve(ctx, path.Join(p.base.Path(), below)); err == nil && d.IsDir() {
			p.names, _ = p.handler.names.List(ctx, d) // without the names, there are no twins
		}
	}
	i, ok := slices.BinarySearchFunc(p.names, e.Name(), func(e *metadata.Entry, name string) int { return strings.Compare(e.Name(), name) })
	if !ok || !p.names[i].IsRegular() || p.names[i].Unknown() || p.names[i].Level() == tiers.AtSource {
		return nil
	}
	return p.names[i]
}

// isSame reports whether a file is known to have the content of the copy of its twin.
func (p *preparation) isSame(ctx context.Context, f *preparedFile) bool {
	e, twin := f.e.Info(), f.twin.Info()
	if p.opts.TrustMtime && e.Mtime.Equal(twin.Mtime) {
		return true
	}
	return p.handler.levels.Source().HaveSameContent(ctx, [2]string{f.e.Path(), f.twin.Path()}, [2]drivers.Info{e, twin})
}

// checkRoom returns an error if the tiers have no room for the files that are not shared.
func (p *preparation) checkRoom() error {
	var need, room int64
	for _, f := range p.todo {
		if !f.same {
			need += p.handler.levels.Allocated(f.e.Size())
		}
	}
	for _, t := range p.handler.levels.Tiers() {
		if quota, taken := t.Room(); t.Accepts() {
			room += max(quota-taken, 0)
		}
	}
	p.update(func(r *PrepareReport) { r.Need, r.Room = need, room })
	if need > room && !p.opts.Partial && p.handler.peers == nil { // peers divide the files
		return fmt.Errorf("%w: it needs %d bytes, and %d are free", ErrPrepareRoom, need, room)
	}
	return nil
}

// settle shares or copies a file.
func (p *preparation) settle(ctx context.Context, f *preparedFile) {
	var outcome Outcome
	err := panics.Do(func() (err error) {
		if f.same && p.handler.share(ctx, f.e, f.twin) {
			p.update(func(r *PrepareReport) { r.Shared.add(f.e.Size()) })
			return nil
		}
		if outcome, err = p.handler.Place(ctx, f.e); err != nil {
			return err
		}
		p.update(func(r *PrepareReport) {
			switch outcome {
			case Placed:
				r.Copied.add(f.e.Size())
			case Skipped:
				r.Skipped.add(f.e.Size())
			case Elsewhere:
				r.Elsewhere.add(f.e.Size())
			}
		})
		return nil
	})
	if err != nil && ctx.Err() == nil {
		p.fail(f.e, err)
	}
}

// share gives e the copy of another file that has the same content, and reports success. If e may have
// another copy, it fails, and e is to be copied. A change time that is so recent that it does not
// identify the content, as that of a new link, does not matter: the modification time is that of the
// copy, and does.
func (h *Handler) share(ctx context.Context, e, twin *metadata.Entry) bool {
	l := twin.Level()
	if l == tiers.AtSource || e.Unverified() || !e.Claim() {
		return false
	}
	if err := h.levels.Tier(l).Link(ctx, twin.CopyName(), e.CopyName(), e.Info()); err != nil {
		h.log.Debug("copy not shared", "path", e.Path(), "with", twin.Path(), "err", err)
		e.Release()
		return false
	}
	e.Publish(l)
	return true
}
