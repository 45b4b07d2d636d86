package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

func newStatus() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "status [PATH]",
		Short: "Tell what the tiers hold and who serves the reads",
		Long: `Status tells what the tiers hold, who serves the reads, what the source was
asked, and what is being copied.

PATH is the mount point, or anything in the mount. Without it every mount of
Milkweed is described.

With --json it prints one object on one line for each mount. Its schema is
stable: a field may be added; none is removed or changes its meaning without a
new number in "version". Sizes end in _bytes and times in _seconds; what counts
grows from 0 when the daemon starts. The fields are:

  version, milkweed, pid, mount_point, dataset_id, mode, mode_reason, since,
  uptime_seconds, ready, open_handles
  source        path, health, reason, operations {open, read, stat, readdir,
                readlink, xattr}, bytes_read, errors, descriptors, passthrough,
                passthrough_reason; and of a bucket requests {list, get, other,
                retries, hedges, throttled, bytes_received, hidden_keys}
  tiers[]       level, name, path, quota_bytes, used_bytes, files, reads,
                bytes_read, errors, health, reason, passthrough,
                passthrough_reason
  fills         in_flight, in_flight_bytes, queued
  placement     placed, placed_bytes, prefetched, skipped, failed
  opens         {level: {mode: count}}
  opened_bytes  {level: {mode: bytes}}
  read_latency  {level: {le_seconds[], counts[], sum_seconds, count}}

The path of a source that is a bucket is its URL, without the options that say
how to get there. Its requests are what its server was asked, and may charge
for; retries and hedges, which ask for something again, are among them.

A level is the name of a tier, or "source". Health is well, suspect, down or
counting. The counts of a histogram are cumulative. A mode is passthrough, in
which the kernel reads a file by itself; stateless, in which it opens files by
itself; or cached. Reads in passthrough, and those that the page cache answers,
do not come to Milkweed and are not in reads and bytes_read; opens are counted,
and the sizes of the files that were opened. In stateless the first read of a
file for some seconds counts as its open.`,
		Example: `  milkweed status
  milkweed status --json /mnt/imagenet | jq '.tiers[] | {name, used_bytes}'`,
		Args:              usage(cobra.MaximumNArgs(1)),
		ValidArgsFunction: completeMounts,
		RunE: func(c *cobra.Command, args []string) error {
			show := printStatus
			if asJSON {
				show = func(w io.Writer, s control.Status) error { return printJSON(w, s) }
			}
			points, err := mountPoints(args)
			if err != nil {
				return err
			}
			return showAll(c.Context(), c.OutOrStdout(), points, show)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// mountPoints returns the mount point of the mounts that the paths are in, and
// without paths those of all mounts.
func mountPoints(paths []string) ([]string, error) {
	var points []string
	for _, p := range paths {
		m, _, err := control.Find(p)
		if err != nil {
			return nil, err
		}
		points = append(points, m.Point)
	}
	if len(paths) > 0 {
		return points, nil
	}
	mounts, err := control.Mounts()
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		points = append(points, m.Point)
	}
	if len(points) == 0 {
		return nil, &exit.Error{
			Code:   exit.NotMounted,
			Err:    errors.New("no Milkweed is mounted"),
			Remedy: "`milkweed mount SOURCE MOUNTPOINT` mounts a dataset.",
		}
	}
	return points, nil
}

// showAll shows every mount that answers, and returns the errors of those that
// do not.
func showAll(ctx context.Context, w io.Writer, points []string, show func(io.Writer, control.Status) error) error {
	var errs []error
	for _, point := range points {
		s, err := statusOf(ctx, point)
		if err == nil {
			err = show(w, s)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func statusOf(ctx context.Context, mountPoint string) (control.Status, error) {
	c, err := control.Dial(ctx, mountPoint)
	if err != nil {
		return control.Status{}, err
	}
	defer c.Close()
	return c.Status(ctx)
}

// printStatus prints a status for people.
func printStatus(w io.Writer, s control.Status) error {
	state := "ready"
	if !s.Ready {
		state = "not ready"
	}
	up := time.Duration(s.UptimeSeconds) * time.Second
	fmt.Fprintf(w, "%s: %s, up %v, process %d, milkweed %s\n", text(s.MountPoint), state, up, s.PID, s.Milkweed)
	fmt.Fprintf(w, "mode %s: %s\n", s.Mode, cmp.Or(s.ModeReason, "-"))

	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nLEVEL\tUSED\tOF QUOTA\tFILES\tREADS\tREAD\tERRORS\tHEALTH\tWHERE")
	for _, r := range s.Tiers {
		fmt.Fprintf(t, "%s\t%s\t%s of %s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			r.Name, size(r.UsedBytes), percent(r.UsedBytes, r.QuotaBytes), size(r.QuotaBytes), count(r.Files),
			count(r.Reads), size(r.BytesRead), count(r.Errors), health(r.Health, r.Reason), text(r.Path))
	}
	r := s.Source
	fmt.Fprintf(t, "source\t\t\t\t%s\t%s\t%s\t%s\t%s\n",
		count(r.Operations.Read), size(r.BytesRead), count(r.Errors), health(r.Health, r.Reason), text(r.Path))

	printOpens(t, s)
	fmt.Fprintf(t, "\nopens\t%s\n", opensLine(s))
	fmt.Fprintf(t, "placed\t%s (%s), %s ahead of their open, %s skipped, %s failed\n",
		files(s.Placement.Placed), size(s.Placement.PlacedBytes), count(s.Placement.Prefetched), count(s.Placement.Skipped), count(s.Placement.Failed))
	fmt.Fprintf(t, "copying\t%s (%s), %s waiting\n", files(s.Fills.InFlight), size(s.Fills.InFlightBytes), count(s.Fills.Queued))
	o := r.Operations
	fmt.Fprintf(t, "source\t%s kept open, %s operations: %s\n", files(r.Descriptors), count(o.Total()), byName(map[string]int64{
		"open": o.Open, "read": o.Read, "stat": o.Stat, "readdir": o.Readdir, "readlink": o.Readlink, "xattr": o.Xattr,
	}))
	printRequests(t, r.Requests)
	return t.Flush()
}

// printRequests tells what the server of a bucket was asked, if there is one.
func printRequests(w io.Writer, r *control.Requests) {
	if r == nil {
		return
	}
	fmt.Fprintf(w, "bucket\t%s requests: %s; %s received\n", count(r.Total()),
		byName(map[string]int64{"list": r.List, "get": r.Get, "other": r.Other}), size(r.BytesReceived))
	fmt.Fprintf(w, "\t%s sent again after errors, %s as hedges; %s answers asked to slow down; %s keys hidden\n",
		count(r.Retries), count(r.Hedges), count(r.Throttled), count(r.HiddenKeys))
}

// printOpens tells what was opened at each level, fastest first, in which mode,
// and where the kernel reads by itself.
func printOpens(w io.Writer, s control.Status) {
	fmt.Fprintln(w, "\nLEVEL\tMODE\tOPENS\tOPENED\tPASSTHROUGH")
	for _, level := range levels(s) {
		name, by := level, passthrough(s, level)
		for _, mode := range slices.Sorted(maps.Keys(s.Opens[level])) {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", name, mode, count(s.Opens[level][mode]), size(s.OpenedBytes[level][mode]), by)
			name, by = "", "" // said once for a level
		}
		if name != "" {
			fmt.Fprintf(w, "%s\t-\t0\t0 B\t%s\n", name, by)
		}
	}
	if s.Mode == string(config.Passthrough) {
		fmt.Fprintln(w, "READ and READS are without those in passthrough, which the kernel makes by itself.")
	}
}

// passthrough tells whether the kernel reads the files of a level by itself.
func passthrough(s control.Status, level string) string {
	for _, t := range s.Tiers {
		if t.Name == level {
			return onOff(t.Passthrough, t.PassthroughReason)
		}
	}
	if level == sourceLevel {
		return onOff(s.Source.Passthrough, s.Source.PassthroughReason)
	}
	return ""
}

func onOff(on bool, reason string) string {
	switch {
	case on:
		return "on"
	case reason != "":
		return "off: " + reason
	}
	return "off"
}

// opensLine tells how many opens a tier served.
func opensLine(s control.Status) string {
	total, local := int64(0), int64(0)
	for i, level := range levels(s) {
		for _, n := range s.Opens[level] {
			total += n
			if i < len(s.Tiers) {
				local += n
			}
		}
	}
	return fmt.Sprintf("%s, %s from a tier; %s open now", count(total), percent(local, total), count(s.OpenHandles))
}

// sourceLevel is the name of the level below the tiers.
const sourceLevel = "source"

// levels lists the tiers, the source, and what else opens are counted under.
func levels(s control.Status) []string {
	var names []string
	for _, t := range s.Tiers {
		names = append(names, t.Name)
	}
	names = append(names, sourceLevel)
	for _, level := range slices.Sorted(maps.Keys(s.Opens)) {
		if !slices.Contains(names, level) {
			names = append(names, level)
		}
	}
	return names
}

func health(h control.Health, reason string) string {
	if reason != "" {
		return fmt.Sprintf("%s: %s", h, reason)
	}
	return cmp.Or(string(h), "-")
}

// completeMounts completes a mount point.
func completeMounts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	points, err := mountPoints(nil)
	if err != nil {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return points, cobra.ShellCompDirectiveDefault
}
