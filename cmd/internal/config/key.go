package config

import (
	"flag"
	"fmt"
	"strings"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// A key is one value that the user can set. Every key is in keys: decoding,
// Set, Each and the nearest name of a misspelt one all read that list.
type key struct {
	table, name string // [table] name = …
	kind        kind
	hint        string // what a right value looks like, a sentence

	// field returns the value in c, or in t for the keys of a tier.
	field func(c *Config, t *Tier) flag.Value
}

// A kind is the type that TOML must give a value.
type kind int

const (
	aString kind = iota
	aPath        // a string in which ${VARIABLE} is replaced; a URL is one too
	anInteger
	aBoolean
)

func (k kind) String() string {
	switch k {
	case anInteger:
		return "a number without quotes"
	case aBoolean:
		return "true or false without quotes"
	default:
		return "text in double quotes"
	}
}

func (k key) String() string { return k.table + "." + k.name }

const tierTable = "tier" // the one table that is a list

var keys = []key{
	{"source", "path", aPath, `A source is a directory, such as path = "/lustre/imagenet", or a bucket, such as url = "s3://bucket/prefix".`,
		func(c *Config, _ *Tier) flag.Value { return (*pathValue)(&c.Source.Path) }},
	{"source", "url", aPath, `A bucket has a URL, such as url = "s3://bucket/prefix?region=eu-west-1". Credentials come from where the vendor's own tools find them.`,
		func(c *Config, _ *Tier) flag.Value { return (*urlValue)(&c.Source.URL) }},
	{"source", "bandwidth", aString, `A bandwidth is the size of what may be read in a second, such as "500MB"; "" is no cap.`,
		func(c *Config, _ *Tier) flag.Value { return (*bandwidthValue)(&c.Source.Bandwidth) }},
	{"source", "operations", anInteger, `Use the number of operations that may begin in a second, such as 1000; 0 is no cap.`,
		func(c *Config, _ *Tier) flag.Value { return (*operationsValue)(&c.Source.Operations) }},

	{tierTable, "name", aString, `A name has lower-case letters, digits, "_" and "-", such as name = "ssd".`,
		func(_ *Config, t *Tier) flag.Value { return (*nameValue)(&t.Name) }},
	{tierTable, "path", aPath, `A tier is a directory, such as path = "/local/milkweed".`,
		func(_ *Config, t *Tier) flag.Value { return (*pathValue)(&t.Path) }},
	{tierTable, "quota", aString, `A quota is a size, such as "64GiB", or a share of what the file system has free, such as "90%".`,
		func(_ *Config, t *Tier) flag.Value { return (*quotaValue)(&t.Quota) }},

	{"mount", "point", aPath, `A mount point is an empty directory, such as point = "/mnt/imagenet".`,
		func(c *Config, _ *Tier) flag.Value { return (*pathValue)(&c.Mount.Point) }},
	{"mount", "mode", aString, `Use "auto", "passthrough", "stateless" or "cached".`,
		func(c *Config, _ *Tier) flag.Value { return (*modeValue)(&c.Mount.Mode) }},
	{"mount", "allow_other", aBoolean, `Use true or false.`,
		func(c *Config, _ *Tier) flag.Value { return (*boolValue)(&c.Mount.AllowOther) }},
	{"mount", "attr_timeout", aString, `A duration is a number with a unit, such as "30s", "10m" or "1h".`,
		func(c *Config, _ *Tier) flag.Value { return (*durationValue)(&c.Mount.AttrTimeout) }},
	{"mount", "names", aPath, `A file of names is a path, such as names = "/var/lib/milkweed/imagenet.names"; "" is none.`,
		func(c *Config, _ *Tier) flag.Value { return (*optionalPathValue)(&c.Mount.Names) }},

	{"placement", "workers", anInteger, `Use a number from 1 to 256.`,
		func(c *Config, _ *Tier) flag.Value { return (*workersValue)(&c.Placement.Workers) }},

	{"metrics", "listen", aString, `An address is host:port, such as "127.0.0.1:9877"; "" is off.`,
		func(c *Config, _ *Tier) flag.Value { return (*addressValue)(&c.Metrics.Listen) }},

	{"log", "level", aString, `Use "debug", "info", "warn" or "error".`,
		func(c *Config, _ *Tier) flag.Value { return (*levelValue)(&c.Log.Level) }},
	{"log", "format", aString, `Use "text" or "json".`,
		func(c *Config, _ *Tier) flag.Value { return (*formatValue)(&c.Log.Format) }},
	{"log", "file", aPath, `A log file is a path, such as file = "/var/log/milkweed.log"; "" leaves it to the command.`,
		func(c *Config, _ *Tier) flag.Value { return (*optionalPathValue)(&c.Log.File) }},
}

func keyOf(table, name string) (key, bool) {
	for _, k := range keys {
		if k.table == table && k.name == name {
			return k, true
		}
	}
	return key{}, false
}

// Set overrides one value, as a flag does; origin says who did, such as
// "flag --workers". The key is the table and the name, "mount.mode"; for a tier
// its name stands between them, "tier.ssd.quota". A path is taken as it is,
// without replacing ${VARIABLE}: the shell has done that.
func (c *Config) Set(name, value, origin string) error {
	full, k, t, ok := c.lookup(name)
	if !ok {
		return &exit.Error{
			Code:   exit.Usage,
			Err:    fmt.Errorf("%s: unknown key %q", origin, name),
			Remedy: "The keys are " + list(c.names()) + ".",
		}
	}
	return c.set(full, k, t, value, origin)
}

func (c *Config) set(full string, k key, t *Tier, value, origin string) error {
	if err := k.field(c, t).Set(value); err != nil {
		return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("%s: %s: %w", origin, k, err), Remedy: k.hint}
	}
	c.setOrigin(full, origin)
	c.derive()
	return nil
}

func (c *Config) setOrigin(full, origin string) {
	if c.origins == nil {
		c.origins = make(map[string]string)
	}
	c.origins[full] = origin
}

// Origin returns where the value of a key came from: "default",
// "tiering.toml:7", or what Set was told.
func (c *Config) Origin(name string) string {
	full, _, _, _ := c.lookup(name)
	return c.origin(full)
}

func (c *Config) origin(full string) string {
	if o, ok := c.origins[full]; ok {
		return o
	}
	return fromDefault
}

// fromDefault is the origin of what nobody has set.
const fromDefault = "default"

// Each calls f for every value that is in effect, in the order of tiering.toml.
// The keys are those of Set.
func (c *Config) Each(f func(name, value, origin string)) {
	for _, name := range c.names() {
		if full, k, t, ok := c.lookup(name); ok {
			f(name, k.field(c, t).String(), c.origin(full))
		}
	}
}

// names lists the keys as Set takes them. The name of a tier is not a value
// of its own: it is in the keys of the others.
func (c *Config) names() []string {
	var names []string
	for i, k := range keys {
		switch {
		case k.table != tierTable:
			names = append(names, k.String())
		case keys[i-1].table != tierTable: // the first key of a tier stands for all
			for _, t := range c.Tiers {
				for _, k := range keys {
					if k.table == tierTable && k.name != "name" {
						names = append(names, tierTable+"."+t.Name+"."+k.name)
					}
				}
			}
		}
	}
	return names
}

// lookup finds what Set calls name. A tier's values have their origins under
// its number, because names may yet be missing or given twice.
func (c *Config) lookup(name string) (full string, k key, t *Tier, ok bool) {
	table, leaf, _ := strings.Cut(name, ".")
	if table != tierTable {
		k, ok = keyOf(table, leaf)
		return name, k, nil, ok
	}
	dot := strings.LastIndexByte(leaf, '.')
	if dot < 0 {
		return name, key{}, nil, false
	}
	k, ok = keyOf(tierTable, leaf[dot+1:])
	for i := range c.Tiers {
		if ok && c.Tiers[i].Name == leaf[:dot] {
			return tierKey(i, k.name), k, &c.Tiers[i], true
		}
	}
	return name, key{}, nil, false
}

// tierKey is the full key of a value of tier i.
func tierKey(i int, name string) string { return fmt.Sprintf("%s[%d].%s", tierTable, i, name) }

// list writes words as a sentence does.
func list(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
