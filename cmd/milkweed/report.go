package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/blob"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/placement"
	"github.com/milkweedfs/milkweed/tiers"
)

// Status implements control.Daemon. It calls neither the source nor a tier, because both may hang.
func (d *daemon) Status(context.Context) control.Status {
	placed := d.handler.Stats()
	s := control.Status{
		Version:       control.StatusVersion,
		Milkweed:      version(),
		GoVersion:     runtime.Version(),
		PID:           os.Getpid(),
		MountPoint:    d.cfg.Mount.Point,
		DatasetID:     d.dataset,
		Generation:    d.names.Generation(),
		Mode:          string(d.service.Mode),
		ModeReason:    d.service.Reason,
		Since:         d.since,
		UptimeSeconds: time.Since(d.since).Seconds(),
		Ready:         true,
		Names:         control.Names{Entries: int64(d.names.Len()), Coverage: d.survey.Coverage()},
		Peers:         d.peerStatus(),
		Sweep:         d.names.Sweeps(),
		Fills:         placed.Fills,
		Placement:     placed.Counters,
		Plan:          d.handler.PlanStats(nil),
		Exchange:      d.handler.ExchangeStats(),
		Window:        d.handler.WindowStats(),
		Scrub:         d.handler.ScrubStats(),
		Opens:         make(map[string]map[string]int64),
		OpenedBytes:   make(map[string]map[string]int64),
		ReadBytes:     make(map[string]int64),
		Usage:         placed.Usage,
		ReadLatency:   make(map[string]control.Histogram),
		Waits:         d.waits(placed.Waited),
		Epochs:        []control.Epoch{},
		EpochsEnded:   placed.EpochsEnded,
		OpenHandles:   int64(d.mount.OpenFiles()),
		Crashes:       d.crashes,
		WhileLocked:   d.how.lock.path,
		LogLost:       d.messages.lost(),
		Panics:        panics.Count(),
		Warnings:      d.messages.recent.list(),
	}
	s.GenerationGone = d.names.GenerationLost()
	stuck := d.mount.Stuck(stuckAfter)
	s.StuckRequests, s.OldestRequestSeconds = stuck.Requests, stuck.Oldest.Seconds()
	s.WaitingCalls = int64(d.levels.WaitingCalls())
	if s.Draining = d.draining.Load(); s.Draining {
		s.Ready, s.Elsewhere = false, procs.Namespaces(d.at.Dev)
	}
	for i, t := range d.levels.Tiers() {
		stats := t.Stats()
		tier := tierStatus(stats)
		tier.Passthrough, tier.PassthroughReason = passthroughStatus(check.PassthroughError(d.service.Mode, d.tiers.get(i).passthrough))
		s.Tiers = append(s.Tiers, tier)
		s.ReadLatency[stats.Name] = histogram(stats.Latency)
	}
	source := d.levels.Source().Stats()
	s.Source = control.Source{
		Path:           d.cfg.Source.Name(),
		Manifest:       d.cfg.Source.Manifest,
		SourceCounters: source.SourceCounters,
		IdleHandles:    placed.IdleHandles,

		GranularitySeconds: d.service.Granularity.Seconds(),
		RacyWindowSeconds:  d.service.RacyWindow(d.cfg).Seconds(),
		RacyFiles:          placed.RacyFiles,
		RacySeen:           placed.RacySeen,
		ClockAheadSeconds:  placed.ClockAhead.Seconds(),
	}
	s.Source.Passthrough, s.Source.PassthroughReason = passthroughStatus(d.service.Source)
	if b := d.bucket(); b != nil {
		requests := b.Stats()
		s.Source.Requests = &requests
	}
	s.ReadLatency[sourceLevel] = histogram(source.Latency)
	for l, all := range placed.Opens {
		d.addOpens(&s, d.levels.Name(tiers.Level(l)), all, placed.Passthrough[l])
	}
	d.addOpens(&s, fillLevel, placed.FillOpens, placement.Opens{})
	if s.Peers != nil {
		d.addOpens(&s, peersLevel, placed.PeerOpens, placement.Opens{})
	}
	for _, e := range placed.Epochs {
		s.Epochs = append(s.Epochs, d.epoch(e))
	}
	return s
}

// addOpens adds the opens of one level to s. Of all of them, passthrough are those that the
// kernel reads directly.
func (d *daemon) addOpens(s *control.Status, level string, all, passthrough placement.Opens) {
	other := string(d.service.Mode)
	s.Opens[level], s.OpenedBytes[level] = make(map[string]int64), make(map[string]int64)
	s.ReadBytes[level] = all.Read
	if d.service.Mode == config.Passthrough {
		other = string(config.Cached)
		s.Opens[level][string(config.Passthrough)] = passthrough.Files
		s.OpenedBytes[level][string(config.Passthrough)] = passthrough.Bytes
	}
	// all was loaded before passthrough. An open in between is in passthrough alone.
	s.Opens[level][other] = max(all.Files-passthrough.Files, 0)
	s.OpenedBytes[level][other] = max(all.Bytes-passthrough.Bytes, 0)
}

// passthroughStatus reports whether the kernel reads the files of a level directly. If it does
// not, err is the reason.
func passthroughStatus(err error) (on bool, reason string) {
	if err != nil {
		return false, err.Error()
	}
	return true, ""
}

func tierStatus(t tiers.TierStats) control.Tier {
	s := control.Tier{
		Level: int(t.Level), Name: t.Name, Path: t.Path,
		QuotaBytes: t.Quota, UsedBytes: t.Used + t.Filling, Files: t.Files,
		TierCounters: t.TierCounters,
		Health:       control.Health(t.Health.String()),
	}
	if t.Cause != nil {
		s.Reason = t.Cause.Error()
	}
	switch {
	case s.Health != control.Healthy:
	case !t.Scanned:
		s.Health = control.Scanning
	case t.Short != nil:
		s.Health, s.Reason = control.Full, t.Short.Error()
	}
	return s
}

// histogram converts l to cumulative counts, as in Prometheus.
func histogram(l tiers.Latency) control.Histogram {
	h := control.Histogram{SumSeconds: l.Sum.Seconds(), Count: l.Count}
	var sum uint64
	for i, n := range l.Buckets {
		sum += n
		h.LeSeconds = append(h.LeSeconds, tiers.Buckets[i])
		h.Counts = append(h.Counts, sum)
	}
	return h
}

// Settings implements control.Daemon.
func (d *daemon) Settings() []config.Setting { return d.effective.Load().Settings() }

// Where implements control.Daemon.
func (d *daemon) Where(ctx context.Context, name string) (control.Location, error) {
	e, err := d.resolve(ctx, d.names.Inside(name), whereTimeout)
	if err != nil {
		return control.Location{}, err
	}
	return d.locate(name, e), nil
}

// locate returns the location of an entry, which has a name in the mount.
func (d *daemon) locate(name string, e *metadata.Entry) control.Location {
	l := control.Location{Path: name, Type: typeOf(e), SizeBytes: e.Info().Size}
	if !e.IsRegular() {
		return l
	}
	level := e.Level()
	l.Level, l.State = d.levels.Name(level), control.AtSource
	fill, filling := d.handler.Filling(e)
	wait, recently := d.handler.ChangedRecently(e)
	var refused error
	if b := d.bucket(); b != nil {
		version := e.Info().Version
		if d.cfg.Source.Manifest != "" { // it is that of the manifest
			version = ""
		}
		refused = b.Refused(e.Path(), version)
	}
	switch {
	case level != tiers.AtSource:
		l.State = control.Placed
		l.TierPath = filepath.Join(d.levels.Tier(level).Path(), d.dataset, "files", e.CopyName())
	case filling:
		l.State, l.FilledBytes = control.Filling, fill.Copied
		if fill.Lazy {
			l.Reason = "only what readers ask for is copied, until they ask for 4 MiB in sequence, or for an eighth of the blocks"
		}
	case e.Full():
		l.State, l.Reason = control.NotPlaced, "it has content, and the source shows size 0: it cannot be read here"
	case e.Unsized():
		l.State, l.Reason = control.NotPlaced, "the source shows size 0, and an open finds out whether it is empty"
	case e.Size() == 0:
		l.State, l.Reason = control.NotPlaced, "empty"
	case !e.Placeable():
		l.State, l.Reason = control.NotPlaced, "its path is reserved for copies"
	case refused != nil:
		l.State, l.Reason = control.NotPlaced, fmt.Sprintf("the store has refused to read it: %v. %s", refused, blob.Remedy(refused))
	case recently:
		l.State, l.Reason = control.NotPlaced, fmt.Sprintf("it changed recently, and can be copied in %v", max(wait, time.Second).Round(time.Second))
	case d.names.HasPieces(e):
		here := 0
		pieces := d.names.CachedPieces(e)
		for _, p := range pieces {
			if p.Level() != tiers.AtSource {
				here++
			}
		}
		l.State, l.Reason = control.NotPlaced, "not opened yet; it is copied in ranges"
		if len(pieces) > 0 {
			l.Reason = fmt.Sprintf("%d of %d ranges are here", here, len(pieces))
		}
	default:
		if lacks := d.lacks(e.Size()); len(lacks) == len(d.levels.Tiers()) || !d.handler.Fits(e.Size()) {
			l.State, l.Reason = control.NotPlaced, "no tier has room"
			if d.someTierIsDown() {
				l.Reason = "no tier that works has room"
			}
			if len(lacks) > 0 {
				l.Reason += "; " + strings.Join(lacks, "; ")
			}
		}
	}
	return l
}

// bucket returns the source if it is a bucket, or nil.
func (d *daemon) bucket() *blob.Bucket {
	b, _ := d.source.(*blob.Bucket)
	return b
}

// lacks returns what the devices of tiers lack for a copy of size bytes, a text for each that lacks
// something.
func (d *daemon) lacks(size int64) (all []string) {
	for _, t := range d.levels.Tiers() {
		if err := t.Lacks(size); err != nil {
			all = append(all, fmt.Sprintf("tier %s: %v", t.Name(), err))
		}
	}
	return all
}

// someTierIsDown reports whether a tier is not used.
func (d *daemon) someTierIsDown() bool {
	return slices.ContainsFunc(d.levels.Tiers(), func(t *tiers.Tier) bool { return t.Stats().Health == tiers.Down })
}

// These bound how long Where and Warmup wait for the source, which has a name that is not cached.
const (
	whereTimeout  = 5 * time.Second
	warmupTimeout = 30 * time.Second
)

// resolve returns the entry of a name. If the source does not respond before the time-out, it is
// the cached one, whatever its age.
func (d *daemon) resolve(ctx context.Context, name string, timeout time.Duration) (*metadata.Entry, error) {
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	e, err := d.names.Resolve(bounded, name)
	if err == nil || bounded.Err() == nil || ctx.Err() != nil {
		return e, err
	}
	if e := d.names.CachedCopy(d.names.CopyName(name)); e != nil && !e.Unknown() {
		return e, nil
	}
	return nil, noResponse(name, timeout)
}

// noResponse is the error of a name that the source has not answered for.
func noResponse(name string, timeout time.Duration) error {
	return &exit.Error{
		Code: exit.Source, Err: fmt.Errorf("%s: the name is not cached, and the source did not respond within %v", name, timeout),
		Remedy: "Run it again when the source responds.",
	}
}

func typeOf(e *metadata.Entry) string {
	switch {
	case e.IsRegular():
		return "file"
	case e.IsDir():
		return "directory"
	case e.IsSymlink():
		return "symlink"
	}
	return "other"
}

// maxErrors bounds Progress.Errors.
const maxErrors = 10

// Warmup implements control.Daemon.
func (d *daemon) Warmup(ctx context.Context, names []string, progress func(control.Progress)) error {
	return d.warmUp(ctx, names, d.handler.Warmup, progress)
}

// Estimate implements control.Daemon.
func (d *daemon) Estimate(ctx context.Context, names []string, progress func(control.Progress)) error {
	return d.warmUp(ctx, names, d.handler.Estimate, progress)
}

// warmUp calls run, which is Warmup or Estimate of the handler, with the entries of names.
func (d *daemon) warmUp(
	ctx context.Context, names []string,
	run func(context.Context, []*metadata.Entry, func(placement.Progress), func(*metadata.Entry, error)) error,
	progress func(control.Progress),
) error {
	if d.draining.Load() {
		return errDraining
	}
	defer d.survey.Forget()
	var entries []*metadata.Entry
	for _, name := range names {
		e, err := d.resolve(ctx, d.names.Inside(name), warmupTimeout)
		if err != nil {
			return err
		}
		entries = append(entries, e)
	}
	var (
		last    placement.Progress
		failed  failures
		updated time.Time
	)
	err := run(ctx, entries, func(p placement.Progress) {
		last = p
		if time.Since(updated) >= 100*time.Millisecond {
			updated = time.Now()
			progress(warmupProgress(p, failed))
		}
	}, func(e *metadata.Entry, err error) { failed.add(d.names.Outside(e.Path()), err) })
	progress(warmupProgress(last, failed))
	return err
}

// The failures of a warm-up or a preparation are what it reports of the files that were not copied.
type failures struct {
	first      []control.FileError // at most maxErrors
	mismatched int64               // files that are not as in the manifest
}

func (f *failures) add(path string, err error) {
	if errors.Is(err, drivers.ErrMismatch) {
		f.mismatched++
	}
	if len(f.first) < maxErrors {
		f.first = append(f.first, control.FileError{Path: path, Error: err.Error()})
	}
}

func warmupProgress(p placement.Progress, f failures) control.Progress {
	return control.Progress{
		Scanning:   p.Walking,
		FilesTotal: p.Found.Files, FilesDone: p.Placed.Files, FilesSkipped: p.Skipped.Files, FilesFailed: p.Failed.Files, FilesElsewhere: p.Elsewhere.Files,
		BytesTotal: p.Found.Bytes, BytesDone: p.Placed.Bytes, BytesSkipped: p.Skipped.Bytes, BytesFailed: p.Failed.Bytes, BytesElsewhere: p.Elsewhere.Bytes,
		Errors: f.first, FilesMismatched: f.mismatched,
		NeededBytes: p.Needed, RoomBytes: p.Room, FilesNoInode: p.NoInodes,
	}
}

// Refresh implements control.Daemon.
func (d *daemon) Refresh(ctx context.Context, names []string, opts control.RefreshOptions, progress func(control.Refreshed)) error {
	if d.draining.Load() {
		return errDraining
	}
	defer d.survey.Forget()
	var r control.Refreshed
	var updated time.Time
	inside := make([]string, len(names))
	for i, name := range names {
		if inside[i] = d.names.Inside(name); opts.Prune && name == "." {
			inside[i] = "." // copies go that are of generations that the source does not have
		}
	}
	progressed := func() {}
	if opts.Prune {
		silent, s, stop := withSilence(ctx, maxSilence)
		defer stop()
		ctx, progressed = silent, s.progress
	}
	d.levels.CheckPaths(ctx)
	if b := d.bucket(); b != nil {
		b.Retry(inside)
	}
	err := d.names.Revalidate(ctx, inside, func(f metadata.Finding) {
		progressed()
		f.Path = d.names.Outside(f.Path)
		addFinding(&r, f)
		if time.Since(updated) >= 100*time.Millisecond {
			updated = time.Now()
			progress(r)
		}
	})
	progress(r)
	if errors.Is(err, metadata.ErrSource) {
		remedy := "What is cached stays visible. Run it again when the source is back."
		if d.names.GenerationLost() {
			remedy = "Complete copies stay readable. `milkweed generations` lists what the source has; show that with `milkweed switch`."
		}
		return &exit.Error{Code: exit.Source, Err: err, Remedy: remedy}
	}
	if err != nil || !opts.Prune {
		return err
	}
	dirs, err := d.handler.Prune(ctx, placement.PruneOptions{Paths: inside, DryRun: opts.DryRun, Force: opts.Force}, func(p placement.PruneReport) {
		progressed()
		r.Pruned = &p
		if time.Since(updated) >= 100*time.Millisecond {
			updated = time.Now()
			progress(r)
		}
	})
	for _, dir := range dirs[:min(len(dirs), control.MaxChanges)] {
		r.PrunedDirs = append(r.PrunedDirs, control.PrunedDir{Path: d.names.Outside(dir.Path), Copies: dir.Copies, Bytes: dir.Bytes, Reason: dir.Reason})
	}
	progress(r)
	if r.Pruned == nil {
		r.Pruned = &placement.PruneReport{}
	}
	return d.pruned(ctx, *r.Pruned, err)
}

// Evict implements control.Daemon.
func (d *daemon) Evict(ctx context.Context, names []string, progress func(placement.DropReport)) error {
	if d.draining.Load() {
		return errDraining
	}
	defer d.survey.Forget()
	inside := make([]string, len(names))
	for i, name := range names {
		inside[i] = d.names.Inside(name)
	}
	r, err := d.drop(ctx, inside, progress)
	for _, name := range inside {
		if err != nil || r.Copies > 0 {
			break
		}
		if _, missing := d.names.Resolve(ctx, name); errors.Is(missing, fs.ErrNotExist) {
			err = &exit.Error{
				Code: exit.Usage, Err: fmt.Errorf("%s: no such file or directory, and no copy", text(d.names.Outside(name))),
				Remedy: "`milkweed where` shows whether a file has a copy.",
			}
		}
	}
	return err
}

// pruned logs the end of placement.Handler.Prune, and returns its error for the user.
func (d *daemon) pruned(ctx context.Context, r placement.PruneReport, err error) error {
	remedy := "Run it again when the source is back."
	switch {
	case ctx.Err() != nil:
		return err
	case errors.Is(err, placement.ErrManyOrphans), errors.Is(err, placement.ErrUnproven):
		remedy = "Mount what is missing, and run it again. If the source is right, add --force."
	}
	d.log.Info("prune ended", "dry_run", r.DryRun, "copies", r.Examined, "orphaned", r.Orphans, "unproven", r.Unproven, "removed", r.Removed, "failed", r.Failed, "skipped_tiers", r.Skipped, "err", err)
	if err == nil {
		return nil
	}
	if errors.Is(err, placement.ErrUnproven) {
		err = fmt.Errorf("%s kept: %w", plural(r.Unproven, "copy was", "copies were"), err)
	} else {
		err = fmt.Errorf("no copy was removed: %w", err)
	}
	return &exit.Error{Code: exit.Source, Err: err, Remedy: remedy}
}

// addFinding counts f in r.
func addFinding(r *control.Refreshed, f metadata.Finding) {
	if f.Err != nil {
		r.Failed++
		if len(r.Errors) < maxErrors {
			r.Errors = append(r.Errors, control.FileError{Path: f.Path, Error: f.Err.Error()})
		}
		return
	}
	r.Names += int64(f.Names)
	switch f.Change {
	case metadata.Unchanged:
		return
	case metadata.Added:
		r.Added++
	case metadata.Removed:
		r.Removed++
	case metadata.Replaced:
		r.Replaced++
	}
	if len(r.Changes) == control.MaxChanges {
		r.Omitted++
		return
	}
	r.Changes = append(r.Changes, control.NameChange{Path: f.Path, Change: f.Change.String()})
}
