package metadata

import "github.com/milkweedfs/milkweed/tiers"

// settle does to a claimed entry what the placement handler does before it copies: it
// publishes the copy of the right version if a tier has it, and removes others.
func settle(c *Container, e *Entry) bool {
	all := true
	for _, t := range c.levels.Tiers() {
		info, err := t.Stat(bg, e.CopyName())
		switch {
		case err == nil && info.SameVersion(e.Info()):
			e.Publish(t.Level())
			return true
		case err == nil:
			all = remove(t, e) && all
		case !isAbsent(err):
			all = false
		}
	}
	if all {
		e.Verified()
	}
	return false
}

func remove(t *tiers.Tier, e *Entry) bool { return !e.Stale() && t.Remove(bg, e.CopyName()) == nil }
