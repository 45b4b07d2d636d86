package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
)

func newCheck() *cobra.Command {
	var f mountFlags
	var asJSON bool
	c := &cobra.Command{
		Use:   "check [-c tiering.toml] [SOURCE] [MOUNTPOINT]",
		Short: "Tell what will work here and what will not",
		Long: `Check takes the arguments of mount, and mounts nothing. It prints the value of
each setting and where it came from: the default, a line of the configuration or
a flag. Then it looks at the source, the tiers, the mount point and the kernel,
and says what will work and what to do about the rest; which mode a mount will
have, and why; and where passthrough works. A bucket is asked for one page of
names; it says which credentials were found, and does not show what is secret.

It prints a line for each thing it looked at: ok, warning or problem. With a
problem it exits with the code that mount would exit with. With --json it
prints an object: settings, an array of key, value, origin; and findings, an
array of name, status, detail, remedy, code.`,
		Example: `  milkweed check /lustre/imagenet /mnt/imagenet
  milkweed check 's3://imagenet/2012?region=eu-west-1' /mnt/imagenet
  milkweed check -c tiering.toml --json | jq '.findings[] | select(.status != "ok")'`,
		Args: usage(cobra.MaximumNArgs(2)),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, _, err := f.load(c.Flags(), args, c.ErrOrStderr())
			if err != nil {
				return err
			}
			r := checked{settingsOf(cfg), findings(c.Context(), cfg)}
			if asJSON {
				err = printJSON(c.OutOrStdout(), r)
			} else {
				err = r.write(c.OutOrStdout())
			}
			if err != nil {
				return err
			}
			return check.First(r.Findings)
		},
	}
	f.add(c.Flags())
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// findings makes all checks. A bucket is opened once for all of them.
func findings(ctx context.Context, cfg *config.Config) []check.Finding {
	if cfg.Source.URL == "" {
		return slices.Concat(check.Run(ctx, cfg), check.Preview(ctx, cfg, func() (check.Source, error) {
			return openSource(ctx, cfg.Source, nil)
		}))
	}
	b, err := openBucket(ctx, cfg.Source.URL, nil)
	if err != nil {
		return slices.Concat(check.Bucket(cfg.Source, "", err), check.Run(ctx, cfg))
	}
	signing, err := b.Identity(ctx)
	return slices.Concat(check.Bucket(cfg.Source, signing, err), check.Run(ctx, cfg),
		check.Preview(ctx, cfg, func() (check.Source, error) { return b, nil }))
}

// checked is what check prints.
type checked struct {
	Settings []setting       `json:"settings"`
	Findings []check.Finding `json:"findings"`
}

// A setting is a value of the configuration and where it came from.
type setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Origin string `json:"origin"`
}

func settingsOf(c *config.Config) []setting {
	var settings []setting
	c.Each(func(key, value, origin string) {
		settings = append(settings, setting{key, value, origin})
	})
	return settings
}

func (r checked) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range r.Settings {
		fmt.Fprintf(t, "%s\t%s\t%s\n", s.Key, text(s.Value), s.Origin)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return check.Write(w, r.Findings)
}
