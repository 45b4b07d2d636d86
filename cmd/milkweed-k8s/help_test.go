package main

import (
	"bytes"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// Every command has a help text, in lines that fit a terminal, and an example.
func TestHelp(t *testing.T) {
	var each func(*cobra.Command)
	each = func(c *cobra.Command) {
		if c.Short == "" || c.Long == "" || c.Example == "" {
			t.Errorf("%s: Short, Long or Example is missing", c.CommandPath())
		}
		for line := range strings.Lines(c.Long + "\n" + c.Example) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 {
				t.Errorf("%s: a line of %d columns: %s", c.CommandPath(), n, line)
			}
		}
		for _, sub := range c.Commands() {
			each(sub)
		}
	}
	each(newRoot(io.Discard, io.Discard))
}

// The keys of volumes and secrets are in the help.
func TestHelpHasAttributes(t *testing.T) {
	for _, key := range []string{sourceKey, optionsKey, configurationKey, googleCredentials} {
		if !strings.Contains(csiLong, key) {
			t.Errorf("%s is missing", key)
		}
	}
}

// The options of volumes are options of milkweed.
func TestAllowedOptions(t *testing.T) {
	n := newNode(t)
	out, err := exec.Command(programs+"/milkweed", "mount", "--help").Output()
	n.check(err)
	for _, name := range allowedOptions {
		if !bytes.Contains(out, []byte(" "+name)) && !bytes.Contains(out, []byte("\n"+name)) {
			t.Errorf("milkweed mount --help does not have the option %s", name)
		}
	}
}

func TestUsage(t *testing.T) {
	for line, says := range map[string]string{
		"csi":            "--node-name is missing",
		"csi x":          "unknown command",
		"mounter --tier": "needs an argument",
		"frob":           "unknown command",
		"csi --node-name a --endpoint tcp://x --mounter-socket /proc/none/x": "needs root, and the folder",
	} {
		err := run(t.Context(), append([]string{"milkweed-k8s"}, strings.Fields(line)...), io.Discard, io.Discard)
		want := exit.Usage
		if strings.Contains(line, "--endpoint") {
			want = exit.Failure
		}
		if exit.Of(err) != want || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: exit code %d, %v; want %q", line, exit.Of(err), err, says)
		}
	}
}
