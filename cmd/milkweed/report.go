package main

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/placement"
	"github.com/milkweedfs/milkweed/tiers"
)

// mode is how reads reach the kernel: through the daemon, and its page cache.
const mode = string(config.Cached)

// Status tells what the daemon does and has done.
func (d *daemon) Status(context.Context) control.Status {
	s := control.Status{
		Version:       control.StatusVersion,
		Milkweed:      version(),
		PID:           os.Getpid(),
		MountPoint:    d.cfg.Mount.Point,
		DatasetID:     config.DatasetID(d.cfg.Source.Path),
		Mode:          mode,
		Since:         d.since,
		UptimeSeconds: time.Since(d.since).Seconds(),
		Ready:         true,
		Opens:         make(map[string]map[string]int64),
		ReadLatency:   make(map[string]control.Histogram),
		OpenHandles:   int64(d.mount.OpenFiles()),
	}
	for _, t := range d.levels.Tiers() {
		stats := t.Stats()
		s.Tiers = append(s.Tiers, tierStatus(stats))
		s.ReadLatency[stats.Name] = histogram(stats.Latency)
	}
	source := d.levels.Source().Stats()
	s.Source = d.sourceStatus(source)
	s.ReadLatency["source"] = histogram(source.Latency)

	placed := d.handler.Stats()
	s.Fills = control.Fills{InFlight: placed.InFlight, InFlightBytes: placed.Filling, Queued: placed.Queued}
	s.Placement = control.Placement{
		Placed: placed.Placed, PlacedBytes: placed.PlacedBytes,
		Skipped: placed.Skipped, Failed: placed.Failed,
	}
	for l, n := range placed.Opens {
		s.Opens[d.levels.Name(tiers.Level(l))] = map[string]int64{mode: n.Files}
	}
	s.Opens["fill"] = map[string]int64{mode: placed.FillOpens.Files}
	return s
}

func tierStatus(t tiers.TierStats) control.Tier {
	s := control.Tier{
		Level: int(t.Level), Name: t.Name, Path: t.Path,
		QuotaBytes: t.Quota, UsedBytes: t.Used + t.Filling, Files: t.Files,
		Reads: t.Reads, BytesRead: t.Bytes, Errors: t.Errors,
		Health: control.Health(t.Health.String()),
	}
	if t.Cause != nil {
		s.Reason = t.Cause.Error()
	}
	if t.Health == tiers.Well && !t.Counted {
		s.Health = control.Counting
	}
	return s
}

func (d *daemon) sourceStatus(s tiers.SourceStats) control.Source {
	return control.Source{
		Path: d.cfg.Source.Path,
		Operations: control.Operations{
			Open: s.Opens, Read: s.Reads, Stat: s.Stats,
			Readdir: s.ReadDirs, Readlink: s.Readlinks, Xattr: s.Xattrs,
		},
		BytesRead: s.Bytes,
		Errors:    s.Errors,
	}
}

// histogram makes a latency cumulative, as Prometheus counts.
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

// Where tells where a file is.
func (d *daemon) Where(ctx context.Context, name string) (control.Location, error) {
	e, err := d.names.Resolve(ctx, name)
	if err != nil {
		return control.Location{}, err
	}
	l := control.Location{Path: name, Type: typeOf(e), SizeBytes: e.Info().Size}
	if !e.IsRegular() {
		return l, nil
	}
	level := e.Level()
	l.Level, l.State = d.levels.Name(level), control.AtSource
	filled, filling := d.handler.Filling(e)
	switch {
	case level != tiers.AtSource:
		l.State = control.Placed
		l.TierPath = filepath.Join(d.levels.Tier(level).Path(), config.DatasetID(d.cfg.Source.Path), "files", name)
	case filling:
		l.State, l.FilledBytes = control.Filling, filled
	case e.Size() == 0:
		l.State, l.Reason = control.NotPlaced, "empty"
	case !d.handler.Fits(e.Size()):
		l.State, l.Reason = control.NotPlaced, "no tier has room"
	}
	return l, nil
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

// maxErrors is how many of the files that failed a warm-up names.
const maxErrors = 10

// Warmup places the files below the names.
func (d *daemon) Warmup(ctx context.Context, names []string, progress func(control.Progress)) error {
	var entries []*metadata.Entry
	for _, name := range names {
		e, err := d.names.Resolve(ctx, name)
		if err != nil {
			return err
		}
		entries = append(entries, e)
	}
	var (
		last    placement.Progress
		errs    []control.FileError
		updated time.Time
	)
	err := d.handler.Warmup(ctx, entries, func(p placement.Progress) {
		last = p
		if time.Since(updated) >= 100*time.Millisecond {
			updated = time.Now()
			progress(warmupProgress(p, errs))
		}
	}, func(e *metadata.Entry, err error) {
		if len(errs) < maxErrors {
			errs = append(errs, control.FileError{Path: e.Path(), Error: err.Error()})
		}
	})
	progress(warmupProgress(last, errs))
	return err
}

func warmupProgress(p placement.Progress, errs []control.FileError) control.Progress {
	return control.Progress{
		Scanning:   p.Walking,
		FilesTotal: p.Found.Files, FilesDone: p.Placed.Files, FilesSkipped: p.Skipped.Files, FilesFailed: p.Failed.Files,
		BytesTotal: p.Found.Bytes, BytesDone: p.Placed.Bytes, BytesSkipped: p.Skipped.Bytes, BytesFailed: p.Failed.Bytes,
		Errors: errs,
	}
}
