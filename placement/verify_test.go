package placement

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/tiers"
)

// recheck publishes a copy of the right version and removes the copies of other versions.
func TestRecheck(t *testing.T) {
	rigs(t, rigOptions{quotas: []int64{1 << 20, 1 << 20}}, func(t *testing.T, r *rig) {
		right := r.mem.Put("right", []byte("content"))
		r.stores[1].PutAt("right", []byte("content"), right.Mtime)
		r.mem.Put("wrong", []byte("content"))
		r.stores[0].Put("wrong", []byte("other"))
		r.stores[1].Put("wrong", []byte("another one"))
		r.mem.Put("none", []byte("content"))
		for _, tier := range r.to {
			tier.Add(drivertest.Rule{Op: drivertest.OpStat, Err: errBroken})
			tier.Add(drivertest.Rule{Op: drivertest.OpReadDir, Err: errBroken})
		}
		want := map[string]bool{"right": true, "wrong": false, "none": false}
		for name := range want {
			if e := r.entry(name); e.Level() != tiers.AtSource || !e.Unverified() {
				t.Errorf("%s: level %d, unverified %v, although no tier answers", name, e.Level(), e.Unverified())
			}
		}
		for _, tier := range r.to {
			tier.Clear()
		}
		time.Sleep(time.Minute) // the tiers recover
		for name, want := range want {
			e := r.entry(name)
			if !e.Claim() {
				t.Fatalf("%s: not claimed", name)
			}
			if got := r.handler.recheck(e); got != want {
				t.Errorf("%s: got %v, want %v", name, got, want)
			}
			if want != (e.Level() == 2) || want == e.Claimed() {
				t.Errorf("%s: got level %d, claimed %v", name, e.Level(), e.Claimed())
			}
			if e.Unverified() {
				t.Errorf("%s: still unverified", name)
			}
		}
		for i, store := range r.stores {
			if _, err := store.Stat(t.Context(), "wrong"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("outdated copy on tier %d: got %v", i+1, err)
			}
		}
	})
}

// An entry stays unverified while a tier does not answer.
func TestRecheckWhileTierFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 20, 1 << 20}})
		r.put("f", 1000)
		remove := r.to[1].Add(drivertest.Rule{Op: drivertest.OpStat, Err: errBroken})
		e := r.entry("f")
		for _, want := range []bool{true, false} {
			if !e.Claim() || r.handler.recheck(e) {
				t.Fatal("not claimed, or a copy was found")
			}
			e.Release()
			if got := e.Unverified(); got != want {
				t.Errorf("unverified: got %v, want %v", got, want)
			}
			remove()
			time.Sleep(time.Minute)
		}
	})
}

// wantUsed waits until the usage of the first tier is that of the copies of some files.
func (r *rig) wantUsed(names ...string) {
	r.t.Helper()
	var bytes, files int64
	for _, name := range names {
		if e := r.entry(name); e.Level() == 1 {
			bytes += (e.Size() + 4095) / 4096 * 4096
			files++
		}
	}
	r.eventually("the usage of the tier is that of its copies", func() bool {
		st := r.levels.Tier(1).Stats()
		return st.Used == bytes && st.Files == files && st.Filling == 0
	})
	if r.t.Failed() {
		st := r.levels.Tier(1).Stats()
		r.t.Errorf("tier: got %d bytes in %d files, %d reserved; want %d in %d", st.Used, st.Files, st.Filling, bytes, files)
	}
}

// Retract drops a copy. Open handles continue to read it, and the next open makes another.
func TestRetract(t *testing.T) {
	rigs(t, rigOptions{quotas: []int64{8 << 20}}, func(t *testing.T, r *rig) {
		data := r.put("f", 3<<20)
		e := r.entry("f")
		retract := func(want bool) {
			t.Helper()
			if got, err := r.handler.Retract(e); got != want || err != nil {
				t.Fatalf("Retract: got %v, %v; want %v", got, err, want)
			}
		}
		retract(false) // it is not placed
		r.wantFile("f", data)
		r.settled()
		obj := r.open("f")
		retract(true)
		retract(false)
		if e.Level() != tiers.AtSource || e.Claimed() || e.Unverified() {
			t.Errorf("got level %d, claimed %v, unverified %v", e.Level(), e.Claimed(), e.Unverified())
		}
		if _, err := r.stores[0].Stat(t.Context(), "f"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the copy is still there: %v", err)
		}
		before := r.from.Bytes(drivertest.OpRead)
		r.wantAt(obj, 0, 3<<20, data)
		if got := r.from.Bytes(drivertest.OpRead) - before; got != 0 {
			t.Errorf("the open handle read %d bytes from the source, want none", got)
		}
		obj.Close()
		r.wantUsed("f")
		r.wantFile("f", data)
		r.settled()
		if got := e.Level(); got != 1 {
			t.Errorf("level: got %d, want 1", got)
		}
		r.wantUsed("f")
	})
}

// While a copy is being retracted, files are read from the source, and no other goroutine
// publishes a copy.
func TestOpenDuringRetract(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{8 << 20}})
		data := r.put("f", 1<<20)
		r.wantFile("f", data)
		r.settled()
		e := r.entry("f")
		r.to[0].Add(drivertest.Rule{Op: drivertest.OpRemove, Hang: true})
		var retracting sync.WaitGroup
		retracting.Go(func() {
			if ok, err := r.handler.Retract(e); !ok || err != nil {
				t.Errorf("Retract: got %v, %v", ok, err)
			}
		})
		synctest.Wait()
		for range 5 {
			r.wantFile("f", data)
			if e.Level() != tiers.AtSource || !e.Claimed() {
				t.Errorf("got level %d, claimed %v", e.Level(), e.Claimed())
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if outcome, err := r.handler.Place(ctx, e); outcome != Failed || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Place: got %v, %v; want it to wait for the end of Retract", outcome, err)
		}
		if got := r.to[0].Count(drivertest.OpCreate); got != 1 {
			t.Errorf("copies begun: got %d, want 1", got)
		}
		r.to[0].Clear()
		retracting.Wait()
		r.wantUsed("f")
		r.wantFile("f", data)
		r.settled()
		r.wantUsed("f")
		if got := e.Level(); got != 1 {
			t.Errorf("level: got %d, want 1", got)
		}
	})
}

// If the tier does not remove a retracted copy, the next open finds it again.
func TestRetractFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{8 << 20}})
		data := r.put("f", 1<<20)
		r.wantFile("f", data)
		r.settled()
		e := r.entry("f")
		r.to[0].Add(drivertest.Rule{Op: drivertest.OpRemove, Err: errBroken})
		if ok, err := r.handler.Retract(e); ok || !errors.Is(err, errBroken) {
			t.Errorf("Retract: got %v, %v; want %v", ok, err, errBroken)
		}
		if e.Level() != tiers.AtSource || e.Claimed() || !e.Unverified() {
			t.Errorf("got level %d, claimed %v, unverified %v", e.Level(), e.Claimed(), e.Unverified())
		}
		r.to[0].Clear()
		time.Sleep(time.Minute) // the tier recovers
		before := r.from.Bytes(drivertest.OpRead)
		r.wantFile("f", data)
		if got := r.from.Bytes(drivertest.OpRead) - before; got != 0 || e.Level() != 1 {
			t.Errorf("read %d bytes from the source, level %d; want none, 1", got, e.Level())
		}
		r.wantUsed("f")
	})
}

// The room of a copy that was removed by hand is returned once: by Retract, or by an open.
func TestCopyRemovedByHand(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{8 << 20}})
		data := r.put("f", 1<<20)
		e := r.entry("f")
		for _, notice := range []func(){
			func() { r.handler.Retract(e) },
			func() { r.wantFile("f", data) },
		} {
			r.wantFile("f", data)
			r.settled()
			r.check(r.stores[0].Remove(t.Context(), "f"))
			notice()
			r.settled()
			r.wantUsed("f")
		}
	})
}

// A copy that was not found when it was opened, and is there when it is looked for again, was
// made in between: its room is not returned.
func TestCopyReappears(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{8 << 20}})
		data := r.put("f", 1<<20)
		r.wantFile("f", data)
		r.settled()
		r.to[0].Add(drivertest.Rule{Op: drivertest.OpOpen, Err: fs.ErrNotExist, Times: 1})
		r.wantFile("f", data)
		if got := r.entry("f").Level(); got != 1 {
			t.Errorf("level: got %d, want 1", got)
		}
		if got := r.to[0].Count(drivertest.OpCreate); got != 1 {
			t.Errorf("copies begun: got %d, want 1", got)
		}
		r.wantUsed("f")
	})
}

// Files are opened, read, placed and retracted at the same time: every byte is right, and in
// the end the tier accounts for the copies that it has.
func TestRetractRace(t *testing.T) {
	r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
	names := []string{"a", "b", "c"}
	data := make(map[string][]byte)
	for i, name := range names {
		data[name] = r.put(name, 300_000+i)
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer func() {
		stop()
		all.Wait()
	}()
	for seed := range uint64(8) {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 1))
			for ctx.Err() == nil {
				name := names[rng.IntN(len(names))]
				switch rng.IntN(4) {
				case 0:
					r.handler.Place(ctx, r.entry(name)) // fails if a retraction is in progress
				case 1:
					r.wantAt(unopened{r.handler, r.entry(name)}, rng.IntN(200_000), 1000, data[name])
				default:
					r.wantFile(name, data[name])
				}
			}
		})
	}
	var retracted atomic.Int64
	for seed := range uint64(2) {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 2))
			for ctx.Err() == nil {
				ok, err := r.handler.Retract(r.entry(names[rng.IntN(len(names))]))
				if err != nil {
					t.Error(err)
				}
				if ok {
					retracted.Add(1)
				}
			}
		})
	}
	time.Sleep(time.Second) // the race, at least
	drivertest.Eventually(t, "many copies have been retracted", func() bool { return retracted.Load() >= 10 })
	stop()
	all.Wait()
	r.settled()
	r.handler.files.sweep(time.Now().Add(time.Hour))
	r.wantUsed(names...)
	for _, name := range names {
		r.wantFile(name, data[name])
	}
	r.settled()
	r.wantUsed(names...)
}

// Place waits while an opener examines a tier for a missing copy, and then makes another one.
func TestPlaceWhileMissing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{8 << 20}})
		data := r.put("f", 1<<20)
		r.wantFile("f", data)
		r.settled()
		e := r.entry("f")
		r.check(r.to[0].Remove(t.Context(), "f")) // by hand
		r.to[0].Add(drivertest.Rule{Op: drivertest.OpStat, Name: "f", Delay: time.Second})
		var opening sync.WaitGroup
		opening.Go(func() {
			obj, err := r.handler.Open(t.Context(), e)
			if err != nil {
				t.Error(err)
				return
			}
			obj.Close()
		})
		time.Sleep(3 * time.Second / 2) // the names are examined, and then the copy
		if outcome, err := r.handler.Place(t.Context(), e); outcome != Placed || err != nil {
			t.Errorf("Place: got %v, %v; want %v", outcome, err, Placed)
		}
		opening.Wait()
		r.settled()
		r.wantUsed("f")
	})
}

// A copy whose entry becomes stale while it is being committed is removed for the next version,
// even if the tier is full of it.
func TestCommitOfStaleEntry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{3 << 19}})
		r.put("f", 1<<20)
		old := r.entry("f")
		remove := r.to[0].Add(drivertest.Rule{Op: drivertest.OpCommit, Delay: time.Second})
		obj, err := r.handler.Open(t.Context(), old)
		r.check(err)
		time.Sleep(time.Second / 2) // the copy is being committed
		data := r.put("f", 1<<20+1)
		r.names.Changed(old)
		now := r.entry("f")
		r.settled()
		obj.Close()
		remove()
		if now == old || now.Level() != tiers.AtSource {
			t.Fatalf("the new version: same entry %v, level %d", now == old, now.Level())
		}
		r.wantFile("f", data)
		r.settled()
		if got := now.Level(); got != 1 {
			t.Errorf("level of the new version: got %d, want 1", got)
		}
		r.wantUsed("f")
	})
}
