package check

import (
	"context"
	"fmt"
	"math"
	"syscall"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
)

// A Need is what the copies of a dataset take.
type Need struct {
	Files   int64  // that are not empty
	Dirs    int64  // directories: each takes an inode in a tier, as each file does
	Bytes   int64  // in the tiers, where a copy takes whole blocks
	Partial string // why there may be more files; "": these are all
}

// Room returns a finding about whether the tiers of c hold the copies of its dataset.
func Room(ctx context.Context, c *config.Config, need Need) []Finding {
	return thisHost().compareRoom(ctx, c, need)
}

func (h host) compareRoom(ctx context.Context, c *config.Config, need Need) []Finding {
	const name = "room"
	onTimeout := warning(name, "See the findings of the tiers.", "a tier did not respond within %s", h.timeout)
	return h.withTimeout(ctx, onTimeout, func() []Finding {
		room, inodes, atMost := h.room(c)
		atLeast, have, tail := "", "have", ""
		if need.Partial != "" {
			atLeast, tail = "at least ", "; "+need.Partial
		}
		if atMost {
			have = "have at most"
		}
		text := fmt.Sprintf("the dataset needs %s%s (%s files), and the tiers %s %s%s",
			atLeast, size(need.Bytes), humanize.Comma(need.Files), have, size(room), tail)
		switch {
		case need.Files == 0 && need.Partial != "":
			return ok(name, "not known: %s", need.Partial)
		case c.Peers.Roster != "":
			return ok(name, "%s; it is divided among the nodes", text)
		case need.Bytes > room:
			return warning(name, "Raise a quota, add a tier, or share the tiers of several nodes with --peers. What does not fit is read from the source in every epoch.", "%s", text)
		case need.Files+need.Dirs > inodes:
			return warning(name, "Put a tier on a file system with more inodes, or pack the files. What does not fit is read from the source in every epoch.",
				"%s; it needs %s inodes, and their file systems have %s", text, humanize.Comma(need.Files+need.Dirs), humanize.Comma(inodes))
		}
		return ok(name, "%s", text)
	})
}

// room returns how many bytes copies in the tiers of c may take, with those that are there, and how many
// files their file systems may have. Tiers that cannot be examined have none: they have findings of their
// own. atMost means that it may be less: what copies of earlier mounts take is not known.
func (h host) room(c *config.Config) (bytes, inodes int64, atMost bool) {
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
		bytes += max(0, quota)
	}
	return bytes, inodes, atMost
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
