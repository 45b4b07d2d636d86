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

var update = flag.Bool("update", false, "write the tables of keys and profiles to docs/configuration.md")

// The tables of keys and of profiles in docs/configuration.md are generated from the code, and the
// other lines of the document have at most 100 columns.
func TestConfigurationDocument(t *testing.T) {
	const file = "../../../docs/configuration.md"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	document := string(data)
	for name, want := range map[string]string{"keys": keyTable(), "profiles": profileTable()} {
		begin, end := "<!-- begin: "+name+" -->\n", "<!-- end: "+name+" -->\n"
		before, rest, hasBegin := strings.Cut(document, begin)
		got, after, hasEnd := strings.Cut(rest, end)
		if !hasBegin || !hasEnd {
			t.Fatalf("%s does not contain %q and %q", file, begin, end)
		}
		if got != want && !*update {
			t.Errorf("%s differs from the code: run go test ./cmd/internal/config -update\ngot\n%s\nwant\n%s", file, got, want)
		}
		document = before + begin + want + end + after
	}
	if *update {
		if err := os.WriteFile(file, []byte(document), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for line := range strings.Lines(document) {
		if !strings.HasPrefix(line, "|") && utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > 100 {
			t.Errorf("%s: a line of more than 100 columns: %s", file, line)
		}
	}
}

// profileTable returns a table of all profiles in Markdown.
func profileTable() string {
	var b strings.Builder
	b.WriteString("| profile | for | key | value | reason |\n|---|---|---|---|---|\n")
	for _, p := range Profiles() {
		name, purpose := code(p.Name), p.For
		for _, v := range p.Values {
			fmt.Fprintf(&b, "| %s | %s | `%s` | `%s` | %s |\n", name, purpose, v.Key, v.Value, v.Reason)
			name, purpose = "", ""
		}
	}
	return b.String()
}

// keyTable returns a table of all keys in Markdown.
func keyTable() string {
	var b strings.Builder
	b.WriteString("| key | type | unit | default | bounds | flag | option | reload | meaning |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, k := range Keys() {
		flag := k.Argument
		if k.Flag != "" {
			flag = "--" + k.Flag
		}
		reload := ""
		if k.Reloadable {
			reload = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s | %s | %s |\n",
			k, k.Type, k.Unit, cmp.Or(k.Default, code(defaultOf(k))), k.Bounds, code(flag), code(k.Option), reload, k.Meaning)
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
