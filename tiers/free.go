package tiers

import (
	"context"

	"github.com/milkweedfs/milkweed/drivers"
)

// Free returns how many bytes further copies outside of the window may take in each tier, in the order
// of Tiers: what its quota leaves, and no more than its device has. What several tiers on one device
// have together is the faster one's first. It is 0 for a tier that does not accept copies now, or does
// not say in time what its device has.
func (h *Hierarchy) Free(ctx context.Context) []int64 {
	free := make([]int64, len(h.tiers))
	devices := make([]drivers.Statfs, len(h.tiers))
	left := make(map[uint64]int64) // by device
	for i, t := range h.tiers {
		device, err := t.device(ctx)
		if err != nil || !t.Accepts() {
			continue
		}
		var promised int64
		free[i], promised = t.space.free()
		if device.Device != 0 {
			if _, known := left[device.Device]; !known {
				left[device.Device] = device.Available
			}
			left[device.Device] -= promised
		} else {
			free[i] = min(free[i], max(device.Available-promised, 0))
		}
		devices[i] = device
	}
	for i, d := range devices {
		if d.Device != 0 {
			free[i] = min(free[i], max(left[d.Device], 0))
			left[d.Device] -= free[i]
		}
	}
	return free
}

// free returns the bytes that the quota leaves outside of the window, and those that are reserved and
// not written: the device has them, and they are not free.
func (s *space) free() (bytes, promised int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.left(false), 0), s.reserved - s.written
}
