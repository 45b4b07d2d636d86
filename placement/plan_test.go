package placement

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// newPlanned makes a rig with n files of a number of bytes each, none of which is listed.
func newPlanned(t testing.TB, opts rigOptions, n, size int) (r *rig, names []string) {
	r = newRig(t, opts)
	for i := range n {
		name := fmt.Sprintf("d%02d/%05d", i%7, i)
		r.mem.Put(name, random(uint64(i), size))
		names = append(names, name)
	}
	return r, names
}

// plan adds entries to the plan of r.
func (r *rig) plan(part PlanPart, paths ...string) PlanResult {
	r.t.Helper()
	res, err := r.handler.Plan(nil, part, paths)
	r.check(err)
	return res
}

// touched returns the names of the files that were read at the source, in the order of their first
// read.
func (r *rig) touched() (names []string) {
	seen := make(map[string]bool)
	for _, s := range r.source.spans() {
		if !seen[s.name] {
			seen[s.name] = true
			names = append(names, s.name)
		}
	}
	return names
}

// Planned files are copied in the order of the plan, each once, before they are opened, and names
// that were never looked up are looked up once.
func TestPlannedFilesAreCopiedInOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n = 500
		r, names := newPlanned(t, rigOptions{quotas: []int64{1 << 40}, workers: 1}, n, 1000)
		rand.New(rand.NewPCG(1, 2)).Shuffle(n, func(i, j int) { names[i], names[j] = names[j], names[i] })
		if got := r.plan(PlanPart{}, names...); got.Accepted != n || got.Rejected != 0 {
			t.Errorf("got %+v", got)
		}
		r.placed(n)
		if got := r.touched(); fmt.Sprint(got) != fmt.Sprint(names) {
			t.Errorf("read at the source: got %v, want %v", got, names)
		}
		if got := len(r.source.spans()); got != n {
			t.Errorf("reads at the source: got %d, want %d", got, n)
		}
		stats := r.from.Count(drivertest.OpStat)
		for _, name := range names {
			r.entry(name)
		}
		if got := r.from.Count(drivertest.OpStat); got != stats {
			t.Errorf("lookups of the job cause %d requests", got-stats)
		}
	})
}

// placed waits until n copies were made.
func (r *rig) placed(n int64) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%d copies are made", n), func() bool { return r.handler.Stats().Placed >= n })
	r.settled()
}

// shufflePlan returns the names in an order of its own.
func shufflePlan(names []string, seed uint64) []string {
	order := slices.Clone(names)
	rand.New(rand.NewPCG(seed, 1)).Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	return order
}

// job opens files, and waits a second after each.
func (r *rig) job(names ...string) {
	r.t.Helper()
	for _, name := range names {
		_, err := r.read(name)
		r.check(err)
		time.Sleep(time.Second)
	}
}

// stream returns the state of a stream.
func (r *rig) stream(name string) (s PlanStream) {
	for _, s := range r.handler.PlanStreams(nil) {
		if s.Name == name {
			return s
		}
	}
	r.t.Errorf("no stream %q", name)
	return s
}

// A plan for files that the job does not open costs a bounded number of lookups and copies. It is
// suspended, and goes on when the job follows it.
func TestWrongPlanIsSuspended(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n = 3000
		r, planned := newPlanned(t, rigOptions{quotas: []int64{1 << 40}}, n, 1000)
		var others []string // in a directory of their own, all of whose files are read
		for i := range 1000 {
			others = append(others, fmt.Sprintf("others/%04d", i))
			r.put(others[i], 1000)
		}
		r.plan(PlanPart{}, planned...)
		r.placed(untestedEntries)
		for _, name := range others {
			_, err := r.read(name)
			r.check(err)
		}
		r.settled()
		if got := r.handler.Stats().Placed - int64(len(others)); got != untestedEntries {
			t.Errorf("planned files copied: got %d, want %d", got, untestedEntries)
		}
		st := r.handler.PlanStats(nil)
		if !st.Suspended || st.Opens != int64(len(others)) || st.Correct != 0 {
			t.Errorf("got %+v, want a plan that is suspended", st)
		}
		r.job(planned[:100]...)
		r.settled()
		if st := r.handler.PlanStats(nil); st.Suspended || st.Correct != 100 {
			t.Errorf("got %+v, want a plan that is followed", st)
		}
		if got := r.handler.Stats().Placed; got <= untestedEntries+int64(len(others)) {
			t.Error("no further files are copied")
		}
	})
}

// The copies of a plan before the job has opened any of its files are bounded in bytes, too.
func TestWrongPlanIsBoundedInBytes(t *testing.T) {
	p := newPlan(nil, userLimit)
	_, err := p.add(PlanPart{}, []string{"a", "b", "c"})
	if err != nil {
		t.Fatal(err)
	}
	p.next()
	p.spend(budget{1, untestedBytes})
	if name, _, ok := p.next(); ok {
		t.Errorf("got %s after copies of %d bytes", name, untestedBytes)
	}
	p.opened("a", 1<<20)
	if name, _, ok := p.next(); !ok || name != "b" {
		t.Errorf("got %s after a correct prediction", name)
	}
}

// Names that do not exist cost one lookup each at most, and one of the root, however often they are planned,
// and not more of them than other wrong entries.
func TestMissingPlannedFiles(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, _ := newPlanned(t, rigOptions{quotas: []int64{1 << 40}}, 10, 100)
		r.entry("d00/00000") // the directories are known
		var plan []string
		for range 20_000 {
			plan = append(plan, "d00/missing")
		}
		before := r.from.Count(drivertest.OpStat)
		r.plan(PlanPart{}, plan...)
		synctest.Wait()
		if got := r.from.Count(drivertest.OpStat) - before; got > 2*(1+4) { // each worker may have one in flight
			t.Errorf("a name that is missing: %d lookups", got)
		}
		for i := range plan {
			plan[i] = fmt.Sprintf("d00/missing%d", i)
		}
		before = r.from.Count(drivertest.OpStat)
		r.plan(PlanPart{Epoch: 1}, plan...)
		synctest.Wait()
		if got := r.from.Count(drivertest.OpStat) - before; got > 2*untestedEntries {
			t.Errorf("names that are missing: %d lookups", got)
		}
	})
}

// Paths outside of the mount, and what is no path, are rejected and counted, and keep their numbers.
func TestRejectedPaths(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, names := newPlanned(t, rigOptions{quotas: []int64{1 << 40}}, 4, 100)
		bad := []string{"", "..", "../x", "d00/../d01/x", "/etc/passwd", "a\x00b", ".", "./", strings.Repeat("x/", 3000)}
		got := r.plan(PlanPart{}, slices.Concat(names[:2], bad, []string{"./" + names[2], "d03//00003"})...)
		if got.Accepted != 4 || got.Rejected != int64(len(bad)) || len(got.Errors) != planReasons {
			t.Errorf("got %+v", got)
		}
		r.placed(4)
		r.job(names...)
		if s := r.stream(""); s.Position != int64(4+len(bad)) || s.Correct != 4 {
			t.Errorf("got %+v", s)
		}
		if got := r.handler.PlanStats(nil).Rejected; got != int64(len(bad)) {
			t.Errorf("rejected: got %d, want %d", got, len(bad))
		}
	})
}

// A plan that comes before the tiers were scanned is not passed over.
func TestPlanBeforeScan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		source := drivertest.NewMem(0)
		source.Put("a", []byte("x"))
		levels, err := tiers.New(source, []tiers.Config{{Name: "ram", Store: drivertest.NewMem(0), Quota: tiers.Quota{Bytes: 1 << 20}}}, tiers.Options{}, log)
		if err != nil {
			t.Fatal(err)
		}
		names, err := metadata.New(t.Context(), levels, metadata.Options{TTL: time.Hour}, log)
		if err != nil {
			t.Fatal(err)
		}
		h := New(levels, names, Config{Workers: 2}, log)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { h.Run(ctx) })
		if _, err := h.Plan(nil, PlanPart{}, []string{"a"}); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		running.Go(func() { levels.Run(ctx) }) // scans
		time.Sleep(10 * time.Second)
		if got := h.Stats().Placed; got != 1 {
			t.Errorf("got %d copies, want 1", got)
		}
		stop()
		running.Wait()
		names.Close()
	})
}

// The streams take turns by how soon each needs its next file, and the position of each moves by
// its own opens.
func TestPlannedStreams(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, names := newPlanned(t, rigOptions{quotas: []int64{1 << 40}, workers: 1, idle: true}, 40, 1000)
		r.plan(PlanPart{Stream: "a", Lead: 4}, names[:20]...)
		r.plan(PlanPart{Stream: "b", Lead: 4}, names[20:]...)
		r.job(names[:3]...)
		if a, b := r.stream("a"), r.stream("b"); a.Position != 3 || a.Correct != 3 || b.Position != 0 || b.Passed != 0 {
			t.Errorf("got %+v and %+v", a, b)
		}
		var got []string
		for range 10 {
			name, _, _ := r.handler.plans.next()
			got = append(got, name)
		}
		slices.Sort(got)
		want := slices.Sorted(slices.Values(slices.Concat(names[3:8], names[20:25])))
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want the next five of each stream, %v", got, want)
		}
		if a := r.stream("a"); a.Lead != 5 {
			t.Errorf("got %+v", a)
		}
	})
}

// An entry is passed when the job has opened files that are more than the lead after it, in
// whatever order within the lead, and in the next epoch.
func TestPlanPositions(t *testing.T) {
	p := newPlan(nil, userLimit)
	names := make([]string, 100)
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	add := func(part PlanPart, paths ...string) {
		t.Helper()
		if _, err := p.add(part, paths); err != nil {
			t.Fatal(err)
		}
	}
	first, second := shufflePlan(names, 1), shufflePlan(names, 2)
	add(PlanPart{Epoch: 3, From: 50, Lead: 10}, first[50:]...)
	add(PlanPart{Epoch: 4, Lead: 10}, second...)
	s := p.streams[""]
	at := func(epoch, i int64) {
		t.Helper()
		if want := (place{epoch, i}); s.at != want {
			t.Errorf("at %+v, want %+v", s.at, want)
		}
	}
	at(3, 50)
	u := use{stream: s, place: place{3, 51}}
	for _, i := range []int{55, 52, 50, 51, 54, 53, 56} {
		if correct, _ := p.opened(first[i], 1); !correct {
			t.Errorf("open %d is not predicted", i)
		}
	}
	at(3, 57)
	if u.through() || u.ahead() != -6 || (use{stream: s, place: place{4, 2}}).ahead() != 45 {
		t.Errorf("through %v, ahead %d and %d", u.through(), u.ahead(), (use{stream: s, place: place{4, 2}}).ahead())
	}
	for i := 57; i < 100; i++ {
		p.opened(first[i], 1)
	}
	at(3, 100)
	if !u.through() {
		t.Error("not through")
	}
	u = use{stream: s, place: place{3, 99}}
	for i := range 10 {
		if u.through() {
			t.Errorf("through after %d", i)
		}
		p.opened(second[i], 1)
	}
	p.opened(second[10], 1)
	at(4, 11)
	if !u.through() {
		t.Error("not through")
	}
	if correct, _ := p.opened("other", 1); correct {
		t.Error("a file that is not planned is predicted")
	}
	add(PlanPart{Epoch: 4, From: 20, Lead: 10}, "x", "y") // replaces the rest
	at(4, 11)
	if got := s.epoch(4).end(); got != 22 {
		t.Errorf("the epoch ends at %d, want 22", got)
	}
	add(PlanPart{Epoch: 4, From: 30}, "z") // leaves a gap
	for _, name := range slices.Concat(second[11:20], []string{"x", "y", "z"}) {
		if correct, _ := p.opened(name, 1); !correct {
			t.Errorf("%s is not predicted", name)
		}
	}
	at(4, 31)
	add(PlanPart{Epoch: 0}, first...) // the job has started again
	at(0, 0)
	if got := len(s.epochs); got != 1 {
		t.Errorf("got %d epochs, want 1", got)
	}
	s.used = time.Now().Add(-2 * planIdle)
	p.prune(time.Now())
	if p.planned != 0 || p.memory != 0 || p.active.Load() {
		t.Errorf("after the end: %d entries, %d bytes", p.planned, p.memory)
	}
}

// A job that resumes in the middle of a plan, or whose opens are not seen for a while, is found
// again. A single file that it opens out of order does not move the position.
func TestPlanFindsTheJobAgain(t *testing.T) {
	p := newPlan(nil, userLimit)
	names := make([]string, 5000)
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	p.add(PlanPart{}, names)
	s := p.streams[""]
	p.opened(names[3000], 1)
	p.opened(names[1000], 1)
	p.opened(names[0], 1)
	if s.at.i != 1 {
		t.Errorf("at %d, want 1", s.at.i)
	}
	for i := 2000; i < 2000+planVotes; i++ {
		p.opened(names[i], 1)
	}
	if s.at.i != 2000+planVotes {
		t.Errorf("at %d, want %d", s.at.i, 2000+planVotes)
	}
	for i := range 2 * judgedOpens {
		p.opened(fmt.Sprint("other", i), 1)
	}
	for i := 4000; i < 4200; i++ { // while the plan is suspended
		p.opened(names[i], 1)
	}
	if s.at.i != 4200 || p.suspended {
		t.Errorf("at %d, want 4200; suspended %v", s.at.i, p.suspended)
	}
}

// hold returns the entry again after release, and stops only its stream.
func TestPlanHold(t *testing.T) {
	p := newPlan(nil, userLimit)
	p.add(PlanPart{Stream: "a"}, []string{"a0", "a1", "a2"})
	p.add(PlanPart{Stream: "b", From: 10}, []string{"b0"})
	next := func(want string) use {
		t.Helper()
		name, u, _ := p.next()
		if name != want {
			t.Errorf("got %q, want %q", name, want)
		}
		return u
	}
	var u use
	for range 2 {
		if name, v, _ := p.next(); name == "a0" {
			u = v
		}
	}
	next("a1")
	u.hold()
	next("")
	p.release()
	next("a0")
	next("a1")
	next("a2")
	next("")
	p.opened("a0", 1)
	p.opened("a1", 1)
	u.hold()
	p.release()
	next("a2")
}

// A million entries take less than 16 MB, in many streams, and further ones are refused. Names
// that cannot be compressed are refused at that bound, too.
func TestPlanMemory(t *testing.T) {
	if testing.Short() || drivertest.Race() {
		t.Skip("measures memory")
	}
	rng := rand.New(rand.NewPCG(1, 2))
	imagenet := func(i int) string {
		class := 1440764 + i%1000*11213
		return fmt.Sprintf("train/n%08d/n%08d_%d.JPEG", class, class, rng.IntN(30000))
	}
	for _, c := range []struct {
		name     string
		streams  int
		path     func(i int) string
		accepted int64 // at least
	}{
		{"ImageNet in 64 streams", 64, imagenet, int64(userLimit.entries)},
		{"random", 1, func(int) string { return fmt.Sprintf("%016x%016x", rng.Uint64(), rng.Uint64()) }, int64(userLimit.entries) / 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			perm := rng.Perm(userLimit.entries + 1000)
			p := newPlan(nil, userLimit)
			before := heapSize()
			var all PlanResult
			for stream := range c.streams {
				part := PlanPart{Stream: fmt.Sprint(stream)}
				for len(perm) > (c.streams-1-stream)*(userLimit.entries/c.streams) {
					batch := perm[:min(len(perm), 1000)]
					perm = perm[len(batch):]
					paths := make([]string, len(batch))
					for i, n := range batch {
						paths[i] = c.path(n)
					}
					r, err := p.add(part, paths)
					if err != nil {
						t.Fatal(err)
					}
					all.Add(r)
					part.From += int64(len(batch))
				}
			}
			for range 2 * c.streams { // each stream has one chunk unpacked
				p.next()
			}
			p.pack = packer{}
			if got := heapSize() - before; got > 16e6 {
				t.Errorf("%d entries take %d bytes", p.planned, got)
			}
			if all.Accepted < c.accepted || all.Rejected == 0 || int(all.Accepted) != p.planned {
				t.Errorf("got %d entries, %+v", p.planned, all)
			}
			runtime.KeepAlive(p)
		})
	}
}

// heapSize returns the size of the heap.
func heapSize() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Parts of a plan that contradict the bounds are refused.
func TestPlanBounds(t *testing.T) {
	p := newPlan(nil, userLimit)
	for _, part := range []PlanPart{
		{Stream: strings.Repeat("x", maxStreamName+1)}, {Epoch: -1}, {From: -1}, {From: 1 << 60}, {Lead: -1}, {Lead: maxPlanLead + 1},
	} {
		if _, err := p.add(part, []string{"a"}); !errors.Is(err, ErrPlanPart) {
			t.Errorf("%+v: got %v", part, err)
		}
	}
	for i := range maxPlanEpochs + 1 {
		if _, err := p.add(PlanPart{Epoch: int64(i)}, []string{"a"}); (i == maxPlanEpochs) != errors.Is(err, ErrPlanFull) {
			t.Errorf("epoch %d: got %v", i, err)
		}
	}
	for i := range userLimit.streams {
		if _, err := p.add(PlanPart{Stream: fmt.Sprint(i)}, []string{"a"}); (i == userLimit.streams-1) != errors.Is(err, ErrPlanFull) {
			t.Errorf("stream %d: got %v", i, err)
		}
	}
}

// A shuffled epoch with a plan, in several streams of two readers each, which overtake each other,
// reads each file once at the source, and the plan predicts nearly all opens. Meanwhile other
// plans, right and wrong, come and go.
func TestPlannedEpoch(t *testing.T) {
	const streams, lead = 4, 8
	s := newShuffled(newRig(t, rigOptions{quotas: []int64{1 << 40}, workers: 8}), 10, 100, 3000)
	share := len(s.names) / streams
	for i := range streams {
		for from := 0; from < share; from += 125 {
			s.plan(PlanPart{Stream: fmt.Sprint(i), From: int64(from), Lead: lead}, s.names[i*share+from:i*share+from+125]...)
		}
	}
	var readers, others sync.WaitGroup
	stop := make(chan struct{})
	others.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			s.handler.Plan(nil, PlanPart{Stream: "other"}, []string{s.names[n%len(s.names)], "missing", "../x"})
			s.handler.PlanStreams(nil)
			s.handler.DropPlan(nil, "other")
			s.planBy(uint32(n%maxPlanners), PlanPart{}, s.names[n%len(s.names)])
			s.handler.PlanStreams(userOf(uint32(n % 3)))
			s.handler.DropPlans(userOf(uint32(n % 5)))
			s.handler.plans.prune(time.Now())
		}
	})
	var opened [streams]atomic.Int64
	for i := range streams {
		for range 2 { // of each stream
			readers.Go(func() {
				for n := int(opened[i].Add(1)) - 1; n < share; n = int(opened[i].Add(1)) - 1 {
					s.wantFile(s.names[i*share+n], s.data[i*share+n])
				}
			})
		}
	}
	readers.Wait()
	close(stop)
	others.Wait()
	s.settled()
	if got := len(s.source.spans()); got != len(s.names) {
		t.Errorf("reads at the source: got %d, want %d", got, len(s.names))
	}
	if st := s.handler.PlanStats(nil); st.Opens != int64(len(s.names)) || st.Correct < st.Opens*9/10 {
		t.Errorf("got %+v, want %d opens, nearly all predicted", st, len(s.names))
	}
	s.handler.DropPlans(nil)
	if st := s.handler.PlanStats(nil); st.Entries != 0 || st.StreamCount != 0 || st.Memory != 0 {
		t.Errorf("after the end: %+v", st)
	}
}

// If not all planned files fit, the smallest are placed, whatever the order of the opens: each saves
// the most for its room.
func TestSmallPlannedFilesArePlaced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const files, small, large = 4000, 2000, 100_000
		r := newRig(t, rigOptions{quotas: []int64{files / 2 * 4096 * 2}})
		var names []string
		for i := range files {
			name := fmt.Sprintf("%04d", i)
			names = append(names, name)
			r.mem.Put(name, make([]byte, []int{small, large}[i%2]))
		}
		order := shufflePlan(names, 1)
		r.plan(PlanPart{}, order...)
		r.settled()
		for i, name := range order {
			if _, err := r.read(name); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
			if i == files/2 {
				r.settled()
			}
		}
		r.settled()
		placed := map[int64]int{}
		for _, name := range names {
			if e := r.entry(name); e.Level() != tiers.AtSource {
				placed[e.Size()]++
			}
		}
		if placed[small] < files/2*9/10 {
			t.Errorf("placed: got %v, want nearly all %d small files", placed, files/2)
		}
		if got := placed[large]; got == 0 {
			t.Error("the room that small files do not need is not used")
		}
	})
}

// Larger files have higher classes, and every size has one.
func TestSizeClasses(t *testing.T) {
	last := -1
	for size := int64(0); size < math.MaxInt64/2; size += 1 + size/4 {
		if n := class(size); n <= last || n > last+2 {
			t.Errorf("%d has class %d, after %d", size, n, last)
		} else {
			last = n
		}
	}
	if n := class(math.MaxInt64); n >= len(sizeCounts{}.room) {
		t.Errorf("the largest class is %d", n)
	}
}

// BenchmarkPlanned is a first epoch over small files in random order, by four readers, from a file
// system of 2 ms for each operation, without and with a plan.
func BenchmarkPlanned(b *testing.B) {
	files := drivertest.Size(1000, 100)
	for _, planned := range []bool{false, true} {
		b.Run(fmt.Sprintf("planned=%v", planned), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				s := newShuffled(newRig(b, rigOptions{quotas: []int64{1 << 40}, workers: 16}), 1, files, 20_000)
				for _, op := range []drivertest.Op{drivertest.OpOpen, drivertest.OpRead} {
					s.from.Add(drivertest.Rule{Op: op, Delay: 2 * time.Millisecond})
				}
				b.StartTimer()
				if planned {
					s.plan(PlanPart{}, s.names...)
				}
				s.epoch(4, files)
				b.StopTimer()
				s.end()
				b.StartTimer()
			}
			b.ReportMetric(float64(files*b.N)/b.Elapsed().Seconds(), "files/s")
		})
	}
}

// What a plan accounts for is what it holds, whatever is added, opened and dropped, and no sequence
// of calls makes it fail.
func FuzzPlan(f *testing.F) {
	f.Add([]byte("\x00\x10\x00\x01abc\x02\x03"))
	f.Add([]byte{0, 255, 1, 0, 7, 2, 0, 0, 3, 0, 0, 4, 0, 0, 1, 1, 1})
	f.Fuzz(func(t *testing.T, in []byte) {
		p := newPlan(nil, userLimit)
		var last use
		for ; len(in) >= 3; in = in[3:] {
			op, a, b := in[0]%7, int64(in[1]), int64(in[2])
			name := fmt.Sprintf("%d/%0*d", a%5, int(b%40), b)
			switch op {
			case 0, 1:
				var paths []string
				for i := range a {
					paths = append(paths, fmt.Sprintf("%d/%0*d", i%5, int(i%40), (i*b)%256))
				}
				p.add(PlanPart{Stream: fmt.Sprint(b % 3), Epoch: a % 4, From: b * int64(op), Lead: b % 20}, paths)
			case 2:
				p.opened(name, a)
			case 3:
				if _, u, ok := p.next(); ok {
					last = u
				}
			case 4:
				if last.stream != nil {
					last.through()
					last.ahead()
					last.hold()
				}
			case 5:
				p.release()
			case 6:
				p.mu.Lock()
				if s := p.streams[fmt.Sprint(b%3)]; s != nil && a < 32 {
					p.remove(s)
				}
				p.mu.Unlock()
			}
			planned, memory := 0, 0
			for _, s := range p.streams {
				if s.next.compare(s.at) < 0 {
					t.Errorf("next %+v is before the position %+v", s.next, s.at)
				}
				s.describe()
				for _, e := range s.epochs {
					end := int64(0)
					for _, c := range e.chunks {
						if c.start < end {
							t.Errorf("a chunk starts at %d before %d", c.start, end)
						}
						end = c.end()
						planned, memory = planned+len(c.hashes), memory+c.size()
					}
				}
			}
			if p.planned != planned || p.memory != memory {
				t.Errorf("accounts for %d entries of %d bytes, has %d of %d", p.planned, p.memory, planned, memory)
			}
		}
	})
}
