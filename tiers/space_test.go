package tiers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/posix"
)

func isChanged(err error) bool { return errors.Is(err, drivers.ErrChanged) }

// Copies are made, replaced, removed and aborted at the same time. The quota is never
// exceeded, and the account is right in the end.
func TestQuotaNeverExceeded(t *testing.T) {
	const quota = 20 * allocationUnit
	store := drivertest.NewMem(0)
	faults := drivertest.NewFaults(store)
	for _, op := range []drivertest.Op{drivertest.OpWrite, drivertest.OpCommit} {
		faults.Add(drivertest.Rule{Op: op, Err: syscall.ENOSPC, P: 0.05})
	}
	tier, stop := startTier(t, faults, Quota{Bytes: quota})
	defer stop()
	var workers, watcher sync.WaitGroup
	done := make(chan struct{})
	watcher.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if s := tier.Stats(); s.Used+s.Filling > quota {
				t.Errorf("quota of %d: got %d used and %d in flight", quota, s.Used, s.Filling)
				return
			}
		}
	})
	var refused, placed int64
	var mu sync.Mutex
	for i := range 8 {
		workers.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			for range 1000 {
				name := fmt.Sprintf("d%d/f", rng.IntN(30))
				if rng.IntN(4) == 0 {
					if err := tier.Remove(bg, name); err != nil && !errors.Is(err, errBusy) {
						t.Error(err)
					}
					continue
				}
				ok, err := place(tier, name, rng.Int64N(3*allocationUnit)+1)
				mu.Lock()
				if !ok {
					refused++
				} else if err == nil {
					placed++
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	close(done)
	watcher.Wait()
	checkAccount(t, tier, store)
	if refused == 0 || placed == 0 {
		t.Errorf("%d placed and %d refused: the test needs both", placed, refused)
	}
}

// Concurrent reservations succeed as often as there is room.
func TestReserveAtOnce(t *testing.T) {
	const room = 5
	tier, stop := startTier(t, drivertest.NewMem(0), Quota{Bytes: room * allocationUnit})
	defer stop()
	for range 300 {
		var wg sync.WaitGroup
		got := make(chan *Reservation, 50)
		begin := make(chan struct{})
		for range cap(got) {
			wg.Go(func() {
				<-begin
				if r, ok := tier.Reserve(bg, 1); ok {
					got <- r
				}
			})
		}
		close(begin)
		wg.Wait()
		if len(got) != room {
			t.Fatalf("%d got room, want %d", len(got), room)
		}
		for len(got) > 0 {
			(<-got).Return()
		}
	}
}

func TestReservationEndsOnce(t *testing.T) {
	tier, stop := startTier(t, drivertest.NewMem(0), Quota{Bytes: 2 * allocationUnit})
	defer stop()
	room, ok := tier.Reserve(bg, allocationUnit+1)
	if !ok {
		t.Fatal("no room")
	}
	if tier.Fits(1) {
		t.Error("Fits ignores the reservation")
	}
	room.Return()
	room.Commit()
	room.Return()
	if s := tier.Stats(); s.Used != 0 || s.Filling != 0 || s.Files != 0 {
		t.Errorf("got %d used, %d in flight, %d files, want none", s.Used, s.Filling, s.Files)
	}
}

// A reservation that is extended takes what it lacks, and keeps what it has if there is no room.
func TestExtend(t *testing.T) {
	store := drivertest.NewMem(0)
	tier, stop := startTier(t, store, Quota{Bytes: 8 * allocationUnit})
	defer stop()
	room, ok := tier.Reserve(bg, 1)
	if !ok {
		t.Fatal("no room")
	}
	filling := func(when string, want int64) {
		t.Helper()
		if got := tier.Stats().Filling; got != want*allocationUnit {
			t.Errorf("%s: got %d bytes in flight, want %d units", when, got, want)
		}
	}
	for _, step := range []struct {
		size int64
		ok   bool
		held int64 // units
	}{
		{allocationUnit, true, 1},
		{allocationUnit + 1, true, 2},
		{8*allocationUnit + 1, false, 2},
		{1, true, 2},
		{7 * allocationUnit, true, 7},
	} {
		if got := room.Extend(bg, step.size); got != step.ok {
			t.Errorf("extended to %d: got %v", step.size, got)
		}
		filling(fmt.Sprintf("extended to %d", step.size), step.held)
	}
	room.Shrink(3*allocationUnit + 1)
	filling("shrunk", 4)
	room.Shrink(5 * allocationUnit)
	filling("shrunk to more", 4)
	if !room.Extend(bg, 7*allocationUnit) {
		t.Error("not extended again")
	}
	filling("extended again", 7)
	mustPlace(t, tier, "other", allocationUnit)
	if room.Extend(bg, 8*allocationUnit) {
		t.Error("extended into the room of another copy")
	}
	room.Return()
	if room.Extend(bg, 8*allocationUnit) {
		t.Error("extended after its end")
	}
	checkAccount(t, tier, store)
}

// A reservation is committed with the size to which it was extended.
func TestCommitExtended(t *testing.T) {
	store := drivertest.NewMem(0)
	tier, stop := startTier(t, store, Quota{Bytes: 1 << 20})
	defer stop()
	const size = 5*allocationUnit + 1
	room, ok := tier.Reserve(bg, allocationUnit)
	if !ok || !room.Extend(bg, size) {
		t.Fatal("no room")
	}
	store.Put("f", make([]byte, size))
	room.Commit()
	checkAccount(t, tier, store)
}

// What a copy has written is not counted twice: the device has less room available.
func TestWrote(t *testing.T) {
	store := drivertest.NewMem(10 * allocationUnit)
	tier, stop := startTier(t, store, Quota{Bytes: 1 << 20})
	defer stop()
	room, ok := tier.Reserve(bg, 6*allocationUnit)
	if !ok {
		t.Fatal("no room")
	}
	store.Put("part", make([]byte, 5*allocationUnit))
	fits := func(when string, units int64, want bool) {
		t.Helper()
		r, ok := tier.Reserve(bg, units*allocationUnit)
		if ok {
			r.Return()
		}
		if ok != want {
			t.Errorf("%s: room for %d units: %t, want %t", when, units, ok, want)
		}
	}
	fits("written and not recorded", 1, false)
	room.Wrote(5 * allocationUnit)
	fits("recorded", 4, true)
	fits("recorded", 5, false)
	other, ok := tier.Reserve(bg, 3*allocationUnit)
	if !ok {
		t.Fatal("no room")
	}
	fits("beside another copy", 1, true)
	fits("beside another copy", 2, false)
	room.Wrote(5 * allocationUnit) // of which 1 was reserved
	fits("all recorded", 2, true)
	fits("all recorded", 3, false)
	room.Return()
	fits("returned", 2, true)
	fits("returned", 3, false)
	other.Return()
	other.Wrote(3 * allocationUnit)
	if other, ok = tier.Reserve(bg, 3*allocationUnit); !ok {
		t.Fatal("no room")
	}
	defer other.Return()
	fits("recorded after its end", 3, false)
}

// Reservations that are extended and end at once never exceed the quota, and leave nothing.
func TestExtendAtOnce(t *testing.T) {
	const quota = 8 * allocationUnit
	store := drivertest.NewMem(0)
	tier, stop := startTier(t, store, Quota{Bytes: quota})
	defer stop()
	for range 300 {
		var rooms []*Reservation
		for range 4 {
			room, ok := tier.Reserve(bg, 1)
			if !ok {
				t.Fatal("no room")
			}
			rooms = append(rooms, room)
		}
		var wg sync.WaitGroup
		for _, room := range rooms {
			wg.Go(func() {
				room.Extend(bg, 2*allocationUnit)
				room.Extend(bg, 5*allocationUnit)
				if s := tier.Stats(); s.Filling > quota {
					t.Errorf("%d bytes in flight, more than the quota", s.Filling)
				}
			})
			wg.Go(room.Return)
		}
		wg.Wait()
		checkAccount(t, tier, store)
	}
}

// A copy that replaces another also replaces it in the account.
func TestCommitOverCopy(t *testing.T) {
	store := drivertest.NewMem(0)
	tier, stop := startTier(t, store, Quota{Bytes: 1 << 20})
	defer stop()
	for _, size := range []int64{1, 3 * allocationUnit, allocationUnit} {
		mustPlace(t, tier, "f", size)
		checkAccount(t, tier, store)
	}
	for range 2 {
		if err := tier.Remove(bg, "f"); err != nil {
			t.Fatal(err)
		}
		checkAccount(t, tier, store)
	}
}

// The room of a copy that was removed by hand is returned when the copy is found missing.
func TestLost(t *testing.T) {
	store := drivertest.NewMem(0)
	tier, stop := startTier(t, store, Quota{Bytes: 2 * allocationUnit})
	defer stop()
	mustPlace(t, tier, "f", allocationUnit+1)
	store.Delete("f")
	if tier.Fits(1) {
		t.Error("room before the copy was found missing")
	}
	tier.Lost("gone", allocationUnit+1)
	checkAccount(t, tier, store)
	mustPlace(t, tier, "g", allocationUnit+1)
}

func TestPercentQuota(t *testing.T) {
	t.Run("counts what is held", func(t *testing.T) {
		store := drivertest.NewMem(1 << 20)
		store.Put("d/old", make([]byte, 256<<10))
		tier, stop := startTier(t, store, Quota{Percent: 50})
		defer stop()
		if got, want := tier.Stats().Quota, int64(512<<10); got != want {
			t.Errorf("quota: got %d, want %d", got, want)
		}
		mustPlace(t, tier, "a", 256<<10)
		if ok, _ := place(tier, "b", 1); ok {
			t.Error("a copy was placed beyond the quota")
		}
		checkAccount(t, tier, store)
	})
}

// A sizeless store reports a size of 0, as some network file systems do.
type sizeless struct{ *drivertest.Mem }

func (sizeless) Statfs(context.Context) (drivers.Statfs, error) { return drivers.Statfs{}, nil }

// A store that does not report its size has room for its quota in bytes. With a quota in percent
// it is not filled, and the reason is shown.
func TestStoreOfUnknownSize(t *testing.T) {
	for name, store := range map[string]drivers.Store{
		"size 0":  sizeless{drivertest.NewMem(0)},
		"no size": struct{ drivers.Store }{drivertest.NewMem(0)},
	} {
		t.Run(name, func(t *testing.T) {
			tier, stop := startTier(t, store, Quota{Bytes: 2 << 20})
			mustPlace(t, tier, "f", 1<<20)
			stop()
			tier, stop = startTier(t, store, Quota{Percent: 50})
			defer stop()
			if s := tier.Stats(); s.Health == Healthy || !errors.Is(s.Cause, errNoSize) {
				t.Errorf("got %v with cause %v, want cause %v", s.Health, s.Cause, errNoSize)
			}
			if ok, _ := place(tier, "g", 1); ok {
				t.Error("a copy was placed without a quota")
			}
		})
	}
}

func TestSizeBeyondReason(t *testing.T) {
	tier, stop := startTier(t, drivertest.NewMem(0), Quota{Bytes: 1 << 40})
	defer stop()
	if _, ok := tier.Reserve(bg, math.MaxInt64); ok || tier.Fits(math.MaxInt64) {
		t.Error("room for the largest possible sparse file")
	}
	if s := tier.Stats(); s.Filling != 0 {
		t.Errorf("in flight: got %d, want 0", s.Filling)
	}
}

// A device that is full below the quota gets no copies of that size for a while. It gets
// smaller ones and stays healthy.
func TestFullDevice(t *testing.T) {
	for _, op := range []drivertest.Op{drivertest.OpCreate, drivertest.OpWrite, drivertest.OpCommit} {
		t.Run(string(op), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := drivertest.NewFaults(drivertest.NewMem(0))
				store.Add(drivertest.Rule{Op: op, Name: "large", Err: syscall.ENOSPC})
				tier, stop := startTier(t, store, Quota{Bytes: 1 << 30})
				defer stop()
				if ok, err := place(tier, "large", 1<<20); !ok || !isFull(err) {
					t.Fatalf("first copy: got %v, %v; want ENOSPC", ok, err)
				}
				for range 10 {
					if ok, err := place(tier, "large", 1<<20); ok {
						t.Errorf("copy to a full device: got %v", err)
					}
				}
				mustPlace(t, tier, "small", 1<<20-allocationUnit)
				if s := tier.Stats(); s.Health != Healthy || s.Filling != 0 {
					t.Errorf("got %v with %d in flight, want %v with 0", s.Health, s.Filling, Healthy)
				}
				store.Clear()
				time.Sleep(shortTime + time.Second)
				mustPlace(t, tier, "large", 1<<20)
			})
		})
	}
}

// The device has less room than the quota allows.
func TestSmallDevice(t *testing.T) {
	tier, stop := startTier(t, drivertest.NewMem(100<<10), Quota{Bytes: 1 << 30})
	defer stop()
	mustPlace(t, tier, "a", 60<<10)
	if _, ok := tier.Reserve(bg, 60<<10); ok {
		t.Error("room for more than the device has")
	}
	mustPlace(t, tier, "b", 20<<10)
}

// After a restart the scan determines the size of the copies again.
func TestScannedAfterRestart(t *testing.T) {
	config := posix.StoreConfig{Tier: t.TempDir(), Dataset: "data", Source: "test"}
	var before TierStats
	for round := range 2 {
		store, err := posix.OpenStore(config)
		if err != nil {
			t.Fatal(err)
		}
		tier, stop := startTier(t, store, Quota{Bytes: 1 << 20})
		if round == 0 {
			for i := range 20 {
				mustPlace(t, tier, fmt.Sprintf("a/b%d/c%d", i%3, i), int64(i)*1000+1)
			}
			before = tier.Stats()
		} else if after := tier.Stats(); after.Used != before.Used || after.Files != before.Files || !after.Scanned {
			t.Errorf("after a restart: got %d bytes in %d files, want %d in %d", after.Used, after.Files, before.Used, before.Files)
		}
		stop()
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Before a tier has been scanned it is read, but accepts no copies.
func TestReadWhileCounting(t *testing.T) {
	mem := drivertest.NewMem(0)
	want := mem.Put("f", []byte("old"))
	store := drivertest.NewFaults(mem)
	store.Add(drivertest.Rule{Op: drivertest.OpReadDir, Hang: true})
	h, stop := start(t, Options{}, Config{Name: "ram", Store: store, Quota: Quota{Bytes: 1 << 20}})
	defer stop()
	defer store.Clear()
	tier := h.Tier(1)
	if ok, err := place(tier, "g", 1); ok || tier.Fits(1) {
		t.Errorf("a copy was placed on a tier that is not scanned: %v", err)
	}
	o, err := tier.Open(bg, "f", want)
	if err != nil {
		t.Fatal(err)
	}
	o.Close()
	tier.Lost("gone", 3) // the scan may or may not have counted it
	store.Clear()
	h.WaitScanned(bg)
	mustPlace(t, tier, "g", 1)
	checkAccount(t, tier, mem)
}

// WaitScanned does not wait for a tier that hangs or cannot be listed. When the tier can be
// listed it is scanned.
func TestWaitScannedSkipsBrokenTiers(t *testing.T) {
	for name, rule := range map[string]drivertest.Rule{
		"hung":   {Hang: true},
		"broken": {Op: drivertest.OpReadDir, Err: syscall.EIO},
		"denied": {Op: drivertest.OpReadDir, Name: "d", Err: syscall.EACCES},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := drivertest.NewMem(0)
				mem.Put("d/f", []byte("x"))
				store := drivertest.NewFaults(mem)
				store.Add(rule)
				h, stop := start(t, Options{}, Config{Name: "ram", Store: store, Quota: Quota{Bytes: 1 << 20}})
				defer stop()
				ctx, cancel := context.WithTimeout(bg, time.Minute)
				defer cancel()
				h.WaitScanned(ctx)
				if ctx.Err() != nil {
					t.Fatal("WaitScanned did not return")
				}
				if h.Tier(1).Scanned() {
					t.Fatal("the tier is scanned")
				}
				time.Sleep(time.Minute)
				store.Clear()
				time.Sleep(2 * maxProbe)
				if s := h.Tier(1).Stats(); s.Health != Healthy || !s.Scanned || s.Files != 1 {
					t.Errorf("when the tier is healthy: got %v, scanned %v, %d files", s.Health, s.Scanned, s.Files)
				}
			})
		})
	}
}

// The account does not have the files in a tier that Milkweed did not create. A copy that takes the
// place of one therefore takes nothing off it, and a removal does not remove one.
func TestAccountWithoutForeignFiles(t *testing.T) {
	config := posix.StoreConfig{Tier: t.TempDir(), Dataset: "data", Source: "test"}
	tier, stop := startFolder(t, config)
	mustPlace(t, tier, "copy", 5000)
	stop()
	dir := filepath.Join(config.Tier, config.Dataset, "files")
	for _, name := range []string{"replaced", "copy"} { // a name of its own, and the name of a copy whose record is lost
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path+".new", make([]byte, 10000), 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	tier, stop = startFolder(t, config)
	defer stop()
	for _, step := range []struct {
		name  string
		do    func()
		bytes int64
		files int64
	}{
		{"the scan", func() {}, 0, 0},
		{"a removal", func() {
			if err := errors.Join(tier.Remove(bg, "copy"), exists(filepath.Join(dir, "copy"))); err != nil {
				t.Error(err)
			}
		}, 0, 0},
		{"a commit", func() { mustPlace(t, tier, "replaced", 6000) }, Allocated(6000), 1},
		{"a removal of a copy", func() { tier.Remove(bg, "replaced") }, 0, 0},
	} {
		step.do()
		if got := tier.Stats(); got.Used != step.bytes || got.Files != step.files {
			t.Errorf("%s: %d bytes in %d files, want %d in %d", step.name, got.Used, got.Files, step.bytes, step.files)
		}
	}
}

func exists(path string) error {
	_, err := os.Lstat(path)
	return err
}
