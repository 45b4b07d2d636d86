package placement

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// ErrEmptySource is the error of Prune if the root of the source has no names: the source may be a
// mount point that is not mounted.
var ErrEmptySource = errors.New("the source is empty")

// PruneOptions configure a call of Prune.
type PruneOptions struct {
	Paths  []string // directories or files whose copies are examined; "." is the whole dataset
	DryRun bool     // copies are found and not removed
}

// A PruneReport is the state of a call of Prune, or its result.
type PruneReport struct {
	DryRun   bool   `json:"dry_run,omitempty"`
	Examined int64  `json:"copies_examined"`       // copies found in the tiers
	Orphans  int64  `json:"copies_orphaned"`       // of them, copies of files that the source does not have
	Bytes    int64  `json:"bytes_orphaned"`        // room that these occupy
	Removed  int64  `json:"copies_removed"`        // of them, copies that were removed
	Freed    int64  `json:"bytes_removed"`         // room that these occupied; while one is open, it still does
	Failed   int64  `json:"copies_failed"`         // copies whose file could not be examined, or that could not be removed
	Skipped  int64  `json:"tiers_skipped"`         // tiers that could not be examined to the end
	Error    string `json:"first_error,omitempty"` // of those that failed or were skipped
}

// Prune removes the copies of files that the source does not have. It finds them in the tiers, by the
// names that the container has cached, so the caller revalidates these first; directories that are
// not cached are listed. No copy is removed before all tiers were examined. Before a copy is
// removed, the source is asked for its file. What cannot be examined stays.
//
// It calls report from time to time, not concurrently. The error is ErrEmptySource, that of ctx, or
// that of the root of the source; then no copy was removed, unless it is that of ctx. What fails
// otherwise is in the report only.
func (h *Handler) Prune(ctx context.Context, opts PruneOptions, report func(PruneReport)) error {
	p := &prune{handler: h, opts: opts, send: report, report: PruneReport{DryRun: opts.DryRun}}
	ctx = drivers.Background(ctx)
	h.levels.WaitScanned(ctx)
	if err := p.wantNames(ctx); err != nil {
		return err
	}
	for _, t := range h.levels.Tiers() {
		if err := p.examine(ctx, t); err != nil && ctx.Err() == nil {
			p.update(func(r *PruneReport) { r.Skipped++; r.fail(err) })
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := p.wantNames(ctx); err != nil { // it may have been emptied or unmounted meanwhile
		return err
	}
	p.remove(ctx)
	return context.Cause(ctx)
}

// A prune is one call of Prune.
type prune struct {
	handler  *Handler
	opts     PruneOptions
	send     func(PruneReport)
	suspects []suspect
	dirs     sync.Map // by the path of a directory: whether the source has it

	mu     sync.Mutex // guards the following, and serializes send
	report PruneReport
}

// A suspect is a copy whose file was not found.
type suspect struct {
	tier   *tiers.Tier
	copied tiers.CopyInfo
}

func (p *prune) update(f func(r *PruneReport)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.report)
	p.send(p.report)
}

// fail keeps the first error.
func (r *PruneReport) fail(err error) {
	if r.Error == "" {
		r.Error = err.Error()
	}
}

// wantNames returns an error if the directory that the mount shows as its root cannot be listed at the
// source, or has no names.
func (p *prune) wantNames(ctx context.Context) error {
	empty, err := p.handler.levels.Source().IsEmpty(ctx, p.handler.names.Top().Path())
	if err == nil && empty {
		err = ErrEmptySource
	}
	return err
}

// examine finds the suspects in one tier. The error is the reason why it did not find all.
func (p *prune) examine(ctx context.Context, t *tiers.Tier) error {
	if err := t.Available(); err != nil {
		return err
	}
	for _, root := range p.handler.copiesOf(p.opts.Paths) {
		if err := t.Copies(ctx, root, func(copies []tiers.CopyInfo) error { return p.directory(ctx, t, copies) }); err != nil {
			return err
		}
	}
	return nil
}

// directory finds the suspects among the copies in one directory of a tier.
func (p *prune) directory(ctx context.Context, t *tiers.Tier, copies []tiers.CopyInfo) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(copies) == 0 {
		return nil
	}
	has := func(string) bool { return false } // pieces: their file is examined by remove
	var err error
	if _, size := p.handler.names.SourceOf(copies[0].Name); size < 0 {
		has, err = p.names(ctx, path.Dir(string(copies[0].Name)))
	}
	if err != nil {
		p.update(func(r *PruneReport) {
			r.Examined += int64(len(copies))
			r.Failed += int64(len(copies))
			r.fail(err)
		})
		return nil
	}
	for _, c := range copies {
		if !has(path.Base(string(c.Name))) {
			p.suspects = append(p.suspects, suspect{t, c})
		}
	}
	p.update(func(r *PruneReport) { r.Examined += int64(len(copies)) })
	return nil
}

// names returns whether a directory of the dataset has a file of some name, as far as is known.
func (p *prune) names(ctx context.Context, dir string) (has func(name string) bool, err error) {
	e, err := p.handler.names.Resolve(ctx, dir)
	var entries []*metadata.Entry
	if err == nil {
		entries, err = p.handler.names.List(ctx, e)
	}
	if isMissing(err) {
		return func(string) bool { return false }, nil
	}
	return func(name string) bool {
		i, ok := slices.BinarySearchFunc(entries, name, func(e *metadata.Entry, name string) int { return strings.Compare(e.Name(), name) })
		return ok && !entries[i].IsDir()
	}, err
}

// isMissing reports whether err means that a name does not exist.
func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// comparisons bounds the requests for attributes in flight of one call of Prune or Prepare.
const comparisons = 8

// remove asks the source for the files of the suspects, and removes those that it does not have.
func (p *prune) remove(ctx context.Context) {
	each(ctx, comparisons, p.suspects, func(s suspect) {
		if err := panics.Do(func() error { return p.settle(ctx, s) }); err != nil && ctx.Err() == nil {
			p.update(func(r *PruneReport) { r.Failed++; r.fail(err) })
		}
	})
}

// settle removes the copy of one suspect if the source does not have its file.
func (p *prune) settle(ctx context.Context, s suspect) error {
	orphan, err := p.isOrphan(ctx, s.copied.Name)
	if err != nil || !orphan {
		return err
	}
	room := tiers.Allocated(s.copied.Size)
	p.update(func(r *PruneReport) { r.Orphans++; r.Bytes += room })
	if p.opts.DryRun {
		return nil
	}
	if e := p.handler.names.CachedCopy(s.copied.Name); e != nil && !e.Stale() {
		p.handler.names.Changed(e) // the source has lost the file since it was last examined
		p.handler.files.forgetRecent(e)
	}
	removed, err := s.tier.RemoveFound(ctx, s.copied)
	if removed {
		p.update(func(r *PruneReport) { r.Removed++; r.Freed += room })
	}
	return err
}

// isOrphan asks the source whether it has the file of a copy. Nothing is asked below a directory that
// it does not have.
func (p *prune) isOrphan(ctx context.Context, name tiers.CopyName) (bool, error) {
	file, size := p.handler.names.SourceOf(name)
	for dir := path.Dir(file); dir != "."; dir = path.Dir(dir) {
		if has, known := p.dirs.Load(dir); known && !has.(bool) {
			return true, nil
		}
	}
	source := p.handler.levels.Source()
	info, err := source.Stat(ctx, file)
	switch {
	case isMissing(err):
	case err != nil:
		return false, fmt.Errorf("%s: %w", file, err)
	default:
		return !info.IsRegular() || size >= 0 && info.Size != size, nil
	}
	dir := path.Dir(file)
	if _, known := p.dirs.Load(dir); !known && dir != "." {
		info, err := source.Stat(ctx, dir)
		if err == nil || isMissing(err) {
			p.dirs.Store(dir, err == nil && info.IsDir())
		}
	}
	return true, nil
}
