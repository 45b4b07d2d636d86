package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func newMan() *cobra.Command {
	return &cobra.Command{
		Use:   "man FOLDER",
		Short: "Write the manual pages",
		Long: `Man writes a manual page for each command into FOLDER, from what --help says.
The date in them is that of $SOURCE_DATE_EPOCH, if it is set.`,
		Example: "  milkweed man /usr/local/share/man/man1",
		Hidden:  true, // for who packages Milkweed
		Args:    usage(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			c.Root().DisableAutoGenTag = true // no date that changes each day
			return doc.GenManTree(c.Root(), &doc.GenManHeader{
				Section: "1",
				Source:  "Milkweed " + version(),
				Manual:  "Milkweed",
			}, args[0])
		},
	}
}
