package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
)

func newConfig() *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Show the configuration, and the schema of its file",
		Long: `Config show prints each value of a configuration and its origin. Config schema
prints a JSON Schema of the configuration file, with which an editor completes
and checks it.`,
		Example: `  milkweed config show /mnt/imagenet
  milkweed config schema > tiering.schema.json`,
		Args: noSuchCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newConfigShow(), newConfigReload(), newConfigSchema())
	return c
}

func newConfigShow() *cobra.Command {
	f := mountFlags{check: true}
	var changed, asJSON bool
	c := &cobra.Command{
		Use:   "show [PATH | [-c tiering.toml] [SOURCE] [MOUNTPOINT]]",
		Short: "Show each value of a configuration and its origin",
		Long: `Show prints each value of a configuration and its origin: the default, a line of
the file, an option, a flag or an argument.

PATH is a mount point of Milkweed or a path below one: show prints the values
with which that mount was made, whatever has become of the file since. Otherwise
show takes the arguments of mount, and prints the values that a mount would
have; SOURCE alone is enough. It opens neither the source nor a tier; milkweed
check does.

With --changed, values that are the default are left out. With --json, show
prints an array of objects with key, value and origin.`,
		Example: `  milkweed config show --changed /mnt/imagenet
  milkweed config show -c tiering.toml
  milkweed config show --json | jq -r '.[] | select(.origin != "default") | .key'`,
		Args:              usage(cobra.MaximumNArgs(2)),
		ValidArgsFunction: completeMounts,
		RunE: func(c *cobra.Command, args []string) error {
			settings, err := f.settings(c, args)
			if err != nil {
				return err
			}
			if changed {
				settings = slices.DeleteFunc(settings, config.Setting.IsDefault)
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), settings)
			}
			return writeSettings(c.OutOrStdout(), settings)
		},
	}
	f.addConfiguration(c.Flags())
	c.Flags().BoolVar(&changed, "changed", false, "leave out values that are the default")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// settings returns those of a mount, if a path in one is all that the command line has to say about the
// configuration, or else those that a mount would have.
func (f *mountFlags) settings(c *cobra.Command, args []string) ([]config.Setting, error) {
	sets := false
	c.Flags().Visit(func(flag *pflag.Flag) { sets = sets || flag.Name != "changed" && flag.Name != "json" })
	if len(args) == 1 && !sets {
		if m, _, err := control.Find(args[0]); err == nil {
			client, err := control.Dial(c.Context(), m.Point)
			if err != nil {
				return nil, err
			}
			defer client.Close()
			return client.Settings(c.Context())
		}
	}
	cfg, _, err := f.load(c.Flags(), args, c.ErrOrStderr())
	if err != nil {
		return nil, err
	}
	return cfg.Settings(), nil
}

// writeSettings writes a line for each value.
func writeSettings(w io.Writer, settings []config.Setting) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range settings {
		fmt.Fprintf(t, "%s\t%s\t%s\n", s.Key, text(s.Value), s.Origin)
	}
	return t.Flush()
}

func newConfigSchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the configuration file",
		Long: `Schema prints a JSON Schema (draft 7) of the configuration file, tiering.toml.
Editors with a TOML language server, such as Taplo or Even Better TOML,
complete and check a file whose first line is

  #:schema ./tiering.schema.json

The schema has all keys, with their types, bounds, defaults and meanings. It
cannot express all that milkweed check checks.`,
		Example: `  milkweed config schema > tiering.schema.json`,
		Args:    usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := c.OutOrStdout().Write(config.Schema())
			return err
		},
	}
}
