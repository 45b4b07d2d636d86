package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/placement"
)

func newSwitch() *cobra.Command {
	var req control.SwitchRequest
	var asJSON bool
	c := &cobra.Command{
		Use:   "switch GEN [PATH]",
		Short: "Show another generation of the dataset in a mount",
		Long: `Switch changes which generation of a dataset a mount shows. A generation is an
immutable version of the whole dataset, in a directory of its own. The source
that was mounted is a symbolic link to one of them, such as /data/current to
/data/v3; the others are the directories beside it. In a bucket, the source is
a pointer: an object that contains the name of a directory beside it.

The mount pins the generation to which the link points at mount time, and shows
it until it is switched, whatever becomes of the link. If the source no longer
has the generation, files with a complete copy stay readable, and others fail
with ESTALE. Every absolute path that a program begins to resolve after switch
has returned is in the new generation.
Relative paths follow their working directory. Open and mapped files stay what
they are. All generations are below .generations in the root of the mount, which
listings do not show: a job that reads MOUNT/.generations/v3 is not switched.

The copies of the other generation are removed from the tiers when no file of it
is open or mapped; with --keep they stay. A file that is removed from the tiers
is read from the source. Copies for the new generation are made when its files
are opened, or before the switch by milkweed prepare.

With --when-idle, the switch waits until no process uses the mount, as far as
this user may see. Ctrl-C ends the wait, without a switch.

PATH is a mount point or a path below one. Without it, switch needs exactly one
mount. The next mount shows the generation to which the link then points: change
the link, too. Switch exits with 2 if the source has no such generation. With
--json it prints one object with from, to, done and linked, the generation to
which the link points.`,
		Example: `  ln -s v3 /data/current && milkweed mount /data/current /mnt/data
  milkweed prepare v4 /mnt/data
  milkweed switch v4 /mnt/data && ln -sfn v4 /data/current`,
		Args: usage(cobra.RangeArgs(1, 2)),
		RunE: func(c *cobra.Command, args []string) error {
			req.Generation = args[0]
			return switchMount(c, req, asJSON, args[1:])
		},
	}
	c.Flags().BoolVar(&req.Keep, "keep", false, "keep the copies of the other generation")
	c.Flags().BoolVar(&req.WhenIdle, "when-idle", false, "wait until no process uses the mount")
	c.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return c
}

func switchMount(c *cobra.Command, req control.SwitchRequest, asJSON bool, paths []string) error {
	point, _, err := warmupNames(paths)
	if err != nil {
		return err
	}
	client, err := control.Dial(c.Context(), point)
	if err != nil {
		return err
	}
	defer client.Close()
	d := newDisplay(c.ErrOrStderr(), asJSON)
	s, err := client.Switch(c.Context(), req, func(s control.Switched) {
		if len(s.Users) > 0 {
			d.show(step{text: fmt.Sprintf("waiting for %s", userNames(s)), state: s})
		}
	})
	d.end()
	switch {
	case errors.Is(err, context.Canceled):
		return &exit.Error{
			Code: exit.Incomplete, Err: fmt.Errorf("%s was not switched", text(point)),
			Remedy: "It shows the same generation as before. Run it again to wait, or without --when-idle.",
		}
	case err != nil:
		return err
	case asJSON:
		return printJSON(c.OutOrStdout(), s)
	case s.From == s.To:
		_, err = fmt.Fprintf(c.OutOrStdout(), "%s shows %s already\n", text(point), text(s.To))
	default:
		_, err = fmt.Fprintf(c.OutOrStdout(), "%s shows %s, and no longer %s\n", text(point), text(s.To), text(s.From))
	}
	if s.Linked != "" && s.Linked != s.To {
		fmt.Fprintf(c.ErrOrStderr(), "milkweed: the source still points to %s, which the next mount shows\n", text(s.Linked))
	}
	return err
}

// userNames names some of the processes that a switch waits for.
func userNames(s control.Switched) string {
	const most = 3
	var names []string
	for _, p := range s.Users[:min(most, len(s.Users))] {
		names = append(names, text(p.String()))
	}
	if more := len(s.Users) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

func newPrepare() *cobra.Command {
	var req control.PrepareRequest
	var asJSON bool
	c := &cobra.Command{
		Use:   "prepare GEN [PATH]",
		Short: "Fill the tiers with another generation of the dataset, ahead of a switch",
		Long: `Prepare copies the files of a generation, which milkweed switch --help
describes, to the tiers of a mount, in the background and behind running jobs.
It does not change what the mount shows.

A file that is the same as the one of that path in the generation that the mount
shows is not copied: both are one copy with two names, which takes room once.
The same are hard links of one file, and objects of S3 with the same MD5 sum or
checksum. With --trust-mtime, so are files with equal sizes and modification
times; do not use it if a program sets the times, as some archives do.

Prepare first lists the generation, and counts the room that is needed. If the
tiers do not have it, it copies nothing, unless --partial is given. Ctrl-C stops
it; complete copies stay, and the next call goes on from there.

PATH is a mount point or a path below one. Without it, prepare needs exactly one
mount. It exits with 2 if the source has no such generation, with 5 if the tiers
have no room, and with 8 if files could not be copied or if it was stopped. With
--json it prints one object: generation; found, present, shared, copied,
skipped, elsewhere and failed, each with files and bytes; need_bytes and
room_bytes; errors[], which has the path and the error of some files; and with
manifests files_mismatched: of the failed files, those that the source does not
have as in the manifest.`,
		Example: `  milkweed prepare v4 /mnt/data && milkweed switch v4 /mnt/data
  milkweed prepare --trust-mtime --json v4 | jq .copied.bytes`,
		Args: usage(cobra.RangeArgs(1, 2)),
		RunE: func(c *cobra.Command, args []string) error {
			req.Generation = args[0]
			return prepare(c, req, asJSON, args[1:])
		},
	}
	c.Flags().BoolVar(&req.TrustMtime, "trust-mtime", false, "files with equal paths, sizes and modification times are the same")
	c.Flags().BoolVar(&req.Partial, "partial", false, "copy what fits if the tiers have no room for all")
	c.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return c
}

func prepare(c *cobra.Command, req control.PrepareRequest, asJSON bool, paths []string) error {
	point, _, err := warmupNames(paths)
	if err != nil {
		return err
	}
	client, err := control.Dial(c.Context(), point)
	if err != nil {
		return err
	}
	defer client.Close()
	start := time.Now()
	d := newDisplay(c.ErrOrStderr(), asJSON)
	p, err := client.Prepare(c.Context(), req, func(p control.Prepared) { d.show(prepareStep(p)) })
	d.end()
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	if asJSON {
		if err := printJSON(c.OutOrStdout(), p); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(c.OutOrStdout(), "%s: %s after %v\n", text(p.Generation), prepareSummary(p), time.Since(start).Round(10*time.Millisecond))
	}
	for _, f := range p.Errors {
		fmt.Fprintf(c.ErrOrStderr(), "%s: %s\n", text(f.Path), f.Error)
	}
	switch {
	case err != nil:
		return &exit.Error{Code: exit.Incomplete, Err: errors.New("the preparation was stopped"), Remedy: "Complete copies stay. Run it again to go on."}
	case p.Failed.Files > 0:
		return notCopied(p.Failed.Files, p.FilesMismatched)
	}
	return nil
}

// prepareSummary describes the result of a preparation.
func prepareSummary(p control.Prepared) string {
	line := fmt.Sprintf("%s (%s)", files(p.Found.Files), size(p.Found.Bytes))
	for _, part := range []struct {
		amount control.Amount
		what   string
	}{
		{p.Present, "there before"}, {p.Shared, "shared"}, {p.Copied, "copied"}, {p.Skipped, "skipped, because no tier has room"},
		{p.Elsewhere, "on other nodes"}, {p.Failed, "failed"},
	} {
		if part.amount.Files > 0 {
			line += fmt.Sprintf(", %s (%s) %s", count(part.amount.Files), size(part.amount.Bytes), part.what)
		}
	}
	return line
}

// prepareStep returns the state of a preparation for a display.
func prepareStep(p control.Prepared) step {
	if p.Listing {
		return step{text: fmt.Sprintf("listing: %s (%s) found so far", files(p.Found.Files), size(p.Found.Bytes)), state: p}
	}
	var done control.Amount
	for _, a := range []control.Amount{p.Present, p.Shared, p.Copied, p.Skipped, p.Elsewhere, p.Failed} {
		done.Files += a.Files
		done.Bytes += a.Bytes
	}
	return step{text: fmt.Sprintf("%s of %s", count(done.Files), files(p.Found.Files)), bytes: done.Bytes, total: p.Found.Bytes, state: p}
}

func newGenerations() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "generations [PATH]",
		Short: "List the generations of a dataset, and what the tiers hold of each",
		Long: `Generations lists the generations of the dataset of a mount, which milkweed
switch --help describes: the directories beside the target of the source, and
those that only a tier still has. For each it prints whether the mount shows it,
whether the link of the source points to it now, whether the source has it,
whether its copies are being removed, and the number and size of the copies in
each tier. It lists all copies, which may take some seconds.

PATH is a mount point or a path below one. Without it, generations needs exactly
one mount. It exits with 2 if the source has no generations, and with 3 if the
source cannot be listed. With --json it prints one object: current, linked, and
generations[], each with name, current, linked, at_source, dropping and
copies[], which has tier, files and bytes.`,
		Example: `  milkweed generations
  milkweed generations drop v2 /mnt/data
  milkweed generations --json | jq -r '.generations[] | select(.current).name'`,
		Args:              usage(cobra.MaximumNArgs(1)),
		ValidArgsFunction: completeMounts,
		RunE: func(c *cobra.Command, args []string) error {
			point, _, err := warmupNames(args)
			if err != nil {
				return err
			}
			client, err := control.Dial(c.Context(), point)
			if err != nil {
				return err
			}
			defer client.Close()
			g, err := client.Generations(c.Context())
			switch {
			case err != nil:
				return err
			case asJSON:
				return printJSON(c.OutOrStdout(), g)
			}
			return printGenerations(c.OutOrStdout(), g)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(newDropGeneration())
	return c
}

func printGenerations(w io.Writer, g control.Generations) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "GENERATION\tSTATE")
	if len(g.All) > 0 {
		for _, c := range g.All[0].Copies {
			fmt.Fprintf(t, "\t%s", strings.ToUpper(c.Tier))
		}
	}
	fmt.Fprintln(t)
	for _, one := range g.All {
		fmt.Fprintf(t, "%s\t%s", text(one.Name), generationState(one))
		for _, c := range one.Copies {
			fmt.Fprintf(t, "\t%s in %s", size(c.Bytes), plural(c.Files, "copy", "copies"))
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// generationState describes a generation in a few words.
func generationState(g control.Generation) string {
	var words []string
	for _, w := range []struct {
		is   bool
		text string
	}{{g.Current, "current"}, {g.Linked, "linked"}, {g.Dropping, "being dropped"}, {!g.AtSource, "not at the source"}} {
		if w.is {
			words = append(words, w.text)
		}
	}
	if len(words) == 0 {
		return "-"
	}
	return strings.Join(words, ", ")
}

func newDropGeneration() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "drop GEN [PATH]",
		Short: "Remove the copies of a generation that the mount does not show",
		Long: `Drop removes the copies of one generation from all tiers, whether or not the
source still has it. Open files stay readable; others of that generation are
read from the source after that. The generation that the mount shows is not
dropped.

PATH is a mount point or a path below one. Without it, drop needs exactly one
mount. It exits with 2 if the mount shows the generation, and with 8 if copies
could not be removed or if it was stopped. With --json it prints one object with
copies_removed, bytes_removed and copies_failed.`,
		Example: `  milkweed generations drop v2 /mnt/data`,
		Args:    usage(cobra.RangeArgs(1, 2)),
		RunE: func(c *cobra.Command, args []string) error {
			point, _, err := warmupNames(args[1:])
			if err != nil {
				return err
			}
			return removeCopies(c, point, text(args[0]), asJSON, func(client *control.Client, show func(placement.DropReport)) (placement.DropReport, error) {
				return client.DropGeneration(c.Context(), args[0], show)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return c
}
