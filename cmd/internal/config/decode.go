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

// The TOML library parses the file into maps, and this file converts the maps to
// a Config. The library could decode into a struct, but it records one line per
// key: for the keys of several [[tier]] tables, the last one. Errors and origins
// need the line of each, which scanLines finds.

// An entry is one table or one value of the file.
type entry struct {
	table      string // "" for a value above all tables
	name       string // the name of the value; "" for the table itself
	tier       int    // the index of the [[tier]] table; notTier for other tables
	storageKey string // the key in Config.origins: "mount.mode", "tier[0].quota"
	value      any
	line       int
}

const notTier = -1 // the tier of an entry outside of [[tier]]

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

// entries returns the tables and values of the file in the order of their lines.
func entries(tree map[string]any, lines lines) []entry {
	var all []entry
	add := func(table, storageKey string, tier int, value any) {
		all = append(all, entry{table, "", tier, storageKey, value, lines.of(storageKey)})
		fields, _ := value.(map[string]any)
		for name, v := range fields {
			fieldKey := storageKey + "." + name
			all = append(all, entry{table, name, tier, fieldKey, v, lines.of(fieldKey)})
		}
	}
	for table, value := range tree {
		if _, isKey := keyOf("", table); isKey {
			all = append(all, entry{"", table, notTier, table, value, lines.of(table)})
			continue
		}
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
		return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.tier, b.tier), cmp.Compare(a.storageKey, b.storageKey))
	})
	return all
}

// tables returns the elements of a list of tables. The library returns a list of
// one type for [[tier]], and of another type for tier = [{…}].
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
	remedy := k.remedy
	if err == nil && k.Type.expandsVariables() {
		s, err = expand(s)
		remedy = "Set the variable in the environment of milkweed, or replace the reference by its value."
	}
	if err != nil {
		return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("%s: %s: %w", origin, k, err), Remedy: remedy}
	}
	var t *Tier
	if e.tier != notTier {
		t = &c.Tiers[e.tier]
	}
	return c.set(e.storageKey, k, t, s, origin)
}

// decodeTable checks that a table is known and has the right heading. It is called
// before the values of the table are decoded.
func (c *Config) decodeTable(origin string, e entry) error {
	_, isTable := e.value.(map[string]any)
	switch {
	case !slices.Contains(tableNames(), e.table):
		return unknownTable(origin, e.table, isTable)
	case isTable && (e.tier != notTier) == (e.table == tierTable):
		c.setOrigin(e.storageKey, origin)
		return nil
	}
	heading := "[" + e.table + "]"
	if e.table == tierTable {
		heading = "[[tier]]"
	}
	return &exit.Error{
		Code:   exit.Usage,
		Err:    fmt.Errorf("%s: %q must be a table, %s", origin, e.table, heading),
		Remedy: fmt.Sprintf("Write %s on its own line, followed by its keys: %s.", heading, list(namesIn(e.table))),
	}
}

// text converts a value of the file to the text that Set takes.
func (k Key) text(value any) (string, error) {
	switch v := value.(type) {
	case string:
		if k.Type != integerType && k.Type != booleanType {
			return v, nil
		}
	case []any:
		if k.Type == rosterType {
			return joinTexts(v, k.Type)
		}
	case int64:
		if k.Type == integerType {
			return strconv.FormatInt(v, 10), nil
		}
	case bool:
		if k.Type == booleanType {
			return strconv.FormatBool(v), nil
		}
	}
	return "", fmt.Errorf("must be %s", k.Type.syntax())
}

// joinTexts returns the texts of a list, separated by commas.
func joinTexts(values []any, t Type) (string, error) {
	texts := make([]string, len(values))
	for i, v := range values {
		s, ok := v.(string)
		if !ok || s == "" {
			return "", fmt.Errorf("must be %s", t.syntax())
		}
		texts[i] = s
	}
	return strings.Join(texts, ","), nil
}

func unknownTable(origin, table string, isTable bool) error {
	remedy := "The tables are " + list(tableNames()) + "."
	if isTable {
		return unknown(origin, "table", table, nearest(table, tableNames()), remedy)
	}
	return unknown(origin, "key", table, nearest(table, fullNames()), "Write each key but profile below the heading of its table. "+remedy)
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

func unknown(origin, kind, name, suggestion, remedy string) error {
	err := fmt.Errorf("%s: unknown %s %q", origin, kind, name)
	if suggestion != "" {
		err = fmt.Errorf("%w: did you mean %q?", err, suggestion)
	}
	return &exit.Error{Code: exit.Usage, Err: err, Remedy: remedy}
}

// nearest returns the candidate that is most similar to name, or "" if none is
// similar enough to be suggested.
func nearest(name string, candidates []string) string {
	best, suggestion := 0.59, "" // a name of five letters with two of them swapped scores 0.6
	for _, c := range candidates {
		similarity := levenshtein.Match(strings.ToLower(name), c, nil)
		if c[strings.IndexByte(c, '.')+1:] == name {
			similarity = 1 // the right name in the wrong table
		}
		if similarity > best {
			best, suggestion = similarity, c
		}
	}
	return suggestion
}

// namesIn returns the names of the keys of a table. It returns none for an unknown
// table.
func namesIn(table string) []string {
	var names []string
	for _, k := range keys {
		if k.Table == table {
			names = append(names, k.Name)
		}
	}
	return names
}

// fullNames returns all keys as "table.name".
func fullNames() []string {
	var names []string
	for _, k := range keys {
		names = append(names, k.String())
	}
	return names
}

// tableNames returns the names of all tables.
func tableNames() []string {
	var tables []string
	for _, k := range keys {
		if k.Table != "" {
			tables = append(tables, k.Table)
		}
	}
	return slices.Compact(tables) // keys has the keys of a table next to each other
}
