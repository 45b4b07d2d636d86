package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// release is the version of a release. The linker sets it: -ldflags "-X main.release=1.2.3".
var release string

// A build describes how this program was built.
type build struct {
	Version  string `json:"version"`            // of the release, or of the module
	Revision string `json:"revision,omitempty"` // the commit, if it is known
	Go       string `json:"go"`                 // the version of the toolchain
	Platform string `json:"platform"`           // the operating system and the architecture
}

// String describes the build on one line.
func (b build) String() string { return fmt.Sprintf("%s (%s, %s)", b.Version, b.Go, b.Platform) }

func thisBuild() build {
	b := build{
		Version:  release,
		Go:       runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		b.Version = cmp.Or(b.Version, "unknown")
		return b
	}
	b.Version = cmp.Or(b.Version, info.Main.Version, "unknown")
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Revision = s.Value
		}
	}
	return b
}

// version returns the version of this program.
func version() string { return thisBuild().Version }

func newVersion() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Long:    "Version prints the version of Milkweed, and of the Go toolchain that built it.",
		Example: "  milkweed version --json | jq -r .version",
		Args:    usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			b := thisBuild()
			if asJSON {
				return printJSON(c.OutOrStdout(), b)
			}
			fmt.Fprintln(c.OutOrStdout(), "milkweed", b)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
