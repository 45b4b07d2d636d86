package tiers

import (
	"context"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// An onDevice is a store on a device, or a part of one.
type onDevice struct {
	*drivertest.Mem
	number    uint64
	available *atomic.Int64
}

func (s onDevice) Statfs(context.Context) (drivers.Statfs, error) {
	return drivers.Statfs{Total: 1 << 40, Available: s.available.Load(), Device: s.number}, nil
}

// What is free in a tier is what its quota leaves, and no more than its device has. Tiers on one device
// do not have twice what it has.
func TestFree(t *testing.T) {
	var disk, other atomic.Int64
	disk.Store(100 << 20)
	other.Store(30 << 20)
	store := func(number uint64, available *atomic.Int64) onDevice {
		return onDevice{drivertest.NewMem(0), number, available}
	}
	failing := drivertest.NewFaults(store(0, &other))
	h, stop := start(t, Options{},
		Config{Name: "ram", Store: store(0, &other), Quota: Quota{Bytes: 40 << 20}},
		Config{Name: "fast", Store: store(7, &disk), Quota: Quota{Bytes: 60 << 20}, Window: Quota{Bytes: 10 << 20}},
		Config{Name: "slow", Store: store(7, &disk), Quota: Quota{Bytes: 80 << 20}},
		Config{Name: "ill", Store: failing, Quota: Quota{Bytes: 20 << 20}},
		Config{Name: "sizeless", Store: sizeless{drivertest.NewMem(0)}, Quota: Quota{Bytes: 5 << 20}},
	)
	defer stop()
	h.WaitScanned(bg)
	failing.Add(drivertest.Rule{Op: drivertest.OpStatfs, Err: syscall.EIO})
	want := func(when string, mib ...int64) {
		t.Helper()
		got := h.Free(bg)
		for i := range got {
			got[i] >>= 20
		}
		if !slices.Equal(got, mib) {
			t.Errorf("%s: got %v MiB, want %v", when, got, mib)
		}
	}
	want("empty tiers", 30, 50, 50, 0, 5)
	mustPlace(t, h.Tier(2), "f", 20<<20)
	disk.Add(-20 << 20)
	want("after a copy", 30, 30, 50, 0, 5)
	r, ok := h.Tier(3).Reserve(bg, 10<<20)
	if !ok {
		t.Fatal("no room")
	}
	want("while one is made", 30, 30, 40, 0, 5)
	disk.Store(20 << 20)
	want("on a disk that others have filled", 30, 10, 0, 0, 5)
	r.Return()
	want("when it has ended", 30, 20, 0, 0, 5)
}
