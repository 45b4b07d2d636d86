package main

import (
	"context"
	"errors"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/placement"
)

// Scrub implements control.Daemon.
func (d *daemon) Scrub(ctx context.Context, req control.ScrubRequest, progress func(placement.ScrubReport)) error {
	if d.draining.Load() {
		return errDraining
	}
	defer d.survey.Forget()
	var updated time.Time
	name := string(req.Name)
	if name != "." { // which has the copies of all generations
		name = d.names.Inside(name)
	}
	err := d.handler.Scrub(ctx, placement.ScrubOptions{Path: name, Rate: req.Rate}, func(r placement.ScrubReport) {
		r = d.outside(r)
		if r.Ended {
			d.logScrub(r)
		}
		if r.Ended || time.Since(updated) >= 100*time.Millisecond {
			updated = time.Now()
			progress(r)
		}
	})
	if errors.Is(err, placement.ErrScrubInProgress) {
		return scrubInProgress()
	}
	if err != nil {
		return err
	}
	return d.names.WaitNotified(ctx) // until the kernel has dropped its pages of corrupt copies
}

// outside returns a report with paths that are relative to the mount point.
func (d *daemon) outside(r placement.ScrubReport) placement.ScrubReport {
	if r.Path != "." {
		r.Path = d.names.Outside(r.Path)
	}
	for i := range r.Errors {
		r.Errors[i].Path = d.names.Outside(r.Errors[i].Path)
	}
	return r
}

func scrubInProgress() error {
	return &exit.Error{
		Code: exit.Failure, Err: placement.ErrScrubInProgress,
		Remedy: "`milkweed status` shows its progress. Wait until it has ended.",
	}
}

// logScrub logs the result of a scrub.
func (d *daemon) logScrub(r placement.ScrubReport) {
	logged := d.log.Info
	if !r.Clean() && !r.Stopped {
		logged = d.log.Warn
	}
	logged("scrub ended", "path", r.Path, "copies", r.CopiesFound, "right", r.CopiesRight, "corrupt", r.CopiesCorrupt,
		"failed", r.CopiesFailed, "refetched", r.Refetched, "skipped_tiers", len(r.Skipped), "stopped", r.Stopped,
		"took", time.Duration(r.Seconds*float64(time.Second)).Round(time.Millisecond))
}

// StartScrub implements control.Daemon.
func (d *daemon) StartScrub(req control.ScrubRequest) error {
	if d.draining.Load() {
		return errDraining
	}
	begun := make(chan error, 1)
	d.start(func(ctx context.Context) {
		err := d.Scrub(ctx, req, func(placement.ScrubReport) {
			select {
			case begun <- nil:
			default:
			}
		})
		select {
		case begun <- err: // it has not begun
		default:
		}
	})
	return <-begun
}

// scheduleScrubs verifies all copies whenever the last complete scrub, or the mount, is
// scrub.interval ago.
func (d *daemon) scheduleScrubs(ctx context.Context) {
	for last := time.Now(); ; {
		if end := d.handler.ScrubStats().LastEnd; end > last.Unix() { // by hand, meanwhile
			last = time.Unix(end, 0)
		}
		c := d.effective.Load().Scrub
		var due <-chan time.Time // never
		if c.Interval > 0 {
			due = time.After(time.Until(last.Add(c.Interval)))
		}
		select {
		case <-due:
			err := d.Scrub(ctx, control.ScrubRequest{Name: []byte("."), Rate: c.Rate}, func(placement.ScrubReport) {})
			if err != nil && ctx.Err() == nil {
				d.log.Warn("scheduled scrub did not run", "err", err)
			}
			last = time.Now()
		case <-d.rescheduled:
		case <-ctx.Done():
			return
		}
	}
}
