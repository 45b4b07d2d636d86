package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/agext/levenshtein"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// The values are decoded here and not by the library into a struct, because
// the library knows the line of a key only once: of [[tier]] the last. It
// parses; this walks what it parsed beside the lines that scanLines found.

// An entry is one thing that the file says.
type entry struct {
	table string
	name  string // "" for the table itself
	tier  int    // which [[tier]], counted from 0, or notTier
	full  string // the key in origins: "mount.mode", "tier[0].quota"
	value any
	line  int
}

const notTier = -1

func (c *Config) decode(file string, tree map[string]any, lines lines) error {
	for _, e := range entries(tree, lines) {
		for len(c.Tiers) <= e.tier {
			c.Tiers = append(c.Tiers, Tier{})
		}
		if err := c.decodeEntry(file+":"+strconv.Itoa(e.line), e); err != nil {
			return err
		}
	}
	return nil
}

// entries lists what the file says in the order of its lines.
func entries(tree map[string]any, lines lines) []entry {
	var all []entry
	add := func(table, full string, tier int, value any) {
		all = append(all, entry{table, "", tier, full, value, lines.of(full)})
		fields, _ := value.(map[string]any)
		for name, v := range fields {
			e := entry{table, name, tier, full + "." + name, v, 0}
			e.line = lines.of(e.full)
			all = append(all, e)
		}
	}
	for table, value := range tree {
		elements, isList := tables(value)
		if table != tierTable || !isList {
			add(table, table, notTier, value)
			continue
		}
		for i, t := range elements {
			add(table, fmt.Sprintf("%s[%d]", tierTable, i), i, t)
		}
	}
	slices.SortFunc(all, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.tier, b.tier), cmp.Compare(a.full, b.full))
	})
	return all
}

// tables returns the elements of a list of tables, which the library gives
// as one type from [[tier]] and another from tier = [{…}].
func tables(value any) ([]any, bool) {
	switch v := value.(type) {
	case []any:
		return v, true
	case []map[string]any:
		var elements []any
		for _, t := range v {
			elements = append(elements, t)
		}
		return elements, true
	}
	return nil, false
}

func (c *Config) decodeEntry(origin string, e entry) error {
	if e.name == "" {
		return c.decodeTable(origin, e)
	}
	k, ok := keyOf(e.table, e.name)
	if !ok {
		return unknownKey(origin, e)
	}
	s, err := k.text(e.value)
	remedy := k.hint
	if err == nil && k.kind == aPath {
		s, err = expand(s)
		remedy = "Set the variable where milkweed is started, or write out what it stands for."
	}
	if err != nil {
		return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("%s: %s: %w", origin, k, err), Remedy: remedy}
	}
	var t *Tier
	if e.tier != notTier {
		t = &c.Tiers[e.tier]
	}
	return c.set(e.full, k, t, s, origin)
}

// decodeTable handles the table itself, which stands before its entries.
func (c *Config) decodeTable(origin string, e entry) error {
	_, isTable := e.value.(map[string]any)
	switch {
	case len(namesIn(e.table)) == 0:
		return unknownTable(origin, e.table, isTable)
	case isTable && (e.tier != notTier) == (e.table == tierTable):
		c.setOrigin(e.full, origin)
		return nil
	}
	heading := "[" + e.table + "]"
	if e.table == tierTable {
		heading = "[[tier]]"
	}
	return &exit.Error{
		Code:   exit.Usage,
		Err:    fmt.Errorf("%s: %q is written %s", origin, e.table, heading),
		Remedy: fmt.Sprintf("Write %s on a line of its own, and below it its keys: %s.", heading, list(namesIn(e.table))),
	}
}

// text returns a value of the file as Set takes it.
func (k key) text(value any) (string, error) {
	switch v := value.(type) {
	case string:
		if k.kind == aString || k.kind == aPath {
			return v, nil
		}
	case int64:
		if k.kind == anInteger {
			return strconv.FormatInt(v, 10), nil
		}
	case bool:
		if k.kind == aBoolean {
			return strconv.FormatBool(v), nil
		}
	}
	return "", fmt.Errorf("must be %s", k.kind)
}

func unknownTable(origin, table string, isTable bool) error {
	remedy := "The tables are " + list(tableNames()) + "."
	if isTable {
		return unknown(origin, "table", table, nearest(table, tableNames()), remedy)
	}
	return unknown(origin, "key", table, nearest(table, fullNames()), "A key stands below the heading of its table. "+remedy)
}

func unknownKey(origin string, e entry) error {
	known := namesIn(e.table)
	remedy := fmt.Sprintf("The keys of [%s] are %s.", e.table, list(known))
	if len(known) == 1 {
		remedy = fmt.Sprintf("The only key of [%s] is %s.", e.table, known[0])
	}
	suggestion := nearest(e.name, slices.Concat(known, fullNames()))
	return unknown(origin, "key", e.table+"."+e.name, suggestion, remedy)
}

func unknown(origin, what, name, suggestion, remedy string) error {
	err := fmt.Errorf("%s: unknown %s %q", origin, what, name)
	if suggestion != "" {
		err = fmt.Errorf("%w: did you mean %q?", err, suggestion)
	}
	return &exit.Error{Code: exit.Usage, Err: err, Remedy: remedy}
}

// nearest returns the candidate that name was probably meant to be, "" if none
// is near.
func nearest(name string, candidates []string) string {
	best, suggestion := 0.59, "" // two letters of five that changed places are 0.6
	for _, c := range candidates {
		likeness := levenshtein.Match(strings.ToLower(name), c, nil)
		if c[strings.IndexByte(c, '.')+1:] == name {
			likeness = 1 // right, but for its table
		}
		if likeness > best {
			best, suggestion = likeness, c
		}
	}
	return suggestion
}

// namesIn returns the keys of a table, none for one that does not exist.
func namesIn(table string) []string {
	var names []string
	for _, k := range keys {
		if k.table == table {
			names = append(names, k.name)
		}
	}
	return names
}

func fullNames() []string {
	var names []string
	for _, k := range keys {
		names = append(names, k.String())
	}
	return names
}

func tableNames() []string {
	var tables []string
	for _, k := range keys {
		tables = append(tables, k.table)
	}
	return slices.Compact(tables) // the keys of a table stand together
}
