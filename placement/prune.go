package placement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
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

// Errors of Prune.
var (
	// ErrEmptySource: the root of the source has no names. It may be a mount point that is not mounted.
	ErrEmptySource = errors.New("the source is empty")

	// ErrManyOrphans: the source lacks the files of more than half of the copies, and none was removed.
	ErrManyOrphans = errors.New("the source lacks the files of more than half of the copies")

	// ErrUnproven: copies were kept because the directories of their files prove nothing.
	ErrUnproven = errors.New("the source may lack files only because a part of it is not mounted")
)

// PruneOptions configure a call of Prune.
type PruneOptions struct {
	Paths  []string // directories or files whose copies are examined; "." is the whole dataset
	DryRun bool     // copies are found and not removed
	Force  bool     // copies are removed also where ErrManyOrphans or ErrUnproven would be the error
}

// A PruneReport is the state of a call of Prune, or its result.
type PruneReport struct {
	DryRun     bool   `json:"dry_run,omitempty"`
	NeedsForce bool   `json:"needs_force,omitempty"` // in a dry run: without PruneOptions.Force, copies would stay
	Examined   int64  `json:"copies_examined"`       // copies found in the tiers
	Orphans    int64  `json:"copies_orphaned"`       // of them, copies of files that the source does not have
	Bytes      int64  `json:"bytes_orphaned"`        // room that these occupy
	Unproven   int64  `json:"copies_unproven"`       // of the orphans, those of directories that prove nothing
	Removed    int64  `json:"copies_removed"`        // of the orphans, those that were removed
	Freed      int64  `json:"bytes_removed"`         // room that these occupied; while one is open, it still does
	Failed     int64  `json:"copies_failed"`         // copies whose file could not be examined, or that could not be removed
	Skipped    int64  `json:"tiers_skipped"`         // tiers that could not be examined to the end
	Error      string `json:"first_error,omitempty"` // of those that failed or were skipped
}

// A PrunedDir describes the orphans of one directory.
type PrunedDir struct {
	Path   string // of the source
	Copies int64
	Bytes  int64  // room that they occupy
	Reason string // why the source proves nothing about the directory, or ""
}

// Prune removes the copies of files that the source does not have, which are called orphans. It finds them
// in the tiers, by the names that the container has cached, so the caller revalidates these first;
// directories that are not cached are listed. No copy is removed before the source was asked for the
// files of all. What cannot be examined stays.
//
// A part of the source may be a mount of its own that is not mounted. Unless opts.Force is set, copies stay
// whose nearest directory at the source is empty now, or is on another file system than when it was first
// seen; and all copies stay if more than half of those below one of the paths are orphans.
//
// It calls report from time to time, not concurrently. It returns the directories of the orphans that stay,
// or of all orphans in a dry run. The error is one of the above, that of ctx, or that of the root of the
// source; then no copy was removed, unless it is ErrUnproven or that of ctx. What fails otherwise is in
// the report only.
func (h *Handler) Prune(ctx context.Context, opts PruneOptions, report func(PruneReport)) ([]PrunedDir, error) {
	p := &prune{handler: h, opts: opts, send: report, report: PruneReport{DryRun: opts.DryRun}}
	ctx = drivers.Background(ctx)
	h.levels.WaitScanned(ctx)
	if err := p.wantNames(ctx); err != nil {
		return nil, err
	}
	p.examined = make([]int64, len(opts.Paths))
	for _, t := range h.levels.Tiers() {
		if err := p.examine(ctx, t); err != nil && ctx.Err() == nil {
			p.update(func(r *PruneReport) { r.Skipped++; r.fail(err) })
		}
	}
	p.confirm(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := p.wantNames(ctx); err != nil { // it may have been emptied or unmounted meanwhile
		return nil, err
	}
	all := dirsOf(p.orphans)
	stay, err := p.decide()
	if opts.DryRun {
		p.update(func(r *PruneReport) { r.NeedsForce = err != nil })
		return all, nil
	}
	each(ctx, comparisons, p.orphans, func(s suspect) {
		if err := panics.Do(func() error { return p.remove(ctx, s) }); err != nil && ctx.Err() == nil {
			p.update(func(r *PruneReport) { r.Failed++; r.fail(err) })
		}
	})
	return dirsOf(stay), cmp.Or(context.Cause(ctx), err)
}

// A prune is one call of Prune.
type prune struct {
	handler  *Handler
	opts     PruneOptions
	send     func(PruneReport)
	examined []int64   // copies below each of opts.Paths
	suspects []suspect // copies whose file was not found
	dirs     sync.Map  // by the path of a directory: a sourceDir

	mu      sync.Mutex // guards the following, and serializes send
	report  PruneReport
	orphans []suspect
}

// A suspect is a copy whose file may be missing.
type suspect struct {
	tier   *tiers.Tier
	copied tiers.CopyInfo
	below  int    // index in PruneOptions.Paths
	dir    string // of the file
	there  string // of an orphan: dir, or the nearest directory above it that the source has
	reason string // why that proves nothing about an orphan, or ""
}

// A sourceDir is what the source has at the path of a directory.
type sourceDir struct {
	exists bool
	dev    uint64
	reason string // why a name that is missing in it proves nothing, or ""
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
	for i, name := range p.opts.Paths {
		for _, root := range p.handler.copiesOf([]string{name}) {
			if err := t.Copies(ctx, root, func(copies []tiers.CopyInfo) error { return p.directory(ctx, t, i, copies) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// directory finds the suspects among the copies in one directory of a tier, below a path.
func (p *prune) directory(ctx context.Context, t *tiers.Tier, below int, copies []tiers.CopyInfo) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(copies) == 0 {
		return nil
	}
	has := func(string) bool { return false } // pieces: ask examines their file
	var err error
	if _, size := p.handler.names.SourceOf(copies[0].Name); size < 0 {
		has, err = p.names(ctx, path.Dir(string(copies[0].Name)))
	}
	p.examined[below] += int64(len(copies))
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
			p.suspects = append(p.suspects, suspect{tier: t, copied: c, below: below})
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

// confirm asks the source for the files of the suspects.
func (p *prune) confirm(ctx context.Context) {
	each(ctx, comparisons, p.suspects, func(s suspect) {
		var orphan bool
		err := panics.Do(func() (err error) { orphan, err = p.ask(ctx, &s); return err })
		p.update(func(r *PruneReport) {
			switch {
			case err != nil && ctx.Err() == nil:
				r.Failed++
				r.fail(err)
			case err == nil && orphan:
				r.Orphans++
				r.Bytes += s.copied.Room
				p.orphans = append(p.orphans, s)
			}
		})
	})
	p.dirs.Range(func(dir, before any) bool { // a part of the source may have been unmounted meanwhile
		p.dirs.Delete(dir)
		if now, err := p.dir(ctx, dir.(string)); err != nil || now != before.(sourceDir) {
			p.dirs.Store(dir, sourceDir{reason: "it is changing"})
		}
		return ctx.Err() == nil
	})
	for i := range p.orphans {
		s := &p.orphans[i]
		if d, ok := p.dirs.Load(s.there); ok {
			s.reason = d.(sourceDir).reason
		}
		if s.reason != "" {
			p.update(func(r *PruneReport) { r.Unproven++ })
		}
	}
}

// ask asks the source whether it has the file of a suspect. Nothing is asked below a directory that it does
// not have.
func (p *prune) ask(ctx context.Context, s *suspect) (orphan bool, err error) {
	file, size := p.handler.names.SourceOf(s.copied.Name)
	s.dir = path.Dir(file)
	for s.there = s.dir; ; s.there = path.Dir(s.there) {
		d, err := p.dir(ctx, s.there)
		if err != nil {
			return false, err
		}
		if d.exists {
			break
		}
	}
	if s.there != s.dir {
		return true, nil
	}
	info, err := p.handler.levels.Source().Stat(ctx, file)
	switch {
	case isMissing(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("%s: %w", file, err)
	}
	return !info.IsRegular() || size >= 0 && info.Size != size, nil
}

// dir returns what the source has at the path of a directory.
func (p *prune) dir(ctx context.Context, name string) (sourceDir, error) {
	if known, ok := p.dirs.Load(name); ok {
		return known.(sourceDir), nil
	}
	d := sourceDir{exists: true}
	if name != "." { // wantNames asks for the root
		info, err := p.handler.levels.Source().Stat(ctx, name)
		switch {
		case isMissing(err) || err == nil && !info.IsDir():
			d.exists = false
		case err != nil:
			return d, fmt.Errorf("%s: %w", name, err)
		default:
			above, err := p.dir(ctx, path.Dir(name))
			if err != nil {
				return d, err
			}
			d.dev, d.reason = info.Dev, cmp.Or(p.doubt(ctx, name, info.Dev), above.reason)
		}
	}
	p.dirs.Store(name, d)
	return d, nil
}

// doubt returns why a name that is missing in a directory that the source has proves nothing, or "".
func (p *prune) doubt(ctx context.Context, dir string, dev uint64) string {
	e, err := p.handler.names.Resolve(ctx, dir)
	if err != nil || !e.IsDir() {
		return "it is changing"
	}
	if e.Moved(dev) {
		return "it is on another file system than before"
	}
	if entries, err := p.handler.names.List(ctx, e); err != nil {
		return err.Error()
	} else if len(entries) == 0 {
		return "it is empty"
	}
	return ""
}

// decide returns the orphans that stay, and why. It leaves the others in p.orphans.
func (p *prune) decide() (stay []suspect, err error) {
	if p.opts.Force {
		return nil, nil
	}
	below := make([]int64, len(p.opts.Paths))
	for _, s := range p.orphans {
		below[s.below]++
		if 2*below[s.below] > p.examined[s.below] {
			err = fmt.Errorf("%w below %s", ErrManyOrphans, p.opts.Paths[s.below])
		}
	}
	if err != nil {
		stay, p.orphans = p.orphans, nil
		return stay, err
	}
	p.orphans = slices.DeleteFunc(p.orphans, func(s suspect) bool {
		if s.reason != "" {
			stay, err = append(stay, s), ErrUnproven
		}
		return s.reason != ""
	})
	return stay, err
}

// dirsOf returns the directories of suspects, by path.
func dirsOf(suspects []suspect) []PrunedDir {
	byPath := make(map[string]*PrunedDir)
	for _, s := range suspects {
		d := byPath[s.dir]
		if d == nil {
			d = &PrunedDir{Path: s.dir, Reason: s.reason}
			byPath[s.dir] = d
		}
		d.Copies++
		d.Bytes += s.copied.Room
	}
	all := make([]PrunedDir, 0, len(byPath))
	for _, name := range slices.Sorted(maps.Keys(byPath)) {
		all = append(all, *byPath[name])
	}
	return all
}

// remove removes an orphan.
func (p *prune) remove(ctx context.Context, s suspect) error {
	if e := p.handler.names.CachedCopy(s.copied.Name); e != nil && !e.Stale() {
		p.handler.names.Changed(e) // the source has lost the file since it was last examined
		p.handler.files.forgetRecent(e)
	}
	removed, err := s.tier.RemoveFound(ctx, s.copied)
	if removed {
		p.update(func(r *PruneReport) { r.Removed++; r.Freed += s.copied.Room })
	}
	return err
}
