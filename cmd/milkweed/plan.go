package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/filelist"
	"github.com/milkweedfs/milkweed/placement"
)

func newPlan() *cobra.Command {
	var o planOptions
	c := &cobra.Command{
		Use:   "plan MOUNT [FILE|-]",
		Short: "Say in which order a job will read files",
		Long: `Plan tells the daemon of MOUNT in which order a job will open files. The daemon
looks up the files and copies them in this order, ahead of the job.

FILE, or the standard input, is a list of files, as for milkweed exchange and
mount.plan. Each line is a path; with -0, a NUL ends each path. A path is
relative to the mount point, or begins with MOUNT, or is absolute below it. It
may begin with ./ and contain further slashes. Empty lines, and a carriage
return at the end of a line, do not matter. A path that is elsewhere, contains
.. or has more than 4,096 bytes is an error, which names the line, and nothing
of the list is used.

A plan is a hint. Files that do not exist are skipped, and the job may open
others, or in another order: that costs time, and never changes what it reads.
While less than an eighth of the recent opens are in the plan, it is suspended.

A job with several processes that read has a stream for each. A plan has at most
1,000,000 entries in 256 streams; they are kept in memory, and an entry is
forgotten when the job has passed it. A stream is forgotten a minute after its
last entry was opened, or an hour after its last use.

In the mount of another user with allow_other, the plan is one of this user's
own, for files that this user may read. It follows the opens of this user only,
has no room in the window, and ends with the last process of the user that the
daemon sees. Such plans together have at most 2,000,000 entries in 512 streams.

--show prints, for each stream, the entry that the job has reached, how many
entries ahead of it were looked up, and copied where possible, and how many
opens were predicted. With --json, it prints one object on one line: entries,
memory_bytes, opens, correct, missing, rejected, lead_files, lead_bytes,
suspended, stream_count, and streams[], each with name, epoch, entries,
position, loader_lead, later_entries, lead_files, lead_bytes, passed, correct,
suspended and, for one of another user, user. The owner of the mount and root
see the streams of all users.

Plan exits with 2 if FILE cannot be read, is no such list, has no paths, more
than 64 MiB or more than 1,000,000 paths (the first ones are then planned), or
none was accepted, with 7 if MOUNT is not in a mount or its daemon does not
answer, and with 8 if some paths were not accepted, because the plan is full.`,
		Example: `  shuf files.txt | tee order.txt | milkweed plan /mnt/imagenet
  find /mnt/imagenet -type f -print0 | milkweed plan -0 --lead 256 /mnt/imagenet -
  milkweed plan --show /mnt/imagenet`,
		Args:              usage(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: completeMounts,
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(c, args)
		},
	}
	f := c.Flags()
	f.BoolVarP(&o.null, "null", "0", false, "paths end with a NUL instead of a newline")
	f.StringVar(&o.part.Stream, "stream", "", "the `NAME` of the process that reads; with --clear, the stream to forget")
	f.Int64Var(&o.part.Epoch, "epoch", 0, "the `NUMBER` of the epoch")
	f.Int64Var(&o.part.From, "from", 0, "the `NUMBER` of the first path in the epoch; entries from it on are replaced")
	f.Int64Var(&o.part.Lead, "lead", 0, "the loader requests `N` files before the job uses them; the default is 64")
	f.BoolVar(&o.show, "show", false, "show how the job follows the plan")
	f.BoolVar(&o.json, "json", false, "with --show, print JSON")
	f.BoolVar(&o.clear, "clear", false, "forget the plan; root and the owner of the mount forget those of all users, unless --stream names one of their own")
	return c
}

// planOptions are the flags of plan.
type planOptions struct {
	part              placement.PlanPart
	null              bool // paths end with a NUL
	show, json, clear bool
}

func (o planOptions) run(c *cobra.Command, args []string) error {
	switch {
	case o.show && o.clear:
		return usageError(c, errors.New("--show and --clear exclude each other"))
	case o.json && !o.show:
		return usageError(c, errors.New("--json needs --show"))
	case (o.show || o.clear) && len(args) > 1:
		return usageError(c, errors.New("--show and --clear take no FILE"))
	}
	m, name, err := control.Find(args[0])
	if err != nil {
		return err
	}
	client, err := control.Visit(c.Context(), m.Point)
	if err != nil {
		return err
	}
	defer client.Close()
	switch {
	case o.show:
		return o.print(c.Context(), c.OutOrStdout(), client, m.Point)
	case o.clear && c.Flags().Changed("stream"):
		return client.DropPlan(c.Context(), &o.part.Stream)
	case o.clear:
		return client.DropPlan(c.Context(), nil)
	}
	file, given := "-", m.Point
	if len(args) > 1 {
		file = args[1]
	}
	if name == "." {
		given = args[0]
	}
	return o.send(c, client, m.Point, given, file)
}

// send sends the paths in a file to the daemon of a mount point, which the user calls given.
func (o planOptions) send(c *cobra.Command, client *control.Client, point, given, file string) error {
	names, err := readList(c.InOrStdin(), file, o.null, point, given)
	if err != nil {
		return err
	}
	r, err := client.AddPlan(c.Context(), o.part, names)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.OutOrStdout(), "%s: %s planned\n", text(point), files(r.Accepted))
	for _, reason := range r.Errors {
		fmt.Fprintf(c.ErrOrStderr(), "%s\n", reason)
	}
	if r.Rejected == 0 {
		return nil
	}
	e := &exit.Error{
		Code: exit.Incomplete, Err: fmt.Errorf("%s not accepted", plural(r.Rejected, "path was", "paths were")),
		Remedy: "`milkweed plan --clear` forgets the plan.",
	}
	if r.Accepted == 0 {
		e.Code = exit.Usage
	}
	return e
}

// readList returns the names in a list of files, which is a file or, if that is "-", in. Paths below the mount
// point are made relative to it, as `find mnt | milkweed plan mnt` has them: the mount point is without symbolic
// links, and given is what the user calls it.
func readList(in io.Reader, file string, null bool, point, given string) (names []string, err error) {
	what, end := "the standard input", byte('\n')
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, &exit.Error{Code: exit.Usage, Err: err, Remedy: "FILE has one path on each line."}
		}
		defer f.Close()
		in, what = f, text(file)
	}
	if null {
		end = 0
	}
	points := []string{given, point}
	if abs, err := filepath.Abs(given); err == nil {
		points = append(points, abs)
	}
	err = filelist.Read(in, end, points, func(name string) error {
		names = append(names, name)
		return nil
	})
	if err != nil {
		return nil, &exit.Error{
			Code: exit.Usage, Err: fmt.Errorf("%s: %w", what, err),
			Remedy: "It has one path on each line, or with -0 a NUL after each: `milkweed plan --help` has the syntax.",
		}
	}
	return names, nil
}

// print prints the state of the plan.
func (o planOptions) print(ctx context.Context, w io.Writer, client *control.Client, point string) error {
	p, err := client.Plan(ctx)
	switch {
	case err != nil:
		return err
	case o.json:
		return printJSON(w, p)
	case len(p.Streams) == 0:
		_, err := fmt.Fprintf(w, "%s: no plan\n", text(point))
		return err
	}
	fmt.Fprintf(w, "%s: %s\n", text(point), planSummary(p.PlanStats))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nSTREAM\tEPOCH\tPOSITION\tOF\tLEAD\tPREDICTED")
	for _, s := range p.Streams {
		name := cmp.Or(text(s.Name), "-")
		if s.User != nil {
			name += fmt.Sprintf(" (user %d)", *s.User)
		}
		if s.Suspended {
			name += ", suspended"
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s (%s)\t%s of %s\n", name, s.Epoch, count(s.Position), count(s.Entries),
			files(s.Lead), size(s.LeadBytes), count(s.Correct), count(s.Passed))
	}
	return t.Flush()
}

// planSummary describes a plan in one line.
func planSummary(p placement.PlanStats) string {
	line := fmt.Sprintf("%s in %s, %s ahead of the job (%s); ", plural(p.Entries, "entry", "entries"),
		plural(p.StreamCount, "stream", "streams"), count(p.Lead), size(p.LeadBytes))
	if p.Opens == 0 {
		line += "no open yet"
	} else {
		line += fmt.Sprintf("%s of %s predicted", percent(p.Correct, p.Opens), plural(p.Opens, "open", "opens"))
	}
	if p.Missing > 0 {
		line += fmt.Sprintf("; %s since the mount did not exist", plural(p.Missing, "planned name", "planned names"))
	}
	if p.Suspended {
		line += "; suspended, because less than an eighth of the recent opens are in it"
	}
	return line
}
