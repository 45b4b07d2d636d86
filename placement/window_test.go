package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// windowFile is the size of the files of these tests. A copy takes windowBytes.
const (
	windowFile  = 10_000
	windowBytes = 3 * 4096
)

// newWindowed makes a rig with n files, of which placed fit outside of the window and windowed into
// it.
func newWindowed(t testing.TB, n, placed, windowed int) (*rig, []string) {
	return newPlanned(t, rigOptions{quotas: []int64{int64(placed+windowed) * windowBytes}, window: int64(windowed) * windowBytes}, n, windowFile)
}

// wantWindow waits until the window has a number of complete copies.
func (r *rig) wantWindow(files int64) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%d copies are in the window", files), func() bool {
		s := r.handler.WindowStats()
		return s.Files == files && s.Taken == files*windowBytes && r.handler.Stats().InFlight == 0
	})
}

// inWindow reports whether the window has a copy of a file.
func (r *rig) inWindow(name string) bool {
	w, e := r.handler.window, r.entry(name)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.copies[e] != nil
}

// requests returns how often each file was requested from the source since the last call.
func (r *rig) requests() map[string]int {
	r.source.mu.Lock()
	defer r.source.mu.Unlock()
	n := make(map[string]int)
	for _, s := range r.source.reads {
		n[s.name]++
	}
	r.source.reads = nil
	return n
}

// ways are the ways in which a job reads files: with an open, and without one, as in stateless
// mode.
var ways = map[string]func(r *rig, name string){
	"opened": func(r *rig, name string) {
		if _, err := r.read(name); err != nil {
			r.t.Errorf("read %s: %v", name, err)
		}
	},
	"stateless": func(r *rig, name string) {
		if _, err := r.handler.ReadAt(r.ctx, r.entry(name), make([]byte, windowFile), 0); err != nil {
			r.t.Errorf("read %s: %v", name, err)
		}
	},
}

// In each epoch of a planned job, every file that has no permanent room is requested once, before
// the job reads it, and is dropped after that. Placed copies stay.
func TestWindow(t *testing.T) {
	const n, placed, windowed, lead = 300, 150, 40, 8
	for name, read := range ways {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r, names := newWindowed(t, n, placed, windowed)
				rng := rand.New(rand.NewPCG(1, 2))
				for epoch := range int64(4) {
					rng.Shuffle(n, func(i, j int) { names[i], names[j] = names[j], names[i] })
					permanent := int(r.handler.Stats().Placed)
					r.plan(PlanPart{Epoch: epoch, Lead: lead}, names...)
					time.Sleep(time.Millisecond)
					demand := r.handler.Stats().Opens[0].Files
					for _, name := range names {
						read(r, name)
						time.Sleep(20 * time.Millisecond) // an epoch takes longer than recentAge
						if s := r.handler.WindowStats(); s.Taken > s.Size {
							t.Fatalf("%d of %d bytes are taken", s.Taken, s.Size)
						}
					}
					requests := r.requests()
					for name, times := range requests {
						if times > 1 {
							t.Errorf("epoch %d: %s was requested %d times", epoch, name, times)
						}
					}
					want := n - permanent
					// In stateless mode, the last files of an epoch are still there in the next one.
					if got := len(requests); got > want || got < want-lead {
						t.Errorf("epoch %d: %d files were requested, want %d", epoch, got, want)
					}
					// Workers compete for the last room.
					if got := r.handler.Stats().Opens[0].Files - demand; got > n/100 {
						t.Errorf("epoch %d: %d opens read the source", epoch, got)
					}
				}
				r.handler.DropPlans(nil)
				r.wantWindow(0)
				time.Sleep(time.Millisecond) // a drop is counted at its end
				s := r.handler.WindowStats()
				if s.Taken != 0 || s.Used != s.Copies || s.Unused != 0 || s.Copies < 4*(n-placed-lead-4) {
					t.Errorf("at the end: %+v", s)
				}
				if got := r.handler.Stats().Placed; got < placed-1 || got > placed {
					t.Errorf("%d copies were placed, want %d", got, placed)
				}
			})
		})
	}
}

// A copy in the window is not dropped while its file is open, wherever the job is.
func TestWindowKeepsOpenFiles(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, names := newWindowed(t, 200, 0, 20)
		r.plan(PlanPart{Lead: 4}, names...)
		r.wantWindow(20)
		first := slices.IndexFunc(names, r.inWindow)
		obj := r.open(names[first])
		for _, name := range names[first+1 : 100] {
			ways["opened"](r, name)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Hour)
		r.requests()
		r.wantAt(obj, 0, windowFile, random(uint64(first), windowFile))
		if got := r.requests(); len(got) > 0 {
			t.Errorf("an open file was read from the source: %v", got)
		}
		before := r.handler.WindowStats()
		r.check(obj.Close())
		time.Sleep(time.Millisecond)
		if after := r.handler.WindowStats(); after.Used != before.Used+1 {
			t.Errorf("after the last close: %+v, before %+v", after, before)
		}
	})
}

// A reader that has not read its file to the end keeps it in stateless mode, until the stream is
// ahead of it by the lead of the loader.
func TestWindowInStatelessMode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const lead = 10
		r, names := newWindowed(t, 100, 0, 40)
		r.plan(PlanPart{Lead: lead}, names...)
		r.wantWindow(40)
		var copied [60]bool
		missing := 0 // workers overtake each other, and the window fills with later files
		for i, name := range names[:len(copied)] {
			if copied[i] = r.inWindow(name); !copied[i] {
				missing++
			}
			ways["stateless"](r, name)
			time.Sleep(5 * time.Second) // longer than recentFiles keeps it
			for j := range names[:i] {
				held := r.inWindow(names[j])
				if want := i-j < lead; copied[j] && held != want {
					t.Fatalf("after file %d: file %d is in the window: %v, want %v", i, j, held, want)
				}
			}
		}
		if missing > 4 {
			t.Errorf("%d of %d files were not copied before the job read them", missing, len(copied))
		}
	})
}

// A stream that does not move gives way to one that needs its files earlier, after a second.
func TestStalledWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, names := newWindowed(t, 100, 0, 10)
		r.plan(PlanPart{Stream: "a", Lead: 1}, names[:50]...)
		r.wantWindow(10)
		// Workers overtake each other: a file may be missing among the first ones, and a later one be there.
		held := func(names []string) []string {
			return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !r.inWindow(name) })
		}
		late, first := int64(len(held(names[10:50]))), held(names[:4])
		r.plan(PlanPart{Stream: "b", Lead: 1}, names[50:]...)
		time.Sleep(time.Minute)
		s := r.handler.WindowStats()
		if s.Unused < 4 || s.Unused > 6+late || s.Stalled == 0 || s.Files != 10 {
			t.Errorf("got %+v, want that each stream has a part of the window", s)
		}
		if left := held(first); !slices.Equal(left, first) {
			t.Errorf("of the files that are needed first, %q are in the window, want %q", left, first)
		}
		a, b := held(names[:50]), held(names[50:])
		if len(a) < 4 || len(b) < 4 {
			t.Fatalf("the streams have %d and %d files in the window", len(a), len(b))
		}
		r.requests()
		for i := range 2 {
			ways["opened"](r, a[i])
			ways["opened"](r, b[i])
		}
		if got := r.requests(); got[a[0]]+got[b[0]]+got[a[1]]+got[b[1]] > 0 {
			t.Errorf("files in the window were requested: %v", got)
		}
	})
}

// A planned file that is larger than the window is read from the source, and does not delay others.
func TestLargerThanWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, names := newWindowed(t, 10, 0, 5)
		large := r.put("large", 6*windowBytes)
		r.plan(PlanPart{}, append([]string{"large"}, names...)...)
		r.wantWindow(5)
		r.wantFile("large", large)
	})
}

// Without its tier there is no window, and the plan goes on. Copies of a tier that fails are read
// from the source.
func TestWindowOfFailingTier(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, names := newWindowed(t, 40, 0, 20)
		r.plan(PlanPart{}, names...)
		r.wantWindow(20)
		for _, op := range []drivertest.Op{drivertest.OpRead, drivertest.OpWrite, drivertest.OpCreate} {
			r.to[0].Add(drivertest.Rule{Op: op, Err: fmt.Errorf("injected")})
		}
		for i, name := range names {
			r.wantFile(name, random(uint64(i), windowFile))
			time.Sleep(time.Millisecond)
		}
		r.to[0].Clear()
		time.Sleep(time.Hour)
		r.wantWindow(0)
	})
}

// A new version of a file is not read from a copy of the old one.
func TestWindowOfChangedFile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, names := newPlanned(t, rigOptions{quotas: []int64{20 * windowBytes}, window: 20 * windowBytes, ttl: time.Minute}, 10, windowFile)
		r.plan(PlanPart{}, names...)
		r.wantWindow(10)
		time.Sleep(2 * time.Minute)
		data := random(99, windowFile+1)
		r.mem.Put(names[3], data)
		r.wantFile(names[3], data)
		time.Sleep(time.Minute)
		r.wantWindow(9)
	})
}

// A copy in the window is not a copy of the tier: a store that is opened again has none.
func TestWindowIsNotPermanent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, names := newWindowed(t, 10, 0, 10)
		r.plan(PlanPart{}, names...)
		r.wantWindow(10)
		for _, name := range names {
			if _, err := r.stores[0].Stat(t.Context(), name); err == nil {
				t.Errorf("%s is a copy of the tier", name)
			}
			if got := r.entry(name).Level(); got != 0 {
				t.Errorf("%s has level %d", name, got)
			}
		}
		if outcome, err := r.handler.Place(t.Context(), r.entry(names[0])); outcome != Skipped || err != nil {
			t.Errorf("place: got %v, %v", outcome, err)
		}
	})
}

// Many readers of several streams read the right bytes while copies come and go, and the account
// of the tier is right.
func TestWindowStress(t *testing.T) {
	const n, streams = 400, 4
	r, names := newWindowed(t, n, 100, 24)
	order := make([][]string, streams)
	for i, name := range names {
		order[i%streams] = append(order[i%streams], name)
	}
	seed := make(map[string]uint64)
	for i, name := range names {
		seed[name] = uint64(i)
	}
	var readers sync.WaitGroup
	for i, own := range order {
		r.plan(PlanPart{Stream: fmt.Sprint(i), Lead: 4}, own...)
		for range 2 {
			readers.Go(func() {
				for _, name := range own {
					obj, err := r.handler.Open(t.Context(), r.entry(name))
					if err != nil {
						t.Error(err)
						return
					}
					r.wantAt(obj, 0, windowFile, random(seed[name], windowFile))
					obj.Close()
					if s := r.handler.WindowStats(); s.Taken > s.Size {
						t.Errorf("%d of %d bytes are taken", s.Taken, s.Size)
					}
				}
			})
		}
	}
	readers.Wait()
	r.handler.DropPlans(nil)
	r.wantWindow(0)
	s := r.levels.Tier(1).Stats()
	if _, taken := r.levels.Tier(1).Window(); taken != 0 || s.Filling != 0 || s.Used != s.Files*windowBytes {
		t.Errorf("%d bytes of the window are taken, and the tier has %+v", taken, s)
	}
	if got := r.stores[0].Used(); got != s.Files*windowFile {
		t.Errorf("the store has %d bytes, want %d", got, s.Files*windowFile)
	}
}
