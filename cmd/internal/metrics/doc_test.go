package metrics

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
)

var update = flag.Bool("update", false, "rewrite the table in "+document)

const (
	document = "../../../docs/operations.md"
	begin    = "<!-- begin: status -->\n"
	end      = "<!-- end: status -->\n"
)

// The table of docs/operations.md has each field of the status, as its tags describe it.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(text), begin)
	got, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s lacks the lines %q and %q", document, begin, end)
	}
	want := table(control.Schema())
	if got == want {
		return
	}
	if !*update {
		t.Fatalf("the table of %s does not match the tags of control.Status; go test -update rewrites it", document)
	}
	if err := os.WriteFile(document, []byte(before+begin+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// table returns a row of Markdown for each field.
func table(fields []control.Field) string {
	var b strings.Builder
	b.WriteString("| metric | type | labels | JSON path | meaning |\n|---|---|---|---|---|\n")
	for _, f := range fields {
		metric, kind, labels := "", "", []string{}
		if f.Metric != "" {
			metric, kind = code(prefix+f.Metric), "gauge"
			if strings.HasSuffix(f.Metric, "_total") {
				kind = "counter"
			}
			if _, ok := f.Value.Interface().(control.Histogram); ok {
				kind = "histogram"
			}
		}
		for _, l := range f.Labels {
			if fixed := l.Value != "" && l.Value != strings.ToUpper(l.Name); fixed && metric != "" {
				labels = append(labels, code(fmt.Sprintf("%s=%q", l.Name, l.Value)))
			} else if metric != "" {
				labels = append(labels, code(l.Name))
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", metric, kind, strings.Join(labels, ", "), code(f.Path), f.Help)
	}
	return b.String()
}

func code(s string) string { return "`" + s + "`" }

// Each field has a meaning, and each metric has one meaning, which a field or a family gives.
func TestTags(t *testing.T) {
	kinds := make(map[string]int)
	families := make(map[string]int)
	for _, f := range control.Schema() {
		if !strings.HasSuffix(f.Help, ".") {
			t.Errorf("%s: help %q is not a sentence", f.Path, f.Help)
		}
		kinds[f.Metric]++
		if f.Family != "" {
			families[f.Metric]++
		}
	}
	delete(kinds, "")
	for metric, n := range kinds {
		if want := min(n-1, 1); families[metric] != want {
			t.Errorf("%s: %d fields, %d families; want %d", metric, n, families[metric], want)
		}
	}
}
