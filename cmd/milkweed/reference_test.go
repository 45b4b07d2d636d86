package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "rewrite "+reference)

const reference = "../../docs/reference/commands.md"

// The reference of the commands is what their --help prints.
func TestReference(t *testing.T) {
	want := commandReference()
	if *update {
		if err := os.WriteFile(reference, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(reference); string(got) != want {
		t.Errorf("%s does not match the commands; `go test ./cmd/milkweed -run TestReference -update` rewrites it (%v)", reference, err)
	}
}

const referenceHead = `# Commands

<!-- Generated: go test ./cmd/milkweed -run TestReference -update -->

Each section has what ` + "`--help`" + ` of the command prints. The other references are:

- [configuration.md](../configuration.md): the configuration file, its keys, and the options of
  ` + "`-o`" + ` and ` + "`/etc/fstab`" + `, also generated from the code;
- [operations.md](../operations.md#status-fields-and-metrics): the fields of ` + "`status --json`" + ` and the
  Prometheus metrics, also generated from the code;
- [operations.md](../operations.md#exit-codes): the exit codes;
- [object-stores.md](../object-stores.md#urls-and-options): the URLs of buckets and their options.

| command | purpose |
|---|---|
`

// commandReference returns the page with all commands.
func commandReference() string {
	var table, sections strings.Builder
	eachCommand(newRoot(io.Discard, io.Discard), func(c *cobra.Command) {
		fmt.Fprintf(&table, "| [`%s`](#%s) | %s |\n", c.CommandPath(), strings.ReplaceAll(c.CommandPath(), " ", "-"), c.Short)
		fmt.Fprintf(&sections, "\n## %s\n\n", c.CommandPath())
		if c.Runnable() {
			fmt.Fprintf(&sections, "```text\n%s\n```\n\n", c.UseLine())
		}
		fmt.Fprintf(&sections, "```text\n%s\n```\n", c.Long)
		if flags := flagTable(c.LocalFlags()); flags != "" {
			fmt.Fprintf(&sections, "\n%s", flags)
		}
		fmt.Fprintf(&sections, "\nExamples:\n\n```sh\n%s\n```\n", dedent(c.Example))
	})
	return referenceHead + table.String() + sections.String()
}

// eachCommand calls f for a command and those below it, without those that are hidden, and without
// the shells of completion, whose texts are cobra's.
func eachCommand(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		if !sub.Hidden && c.Name() != "completion" && sub.Name() != "help" {
			eachCommand(sub, f)
		}
	}
}

// flagTable returns a table of flags, or "" if there is only help.
func flagTable(flags *pflag.FlagSet) string {
	var b strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		kind, meaning := pflag.UnquoteUsage(f)
		name := "`--" + f.Name
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		if kind != "" {
			name += " " + kind
		}
		if d := f.DefValue; d != "" && d != "false" && d != "[]" && d != "0" && d != "0s" {
			meaning += fmt.Sprintf(" (default `%s`)", d)
		}
		fmt.Fprintf(&b, "| %s` | %s |\n", name, strings.ReplaceAll(meaning, "|", `\|`))
	})
	if b.Len() == 0 {
		return ""
	}
	return "| flag | meaning |\n|---|---|\n" + b.String()
}

// dedent removes the two blanks before each line of an example.
func dedent(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, "  ")
	}
	return strings.Join(lines, "\n")
}
