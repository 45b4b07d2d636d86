package config

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
)

// A Change is a value that differs between two configurations.
type Change struct {
	Key    string `json:"key"` // as Set takes it
	Old    string `json:"old"`
	New    string `json:"new"`
	Origin string `json:"origin"` // of the new value
}

// Clone returns a copy of c that shares nothing with it.
func (c *Config) Clone() *Config {
	n := *c
	n.Tiers = slices.Clone(c.Tiers)
	n.origins = maps.Clone(c.origins)
	return &n
}

// Compare returns the values of c that differ in next: those that a mount can take over while it is used, and
// the others. If the tiers have other names or another order, that is one of the others, with the key "tier".
func (c *Config) Compare(next *Config) (reloadable, fixed []Change) {
	if a, b := c.tierNames(), next.tierNames(); !slices.Equal(a, b) {
		fixed = append(fixed, Change{Key: tierTable, Old: list(a), New: list(b), Origin: next.originOf(tierTable + "[0]")})
	}
	for _, key := range c.settableKeys() {
		_, k, t, _ := c.lookup(key)
		storageKey, _, nt, ok := next.lookup(key)
		if !ok { // its tier is missing
			continue
		}
		change := Change{key, k.field(c, t).String(), k.field(next, nt).String(), next.originOf(storageKey)}
		switch {
		case change.Old == change.New:
		case k.Reloadable:
			reloadable = append(reloadable, change)
		default:
			fixed = append(fixed, change)
		}
	}
	return reloadable, fixed
}

func (c *Config) tierNames() (names []string) {
	for _, t := range c.Tiers {
		names = append(names, t.Name)
	}
	return names
}

// Adopt takes over the values of next for some keys, and the origins of those that are the same in both.
func (c *Config) Adopt(next *Config, keys []Change) error {
	for _, change := range keys {
		if err := c.Set(change.Key, change.New, change.Origin); err != nil {
			return err
		}
	}
	for _, key := range c.settableKeys() {
		storageKey, k, t, _ := c.lookup(key)
		nextKey, _, nt, ok := next.lookup(key)
		if !ok || k.field(c, t).String() != k.field(next, nt).String() {
			continue
		}
		delete(c.origins, storageKey)
		if origin := next.originOf(nextKey); origin != c.originOf(storageKey) {
			c.setOrigin(storageKey, origin) // also if it is the default of next, and not of the profile of c
		}
	}
	return nil
}

// startDir is the directory that the process has left, at which relative paths start. nil: it has not.
var startDir atomic.Pointer[string]

// LeaveDirectory changes the working directory of this process to "/", as a daemon does, so that the
// present one can be removed or unmounted. Relative paths in a configuration start at the present one also
// after that. It can be called once.
func LeaveDirectory() error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	startDir.Store(&dir)
	return os.Chdir("/")
}

// absolute returns path as an absolute path.
func absolute(path string) (string, error) {
	if dir := startDir.Load(); dir != nil && !filepath.IsAbs(path) {
		path = filepath.Join(*dir, path)
	}
	return filepath.Abs(path)
}
