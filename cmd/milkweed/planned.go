package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/filelist"
	"github.com/milkweedfs/milkweed/cmd/internal/paths"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/placement"
)

// Plan implements control.Guest.
func (d *daemon) Plan(part placement.PlanPart, given []string) (placement.PlanResult, error) {
	return d.planBy(nil, part, given)
}

// planBy is Plan for a guest, or for the owner of the mount if by is nil.
func (d *daemon) planBy(by *metadata.User, part placement.PlanPart, given []string) (placement.PlanResult, error) {
	if d.draining.Load() {
		return placement.PlanResult{}, errDraining
	}
	names := make([]string, len(given))
	for i, path := range given {
		names[i] = path
		if name, ok := paths.Rel(path, d.cfg.Mount.Point); ok {
			names[i] = name
		}
		if name := names[i]; name != "" && name != "." && name[0] != '/' { // else the handler refuses it
			names[i] = d.names.Inside(name)
		}
	}
	r, err := d.handler.Plan(by, part, names)
	if errors.Is(err, placement.ErrPlanPart) || errors.Is(err, placement.ErrPlanFull) {
		err = &exit.Error{Code: exit.Usage, Err: err}
	}
	return r, err
}

// planBatch is the number of paths that readPlan adds at a time.
const planBatch = 1024

// readPlan adds the file mount.plan to the plan.
func (d *daemon) readPlan(ctx context.Context) {
	name := d.cfg.Mount.Plan
	f, err := os.Open(name)
	if err != nil {
		d.log.Error("the plan cannot be read", "err", err)
		return
	}
	defer f.Close()
	var (
		all   placement.PlanResult
		part  placement.PlanPart
		paths []string
	)
	flush := func() error {
		r, err := d.Plan(part, paths)
		all.Add(r)
		part.From += int64(len(paths))
		paths = paths[:0]
		return cmp.Or(err, ctx.Err())
	}
	err = filelist.Read(f, '\n', []string{d.cfg.Mount.Point}, func(name string) error {
		paths = append(paths, name)
		if len(paths) < planBatch {
			return nil
		}
		return flush()
	})
	err = cmp.Or(err, flush())
	level := slog.LevelInfo
	if err != nil || all.Rejected > 0 {
		level = slog.LevelWarn
	}
	d.log.Log(ctx, level, "read the plan", "file", name, "accepted", all.Accepted, "rejected", all.Rejected, "reasons", all.Errors, "err", err)
}

// Plans implements control.Guest: it has the plans of all users.
func (d *daemon) Plans() control.Plan { return d.plansOf(nil) }

// plansOf is Plans for a guest, or for the owner of the mount if by is nil.
func (d *daemon) plansOf(by *metadata.User) control.Plan {
	return control.Plan{PlanStats: d.handler.PlanStats(by), Streams: d.handler.PlanStreams(by)}
}

// DropPlan implements control.Guest: it drops a stream of the owner.
func (d *daemon) DropPlan(stream string) { d.handler.DropPlan(nil, stream) }

// DropPlans implements control.Guest: it drops the plans of all users.
func (d *daemon) DropPlans() { d.handler.DropPlans(nil) }
