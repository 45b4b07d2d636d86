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
		Long: `Man writes a manual page for each command into FOLDER, with the text of --help.
If $SOURCE_DATE_EPOCH is set, it is the date of the pages.`,
		Example: "  milkweed man /usr/local/share/man/man1",
		Hidden:  true, // only packagers need it
		Args:    usage(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			c.Root().DisableAutoGenTag = true // it has the current date
			return doc.GenManTree(c.Root(), &doc.GenManHeader{
				Section: "1",
				Source:  "Milkweed " + version(),
				Manual:  "Milkweed",
			}, args[0])
		},
	}
}
