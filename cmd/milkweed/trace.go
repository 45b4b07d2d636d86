package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/placement"
)

func newTrace() *cobra.Command {
	var flags traceFlags
	c := &cobra.Command{
		Use:   "trace [PATH]",
		Short: "Show the opens and reads of a mount as they happen",
		Long: `Trace prints a line for each open and read that the daemon answers: when it
began, the level that served it, how long it took, the cause of its longest
wait, the offset, the size and the path. PATH is a mount point or a path below
one. Without it, trace needs exactly one mount.

The level is the name of a tier, fill (a copy in flight), source or peers. The
cause is latency or bandwidth (of the source), fill (another reader or a worker
had requested the data), tier or peers; "-" means that there was no wait. An
operation that returned an error has the cause "failed". A read that the daemon
repeats in another place has a line for each attempt. A read that was spliced
has no offset.

The kernel answers reads from its page cache, and in mode passthrough those of
copies, without the daemon: trace does not show them. In mode stateless, the
first read of a file counts as an open.

--path takes * and ? (which do not match a slash), and [a-z]. ** is the same as
*. A pattern without a slash is compared with the last element of a path, and
any other with the whole path, relative to the mount point.

Trace never delays a reader. If the output is slow, lines are dropped, and their
number is printed. At most 4 traces of a mount run at a time. Ctrl-C ends trace.

With --json it prints one JSON object per line: time, op, level, seconds, cause,
offset, size, failed and path; or dropped, a number of lines.`,
		Example: `  milkweed trace /mnt/imagenet --path '*.jpg' --slow 10ms
  milkweed trace /mnt/imagenet --json --count 1000 | jq -r .level | sort | uniq -c`,
		Args:              usage(cobra.MaximumNArgs(1)),
		ValidArgsFunction: completeMounts,
		RunE: func(c *cobra.Command, args []string) error {
			filter, err := control.ParseTraceFilter(flags.glob, flags.slow)
			if err != nil {
				return err
			}
			if flags.count < 0 {
				return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("--count is %d", flags.count), Remedy: "Use a number from 1 on, or 0 for no end."}
			}
			client, err := dialOne(c.Context(), args)
			if err != nil {
				return err
			}
			defer client.Close()
			return flags.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), client, filter)
		},
	}
	c.Flags().StringVar(&flags.glob, "path", "", "show only paths that match `GLOB`")
	c.Flags().StringVar(&flags.slow, "slow", "", "show only what took at least this `DURATION`, such as 10ms")
	c.Flags().BoolVar(&flags.asJSON, "json", false, "print one JSON object per line")
	c.Flags().IntVarP(&flags.count, "count", "n", 0, "end after `N` lines")
	return c
}

// traceFlags are the flags of the command trace.
type traceFlags struct {
	glob, slow string
	asJSON     bool
	count      int // 0: no end
}

// run prints a trace until ctx is done, and then how many lines there were.
func (flags traceFlags) run(ctx context.Context, w, notes io.Writer, client *control.Client, filter control.TraceFilter) error {
	shown, dropped := 0, int64(0)
	err := client.Trace(ctx, filter, func(l control.TraceLine) (err error) {
		switch {
		case l.Mode != "":
			fmt.Fprintln(notes, "milkweed:", unseen(l.Mode))
			if !flags.asJSON {
				_, err = fmt.Fprintf(w, traceFormat, "TIME", "OP", "LEVEL", "LATENCY", "CAUSE", "OFFSET", "SIZE", "PATH")
			}
			return err
		case l.Dropped > 0:
			dropped += l.Dropped
			if flags.asJSON {
				return printJSON(w, l)
			}
			_, err = fmt.Fprintf(notes, "milkweed: %s dropped\n", plural(l.Dropped, "line", "lines"))
			return err
		case flags.asJSON:
			err = printJSON(w, l)
		default:
			err = printTraced(w, l)
		}
		if shown++; err == nil && shown == flags.count {
			err = errEnough
		}
		return err
	})
	if errors.Is(err, errEnough) || ctx.Err() != nil {
		err = nil // an interrupt is how it ends
	}
	fmt.Fprintf(notes, "milkweed: %s, %s dropped\n", plural(int64(shown), "line", "lines"), count(dropped))
	return err
}

// unseen says which reads a trace does not show.
func unseen(mode string) string {
	if mode == string(config.Passthrough) {
		return "in mode passthrough, the kernel reads copies without the daemon: only their opens are shown; reads from the page cache are not shown"
	}
	return "reads that the kernel answers from its page cache are not shown"
}

// traceFormat is the format of the lines of a trace.
const traceFormat = "%-15s  %-4s  %-8s  %9s  %-9s  %12s  %10s  %s\n"

func printTraced(w io.Writer, l control.TraceLine) error {
	cause := l.Cause
	if l.Failed {
		cause = "failed"
	}
	_, err := fmt.Fprintf(w, traceFormat, l.Time.Local().Format("15:04:05.000000"), l.Op, l.Level, rounded(l.Seconds), cause,
		number(l.Offset), number(l.Size), text(l.Path))
	return err
}

// number formats a number that may be missing.
func number(n *int64) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

// Trace implements control.Daemon.
func (d *daemon) Trace(ctx context.Context, filter control.TraceFilter, show func(control.TraceLine) error) error {
	trace, err := d.handler.Trace(func(e *placement.TraceEvent) bool {
		return e.Took >= filter.Slow && filter.Matches(d.names.Outside(e.Path))
	})
	if errors.Is(err, placement.ErrTraces) {
		return &exit.Error{
			Code: exit.Usage, Err: fmt.Errorf("%d traces of the mount are in progress, and no more are possible", placement.MaxTraces),
			Remedy: "End one of them.",
		}
	}
	if err != nil {
		return err
	}
	defer trace.Close()
	if err := show(control.TraceLine{Mode: string(d.service.Mode)}); err != nil {
		return err
	}
	tick := time.NewTicker(traceDropsEvery)
	defer tick.Stop()
	for told := int64(0); ; {
		select {
		case e := <-trace.Events():
			err = show(d.traceLine(e))
		case <-tick.C:
			if dropped := trace.Dropped(); dropped > told {
				err = show(control.TraceLine{Dropped: dropped - told})
				told = dropped
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// traceDropsEvery is how often a trace says how many lines were dropped.
const traceDropsEvery = 200 * time.Millisecond

// causes are the names of the causes of placement.
var causes = map[placement.Cause]string{
	placement.NoCause:        "-",
	placement.CauseLatency:   control.Latency,
	placement.CauseBandwidth: control.Bandwidth,
	placement.CausePeers:     control.PeersCause,
	placement.CauseFill:      control.FillCause,
	placement.CauseTier:      control.TierCause,
}

// traceLine converts e.
func (d *daemon) traceLine(e placement.TraceEvent) control.TraceLine {
	l := control.TraceLine{
		Time: e.Began, Op: "open", Level: "-", Seconds: e.Took.Seconds(), Cause: causes[e.Cause], Size: &e.Size, Failed: e.Failed,
	}
	if e.Read {
		l.Op = "read"
		if e.Offset >= 0 {
			l.Offset = &e.Offset
		}
	}
	switch {
	case e.Place.Fill:
		l.Level = fillLevel
	case e.Place.Peers:
		l.Level = peersLevel
	case e.Place.Known:
		l.Level = d.levels.Name(e.Place.Level)
	}
	l.Path = d.names.Outside(e.Path)
	return l
}
