package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

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
it until it is switched, whatever becomes of the link. Every absolute path that
a program begins to resolve after switch has returned is in the new generation.
Relative paths follow their working directory. Open and mapped files stay what
they are. All generations are below .generations in the root of the mount, which
listings do not show: a job that reads MOUNT/.generations/v3 is not switched.

The copies of the other generation are removed from the tiers when no file of it
is open or mapped; with --keep they stay. A file that is removed from the tiers
is read from the source. Copies for the new generation are made when its files
are opened, or before the switch by milkweed warmup MOUNT/.generations/GEN.

With --when-idle, the switch waits until no process uses the mount, as far as
this user may see. Ctrl-C ends the wait, without a switch.

PATH is a mount point or a path below one. Without it, switch needs exactly one
mount. The next mount shows the generation to which the link then points: change
the link, too. Switch exits with 2 if the source has no such generation. With
--json it prints one object with from, to, done and linked, the generation to
which the link points.`,
		Example: `  ln -s v3 /data/current && milkweed mount /data/current /mnt/data
  milkweed warmup /mnt/data/.generations/v4
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
			client, err := control.Dial(c.Context(), point)
			if err != nil {
				return err
			}
			defer client.Close()
			d := newDisplay(c.ErrOrStderr(), asJSON)
			r, err := client.DropGeneration(c.Context(), args[0], func(r placement.DropReport) {
				d.show(step{text: dropLine(r), state: r})
			})
			d.end()
			if errors.Is(err, context.Canceled) {
				err = &exit.Error{Code: exit.Incomplete, Err: errors.New("the removal was stopped"), Remedy: "Run it again to remove the rest."}
			}
			if err != nil && exit.Of(err) != exit.Incomplete {
				return err
			}
			if asJSON {
				return errors.Join(printJSON(c.OutOrStdout(), r), err)
			}
			fmt.Fprintf(c.OutOrStdout(), "%s: %s\n", text(args[0]), dropLine(r))
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return c
}

func dropLine(r placement.DropReport) string {
	return fmt.Sprintf("%s (%s) removed", plural(r.Copies, "copy", "copies"), size(r.Bytes))
}
