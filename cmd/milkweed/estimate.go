package main

import (
	"context"
	"fmt"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/placement"
)

// Estimate implements control.Daemon.
func (d *daemon) Estimate(ctx context.Context, names []string, progress func(control.Estimate)) error {
	if d.draining.Load() {
		return errDraining
	}
	entries, err := d.resolveAll(ctx, names)
	if err != nil {
		return err
	}
	var failed failures
	return d.handler.Estimate(ctx, entries, func(e placement.Estimate) {
		progress(control.Estimate{Estimate: e, Errors: failed.first})
	}, func(e *metadata.Entry, err error) { failed.add(d.names.Outside(e.Path()), err) })
}

// estimate is the command warmup --dry-run.
func estimate(ctx context.Context, point string, names []string, progress func(control.Estimate)) (control.Estimate, error) {
	c, err := control.Dial(ctx, point)
	if err != nil {
		return control.Estimate{}, err
	}
	defer c.Close()
	return c.Estimate(ctx, names, progress)
}

// estimateStep returns the progress of an estimate for a display.
func estimateStep(e control.Estimate) step {
	return step{text: fmt.Sprintf("listing: %s (%s) found so far", files(e.Files), size(e.Bytes)), bytes: e.Bytes, state: e}
}

// estimated returns what a warm-up would copy, in one line.
func estimated(e control.Estimate) string {
	missing := e.Files - e.CopiedFiles - e.OtherFiles
	line := fmt.Sprintf("%s (%s), of which %s (%s) are to be copied", files(e.Files), size(e.Bytes), count(missing), size(e.Bytes-e.CopiedBytes-e.OtherBytes))
	if e.OtherFiles > 0 {
		line += fmt.Sprintf(", and %s (%s) by other nodes", count(e.OtherFiles), size(e.OtherBytes))
	}
	line += fmt.Sprintf(": this needs %s, and the tiers have %s", size(e.NeededBytes), size(e.RoomBytes))
	if e.SkippedFiles > 0 {
		line += fmt.Sprintf("; no room for %s (%s)", files(e.SkippedFiles), size(e.SkippedBytes))
	}
	return line
}

// estimateOutcome returns the error of an estimate.
func estimateOutcome(e control.Estimate) error {
	switch {
	case e.SkippedFiles > 0 || e.SkippedBytes > 0:
		return &exit.Error{
			Code: exit.Incomplete, Err: fmt.Errorf("the tiers have no room for %s", files(e.SkippedFiles)),
			Remedy: "Jobs read them from the source in every epoch. Raise a quota, add a tier, or make room with `milkweed evict`.",
		}
	case e.FailedFiles > 0:
		return &exit.Error{
			Code: exit.Incomplete, Err: fmt.Errorf("the source does not show %s", plural(e.FailedFiles, "name or directory", "names or directories")),
			Remedy: "Run it again when the source works.",
		}
	}
	return nil
}
