package config

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "write the table of keys to docs/configuration.md")

// The table of keys in docs/configuration.md is generated from the code, and the
// other lines of the document have at most 100 columns.
func TestConfigurationDocument(t *testing.T) {
	const (
		file       = "../../../docs/configuration.md"
		begin, end = "<!-- begin: keys -->\n", "<!-- end: keys -->\n"
	)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, hasBegin := strings.Cut(string(data), begin)
	got, after, hasEnd := strings.Cut(rest, end)
	if !hasBegin || !hasEnd {
		t.Fatalf("%s does not contain %q and %q", file, begin, end)
	}
	want := keyTable()
	switch {
	case got == want:
	case *update:
		if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s differs from the code: run go test ./cmd/internal/config -update\ngot\n%s\nwant\n%s", file, got, want)
	}
	for line := range strings.Lines(before + after) {
		if !strings.HasPrefix(line, "|") && utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > 100 {
			t.Errorf("%s: a line of more than 100 columns: %s", file, line)
		}
	}
}

// keyTable returns a table of all keys in Markdown.
func keyTable() string {
	var b strings.Builder
	b.WriteString("| key | type | unit | default | bounds | flag | option | meaning |\n|---|---|---|---|---|---|---|---|\n")
	for _, k := range Keys() {
		flag := k.Argument
		if k.Flag != "" {
			flag = "--" + k.Flag
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s | %s |\n",
			k, k.Type, k.Unit, cmp.Or(k.Default, code(defaultOf(k))), k.Bounds, code(flag), code(k.Option), k.Meaning)
	}
	return b.String()
}

// defaultOf returns the default value of a key.
func defaultOf(k Key) string {
	c := Default()
	return k.field(&c, &Tier{}).String()
}

// code formats s as code, unless it is empty.
func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

// A default in words, and the default in the help of a flag, contain the value that
// Default returns, if that is not empty.
func TestKeyDefaultsInWords(t *testing.T) {
	for _, k := range Keys() {
		value := defaultOf(k)
		if _, inHelp, ok := strings.Cut(k.Usage, "the default is "); ok && !strings.HasPrefix(inHelp, value) {
			t.Errorf("%s: the default in the help is %q, want %s", k, inHelp, value)
		}
		switch {
		case k.Default == "" && value == "":
			t.Errorf("%s: no default is documented", k)
		case k.Default != "" && value != "" && value != "0" && !strings.Contains(k.Default, code(value)):
			t.Errorf("%s: the default in words, %q, does not contain %s", k, k.Default, code(value))
		}
		if k.Meaning == "" || !strings.HasSuffix(k.Meaning, ".") {
			t.Errorf("%s: the meaning does not end in a full stop: %q", k, k.Meaning)
		}
	}
}
