package tiers

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// With a larger quota there is room again. With a smaller one the copies stay, and there are no new ones
// until they take less.
func TestResize(t *testing.T) {
	store := drivertest.NewMem(0)
	tier, stop := startTier(t, store, Quota{Bytes: 4 * allocationUnit})
	defer stop()
	resize := func(units int64) {
		t.Helper()
		if err := tier.Resize(bg, Quota{Bytes: units * allocationUnit}); err != nil {
			t.Fatal(err)
		}
		if s := tier.Stats(); s.Quota != units*allocationUnit {
			t.Errorf("the quota is %d, want %d units", s.Quota, units)
		}
	}
	refuse := func(name string) {
		t.Helper()
		if ok, _ := place(tier, name, 1); ok || tier.Fits(1) {
			t.Errorf("%s was placed in a full tier", name)
		}
	}
	for i := range 4 {
		mustPlace(t, tier, fmt.Sprint(i), 1)
	}
	refuse("more")
	resize(6)
	mustPlace(t, tier, "more", 1)
	resize(2)
	refuse("no more")
	if s := tier.Stats(); s.Files != 5 || s.Used != 5*allocationUnit {
		t.Errorf("%d copies of %d bytes are left of 5", s.Files, s.Used)
	}
	for i := range 3 {
		if err := tier.Remove(bg, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
		refuse("no more")
	}
	if err := tier.Remove(bg, "3"); err != nil {
		t.Fatal(err)
	}
	mustPlace(t, tier, "again", 1)
	refuse("no more")
	checkAccount(t, tier, store)
}

// A percentage is one of the room that is free or has copies at that time. If the device does not tell, the
// quota is unchanged.
func TestResizePercentage(t *testing.T) {
	store := drivertest.NewFaults(drivertest.NewMem(100 * allocationUnit))
	tier, stop := startTier(t, store, Quota{Percent: 50})
	defer stop()
	mustPlace(t, tier, "f", 10*allocationUnit)
	for percent, want := range map[float64]int64{50: 50, 10: 10, 100: 100} {
		if err := tier.Resize(bg, Quota{Percent: percent}); err != nil || tier.Stats().Quota != want*allocationUnit {
			t.Errorf("%v%%: a quota of %d, want %d units: %v", percent, tier.Stats().Quota, want, err)
		}
	}
	before := tier.Stats().Quota
	store.Add(drivertest.Rule{Op: drivertest.OpStatfs, Err: syscall.EIO})
	if err := tier.Resize(bg, Quota{Percent: 20}); !errors.Is(err, syscall.EIO) || tier.Stats().Quota != before {
		t.Errorf("got %v and a quota of %d; want EIO and %d", err, tier.Stats().Quota, before)
	}
}

// The quota of a tier that is not scanned yet has its effect after the scan.
func TestResizeBeforeScan(t *testing.T) {
	store := drivertest.NewFaults(drivertest.NewMem(0))
	store.Add(drivertest.Rule{Op: drivertest.OpReadDir, Hang: true})
	h, stop := start(t, Options{}, Config{Name: "ram", Store: store, Quota: Quota{Bytes: 1 << 20}})
	defer stop()
	tier := h.Tier(1)
	if err := tier.Resize(bg, Quota{Bytes: 2 << 20}); err != nil || tier.Stats().Quota != 0 {
		t.Errorf("before the scan: a quota of %d, %v", tier.Stats().Quota, err)
	}
	store.Clear()
	<-tier.scanned
	if got := tier.Stats().Quota; got != 2<<20 {
		t.Errorf("after the scan: a quota of %d, want 2 MiB", got)
	}
}

// The window is a share of the new quota. What a smaller one holds too much is not given to other copies.
func TestResizeWindow(t *testing.T) {
	h, stop := start(t, Options{}, Config{Name: "ram", Store: drivertest.NewMem(0), Quota: Quota{Bytes: 20 * allocationUnit}, Window: Quota{Percent: 50}})
	defer stop()
	h.WaitScanned(bg)
	tier := h.Tier(1)
	held, ok := tier.ReserveWindow(bg, 8*allocationUnit)
	if !ok {
		t.Fatal("no room in the window")
	}
	defer held.Return()
	if err := tier.Resize(bg, Quota{Bytes: 10 * allocationUnit}); err != nil {
		t.Fatal(err)
	}
	if size, taken := tier.Window(); size != 5*allocationUnit || taken != 8*allocationUnit {
		t.Errorf("a window of %d bytes, of which %d are taken", size, taken)
	}
	if tier.FitsWindow(1) || !tier.Fits(2*allocationUnit) || tier.Fits(2*allocationUnit+1) {
		t.Error("want room for 2 units outside of the window, and for none in it")
	}
}

// The quota changes while copies are made and removed. In the end it is that of the last call.
func TestResizeAtAnyTime(t *testing.T) {
	store := drivertest.NewMem(0)
	tier, stop := startTier(t, store, Quota{Bytes: 10 * allocationUnit})
	defer stop()
	var workers sync.WaitGroup
	for i := range 4 {
		workers.Go(func() {
			for n := range 300 {
				name := fmt.Sprintf("%d/%d", i, n%10)
				if n%3 == 0 {
					if err := tier.Remove(bg, name); err != nil && !errors.Is(err, errBusy) {
						t.Error(err)
					}
				} else if _, err := place(tier, name, 1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for n := range int64(300) {
		if err := tier.Resize(bg, Quota{Bytes: (1 + n%20) * allocationUnit}); err != nil {
			t.Error(err)
		}
	}
	workers.Wait()
	if got, want := tier.Stats().Quota, int64(20*allocationUnit); got != want {
		t.Errorf("a quota of %d, want %d", got, want)
	}
	checkAccount(t, tier, store)
}
