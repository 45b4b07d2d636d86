package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/planfile"
	"github.com/milkweedfs/milkweed/placement"
)

func newPlan() *cobra.Command {
	var o planOptions
	c := &cobra.Command{
		Use:   "plan MOUNT [FILE|-]",
		Short: "Say in which order a job will read files",
		Long: `Plan tells the daemon of MOUNT in which order a job will open files. Each line
of FILE, or of the standard input, is a path relative to the mount point, or
begins with MOUNT, or is absolute below it. The daemon looks up the files and
copies them in this order, ahead of the job.

A plan is a hint. Files that do not exist are skipped, and the job may open
others, or in another order: that costs time, and never changes what it reads.
While less than an eighth of the recent opens are in the plan, it is suspended.

A job with several processes that read has a stream for each. A plan has at most
1,000,000 entries in 256 streams; they are kept in memory, and an entry is
forgotten when the job has passed it. A stream is forgotten a minute after its
last entry was opened, or an hour after its last use.

--show prints, for each stream, the entry that the job has reached, how many
entries ahead of it were looked up, and copied where possible, and how many
opens were predicted. With --json, it prints one object on one line: entries,
memory_bytes, opens, correct, missing, rejected, lead_files, lead_bytes,
suspended, stream_count, and streams[], each with name, epoch, entries,
position, loader_lead, later_entries, lead_files, lead_bytes, passed and
correct.

Plan exits with 2 if FILE cannot be read, has no paths, more than 64 MiB or more
than 1,000,000 paths (the first ones are then planned), or none was accepted,
with 7 if MOUNT is not in a mount or its daemon does not answer, and with 8 if
some paths were not accepted. They are not in the mount, or the plan is full.`,
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
	f.BoolVar(&o.clear, "clear", false, "forget the plan")
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
	client, err := control.Dial(c.Context(), m.Point)
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
	in, name := c.InOrStdin(), "the standard input"
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return &exit.Error{Code: exit.Usage, Err: err, Remedy: "FILE has one path on each line."}
		}
		defer f.Close()
		in, name = f, file
	}
	end := byte('\n')
	if o.null {
		end = 0
	}
	paths, err := readPlan(in, end, given)
	if err != nil {
		return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("%s: %w", name, err), Remedy: "It has one path on each line, or with -0 a NUL after each."}
	}
	r, err := client.AddPlan(c.Context(), o.part, paths)
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
		Remedy: "Paths are relative to the mount point, or absolute below it.",
	}
	if r.Accepted == 0 {
		e.Code = exit.Usage
	}
	return e
}

// readPlan returns the paths in r, each of which ends with end, with a NUL after each. It omits
// empty ones. Paths below given are made relative to it, as `find mnt | milkweed plan mnt` has them:
// the daemon knows the mount point without symbolic links.
func readPlan(r io.Reader, end byte, given string) ([]byte, error) {
	prefixes := [][]byte{[]byte(strings.TrimSuffix(given, "/") + "/")}
	if abs, err := filepath.Abs(given); err == nil {
		prefixes = append(prefixes, []byte(strings.TrimSuffix(abs, "/")+"/"))
	}
	var paths bytes.Buffer
	err := planfile.Read(r, end, func(path []byte) error {
		for _, prefix := range prefixes {
			if name, ok := bytes.CutPrefix(path, prefix); ok {
				path = name
				break
			}
		}
		paths.Write(path)
		paths.WriteByte(0)
		return nil
	})
	if err == nil && paths.Len() == 0 {
		err = planfile.ErrEmpty
	}
	return paths.Bytes(), err
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
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s (%s)\t%s of %s\n", cmp.Or(text(s.Name), "-"), s.Epoch, count(s.Position), count(s.Entries),
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
