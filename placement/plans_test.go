package placement

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// userOf returns a user without other groups.
func userOf(uid uint32) *metadata.User { return &metadata.User{UID: uid, Groups: []uint32{uid}} }

// planBy is plan for another user than the owner of the mount.
func (r *rig) planBy(uid uint32, part PlanPart, paths ...string) PlanResult {
	r.t.Helper()
	res, err := r.handler.Plan(userOf(uid), part, paths)
	r.check(err)
	return res
}

// jobBy is job for a user, with a pause after each file.
func (r *rig) jobBy(uid uint32, pause time.Duration, names ...string) {
	r.t.Helper()
	for _, name := range names {
		_, err := r.readWith(context.WithValue(r.t.Context(), metadata.CallerKey{}, uid), name)
		r.check(err)
		time.Sleep(pause)
	}
}

// streamOf returns the state of the only stream of a user.
func (r *rig) streamOf(uid uint32) PlanStream {
	r.t.Helper()
	streams := r.handler.PlanStreams(userOf(uid))
	if len(streams) != 1 || *streams[0].User != uid {
		r.t.Fatalf("user %d has the streams %+v", uid, streams)
	}
	return streams[0]
}

// The planned files of a user are copied if that user may read them. Others cost no request, whether they exist
// or not. Opens by other users are nothing that the plan learns of.
func TestPlanOfUserFollowsPermissions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, names := newPlanned(t, rigOptions{quotas: []int64{1 << 40}, workers: 1}, 20, 1000) // several may look up a directory at once
		var private []string
		for i := range 20 {
			private = append(private, fmt.Sprintf("private/%d", i))
			r.mem.Put(private[i], random(uint64(i), 1000))
		}
		r.mem.Chmod("private", 0o700)
		var order []string
		for i := range 20 {
			order = append(order, private[i], names[i])
		}
		time.Sleep(time.Second) // the times of the files are not in the future then
		before := r.from.Count(drivertest.OpStat)
		r.planBy(77, PlanPart{Lead: 4}, order...)
		r.placed(20)
		synctest.Wait()
		for _, name := range r.touched() {
			if strings.HasPrefix(name, "private/") {
				t.Errorf("%s was read", name)
			}
		}
		if got := r.from.Count(drivertest.OpStat) - before; got > 20+7+1 { // files, their directories, and private
			t.Errorf("%d requests for names", got)
		}
		if stats := r.handler.PlanStats(userOf(77)); stats.Missing != 0 || stats.Opens != 0 || stats.Entries != 40 {
			t.Errorf("got %+v", stats)
		}
		r.job(private[:2]...) // their copies have sizes that the user must not see
		r.settled()
		r.jobBy(78, time.Second, names...)
		stats, s := r.handler.PlanStats(userOf(77)), r.streamOf(77)
		if stats.Opens != 0 || s.Position != 0 || s.Correct != 0 || s.LeadBytes != s.Lead*1000 {
			t.Errorf("after opens by others: %+v, %+v", stats, s)
		}
		r.jobBy(77, time.Second, names[:3]...)
		if s := r.streamOf(77); s.Position != 6 || s.Correct != 3 {
			t.Errorf("after opens: %+v", s)
		}
	})
}

// What a user plans that others have had copied before does not show, either.
func TestPlanOfUserHidesCopies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, names := newPlanned(t, rigOptions{quotas: []int64{1 << 40}}, 2, 1000)
		r.mem.Put("private/f", random(9, 5000))
		r.mem.Chmod("private", 0o700)
		r.job("private/f")
		r.placed(1)
		r.planBy(77, PlanPart{}, "private/f", names[0], "private/missing", names[1])
		r.placed(3)
		synctest.Wait()
		if s := r.streamOf(77); s.Lead != 4 || s.LeadBytes != 4*1000 {
			t.Errorf("got %+v", s)
		}
	})
}

// The groups of a user are those of the last part of its plan.
func TestGroupsOfPlanner(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, names := newPlanned(t, rigOptions{quotas: []int64{1 << 40}}, 2, 1000)
		for _, name := range names {
			r.mem.Chmod(name, 0o640)
		}
		gid := r.entry(names[0]).Info().GID
		time.Sleep(time.Second) // the times of the files are not in the future then
		r.planBy(77, PlanPart{}, names...)
		synctest.Wait()
		if got := r.handler.Stats().Placed; got != 0 {
			t.Errorf("%d copies without the group", got)
		}
		_, err := r.handler.Plan(&metadata.User{UID: 77, Groups: []uint32{gid}}, PlanPart{}, names)
		r.check(err)
		r.placed(2)
	})
}

// Plans of different users do not affect each other: names of streams, trust, suspension, and the end.
func TestPlansOfUsersAreSeparate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n = 3000
		r, names := newPlanned(t, rigOptions{quotas: []int64{1 << 40}}, n, 100)
		wrong := make([]string, 5000)
		for i := range wrong {
			wrong[i] = fmt.Sprintf("d00/missing%d", i)
		}
		time.Sleep(time.Second) // the times of the files are not in the future then
		r.planBy(77, PlanPart{}, wrong...)
		r.planBy(78, PlanPart{}, names[1000:]...)
		synctest.Wait()
		if got := r.handler.Stats().Placed; got != untestedEntries {
			t.Errorf("a user beside one with a wrong plan: %d copies, want %d", got, untestedEntries)
		}
		r.plan(PlanPart{}, names[:1000]...)
		r.placed(untestedEntries + 1000)
		r.jobBy(77, time.Second, names[:600]...)
		if s := r.stream(""); s.User != nil || s.Correct != 600 {
			t.Errorf("the owner: %+v", s)
		}
		for uid, suspended := range map[uint32]bool{77: true, 78: false} {
			if st := r.handler.PlanStats(userOf(uid)); st.Suspended != suspended || st.StreamCount != 1 || r.streamOf(uid).Suspended != suspended {
				t.Errorf("user %d: %+v", uid, st)
			}
		}
		all := r.handler.PlanStats(nil)
		if all.StreamCount != 3 || len(r.handler.PlanStreams(nil)) != 3 || all.Correct != 600 || all.Missing != untestedEntries || all.Suspended {
			t.Errorf("all: %+v, %+v", all, r.handler.PlanStreams(nil))
		}
		r.handler.DropPlans(userOf(77))
		if !slices.Equal(r.users(), []uint32{78}) || r.handler.DropPlan(userOf(78), "other") || r.handler.DropPlan(userOf(79), "") {
			t.Errorf("users: %v", r.users())
		}
		if got := r.handler.PlanStats(nil); got.StreamCount != 2 || got.Missing != all.Missing || got.Opens != all.Opens {
			t.Errorf("after the end of a plan: %+v, before %+v", got, all)
		}
		r.handler.DropPlan(nil, "")
		if s := r.streamOf(78); s.Entries != 2000 {
			t.Errorf("after the end of the plan of the owner: %+v", s)
		}
		r.handler.DropPlans(nil)
		if got := r.users(); len(got) != 0 || r.handler.plans.active() {
			t.Errorf("users after the end of all plans: %v", got)
		}
	})
}

// users lists the users other than the owner who have a plan.
func (r *rig) users() (uids []uint32) {
	for _, p := range r.handler.plans.all()[1:] {
		uids = append(uids, p.user.Load().UID)
	}
	return uids
}

// The plans of users that have entries take turns.
func TestPlansTakeTurns(t *testing.T) {
	for _, c := range []struct {
		own  []string
		want []string
	}{
		{[]string{"o1", "o2", "o3", "o4"}, []string{"o1", "a1", "b1", "o2", "a2", "b2", "o3", "a3", "o4"}},
		{nil, []string{"a1", "b1", "a2", "b2", "a3"}},
	} {
		s := newPlans()
		add := func(u *metadata.User, names ...string) {
			t.Helper()
			if _, err := s.add(u, PlanPart{}, names); err != nil {
				t.Fatal(err)
			}
		}
		add(nil, c.own...)
		add(userOf(77), "a1", "a2", "a3")
		add(userOf(78), "b1", "b2")
		var got []string
		for {
			path, u, ok := s.next()
			if !ok {
				break
			}
			if u.stream.plan != s.of(map[byte]*metadata.User{'o': nil, 'a': userOf(77), 'b': userOf(78)}[path[0]]) {
				t.Errorf("%s is of another plan", path)
			}
			got = append(got, path)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// The plans of users are bounded in number and in size, each and together, and end after an hour without use. That of the
// owner is not bounded by them.
func TestPlansOfUsersAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, _ := newPlanned(t, rigOptions{quotas: []int64{1 << 40}, idle: true}, 1, 100)
		refused := func(what string, uid uint32, part PlanPart, want error) {
			t.Helper()
			if _, err := r.handler.Plan(userOf(uid), part, []string{"a"}); !errors.Is(err, want) {
				t.Errorf("%s: %v", what, err)
			}
		}
		refused("a wrong part", 5, PlanPart{From: -1}, ErrPlanPart)
		if got := r.users(); len(got) != 0 {
			t.Errorf("users after a wrong part: %v", got)
		}
		for uid := range uint32(maxPlanners) {
			r.planBy(uid, PlanPart{}, "a")
		}
		refused("one more user", maxPlanners, PlanPart{}, ErrPlanFull)
		for i := range userLimit.streams - 1 {
			r.planBy(0, PlanPart{Stream: fmt.Sprint(i)}, "a")
		}
		refused("one more stream", 0, PlanPart{Stream: "x"}, ErrPlanFull)
		for i := range usersLimit.streams - maxPlanners - (userLimit.streams - 1) {
			r.planBy(1, PlanPart{Stream: fmt.Sprint(i)}, "a")
		}
		refused("one more stream of all", 2, PlanPart{Stream: "x"}, ErrPlanFull)
		r.handler.DropPlans(userOf(0))
		r.handler.DropPlans(userOf(1))

		many := slices.Repeat([]string{"a"}, userLimit.entries+10)
		first, second := r.planBy(0, PlanPart{}, many...), r.planBy(1, PlanPart{}, many...)
		others := int64(maxPlanners - 2)
		if first.Accepted != int64(userLimit.entries) || first.Rejected != 10 || first.Accepted+second.Accepted+others != int64(usersLimit.entries) {
			t.Errorf("more entries than permitted: %+v, %+v", first, second)
		}
		if got := r.planBy(2, PlanPart{Epoch: 1}, "a"); got.Rejected != 1 {
			t.Errorf("one more entry of all: %+v", got)
		}
		if got := r.plan(PlanPart{}, many...); got.Accepted != int64(userLimit.entries) {
			t.Errorf("the owner: %+v", got)
		}
		r.handler.plans.prune(time.Now().Add(2 * planIdle))
		if got := r.users(); len(got) != 0 {
			t.Errorf("users after two hours: %v", got)
		}
	})
}

// Counters never decrease, also while plans end.
func TestCountersOfPlansGrow(t *testing.T) {
	s := newPlans()
	stop := make(chan struct{})
	var plans sync.WaitGroup
	plans.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				s.add(userOf(77), PlanPart{}, []string{"/"})
				s.dropAll(userOf(77))
			}
		}
	})
	for last := int64(0); last < 20_000; {
		n := s.stats(nil).Rejected
		if n < last {
			t.Fatalf("%d after %d", n, last)
		}
		last = n
	}
	close(stop)
	plans.Wait()
}

// What one user has planned and does not open keeps no room from what others open.
func TestPlansOfUsersKeepNoRoom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const small, large = 4096, 100_000
		r, names := newPlanned(t, rigOptions{quotas: []int64{400 * 2 * small}}, 400, small/2)
		r.mem.Put("large", random(1, large))
		time.Sleep(time.Second) // the times of the files are not in the future then
		r.planBy(77, PlanPart{}, slices.Repeat(names[:100], 200)...)
		synctest.Wait()
		r.job("large")
		r.settled()
		if e := r.entry("large"); e.Level() == tiers.AtSource {
			t.Error("a file that another user has opened is not placed")
		}
	})
}

// The plan of a user takes nothing from the window, and keeps no copy in it: its jobs do not wait for those of others.
func TestPlansOfUsersUseNoWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const windowed = 40
		r, names := newWindowed(t, 400, 100, windowed)
		r.job(names[:100]...) // there is no permanent room for others
		r.planBy(77, PlanPart{Lead: 8}, names[100:]...)
		synctest.Wait()
		r.wantWindow(0)
		r.plan(PlanPart{Lead: 8}, names[100:300]...)
		r.wantWindow(windowed)
		r.jobBy(77, time.Second, names[100:110]...)
		r.planBy(77, PlanPart{Lead: 8}, names[100:]...)
		r.job(names[110:300]...)
		time.Sleep(2 * time.Minute)
		r.wantWindow(0)                                              // the owner's job has ended, and the user's has not
		if s := r.streamOf(77); s.Position != 0 || s.Correct != 10 { // it has started again
			t.Errorf("the user: %+v", s)
		}
		if n := r.handler.Stats().Opens[0].Files; n > 5 {
			t.Errorf("%d opens of the owner were served by the source", n)
		}
	})
}
