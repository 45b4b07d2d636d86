package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/accesses"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

func newProfile() *cobra.Command {
	var flags profileFlags
	c := &cobra.Command{
		Use:   "profile [PATH]",
		Short: "Show how jobs use a mount, and which settings would serve them better",
		Long: `Profile shows how jobs have used a mount since it was mounted: the sizes of
files and of requests, sequential and random reads, levels, what readers waited
for, and the epochs that the daemon has recognized. At the end it says which
settings would serve these accesses better. PATH is a mount point or a path
below one. Without it, profile needs exactly one mount.

With --duration, profile watches the mount for that time, or until Ctrl-C, and
shows what jobs do meanwhile, also by directory. This is made from a trace
(milkweed trace). If the daemon is faster than the trace, operations are
dropped; profile shows how many, and all shares are those of the others.

Reads that the kernel answers alone are missing, which are those of the page
cache and, in mode passthrough, of copies. Without --duration, seconds are those
in which a reader opened or read something, or waited for that.

A read is sequential if it begins a file, or begins within 2 MiB of the end of
the last one of the file. Advice needs 100 opens.

With --json it prints one object: accesses, epochs and advice. accesses has
seconds, dropped, opens, files, file_bytes, in_order, neighbors, reads,
read_bytes, spliced, sequential, random, file_sizes, request_sizes, levels,
waits and directories.`,
		Example: `  milkweed profile /mnt/imagenet
  milkweed profile --json /mnt/imagenet | jq .advice
  milkweed profile --duration 1m /mnt/imagenet`,
		Args:              usage(cobra.MaximumNArgs(1)),
		ValidArgsFunction: completeMounts,
		RunE: func(c *cobra.Command, args []string) error {
			if flags.watches = c.Flags().Changed("duration"); flags.watches && flags.duration <= 0 {
				return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("--duration is %v", flags.duration), Remedy: "Use a duration such as 30s."}
			}
			client, err := dialOne(c.Context(), args)
			if err != nil {
				return err
			}
			defer client.Close()
			return flags.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), client)
		},
	}
	c.Flags().DurationVar(&flags.duration, "duration", 0, "watch for this time, such as 30s, instead of showing what was recorded")
	c.Flags().BoolVar(&flags.asJSON, "json", false, "print JSON")
	return c
}

// profileFlags are the flags of the command profile.
type profileFlags struct {
	watches  bool // for duration
	duration time.Duration
	asJSON   bool
}

// A profileReport is the output of the command profile.
type profileReport struct {
	Accesses accesses.Summary  `json:"accesses"`
	Epochs   []control.Epoch   `json:"epochs"`
	Advice   []accesses.Advice `json:"advice"`

	status  control.Status
	watched bool // otherwise it is of the time since the mount
}

func (flags profileFlags) run(ctx context.Context, w, notes io.Writer, client *control.Client) error {
	r := profileReport{watched: flags.watches}
	if flags.watches {
		recorder := accesses.NewRecorder()
		seconds, err := flags.record(ctx, client, notes, recorder)
		if err != nil {
			return err
		}
		r.Accesses = recorder.Summary(seconds)
	}
	var err error
	if r.status, err = client.Status(context.WithoutCancel(ctx)); err != nil { // the client has a time-out
		return err
	}
	if !flags.watches {
		fmt.Fprintln(notes, "milkweed:", unseen(r.status.Mode))
		r.Accesses = accesses.SinceMount(&r.status)
	}
	r.Epochs, r.Advice = r.status.Epochs, append([]accesses.Advice{}, accesses.Advise(r.Accesses, &r.status)...)
	if flags.asJSON {
		return printJSON(w, r)
	}
	return r.write(w)
}

// record adds the operations of a mount to recorder until flags.duration has passed or ctx is done, and
// returns how many seconds that took.
func (flags profileFlags) record(ctx context.Context, client *control.Client, notes io.Writer, recorder *accesses.Recorder) (seconds float64, err error) {
	d := newDisplay(notes, flags.asJSON)
	defer d.end()
	start, shown := time.Now(), time.Time{}
	until, stop := context.WithTimeout(ctx, flags.duration)
	defer stop()
	lines := int64(0)
	err = client.Trace(until, control.TraceFilter{}, func(l control.TraceLine) error {
		if l.Mode != "" {
			fmt.Fprintln(notes, "milkweed:", unseen(l.Mode))
		}
		recorder.Add(l)
		lines++
		if now := time.Now(); now.Sub(shown) > 100*time.Millisecond {
			shown = now
			d.show(step{text: plural(lines, "operation", "operations"), state: map[string]int64{"operations": lines}})
		}
		return nil
	})
	if until.Err() != nil {
		err = nil // its end was wanted
	}
	return time.Since(start).Seconds(), err
}

// shownDirs is the number of directories that write shows.
const shownDirs = 10

func (r profileReport) write(w io.Writer) error {
	a := r.Accesses
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	when := "in " + rounded(a.Seconds)
	if !r.watched {
		when = fmt.Sprintf("since the mount, %s ago, in %s with accesses", rounded(r.status.UptimeSeconds), rounded(a.Seconds))
	}
	fmt.Fprintf(t, "opens\t%s of %s %s; %s on average\n", count(a.Opens), plural(a.Files, "file", "files"), when, size(a.MeanFile()))
	fmt.Fprintf(t, "order\t%s of %s opens in a directory follow the order of names\n", percent(a.InOrder, a.Neighbors), count(a.Neighbors))
	fmt.Fprintf(t, "levels\t%s\n", cmp.Or(byName(a.Levels), "-"))
	fmt.Fprintf(t, "reads\t%s of %s; %s sequential, %s random, %s spliced\n", count(a.Reads), size(a.ReadBytes),
		percent(a.Sequential, a.Reads), percent(a.Random, a.Reads), percent(a.Spliced, a.Reads))
	for _, cause := range slices.Sorted(maps.Keys(a.Waits)) {
		fmt.Fprintf(t, "waits\t%s for %s\n", rounded(a.Waits[cause]), cause)
	}
	if a.Dropped > 0 {
		fmt.Fprintf(t, "dropped\t%s: the shares are those of the others\n", plural(a.Dropped, "operation", "operations"))
	}
	writeSizes(t, "FILES UP TO", "OPENS", a.FileSizes, a.Opens)
	writeSizes(t, "REQUESTS UP TO", "READS", a.RequestSizes, a.Reads)
	if r.watched {
		fmt.Fprintln(t, "\nDIRECTORY\tOPENS\tMEAN FILE\tREADS\tSEQUENTIAL")
	}
	for _, d := range a.Dirs[:min(shownDirs, len(a.Dirs))] {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", text(d.Path), count(d.Opens), size(d.FileBytes/max(d.Opens, 1)), count(d.Reads), percent(d.Sequential, d.Sequential+d.Random))
	}
	if more := len(a.Dirs) - shownDirs; more > 0 {
		fmt.Fprintf(t, "%s more\n", count(int64(more)))
	}
	if len(r.Epochs) > 0 {
		fmt.Fprintln(t, "\nEPOCH\tBEGAN\tTOOK\tFILES\tBYTES READ")
		for i := max(0, len(r.Epochs)-shownEpochs); i < len(r.Epochs); i++ {
			e := r.Epochs[i]
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", epochName(r.status, i), e.Began.Local().Format(time.TimeOnly), rounded(e.Seconds), count(e.Files), bytesRead(e))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, x := range r.Advice {
		fmt.Fprintf(w, "%s\n  → %s\n", x.Seen, x.Setting)
	}
	if len(r.Advice) > 0 {
		return nil
	}
	verdict := "No setting would serve these accesses better."
	if a.Opens < accesses.MinOpens {
		verdict = fmt.Sprintf("Advice needs %d opens.", accesses.MinOpens)
	}
	_, err := fmt.Fprintln(w, verdict)
	return err
}

// writeSizes writes the buckets that are not empty.
func writeSizes(w io.Writer, title, unit string, buckets []accesses.Bucket, total int64) {
	fmt.Fprintf(w, "\n%s\t%s\tSHARE\n", title, unit)
	for _, b := range buckets {
		name := "more"
		if b.UpTo > 0 {
			name = size(b.UpTo)
		}
		if b.Count > 0 {
			fmt.Fprintf(w, "%s\t%s\t%s\n", name, count(b.Count), percent(b.Count, total))
		}
	}
}
