package check

import (
	"context"
	"fmt"
	"syscall"

	"github.com/dustin/go-humanize"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
)

// A Need is what the copies of a dataset take.
type Need struct {
	Files   int64
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
		room, atMost := h.room(c)
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
		case c.Peers.Roster != "":
			return ok(name, "%s; it is divided among the nodes", text)
		case need.Bytes > room:
			return warning(name, "Raise a quota, add a tier, or share the tiers of several nodes with --peers. What does not fit is read from the source in every epoch.", "%s", text)
		}
		return ok(name, "%s", text)
	})
}

// room returns how many bytes copies in the tiers of c may take, with those that are there. Tiers that
// cannot be examined have none: they have findings of their own. atMost means that it may be less: what
// copies of earlier mounts take is not known.
func (h host) room(c *config.Config) (bytes int64, atMost bool) {
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
		if s, ok := info.Sys().(*syscall.Stat_t); ok && st.Blocks > 0 {
			if _, known := left[s.Dev]; !known {
				left[s.Dev] = usable
			}
			quota = min(quota, left[s.Dev])
			left[s.Dev] -= quota
			atMost = atMost || !counted && (t.Quota.Percent > 0 || quota > available(st))
		}
		if i == 0 {
			quota -= c.Placement.Window.Of(quota)
		}
		bytes += max(0, quota)
	}
	return bytes, atMost
}
