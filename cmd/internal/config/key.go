package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// A value has two keys. The user writes "tier.ssd.quota", with the name of the
// tier. Config.origins has the storage key "tier[0].quota", with its index, because
// the names of tiers may be missing or duplicate before Validate. For values
// outside of tiers the two are equal, such as "mount.mode" and "profile".

// Set overrides one value, as a flag does. The key is "table.name", such as
// "mount.mode", or "profile"; for a value of a tier it is "tier.NAME.name", such as
// "tier.ssd.quota". Origin describes what sets the value, such as "flag --workers".
// Set does not expand ${NAME} in a path: the shell has done so.
func (c *Config) Set(key, value, origin string) error {
	storageKey, k, t, ok := c.lookup(key)
	if !ok {
		return &exit.Error{
			Code:   exit.Usage,
			Err:    fmt.Errorf("%s: unknown key %q", origin, key),
			Remedy: "The keys are " + list(c.settableKeys()) + ".",
		}
	}
	return c.set(storageKey, k, t, value, origin)
}

// set sets the value of k, in t if k is a key of a tier.
func (c *Config) set(storageKey string, k Key, t *Tier, value, origin string) error {
	if err := k.field(c, t).Set(value); err != nil {
		return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("%s: %s: %w", origin, k, err), Remedy: k.remedy}
	}
	c.setOrigin(storageKey, origin)
	c.updateDefaults()
	return nil
}

func (c *Config) setOrigin(storageKey, origin string) {
	if c.origins == nil {
		c.origins = make(map[string]string)
	}
	c.origins[storageKey] = origin
}

// Origin returns the origin of the value of a key: "default", "profile hpc", the file
// and line such as "tiering.toml:7", or the origin given to Set.
func (c *Config) Origin(key string) string {
	storageKey, _, _, _ := c.lookup(key)
	return c.originOf(storageKey)
}

func (c *Config) originOf(storageKey string) string {
	if o, ok := c.origins[storageKey]; ok {
		return o
	}
	if p := c.profile(); p.sets(storageKey) {
		return "profile " + p.Name
	}
	return originDefault
}

// originDefault is the origin of a value that neither the user nor a profile has set.
const originDefault = "default"

// A Setting is a value in effect and its origin.
type Setting struct {
	Key    string `json:"key"` // as Set takes it
	Value  string `json:"value"`
	Origin string `json:"origin"` // as Config.Origin returns it
}

// IsDefault reports whether neither the user nor a profile has set the value.
func (s Setting) IsDefault() bool { return s.Origin == originDefault }

// IsPublic reports whether the value has no name in it, of a file, a directory, a bucket or a node.
func (s Setting) IsPublic() bool {
	table, rest := splitKey(s.Key)
	if table == tierTable {
		rest = rest[strings.LastIndexByte(rest, '.')+1:]
	}
	k, ok := keyOf(table, rest)
	return ok && slices.Contains([]Type{integerType, booleanType, sizeType, quotaType, durationType, choiceType}, k.Type)
}

// Settings returns every value in effect, in the order of tiering.toml.
func (c *Config) Settings() (all []Setting) {
	for _, key := range c.settableKeys() {
		if storageKey, k, t, ok := c.lookup(key); ok {
			all = append(all, Setting{key, k.field(c, t).String(), c.originOf(storageKey)})
		}
	}
	return all
}

// settableKeys returns the keys that Set takes. The name of a tier is not one of
// them, because it is a part of the other keys of the tier.
func (c *Config) settableKeys() []string {
	var all []string
	for i, k := range keys {
		switch {
		case k.Table != tierTable:
			all = append(all, k.String())
		case keys[i-1].Table != tierTable: // the first key of a tier: add the keys of all tiers
			for _, t := range c.Tiers {
				for _, name := range namesIn(tierTable) {
					if name != "name" {
						all = append(all, tierTable+"."+t.Name+"."+name)
					}
				}
			}
		}
	}
	return all
}

// lookup returns the storage key of a key, its description and, for a value of a
// tier, that tier. It reports false if there is no such key.
func (c *Config) lookup(key string) (storageKey string, k Key, t *Tier, ok bool) {
	table, rest := splitKey(key)
	if table != tierTable {
		k, ok = keyOf(table, rest)
		return key, k, nil, ok
	}
	dot := strings.LastIndexByte(rest, '.')
	if dot < 0 {
		return key, Key{}, nil, false
	}
	k, ok = keyOf(tierTable, rest[dot+1:])
	for i := range c.Tiers {
		if ok && c.Tiers[i].Name == rest[:dot] {
			return tierKey(i, k.Name), k, &c.Tiers[i], true
		}
	}
	return key, Key{}, nil, false
}

// splitKey returns the table of a key, "" if it is in none, and the rest.
func splitKey(key string) (table, rest string) {
	table, rest, hasTable := strings.Cut(key, ".")
	if !hasTable {
		return "", key
	}
	return table, rest
}

// tierKey returns the storage key of a value of tier i.
func tierKey(i int, name string) string { return fmt.Sprintf("%s[%d].%s", tierTable, i, name) }

// list joins words as in "a, b and c".
func list(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
