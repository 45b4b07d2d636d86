package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/placement"
	"github.com/milkweedfs/milkweed/tiers"
)

// The dropping of a daemon are the generations that were switched away, and whose copies are removed
// when no file of them is open.
type dropping struct {
	mu      panics.Mutex                  // guards the following; held during a switch
	cancels map[string]context.CancelFunc // by generation; ends the wait and the removal
}

// begin returns the context of the removal of a generation, and its end; g.mu must be held.
func (g *dropping) begin(ctx context.Context, generation string) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	g.stop(generation)
	if g.cancels == nil {
		g.cancels = make(map[string]context.CancelFunc)
	}
	g.cancels[generation] = cancel
	return ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if ctx.Err() == nil { // else stop has removed it, and there may be another one
			g.stop(generation)
		}
	}
}

// stop ends the removal of a generation, if there is one; g.mu must be held.
func (g *dropping) stop(generation string) {
	if cancel := g.cancels[generation]; cancel != nil {
		cancel()
		delete(g.cancels, generation)
	}
}

func (g *dropping) has(generation string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cancels[generation] != nil
}

// errNoGenerations is the error of commands for generations if the source has none.
var errNoGenerations = &exit.Error{
	Code: exit.Usage, Err: metadata.ErrNoGenerations,
	Remedy: "Mount a symbolic link to the directory of a generation, with no tier and no mount point beside that directory. `milkweed switch --help` has an example.",
}

// Generations implements control.Daemon.
func (d *daemon) Generations(ctx context.Context) (control.Generations, error) {
	g := control.Generations{Current: d.names.Generation(), All: []control.Generation{}}
	if g.Current == "" {
		return g, errNoGenerations
	}
	g.Linked = d.linked(ctx)
	atSource, err := d.names.Generations(ctx)
	if err != nil {
		return g, &exit.Error{Code: exit.Source, Err: fmt.Errorf("source: %w", err), Remedy: "Run it again when the source is back."}
	}
	found := make(map[string]*control.Generation)
	get := func(name string) *control.Generation {
		if found[name] == nil {
			found[name] = &control.Generation{Name: name, Current: name == g.Current, Linked: name == g.Linked, Dropping: d.dropping.has(name)}
			for _, t := range d.levels.Tiers() {
				found[name].Copies = append(found[name].Copies, control.Copies{Tier: t.Name()})
			}
		}
		return found[name]
	}
	get(g.Current)
	for _, e := range atSource {
		get(e.Name()).AtSource = true
	}
	for i, t := range d.levels.Tiers() {
		if err := t.Available(); err != nil {
			continue // status says why
		}
		err := t.Copies(ctx, ".", func(copies []tiers.CopyInfo) error {
			for _, c := range copies {
				file, _ := d.names.SourceOf(c.Name)
				generation, _, _ := strings.Cut(file, "/")
				n := &get(generation).Copies[i]
				n.Files++
				n.Bytes += c.Room
			}
			return context.Cause(ctx)
		})
		if err != nil && ctx.Err() == nil {
			return g, &exit.Error{Code: exit.Tier, Err: fmt.Errorf("list the copies: %w", err), Remedy: "`milkweed status` shows the health of each tier."}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		g.All = append(g.All, *found[name])
	}
	return g, context.Cause(ctx)
}

// Switch implements control.Daemon.
func (d *daemon) Switch(ctx context.Context, req control.SwitchRequest, progress func(control.Switched)) error {
	if d.draining.Load() {
		return errDraining
	}
	defer d.survey.Forget()
	if !d.names.HasGenerations() {
		return errNoGenerations
	}
	s := control.Switched{From: d.names.Generation(), To: req.Generation}
	if err := d.findGeneration(ctx, req.Generation); err != nil {
		return err
	}
	if req.WhenIdle {
		if err := d.awaitIdle(ctx, func(users []procs.Process) {
			s.Users = users
			progress(s)
		}); err != nil {
			return err
		}
	}
	before, err := d.switchTo(ctx, req)
	if err != nil {
		return err
	}
	s.From, s.Done, s.Linked, s.Users = before, true, d.linked(ctx), nil
	progress(s)
	return nil
}

// switchTo switches to a generation, begins to drop the one before, and returns the name of that.
func (d *daemon) switchTo(ctx context.Context, req control.SwitchRequest) (string, error) {
	d.dropping.mu.Lock()
	defer d.dropping.mu.Unlock()
	d.dropping.stop(req.Generation)
	before, err := d.mount.Switch(ctx, req.Generation)
	if err != nil {
		return "", err
	}
	if before.Name() == req.Generation {
		return before.Name(), nil
	}
	d.log.Info("switched", "from", before.Name(), "to", req.Generation, "keep", req.Keep)
	if !req.Keep {
		wanted, end := d.dropping.begin(context.WithoutCancel(ctx), before.Name())
		d.start(func(ctx context.Context) {
			defer end()
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(wanted, cancel)()
			d.dropUnused(ctx, before)
		})
	}
	return before.Name(), nil
}

// findGeneration returns an error if the source does not have a generation, or that has no manifest although
// the configuration names one.
func (d *daemon) findGeneration(ctx context.Context, name string) error {
	_, err := d.names.FindGeneration(ctx, name)
	switch {
	case err == nil:
		_, err = d.manifestOf(ctx, name)
		return err
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EINVAL):
		return &exit.Error{
			Code: exit.Usage, Err: fmt.Errorf("the source has no generation %s", text(name)),
			Remedy: "`milkweed generations` lists those that it has.",
		}
	}
	return &exit.Error{Code: exit.Source, Err: err, Remedy: "Run it again when the source is back."}
}

// idlePoll is the interval at which awaitIdle looks for processes.
const idlePoll = time.Second

// awaitIdle waits until no process uses the mount, as far as this user can see.
func (d *daemon) awaitIdle(ctx context.Context, waiting func([]procs.Process)) error {
	for {
		users, _ := procs.Users(d.at.Dev)
		if len(users) == 0 {
			return nil
		}
		waiting(users)
		select {
		case <-time.After(idlePoll):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// The intervals at which dropUnused asks the kernel which files are open. Each time, the kernel forgets
// the others, with their pages.
const (
	minDropPoll = 200 * time.Millisecond
	maxDropPoll = time.Minute
)

// dropUnused waits until no file of a generation is open or mapped, and then removes its copies.
func (d *daemon) dropUnused(ctx context.Context, generation *metadata.Entry) {
	for poll := minDropPoll; ; poll = min(2*poll, maxDropPoll) {
		d.mount.Forget(generation)
		select {
		case <-time.After(poll): // the kernel sends its FORGETs
		case <-ctx.Done():
			return
		}
		held := 0
		for range d.names.Held(generation) {
			held++
		}
		if held == 0 {
			break
		}
	}
	var last placement.DropReport
	err := d.handler.Drop(ctx, []string{generation.Path()}, func(r placement.DropReport) { last = r })
	level := d.log.Info
	if err != nil || last.Failed > 0 {
		level = d.log.Warn
	}
	level("dropped the copies of a generation", "generation", generation.Name(), "copies", last.Copies, "bytes", last.Bytes, "failed", last.Failed, "err", cmp.Or(err, context.Cause(ctx)))
}

// Prepare implements control.Daemon.
func (d *daemon) Prepare(ctx context.Context, req control.PrepareRequest, progress func(control.Prepared)) error {
	if d.draining.Load() {
		return errDraining
	}
	if !d.names.HasGenerations() {
		return errNoGenerations
	}
	if err := d.findGeneration(ctx, req.Generation); err != nil {
		return err
	}
	root, err := d.names.FindGeneration(ctx, req.Generation)
	if err != nil {
		return err
	}
	var (
		last    placement.PrepareReport
		failed  failures
		updated time.Time
	)
	send := func() { progress(prepared(req.Generation, last, failed)) }
	err = d.handler.Prepare(ctx, root, d.names.Top(), placement.PrepareOptions{TrustMtime: req.TrustMtime, Partial: req.Partial}, func(r placement.PrepareReport) {
		last = r
		if time.Since(updated) >= 100*time.Millisecond {
			updated = time.Now()
			send()
		}
	}, func(e *metadata.Entry, err error) { failed.add(d.names.Outside(e.Path()), err) })
	send()
	if errors.Is(err, placement.ErrPrepareRoom) {
		return &exit.Error{
			Code: exit.Tier, Err: fmt.Errorf("%s was not prepared: it needs %s, and the tiers have %s free", text(req.Generation), size(last.Need), size(last.Room)),
			Remedy: "Raise the quotas, drop another generation with `milkweed generations drop`, or copy what fits with --partial.",
		}
	}
	if err == nil {
		d.log.Info("prepared a generation", "generation", req.Generation, "files", last.Found.Files, "shared", last.Shared.Files, "copied", last.Copied.Files,
			"copied_bytes", last.Copied.Bytes, "skipped", last.Skipped.Files, "failed", last.Failed.Files)
	}
	return err
}

func prepared(generation string, r placement.PrepareReport, f failures) control.Prepared {
	return control.Prepared{
		Generation: generation, Listing: r.Walking, NeedBytes: r.Need, RoomBytes: r.Room, Errors: f.first, FilesMismatched: f.mismatched,
		Found: control.Amount(r.Found), Present: control.Amount(r.Present), Shared: control.Amount(r.Shared), Copied: control.Amount(r.Copied),
		Skipped: control.Amount(r.Skipped), Elsewhere: control.Amount(r.Elsewhere), Failed: control.Amount(r.Failed),
	}
}

// DropGeneration implements control.Daemon.
func (d *daemon) DropGeneration(ctx context.Context, generation string, progress func(placement.DropReport)) error {
	switch {
	case d.draining.Load():
		return errDraining
	case !d.names.HasGenerations():
		return errNoGenerations
	case generation == d.names.Generation():
		return &exit.Error{
			Code: exit.Usage, Err: fmt.Errorf("%s is the current generation", text(generation)),
			Remedy: "Switch to another one first, with `milkweed switch`.",
		}
	case generation == "." || strings.Contains(generation, "/") || !drivers.ValidName(generation):
		return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("%s is not the name of a generation", text(generation))}
	}
	d.dropping.mu.Lock()
	ctx, end := d.dropping.begin(ctx, generation)
	d.dropping.mu.Unlock()
	defer end()
	_, err := d.drop(ctx, []string{generation}, progress)
	return err
}

// drop removes the copies of all files at and below the paths, and returns the last report.
func (d *daemon) drop(ctx context.Context, paths []string, progress func(placement.DropReport)) (last placement.DropReport, err error) {
	err = d.handler.Drop(ctx, paths, func(r placement.DropReport) {
		last = r
		progress(r)
	})
	switch {
	case ctx.Err() != nil:
		return last, context.Cause(ctx)
	case err != nil:
		return last, &exit.Error{Code: exit.Incomplete, Err: err, Remedy: "`milkweed status` shows the health of each tier. Run it again to retry."}
	case last.Failed > 0:
		return last, &exit.Error{
			Code: exit.Incomplete, Err: fmt.Errorf("%s could not be removed: %s", plural(last.Failed, "copy", "copies"), last.Error),
			Remedy: "Run it again to retry.",
		}
	}
	return last, nil
}
