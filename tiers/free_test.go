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
	inodes    int64 // that are free, of 1000; 0: they are not limited
}

func (s onDevice) Statfs(context.Context) (drivers.Statfs, error) {
	st := drivers.Statfs{Total: 1 << 40, Available: s.available.Load(), Device: s.number}
	if s.inodes > 0 {
		st.Files, st.FilesFree = 1000, s.inodes
	}
	return st, nil
}

// What is free in a tier is what its quota leaves, and no more than its device has. Tiers on one device
// do not have twice what it has.
func TestFree(t *testing.T) {
	var disk, other atomic.Int64
	disk.Store(100 << 20)
	other.Store(30 << 20)
	store := func(number uint64, available *atomic.Int64) onDevice {
		return onDevice{drivertest.NewMem(0), number, available, 0}
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
		var got []int64
		for _, room := range h.Free(bg) {
			if room.Inodes != nil && (room.Bytes != 0 || *room.Inodes != 0) {
				t.Errorf("%s: %d inodes", when, *room.Inodes)
			}
			got = append(got, room.Bytes>>20)
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

// The inodes of a device are those of all its tiers.
func TestFreeInodes(t *testing.T) {
	var disk atomic.Int64
	disk.Store(1 << 30)
	h, stop := start(t, Options{},
		Config{Name: "ram", Store: onDevice{drivertest.NewMem(0), 1, &disk, 30}, Quota: Quota{Bytes: 1 << 20}},
		Config{Name: "fast", Store: onDevice{drivertest.NewMem(0), 2, &disk, 50}, Quota: Quota{Bytes: 2 << 20}},
		Config{Name: "slow", Store: onDevice{drivertest.NewMem(0), 2, &disk, 50}, Quota: Quota{Bytes: 3 << 20}},
		Config{Name: "large", Store: onDevice{drivertest.NewMem(0), 3, &disk, 0}, Quota: Quota{Bytes: 4 << 20}},
	)
	defer stop()
	h.WaitScanned(bg)
	got := h.Free(bg)
	if *got[0].Inodes != 30 || *got[1].Inodes != 50 || got[1].Inodes != got[2].Inodes || got[3].Inodes != nil {
		t.Errorf("got %v", got)
	}
}
