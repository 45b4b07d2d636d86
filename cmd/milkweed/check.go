package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/drivers/blob"
)

func newCheck() *cobra.Command {
	f := mountFlags{check: true}
	var asJSON, inTiers bool
	c := &cobra.Command{
		Use:   "check [-c tiering.toml] [SOURCE] [MOUNTPOINT]",
		Short: "Check the configuration and this machine",
		Long: `Check takes the arguments of mount but does not mount. SOURCE alone is enough.
A single argument is MOUNTPOINT if a configuration file sets the source.

Check prints each value of the configuration and its origin: the default, a
profile, a line of the file, an option, a flag or an argument. Then it checks
the source, the tiers, the mount point and the kernel. It also prints the mode
that a mount will use, the reason for it, and the directories for which
passthrough works.
It counts the files of a manifest or, for at most 3 seconds, those of a
directory, and says what their copies need and what the tiers have, as in "needs
140 GiB, and the tiers have 96 GiB".
For a bucket it requests one page of names, and prints the kind of credentials
that it found, without secrets. With peers it asks the other nodes whether they
are up, and have the same roster, secret, dataset, protocol and time.

With --manifest, check does something else: it reads all files of the source and
compares their names, sizes and SHA-256 with those in the manifest, and prints
each difference. With --tiers too, it compares the copies in the tiers, also
while a daemon uses them. It exits with 8 if there is a difference. With --json,
it prints an object: manifest, files and bytes, which are as in the manifest;
different, the number of names that are not; differences, an array of the first
1,000 of them, with path and problem; and other_version, the number of copies
of other versions of their files.

Each check prints a line that begins with ok, warning or problem, and a remedy
if it is not ok. If there is a problem, the exit code is that of mount. With
--json, the command prints an object: settings, an array of objects with key,
value and origin; and findings, an array of objects with name, status, detail,
remedy and code.`,
		Example: `  milkweed check /lustre/imagenet
  milkweed check /lustre/imagenet /mnt/imagenet
  milkweed check 's3://imagenet/2012?region=eu-west-1' /mnt/imagenet
  milkweed check --peers 'node[1-4]' --peers-secret ~/job.key /lustre/imagenet
  milkweed check --manifest imagenet.mtree /lustre/imagenet
  milkweed check -c tiering.toml --json | jq '.findings[] | select(.status != "ok")'`,
		Args: usage(cobra.MaximumNArgs(2)),
		RunE: inChild(func(c *cobra.Command, args []string) error {
			compares := c.Flags().Changed("manifest") || inTiers
			stderr := c.ErrOrStderr()
			if compares && !inTiers {
				stderr = io.Discard // which tiers a mount would have does not matter
			}
			cfg, err := f.load(c.Flags(), args, stderr)
			switch {
			case err != nil:
				return err
			case !compares:
				return printChecks(c, cfg, asJSON)
			case cfg.Source.Manifest == "":
				return usageError(c, errors.New("--tiers needs --manifest, or source.manifest in the configuration"))
			}
			return compareWithManifest(c, cfg, inTiers, asJSON)
		}),
	}
	f.addConfiguration(c.Flags())
	c.Flags().BoolVar(&inTiers, "tiers", false, "compare the copies in the tiers with the manifest")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// printChecks is the command check without --manifest.
func printChecks(c *cobra.Command, cfg *config.Config, asJSON bool) error {
	r := checkReport{cfg.Settings(), append(runChecks(c.Context(), cfg), checkMemory(cfg, config.MemoryLimit())...)}
	if check.First(r.Findings) == nil { // a source that hangs delays check once
		r.Findings = append(r.Findings, checkRoom(c.Context(), cfg)...)
	}
	r.Findings = slices.Concat(r.Findings, checkManifest(c.Context(), cfg), checkPeers(c.Context(), cfg))
	var err error
	if asJSON {
		err = printJSON(c.OutOrStdout(), r)
	} else {
		err = r.write(c.OutOrStdout())
	}
	if err != nil {
		return err
	}
	return check.First(r.Findings)
}

// runChecks runs all checks. It opens a bucket once for all of them.
func runChecks(ctx context.Context, cfg *config.Config) []check.Finding {
	if cfg.Source.URL == "" {
		return slices.Concat(check.Run(ctx, cfg), check.Preview(ctx, cfg, func() (check.Source, config.Source, error) {
			s, p, err := openShown(ctx, cfg, nil)
			return s, p.shown(), err
		}))
	}
	b, _, err := openShown(ctx, cfg, nil)
	if err != nil {
		return slices.Concat(check.Bucket(cfg.Source, "", err), check.Run(ctx, cfg))
	}
	bucket := b.(*blob.Bucket)
	signing, err := bucket.Identity(ctx)
	findings := slices.Concat(check.Bucket(cfg.Source, signing, err), check.Run(ctx, cfg),
		check.Preview(ctx, cfg, func() (check.Source, config.Source, error) { return b, cfg.Source, nil }))
	return append(findings, check.OddStore(bucket.Stats())...)
}

// A checkReport is the output of check.
type checkReport struct {
	Settings []config.Setting `json:"settings"`
	Findings []check.Finding  `json:"findings"`
}

func (r checkReport) write(w io.Writer) error {
	if err := writeSettings(w, r.Settings); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return check.Write(w, r.Findings)
}
