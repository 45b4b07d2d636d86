package tiers

import (
	"context"

	"github.com/milkweedfs/milkweed/drivers"
)

// Room is what further copies may take in a tier.
type Room struct {
	Bytes  int64  // negative if the tier holds more than it may
	Inodes *int64 // those of the tier's device, for all tiers on it together; nil: they are not limited
}

// Free returns the room outside of the window in each tier, in the order of Tiers: what its quota leaves,
// and no more than its device has. What several tiers on one device have together is the faster one's
// first. A tier that does not accept copies now, or does not say in time what its device has, has no room
// and no inodes.
func (h *Hierarchy) Free(ctx context.Context) []Room {
	rooms := make([]Room, len(h.tiers))
	devices := make([]drivers.Statfs, len(h.tiers))
	left := make(map[uint64]Room) // by device
	for i, t := range h.tiers {
		device, err := t.device(ctx)
		if err != nil || !t.Accepts() {
			rooms[i].Inodes = new(int64)
			continue
		}
		bytes, promised := t.space.free()
		onDevice, known := left[device.Device]
		if !known || device.Device == 0 {
			onDevice = Room{Bytes: device.Available}
			if device.Files > 0 {
				onDevice.Inodes = &device.FilesFree
			}
		}
		onDevice.Bytes -= promised
		left[device.Device] = onDevice
		rooms[i] = Room{min(bytes, max(onDevice.Bytes, 0)), onDevice.Inodes}
		devices[i] = device
	}
	for i, d := range devices {
		if d.Device != 0 {
			onDevice := left[d.Device]
			rooms[i].Bytes = min(rooms[i].Bytes, max(onDevice.Bytes, 0))
			onDevice.Bytes -= max(rooms[i].Bytes, 0)
			left[d.Device] = onDevice
		}
	}
	return rooms
}

// unit returns the smallest unit of the tiers.
func (h *Hierarchy) unit() (unit int64) {
	for i, t := range h.tiers {
		if u := t.space.unit.Load(); i == 0 || u < unit {
			unit = u
		}
	}
	return max(unit, allocationUnit)
}

// Allocated returns the bytes that a copy of size bytes is expected to occupy in that tier in which it
// occupies the least.
func (h *Hierarchy) Allocated(size int64) int64 { return AllocatedIn(h.unit(), size) }

// Footprint returns an upper bound of the bytes that copies of files with a total size of bytes occupy in
// that tier.
func (h *Hierarchy) Footprint(files int, bytes int64) int64 {
	return bytes + int64(files)*(h.unit()-1)
}

// free returns the bytes that the quota leaves outside of the window, which are negative if it was
// lowered, and those that are reserved and not written: the device has them, and they are not free.
func (s *space) free() (bytes, promised int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left(false), s.reserved - s.written
}
