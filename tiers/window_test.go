package tiers

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// Room in the window and outside of it is reserved, committed and returned at the same time. Neither
// part exceeds its size, and the account is right in the end.
func TestWindowAccount(t *testing.T) {
	const quota, window = 20 * allocationUnit, 5 * allocationUnit
	h, stop := start(t, Options{}, Config{Name: "ram", Store: drivertest.NewMem(0), Quota: Quota{Bytes: quota}, Window: Quota{Percent: 25}})
	defer stop()
	h.WaitScanned(bg)
	tier := h.Tier(1)
	if size, taken := tier.Window(); size != window || taken != 0 {
		t.Fatalf("got a window of %d bytes, %d taken; want %d and 0", size, taken, window)
	}
	var workers sync.WaitGroup
	for i := range 8 {
		workers.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			var held []*Reservation
			for range 2000 {
				reserve := tier.Reserve
				if rng.IntN(2) == 0 {
					reserve = tier.ReserveWindow
				}
				if room, ok := reserve(bg, rng.Int64N(3*allocationUnit)+1); ok {
					held = append(held, room)
					if room.windowed && rng.IntN(2) == 0 {
						room.Written()
					}
				}
				_, inWindow := tier.Window()
				if most, taken := tier.Room(); inWindow > window || taken > most || most != quota-window {
					t.Errorf("%d bytes of the window and %d of %d others are taken", inWindow, taken, most)
					return
				}
				if len(held) > rng.IntN(4) {
					held[0].Return()
					held[0].Return()
					held = held[1:]
				}
			}
			for _, room := range held {
				room.Return()
			}
		})
	}
	workers.Wait()
	s := &tier.space
	if s.reserved != 0 || s.windowed != 0 || s.written != 0 || s.used != 0 {
		t.Errorf("in the end, %d bytes are reserved, %d in the window, %d written, %d used", s.reserved, s.windowed, s.written, s.used)
	}
}

// A tier that holds more than its quota outside of the window keeps its copies, and the window is
// smaller.
func TestWindowOfFullTier(t *testing.T) {
	s := &space{quota: 10 * allocationUnit, window: 4 * allocationUnit, used: 8 * allocationUnit}
	if s.fits(1, false) || !s.fits(2*allocationUnit, true) || s.fits(2*allocationUnit+1, true) {
		t.Errorf("got %d bytes outside of the window and %d in it", s.left(false), s.left(true))
	}
}
