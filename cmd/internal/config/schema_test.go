package config

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// validator is a program for Python that validates each line of its input, which is JSON, against the schema
// in a file, and prints a line for each: "" if it is valid, or why it is not.
const validator = `
import json, sys, jsonschema
schema = json.load(open(sys.argv[1]))
jsonschema.Draft7Validator.check_schema(schema)
v = jsonschema.Draft7Validator(schema)
for line in sys.stdin:
    error = next(iter(v.iter_errors(json.loads(line))), None)
    print("" if error is None else error.message)
`

// validate returns what the validator says of each document of TOML.
func validate(t *testing.T, documents ...string) []string {
	t.Helper()
	schema := filepath.Join(t.TempDir(), "schema.json")
	if err := os.WriteFile(schema, Schema(), 0o600); err != nil {
		t.Fatal(err)
	}
	var in strings.Builder
	for _, d := range documents {
		tree := make(map[string]any)
		if _, err := toml.Decode(d, &tree); err != nil {
			t.Fatalf("%v: %s", err, d)
		}
		if err := json.NewEncoder(&in).Encode(tree); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("/usr/bin/python3", "-c", validator, schema)
	cmd.Stdin, cmd.Stderr = strings.NewReader(in.String()), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the validator of python3-jsonschema: %v", err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

// The configuration files of the project are valid, also with every key set, and those with an error that a
// schema can express are not.
func TestSchema(t *testing.T) {
	drivertest.Need(t, "python3-jsonschema")
	files, err := filepath.Glob("../../../examples/tiering/*.toml")
	if err != nil || len(files) == 0 {
		t.Fatalf("got %v, %v; want files", files, err)
	}
	var valid []string
	for _, file := range append(files, "../../../tiering.toml") {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		valid = append(valid, string(data))
	}
	every := regexp.MustCompile(`(?m)^# ([a-z_]+ = )`).ReplaceAllString(valid[len(valid)-1], "$1")
	every = strings.Replace(every, "url = \"\"\n", "", 1) // it is an alternative of path
	if n := strings.Count(every, " = "); n < len(keys)-1 {
		t.Fatalf("tiering.toml has %d keys, want %d", n, len(keys)-1)
	}
	valid = append(valid, every, "", `profile = "hpc"`, `peers.roster = ["a", "b"]`, `tier = [{name = "a", path = "/b", quota = "1"}]`)
	for i, problem := range validate(t, valid...) {
		if problem != "" {
			t.Errorf("%s: %s", problem, valid[i])
		}
	}
	invalid := []string{
		`mout.mode = "auto"`, `mount.mod = "auto"`, `mount.mode = "fast"`, `mount.mode = 1`, `mount.xattrs = "yes"`,
		`placement.workers = "8"`, `placement.workers = 0`, `placement.workers = 257`, `placement.window = "ten"`,
		`mount.attr_timeout = "1"`, `source.bandwidth = "fast"`, `source = {path = "/a", url = "s3://b"}`,
		`tier = {name = "a", path = "/b", quota = "1"}`, `tier = [{name = "a", path = "/b"}]`,
		`peers.roster = [""]`, `peers.roster = 1`, `profile = "hcp"`, `profile = 1`, `mount.profile = "hpc"`,
	}
	for i, problem := range validate(t, invalid...) {
		if problem == "" {
			t.Errorf("this is valid: %s", invalid[i])
		}
		if _, err := Parse("f", []byte(invalid[i])); err == nil && !strings.HasPrefix(invalid[i], "source = ") && !strings.HasPrefix(invalid[i], "tier = [") {
			t.Errorf("Parse accepts it: %s", invalid[i])
		}
	}
}

// The bounds of an integer are those that Set accepts.
func TestSchemaBounds(t *testing.T) {
	for _, k := range Keys() {
		if k.Type != integerType {
			continue
		}
		accepts := func(n int64) bool {
			c := Default()
			return k.field(&c, &Tier{}).Set(fmt.Sprint(n)) == nil
		}
		if !accepts(k.Min) || accepts(k.Min-1) {
			t.Errorf("%s: the least value is not %d", k, k.Min)
		}
		if largest := max(k.Max, 1<<40); accepts(largest) != (k.Max == 0) || k.Max > 0 && (!accepts(k.Max) || accepts(k.Max+1)) {
			t.Errorf("%s: the largest value is not %d", k, k.Max)
		}
	}
}

// A text that Set accepts matches the pattern, and a word that the schema has is accepted.
func FuzzSchemaPatterns(f *testing.F) {
	for _, s := range []string{"", "0", "1", "64GiB", "1.5 TB", "90%", "12.5 %", "1h30m", "1.5h", ".5s", "+2m", "-0s", "1µs", "1μs", "2d", "x", "1,5GiB", "100 %", "5 m"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, k := range Keys() {
			c := Default()
			field := k.field(&c, &Tier{})
			schema := k.schema(field)
			if words, ok := schema["enum"].([]string); ok {
				for _, word := range words {
					if err := field.Set(word); err != nil {
						t.Errorf("%s: %v", k, err)
					}
				}
				if field.Set(text) == nil && !slices.Contains(words, text) {
					t.Errorf("%s: %q is not in %q", k, text, words)
				}
			}
			if p, ok := schema["pattern"].(string); ok && field.Set(text) == nil && !regexp.MustCompile(p).MatchString(text) {
				t.Errorf("%s accepts %q, which does not match %s", k, text, p)
			}
		}
	})
}
