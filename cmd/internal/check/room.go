package check

import (
	"context"
	"fmt"
	"math"
	"syscall"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/tiers"
)

// A Need is what the copies of a dataset take.
type Need struct {
	Files   int64  // that are not empty
	Dirs    int64  // directories: each takes an inode in a tier, as each file does
	Partial string // why there may be more files; "": these are all

	bytes [10]int64 // that the copies occupy in units of minUnit, twice as much and so on
}

// minUnit is the least unit in which copies occupy a tier.
const minUnit = 4096

// Add counts a file of size bytes, unless it is empty.
func (n *Need) Add(size int64) {
	if size <= 0 {
		return
	}
	n.Files++
	for i := range n.bytes {
		n.bytes[i] += tiers.AllocatedIn(minUnit<<i, size)
	}
}

// in returns the bytes that the copies occupy in tiers that are filled in their order, and the room of these. If
// they have too little, the rest of the copies counts as if it were in the last tier.
func (n *Need) in(tiers []tierRoom) (needed, room int64) {
	missing, last := 1.0, int64(minUnit)
	for _, t := range tiers {
		room += t.bytes
		last = max(t.unit, minUnit)
		if all := n.bytesIn(last); all > 0 {
			share := min(missing, float64(t.bytes)/float64(all))
			needed += int64(share * float64(all))
			missing -= share
		}
	}
	if missing < 1e-9 { // of sums of fractions
		missing = 0
	}
	return needed + int64(math.Ceil(missing*float64(n.bytesIn(last)))), room
}

// bytesIn returns the bytes that the copies occupy on a file system that allocates multiples of unit.
func (n *Need) bytesIn(unit int64) int64 {
	i := 0
	for i < len(n.bytes)-1 && minUnit<<i < unit {
		i++
	}
	return n.bytes[i]
}

// Room returns a finding about whether the tiers of c hold the copies of its dataset.
func Room(ctx context.Context, c *config.Config, need Need) []Finding {
	return thisHost().compareRoom(ctx, c, need)
}

func (h host) compareRoom(ctx context.Context, c *config.Config, need Need) []Finding {
	const name = "room"
	onTimeout := warning(name, "See the findings of the tiers.", "a tier did not respond within %s", h.timeout)
	return h.withTimeout(ctx, onTimeout, func() []Finding {
		all, inodes, atMost := h.room(c)
		needed, room := need.in(all)
		atLeast, have, tail := "", "have", ""
		if need.Partial != "" {
			atLeast, tail = "at least ", "; "+need.Partial
		}
		if atMost {
			have = "have at most"
		}
		text := fmt.Sprintf("the dataset needs %s%s (%s files), and the tiers %s %s%s",
			atLeast, size(needed), humanize.Comma(need.Files), have, size(room), tail)
		switch {
		case need.Files == 0 && need.Partial != "":
			return ok(name, "not known: %s", need.Partial)
		case c.Peers.Roster != "":
			return ok(name, "%s; it is divided among the nodes", text)
		case needed > room:
			return warning(name, "Raise a quota, add a tier, or share the tiers of several nodes with --peers. What does not fit is read from the source in every epoch.", "%s", text)
		case need.Files+need.Dirs > inodes:
			return warning(name, "Put a tier on a file system with more inodes, or pack the files. What does not fit is read from the source in every epoch.",
				"%s; it needs %s inodes, and their file systems have %s", text, humanize.Comma(need.Files+need.Dirs), humanize.Comma(inodes))
		}
		return ok(name, "%s", text)
	})
}

// A tierRoom is what copies may take in a tier.
type tierRoom struct {
	bytes int64
	unit  int64 // bytes of which a copy takes a multiple; 0: not known
}

// room returns how many bytes copies in the tiers of c may take, with those that are there, and how many
// files their file systems may have. Tiers that cannot be examined have none: they have findings of their
// own. atMost means that it may be less: what copies of earlier mounts take is not known.
func (h host) room(c *config.Config) (all []tierRoom, inodes int64, atMost bool) {
	left := make(map[uint64]int64) // by device
	for i, t := range c.Tiers {
		dir, info, err := h.nearestExisting(t.Path)
		if err != nil {
			continue
		}
		st, err := h.statfs(dir)
		if err != nil {
			continue
		}
		unit, _ := h.unit(dir) // if nothing can be written there, the finding of the tier says why
		usable, counted := h.usable(t, c.Source.Name(), st)
		quota := t.Quota.Of(usable)
		device := info.Sys().(*syscall.Stat_t).Dev
		if _, known := left[device]; !known {
			left[device] = usable
			inodes = addInodes(inodes, st, counted)
		}
		if st.Blocks > 0 {
			quota = min(quota, left[device])
			left[device] -= quota
			atMost = atMost || !counted && (t.Quota.Percent > 0 || quota > available(st))
		}
		if i == 0 {
			quota -= c.Placement.Window.Of(quota)
		}
		all = append(all, tierRoom{max(0, quota), unit})
	}
	return all, inodes, atMost
}

// addInodes adds those that copies on a file system may have to n. If some are there already, all files of
// it are taken for copies.
func addInodes(n int64, st unix.Statfs_t, counted bool) int64 {
	switch {
	case st.Files == 0 || n == math.MaxInt64: // not limited
		return math.MaxInt64
	case counted:
		return n + int64(st.Ffree)
	}
	return n + int64(st.Files)
}
