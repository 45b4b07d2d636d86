package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
)

func newConfig() *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Show the configuration, its profiles, and the schema of its file",
		Long: `Config show prints each value of a configuration and its origin. Config schema
prints a JSON Schema of the configuration file, with which an editor completes
and checks it. Config profiles lists the profiles, which replace a few defaults.
Config reload makes a mount take over its changed configuration.`,
		Example: `  milkweed config show /mnt/imagenet
  milkweed config profiles
  milkweed config schema > tiering.schema.json`,
		Args: noSuchCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newConfigShow(), newConfigProfiles(), newConfigReload(), newConfigSchema())
	return c
}

func newConfigShow() *cobra.Command {
	f := mountFlags{check: true}
	var changed, asJSON bool
	c := &cobra.Command{
		Use:   "show [PATH | [-c tiering.toml] [SOURCE] [MOUNTPOINT]]",
		Short: "Show each value of a configuration and its origin",
		Long: `Show prints each value of a configuration and its origin: the default, a
profile, a line of the file, an option, a flag or an argument.

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
	cfg, err := f.load(c.Flags(), args, c.ErrOrStderr())
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

func newConfigProfiles() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "profiles [NAME]",
		Short: "List the profiles and the values that they set",
		Long: `Profiles prints all profiles, or the one with NAME: what it is for, and each key
that it sets, with the value and the reason. A profile replaces defaults only:
the file, options and flags win over it.

With --json, it prints an array of objects with name, for and values, an array
of objects with key, value and reason.`,
		Example: `  milkweed config profiles
  milkweed config profiles hpc
  milkweed mount --profile hpc /lustre/imagenet /mnt/imagenet`,
		Args:              usage(cobra.MaximumNArgs(1)),
		ValidArgsFunction: completeProfiles,
		RunE: func(c *cobra.Command, args []string) error {
			profiles := config.Profiles()
			if len(args) > 0 {
				p, err := config.FindProfile(args[0])
				if err != nil {
					return optionError(err, config.ProfilesRemedy())
				}
				profiles = []config.Profile{p}
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), profiles)
			}
			return writeProfiles(c.OutOrStdout(), profiles)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// completeProfiles completes the name of a profile.
func completeProfiles(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, p := range config.Profiles() {
		if len(args) == 0 {
			names = append(names, p.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// writeProfiles writes a paragraph for each profile.
func writeProfiles(w io.Writer, profiles []config.Profile) error {
	var b strings.Builder
	for i, p := range profiles {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s: %s\n", p.Name, p.For)
		for _, v := range p.Values {
			fmt.Fprintf(&b, "  %s = %s\n    %s\n", v.Key, v.Value, strings.ReplaceAll(v.Reason, "`", ""))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
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
