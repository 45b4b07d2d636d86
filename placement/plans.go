package placement

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
)

// maxPlanners is how many users other than the owner of the mount may have a plan.
const maxPlanners = 64

// Bounds of the plan of one user, and of those of all users other than the owner of the mount together.
var (
	userLimit  = planLimit{1_000_000, 14 << 20, 256}
	usersLimit = planLimit{2 * userLimit.entries, 2 * userLimit.memory, 2 * userLimit.streams}
)

// plans are the plans of the users of a mount. The first is that of the owner, who may read what the daemon
// may read, and it sees the opens of all users. Each of the others is of a user who has handed one over: its
// files are looked up as this user, and it sees the opens of this user only, so that the user learns nothing of
// files that others may read. Plans take turns, and each has trust of its own. The methods may be called concurrently.
type plans struct {
	list atomic.Pointer[[]*plan] // never changed; replaced while mu is held
	turn atomic.Uint32           // the index after that of the plan whose entry was the last one

	mu panics.Mutex // locked before the mutex of a plan
}

// newPlans returns the plan of the owner, which is empty.
func newPlans() *plans {
	s := new(plans)
	s.list.Store(&[]*plan{newPlan(nil, userLimit)})
	return s
}

// all lists the plans.
func (s *plans) all() []*plan { return *s.list.Load() }

// of returns the plan of a user, or nil. That of the owner, who is nil, is there always.
func (s *plans) of(u *metadata.User) *plan {
	all := s.all()
	if u == nil {
		return all[0]
	}
	for _, p := range all[1:] {
		if p.user.Load().UID == u.UID {
			return p
		}
	}
	return nil
}

// active reports whether a plan has a stream.
func (s *plans) active() bool {
	return slices.ContainsFunc(s.all(), func(p *plan) bool { return p.active.Load() })
}

// add is plan.add for the plan of a user, or of the owner if u is nil.
func (s *plans) add(u *metadata.User, part PlanPart, paths []string) (PlanResult, error) {
	if u == nil {
		return s.of(nil).add(part, paths)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.of(u)
	if p == nil {
		if len(s.all()) > maxPlanners {
			return PlanResult{}, fmt.Errorf("%w: %d other users have plans", ErrPlanFull, maxPlanners)
		}
		p = newPlan(u, planLimit{})
		list := append(slices.Clone(s.all()), p)
		s.list.Store(&list)
	}
	p.user.Store(u) // its groups may have changed
	p.limit = s.left(p)
	defer s.sweep() // there is no stream after an error
	return p.add(part, paths)
}

// left returns the bounds of the plan of a user other than the owner, beside those of others. s.mu must be held.
func (s *plans) left(p *plan) planLimit {
	left := usersLimit
	for _, other := range s.all()[1:] {
		if st := other.stats(); other != p {
			left.entries -= int(st.Entries)
			left.memory -= int(st.Memory)
			left.streams -= int(st.StreamCount)
		}
	}
	return planLimit{min(left.entries, userLimit.entries), min(left.memory, userLimit.memory), min(left.streams, userLimit.streams)}
}

// drop forgets a stream of a user, or of the owner if u is nil, and reports whether there was one.
func (s *plans) drop(u *metadata.User, stream string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.of(u)
	defer s.sweep()
	return p != nil && p.drop(stream)
}

// dropAll forgets the plan of a user, or all plans if u is nil.
func (s *plans) dropAll(u *metadata.User) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.all() {
		if u == nil || p == s.of(u) {
			p.dropAll()
		}
	}
	s.sweep()
}

// prune is plan.prune for all plans.
func (s *plans) prune(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.all() {
		p.prune(now)
	}
	s.sweep()
}

// sweep removes the plans of users that have no stream. What they have counted remains. s.mu must be held.
func (s *plans) sweep() {
	all := s.all()
	rest := []*plan{all[0]}
	for _, p := range all[1:] {
		if p.active.Load() {
			rest = append(rest, p)
			continue
		}
		counted := p.stats().PlanCounters
		all[0].mu.Lock()
		all[0].counters.add(counted)
		all[0].mu.Unlock()
	}
	if len(rest) < len(all) {
		s.list.Store(&rest)
	}
}

// next is plan.next of the plan whose turn it is, or of the first after it that has an entry.
func (s *plans) next() (path string, u use, ok bool) {
	all := s.all()
	turn := s.turn.Load()
	for i := range uint32(len(all)) {
		n := (turn + i) % uint32(len(all))
		if path, u, ok = all[n].next(); ok {
			s.turn.Store(n + 1)
			break
		}
	}
	return path, u, ok
}

// concerns reports whether p sees an open with a context: those of its user, and all if that is the owner.
func (p *plan) concerns(ctx context.Context) bool {
	u := p.user.Load()
	if u == nil {
		return true
	}
	caller, ok := ctx.Value(metadata.CallerKey{}).(uint32)
	return ok && caller == u.UID
}

// stats returns the state of the plan of a user, or of all plans if u is nil: they are suspended if each that has a stream
// is.
func (s *plans) stats(u *metadata.User) (sum PlanStats) {
	s.mu.Lock() // while a plan is removed, its counters would be there twice
	defer s.mu.Unlock()
	follows := false
	for _, p := range s.all() {
		if u == nil || p == s.of(u) {
			st := p.stats()
			sum.add(st)
			follows = follows || st.StreamCount > 0 && !st.Suspended
		}
	}
	sum.Suspended = sum.StreamCount > 0 && !follows
	return sum
}

// describe returns the state of each stream of a user by name, or of all if u is nil: first those of the owner.
func (s *plans) describe(u *metadata.User) []PlanStream {
	all := slices.Clone(s.all())
	slices.SortFunc(all[1:], func(a, b *plan) int { return cmp.Compare(a.user.Load().UID, b.user.Load().UID) })
	streams := []PlanStream{}
	for _, p := range all {
		if u == nil || p == s.of(u) {
			streams = append(streams, p.describe()...)
		}
	}
	return streams
}
