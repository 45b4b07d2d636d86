package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"regexp"
	"strings"
)

// Schema returns a JSON Schema, draft 7, of the configuration file. Each file that Parse accepts and that has
// no more than one source is valid. A valid file may still be refused, such as for a text in a path.
func Schema() []byte {
	root := object{
		"$schema":              "http://json-schema.org/draft-07/schema#",
		"title":                "The configuration of a mount of Milkweed, tiering.toml",
		"type":                 "object",
		"additionalProperties": false,
	}
	tables := propertiesOf("")
	for _, name := range tableNames() {
		table := object{"type": "object", "additionalProperties": false, "properties": propertiesOf(name)}
		switch name {
		case "source":
			table["not"] = object{"required": []string{"path", "url"}}
		case tierTable:
			table["required"] = namesIn(tierTable)
			table = object{"type": "array", "items": table, "maxItems": maxTiers}
		}
		tables[name] = table
	}
	root["properties"] = tables
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(root); err != nil {
		panic(err) // it has texts and numbers only
	}
	return b.Bytes()
}

// An object is one of JSON.
type object map[string]any

// propertiesOf returns the schemas of the keys of a table; those above all tables if it is "".
func propertiesOf(table string) object {
	c := Default()
	all := make(object)
	for _, k := range keys {
		if k.Table == table {
			all[k.Name] = k.schema(k.field(&c, &Tier{}))
		}
	}
	return all
}

// quoted matches a word in backquotes.
var quoted = regexp.MustCompile("`([^`]*)`")

// schema returns the schema of a key, whose default is value.
func (k Key) schema(value flag.Value) object {
	about := []string{k.Meaning}
	if k.Unit != "" {
		about = append(about, "Unit: "+k.Unit+".")
	}
	if k.Bounds != "" {
		about = append(about, "Bounds: "+k.Bounds+".")
	}
	if k.Default != "" {
		about = append(about, "Default: "+k.Default+".")
	}
	s := object{"type": "string", "description": strings.Join(about, " ")}
	if k.Default == "" {
		s["default"] = value.String()
	}
	switch k.Type {
	case integerType:
		s["type"], s["minimum"] = "integer", k.Min
		if k.Max > 0 {
			s["maximum"] = k.Max
		}
	case booleanType:
		s["type"], s["default"] = "boolean", value.String() == "true"
	case rosterType:
		s["type"], s["items"] = []string{"string", "array"}, object{"type": "string", "minLength": 1}
	case choiceType:
		var words []string
		for _, word := range quoted.FindAllStringSubmatch(k.Bounds, -1) {
			words = append(words, word[1])
		}
		s["enum"] = words
	case sizeType:
		s["pattern"] = anchored("", sizeText)
	case quotaType:
		s["pattern"] = anchored("", sizeText, percentText+"%")
	case durationType:
		s["pattern"] = `^[-+]?([0-9.]+(ns|us|µs|μs|ms|s|m|h))+$|^[-+]?0$`
	}
	return s
}

// anchored returns a pattern that matches the whole of a text that one of the patterns matches.
func anchored(patterns ...string) string { return "^(" + strings.Join(patterns, "|") + ")$" }
