package placement

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/metadata"
)

// planFor is plan for a guest.
func (r *rig) planFor(uid uint32, part PlanPart, paths ...string) PlanResult {
	r.t.Helper()
	res, err := r.handler.PlanFor(metadata.User{UID: uid}, part, paths)
	r.check(err)
	return res
}

// guestStream returns the state of the only stream of a guest.
func (r *rig) guestStream(uid uint32) PlanStream {
	r.t.Helper()
	_, streams := r.handler.GuestPlan(uid)
	if len(streams) != 1 {
		r.t.Fatalf("user %d has the streams %v", uid, streams)
	}
	return streams[0]
}

// The planned files of a guest are copied if the guest may read them. Others cost no request, and count
// as missing. An open of one, by another user, is nothing that the plan learns of.
func TestGuestPlanFollowsPermissions(t *testing.T) {
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
		r.planFor(77, PlanPart{Lead: 4}, order...)
		r.placed(20)
		synctest.Wait()
		for _, name := range r.touched() {
			if name[0] == 'p' {
				t.Errorf("%s was read", name)
			}
		}
		if got := r.from.Count(drivertest.OpStat) - before; got > 20+7+1 { // files, their directories, and private
			t.Errorf("%d requests for names", got)
		}
		stats, _ := r.handler.GuestPlan(77)
		if stats.Missing != 20 || stats.Opens != 0 || stats.Entries != 40 {
			t.Errorf("got %+v", stats)
		}
		r.job(private...)
		if s := r.guestStream(77); s.Position != 0 || s.Correct != 0 {
			t.Errorf("after opens of files that the guest may not read: %+v", s)
		}
		if stats, _ := r.handler.GuestPlan(77); stats.Opens != 0 {
			t.Errorf("the plan has seen %d opens of files that the guest may not read", stats.Opens)
		}
		r.job(names[:3]...)
		if s := r.guestStream(77); s.Position != 6 || s.Correct != 3 {
			t.Errorf("after opens: %+v", s)
		}
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
		r.planFor(77, PlanPart{}, wrong...)
		r.planFor(78, PlanPart{}, names[1000:]...)
		synctest.Wait()
		if got := r.handler.Stats().Placed; got != untestedEntries {
			t.Errorf("a guest beside one with a wrong plan: %d copies, want %d", got, untestedEntries)
		}
		r.plan(PlanPart{}, names[:1000]...)
		r.placed(untestedEntries + 1000)
		for _, name := range names[:600] { // as the kernel does when a user opens it
			_, err := r.names.ResolveAs(t.Context(), metadata.User{UID: 77}, name)
			r.check(err)
		}
		r.job(names[:600]...)
		if s := r.stream(""); s.Correct != 600 {
			t.Errorf("the owner: %+v", s)
		}
		for uid, suspended := range map[uint32]bool{77: true, 78: true} {
			if stats, _ := r.handler.GuestPlan(uid); stats.Suspended != suspended || stats.StreamCount != 1 {
				t.Errorf("user %d: %+v", uid, stats)
			}
		}
		all := r.handler.PlanStats()
		if all.StreamCount != 3 || len(r.handler.PlanStreams()) != 3 || all.Correct != 600 {
			t.Errorf("all: %+v, %v", all, r.handler.PlanStreams())
		}
		r.handler.DropGuest(77)
		r.handler.DropGuest(78, "other")
		if got := r.handler.Guests(); fmt.Sprint(got) != "[78]" {
			t.Errorf("guests: %v", got)
		}
		if got := r.handler.PlanStats(); got.StreamCount != 2 || got.Missing != all.Missing || got.Opens != all.Opens {
			t.Errorf("after the end of a plan: %+v, before %+v", got, all)
		}
		r.handler.DropPlan("")
		if s := r.guestStream(78); s.Entries != 2000 {
			t.Errorf("after the end of the plan of the owner: %+v", s)
		}
		r.handler.DropPlans()
		if got := r.handler.Guests(); len(got) != 0 {
			t.Errorf("guests after the end of all plans: %v", got)
		}
	})
}

// The plans of guests are bounded in number and in size, and end after an hour without use.
func TestGuestPlanBounds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, _ := newPlanned(t, rigOptions{quotas: []int64{1 << 40}, idle: true}, 1, 100)
		for uid := range uint32(maxGuests) {
			r.planFor(uid, PlanPart{}, "a")
		}
		if _, err := r.handler.PlanFor(metadata.User{UID: maxGuests}, PlanPart{}, []string{"a"}); !errors.Is(err, ErrPlanFull) {
			t.Errorf("one more guest: %v", err)
		}
		for i := range guestLimit.streams - 1 {
			r.planFor(0, PlanPart{Stream: fmt.Sprint(i)}, "a")
		}
		if _, err := r.handler.PlanFor(metadata.User{UID: 0}, PlanPart{Stream: "x"}, []string{"a"}); !errors.Is(err, ErrPlanFull) {
			t.Errorf("one more stream: %v", err)
		}
		many := make([]string, guestLimit.entries+10)
		for i := range many {
			many[i] = "a"
		}
		if got := r.planFor(1, PlanPart{}, many...); got.Accepted > int64(guestLimit.entries) || got.Rejected < 10 {
			t.Errorf("more entries than permitted: %+v", got)
		}
		if _, err := r.handler.PlanFor(metadata.User{UID: maxGuests}, PlanPart{From: -1}, nil); err == nil {
			t.Error("a wrong part is accepted")
		}
		r.handler.pruneGuests(time.Now().Add(2 * planIdle))
		if got := r.handler.Guests(); len(got) != 0 {
			t.Errorf("guests after two hours: %v", got)
		}
		if _, err := r.handler.PlanFor(metadata.User{UID: 9}, PlanPart{From: -1}, nil); err == nil || len(r.handler.Guests()) != 0 {
			t.Errorf("a wrong part: %v, guests %v", err, r.handler.Guests())
		}
	})
}
