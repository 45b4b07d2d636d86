package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/drivers/posix"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/placement"
)

// receiveGuests lets users other than root and the owner of the mount make requests on the control socket, if they may
// read the mount. A mount without them can be used.
func (d *daemon) receiveGuests(l *control.Listener) {
	if !d.cfg.Mount.AllowOther || d.adopts() {
		return
	}
	err := l.Reachable()
	if err == nil && !posix.HasAllUsers() {
		err = errors.New("the daemon is in a user namespace")
	}
	if err != nil {
		d.log.Warn("other users cannot use status, where and plan", "err", err)
		return
	}
	p := &planners{absent: procs.Absent, ids: make(map[int]int)}
	d.control.Guest = func(u procs.User) (control.Guest, error) { return d.receive(u, p) }
	d.start(func(ctx context.Context) { p.watch(ctx, d) })
}

// receive returns what answers a guest.
func (d *daemon) receive(u procs.User, p *planners) (control.Guest, error) {
	if d.draining.Load() {
		return nil, errDraining
	}
	return guest{d, u, metadata.User{UID: uint32(u.UID), Groups: u.Groups}, p}, nil
}

// A guest is a user who may read the mount, and is neither root nor its owner.
type guest struct {
	d        *daemon
	peer     procs.User
	user     metadata.User // the same
	planners *planners
}

// Status implements control.Guest. It names no file, and of the plans it has only that of the guest.
func (g guest) Status(ctx context.Context) control.Status {
	s := withoutNames(g.d.Status(ctx))
	s.Plan = g.d.handler.PlanStats(&g.user)
	return s
}

// withoutNames returns a status without names of files and of processes.
func withoutNames(s control.Status) control.Status {
	s.Elsewhere, s.WhileLocked = nil, ""
	s.Tiers = slices.Clone(s.Tiers)
	for i := range s.Tiers {
		s.Tiers[i].Reason = "" // it may be an error with the name of a file
	}
	for _, report := range []**placement.ScrubReport{&s.Scrub.Current, &s.Scrub.Last} {
		if *report != nil {
			r := **report
			r.Path, r.Skipped, r.Errors = "", nil, nil
			*report = &r
		}
	}
	return s
}

// Where implements control.Guest.
func (g guest) Where(ctx context.Context, name string) (control.Location, error) {
	bounded, cancel := context.WithTimeout(ctx, whereTimeout)
	defer cancel()
	e, err := g.d.names.ResolveAs(bounded, g.user, g.d.names.Inside(name))
	switch {
	case err == nil:
		return g.d.locate(name, e), nil
	case bounded.Err() != nil && ctx.Err() == nil:
		err = noResponse(name, whereTimeout)
	}
	return control.Location{}, err
}

// Plan implements control.Guest.
func (g guest) Plan(part placement.PlanPart, given []string) (placement.PlanResult, error) {
	g.planners.add(g.peer) // first: a plan is dropped when its guest is known to have left
	return g.d.planBy(&g.user, part, given)
}

// Plans implements control.Guest.
func (g guest) Plans() control.Plan { return g.d.plansOf(&g.user) }

// DropPlan implements control.Guest.
func (g guest) DropPlan(stream string) { g.d.handler.DropPlan(&g.user, stream) }

// DropPlans implements control.Guest.
func (g guest) DropPlans() { g.d.handler.DropPlans(&g.user) }

// planners are the guests who have handed over a plan, as far as the daemon sees their processes.
type planners struct {
	absent func(uids []int) []int // procs.Absent, except in tests

	mu  panics.Mutex // guards the following
	ids map[int]int  // by user, how many parts of plans the guest has handed over
}

// add adds a guest, unless the daemon sees no process of the guest, as in another PID namespace.
func (p *planners) add(u procs.User) {
	p.mu.Lock()
	known := p.ids[u.UID] > 0
	p.mu.Unlock()
	if !known && (u.PID == 0 || len(p.absent([]int{u.UID})) > 0) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids[u.UID]++
}

// dropDeparted forgets the guests who have no plan any more, and drops the plans of those as whom no process runs.
func (p *planners) dropDeparted(hasPlan func(uid int) bool, drop func(uid int)) {
	p.mu.Lock()
	maps.DeleteFunc(p.ids, func(uid, _ int) bool { return !hasPlan(uid) })
	before := maps.Clone(p.ids)
	p.mu.Unlock()
	if len(before) == 0 {
		return
	}
	absent := p.absent(slices.Collect(maps.Keys(before)))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, uid := range absent {
		if p.ids[uid] == before[uid] { // otherwise the guest has come back
			delete(p.ids, uid)
			drop(uid)
		}
	}
}

// userOf returns a user, without groups.
func userOf(uid int) *metadata.User { return &metadata.User{UID: uint32(uid)} }

// departureInterval is how often the daemon looks for the processes of guests who have handed over a plan.
const departureInterval = 5 * time.Second

// watch calls dropDeparted for the plans of d from time to time, until ctx is done.
func (p *planners) watch(ctx context.Context, d *daemon) {
	tick := time.NewTicker(departureInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.dropDeparted(
				func(uid int) bool { return d.handler.PlanStats(userOf(uid)).StreamCount > 0 },
				func(uid int) { d.handler.DropPlans(userOf(uid)) })
		case <-ctx.Done():
			return
		}
	}
}
