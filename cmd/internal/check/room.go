package check

import (
	"context"
	"syscall"

	"github.com/dustin/go-humanize"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
)

// A Need is what the copies of a dataset take.
type Need struct {
	Files   int64
	Bytes   int64  // in the tiers, where copies take whole blocks
	Partial string // why there may be more; "": all were counted
}

// Add adds a file whose copy takes some bytes.
func (n *Need) Add(bytes int64) {
	n.Files++
	n.Bytes += bytes
}

// Room returns a finding about whether the tiers of a configuration hold a dataset. count returns what that needs; it
// ends when its context is done, which is before other checks end. If it fails, there is no finding.
func Room(ctx context.Context, c *config.Config, count func(context.Context) (Need, error)) []Finding {
	return thisHost().compareRoom(ctx, c, count)
}

func (h host) compareRoom(ctx context.Context, c *config.Config, count func(context.Context) (Need, error)) []Finding {
	const name = "room"
	if len(c.Tiers) == 0 {
		return nil
	}
	onTimeout := warning(name, "See the findings of the source and the tiers.", "the source or a tier did not respond within %s", h.timeout)
	return h.withTimeout(ctx, onTimeout, func() []Finding {
		counting, cancel := context.WithTimeout(ctx, h.timeout*3/5)
		defer cancel()
		need, err := count(counting)
		if err != nil || need.Files == 0 {
			return nil // the finding of the source says why
		}
		room, whose := h.room(c), "the tiers have"
		needs := "the dataset needs"
		if need.Partial != "" {
			needs += " at least"
		}
		tail := ""
		if need.Partial != "" {
			tail = "; " + need.Partial
		}
		if c.Peers.Roster != "" {
			whose = "the tiers of this node, which shares it with others, have"
		}
		if need.Bytes > room && c.Peers.Roster == "" {
			return warning(name, `Raise a quota, add a tier, share the tiers of several nodes with --peers, or use a plan with placement.window. What does not fit is read from the source in every epoch.`,
				"%s %s (%s files), and %s %s%s", needs, size(need.Bytes), humanize.Comma(need.Files), whose, size(room), tail)
		}
		return ok(name, "%s %s (%s files), and %s %s%s", needs, size(need.Bytes), humanize.Comma(need.Files), whose, size(room), tail)
	})
}

// room returns how many bytes copies in the tiers of c may take, those that are there included. Tiers that cannot be
// examined have none: they have findings of their own.
func (h host) room(c *config.Config) (bytes int64) {
	left := make(map[uint64]int64) // of each device
	for i, t := range c.Tiers {
		dir, info, err := h.nearestExisting(t.Path)
		if err != nil {
			continue
		}
		st, err := h.statfs(dir)
		if err != nil {
			continue
		}
		free := h.usable(t, c.Source.Name(), st)
		quota := t.Quota.Of(free)
		if s, ok := info.Sys().(*syscall.Stat_t); ok && st.Blocks > 0 {
			if _, known := left[s.Dev]; !known {
				left[s.Dev] = free
			}
			quota = min(quota, left[s.Dev])
			left[s.Dev] -= quota
		}
		if i == 0 {
			quota -= c.Placement.Window.Of(quota)
		}
		bytes += max(0, quota)
	}
	return bytes
}
