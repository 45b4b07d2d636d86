package placement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// Bounds of the plans of guests. What exceeds them is refused.
const maxGuests = 8 // that have a plan

var guestLimit = planLimit{maxPlanned / 2, maxPlanMemory / 2, maxPlanStreams / 2}

// A guest is a user other than the owner of the mount, with a plan. The daemon may read files that a
// guest may not, so that it asks for each planned name, and each open, whether the guest may read the
// file: the plan neither causes a request for another file nor learns of its use. A guest has limits and
// trust of its own, and its files have no room in the window, so that it does not affect the plan of the
// owner or of other guests.
type guest struct {
	metadata.User
	*plan
}

// guestPlans are the plans of guests. The zero value has none.
type guestPlans struct {
	active atomic.Bool // there is one

	mu   panics.Mutex // guards the following; locked before the mutex of a plan
	list []guest      // without duplicates; the first one is next
}

// all lists the guests in the order of their IDs.
func (g *guestPlans) all() []guest {
	if !g.active.Load() {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.SortedFunc(slices.Values(g.list), func(a, b guest) int { return cmp.Compare(a.UID, b.UID) })
}

// add is plan.add for a user.
func (g *guestPlans) add(u metadata.User, part PlanPart, paths []string) (PlanResult, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.IndexFunc(g.list, func(o guest) bool { return o.UID == u.UID })
	if i < 0 {
		if len(g.list) == maxGuests {
			return PlanResult{}, fmt.Errorf("%w: %d other users have plans", ErrPlanFull, maxGuests)
		}
		p := newPlan()
		p.limit = guestLimit
		i, g.list = len(g.list), append(g.list, guest{u, p})
	}
	g.list[i].User = u // its groups may have changed
	r, err := g.list[i].plan.add(part, paths)
	if !g.list[i].plan.active.Load() { // after an error
		g.list = slices.Delete(g.list, i, i+1)
	}
	g.active.Store(len(g.list) > 0)
	return r, err
}

// sweep removes the guests without a stream, and returns the sum of their counters.
func (g *guestPlans) sweep() (c PlanCounters) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list = slices.DeleteFunc(g.list, func(o guest) bool {
		if o.plan.active.Load() {
			return false
		}
		c.add(o.stats().PlanCounters)
		return true
	})
	g.active.Store(len(g.list) > 0)
	return c
}

// turn makes the guest that is next the last one.
func (g *guestPlans) turn() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.list) > 0 {
		g.list = append(g.list[1:], g.list[0])
	}
}

// inTurn lists the guests, the one that is next first.
func (g *guestPlans) inTurn() []guest {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.list)
}

// PlanFor is Plan for a user other than the owner of the mount. The plan is one of this user's own, and
// only its files that the user may read are looked up and copied.
func (h *Handler) PlanFor(u metadata.User, part PlanPart, paths []string) (PlanResult, error) {
	r, err := h.plan.guests.add(u, part, paths)
	if err == nil {
		h.queue.feedPlanned()
	}
	return r, err
}

// Guests lists the IDs of the users other than the owner who have a plan.
func (h *Handler) Guests() (uids []uint32) {
	for _, g := range h.plan.guests.all() {
		uids = append(uids, g.UID)
	}
	return uids
}

// GuestPlan returns the state of the plan of a user other than the owner, and of its streams.
func (h *Handler) GuestPlan(uid uint32) (PlanStats, []PlanStream) {
	for _, g := range h.plan.guests.all() {
		if g.UID == uid {
			return g.stats(), g.describe()
		}
	}
	return PlanStats{}, []PlanStream{}
}

// DropGuest forgets the plan of a user other than the owner: the streams with these names, or all if
// there are none.
func (h *Handler) DropGuest(uid uint32, streams ...string) {
	for _, g := range h.plan.guests.all() {
		if g.UID != uid {
			continue
		}
		for _, s := range streams {
			g.drop(s)
		}
		if len(streams) == 0 {
			g.dropAll()
		}
	}
	h.sweepGuests()
}

// pruneGuests is plan.prune for the plans of guests.
func (h *Handler) pruneGuests(now time.Time) {
	for _, g := range h.plan.guests.all() {
		g.prune(now)
	}
	h.sweepGuests()
}

// sweepGuests removes the guests without a stream, and keeps their counters.
func (h *Handler) sweepGuests() {
	c := h.plan.guests.sweep()
	h.plan.mu.Lock()
	defer h.plan.mu.Unlock()
	h.plan.counters.add(c)
}

// plannedByGuest passes an open to the plans of guests who may read the file, and reports whether one
// has predicted it.
func (h *Handler) plannedByGuest(e *metadata.Entry) (predicted bool) {
	if !h.plan.guests.active.Load() {
		return false
	}
	for _, g := range h.plan.guests.inTurn() {
		if !h.names.IsReadable(g.User, e) {
			continue
		}
		hit, more := g.opened(e.Path(), e.Size())
		predicted = predicted || hit
		if more {
			h.queue.feedPlanned()
		}
	}
	return predicted
}

// nextForGuest is nextPlanned for the plans of guests, which take turns.
func (h *Handler) nextForGuest() prediction {
	if !h.plan.guests.active.Load() {
		return nil
	}
	for _, g := range h.plan.guests.inTurn() {
		h.plan.guests.turn()
		for h.ctx.Err() == nil {
			path, u, ok := g.next()
			if !ok {
				break
			}
			if path == "" {
				continue
			}
			g.spend(budget{entries: 1})
			return func() *fill { return h.beginForGuest(g, path, u) }
		}
	}
	return nil
}

// beginForGuest is beginPlanned for a guest. A file that the guest may not read counts as one that does
// not exist.
func (h *Handler) beginForGuest(g guest, path string, u use) *fill {
	ctx, cancel := context.WithTimeout(drivers.Background(h.ctx), predictTimeout)
	defer cancel()
	e, err := h.names.ResolveAs(ctx, g.User, path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		g.miss(path)
		return nil
	case err != nil && ctx.Err() != nil && h.ctx.Err() == nil:
		g.hang(path)
		return nil
	case err != nil || !e.IsRegular():
		return nil
	}
	quota, _ := h.room()
	g.saw(u, e.Size(), quota, h.ownedBytes(e))
	if !h.names.HasPieces(e) && e.Level() != tiers.AtSource {
		return nil
	}
	f := h.prefetch(e, nil)
	if f != nil {
		g.spend(budget{bytes: e.Size()})
	}
	return f
}
