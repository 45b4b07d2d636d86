package main

import (
	"errors"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/paths"
	"github.com/milkweedfs/milkweed/placement"
)

// Plan implements control.Daemon.
func (d *daemon) Plan(part placement.PlanPart, given []string) (placement.PlanResult, error) {
	if d.draining.Load() {
		return placement.PlanResult{}, errDraining
	}
	names := make([]string, len(given))
	for i, path := range given {
		names[i] = path
		if name, ok := paths.Rel(path, d.cfg.Mount.Point); ok {
			names[i] = name
		}
	}
	r, err := d.handler.Plan(part, names)
	if errors.Is(err, placement.ErrPlanPart) || errors.Is(err, placement.ErrPlanFull) {
		err = &exit.Error{Code: exit.Usage, Err: err}
	}
	return r, err
}

// Plans implements control.Daemon.
func (d *daemon) Plans() control.Plan {
	return control.Plan{PlanStats: d.handler.PlanStats(), Streams: d.handler.PlanStreams()}
}

// DropPlan implements control.Daemon.
func (d *daemon) DropPlan(stream string) { d.handler.DropPlan(stream) }

// DropPlans implements control.Daemon.
func (d *daemon) DropPlans() { d.handler.DropPlans() }
