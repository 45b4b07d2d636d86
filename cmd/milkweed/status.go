package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/placement"
)

func newStatus() *cobra.Command {
	var asJSON, follow bool
	var interval time.Duration
	c := &cobra.Command{
		Use:   "status [PATH]",
		Short: "Show the tiers, the reads and the copies of a mount",
		Long: `Status shows how full the tiers are, which level served the reads, the
operations on the source, and the copies in flight.

PATH is a mount point or a path below one. Without PATH, status shows every
mount of Milkweed that this user may inspect, and each daemon that is draining:
its mount was unmounted, and is in use in other mount namespaces. Of a daemon
that has no mount yet, status says what it waits for, and exits with 7.

A level is the name of a tier, "peers" or "source". Opens of files whose copies
were in flight have the level "fill". Health is healthy, degraded, down, full or
scanning. A tier is full if its disk has no room for more copies, although its
quota has. It is scanning from the start of the daemon until its earlier copies
are counted.

A mode is passthrough, in which the kernel reads the file of the tier directly;
stateless, in which the kernel opens files without a FUSE round trip; or cached.
The daemon sees neither reads in passthrough nor reads from the page cache, and
does not count them in READS and BYTES READ. For opens in passthrough, BYTES
READ has the sizes of the files, marked "opened". Opens, and these sizes, are
counted in every mode. In mode stateless, the first read of a file in some
seconds counts as its open.

The table of epochs shows how long readers waited, summed over the readers: for
the latency and the bandwidth of the source, for copies in flight, and for
tiers. An epoch is recognized by its opens; "mixed" is none. docs/operations.md
has the definitions.

With --watch, status prints the status of one mount every --interval, with the
rates since the one before, which are those of "milkweed top". On a terminal, it
replaces the last one. Ctrl-C ends it.

The mount of another user is shown if it has allow_other and this user may read
it. Its status then names no file, and of the plans only that of this user.

With --json, status prints one JSON object on one line for each mount. The
schema is stable: a release may add fields. A release that removes a field or
changes its meaning has a new "version". Names of sizes end in _bytes, names of
times in _seconds. Counters start at 0 when the daemon starts. The path of a
bucket is its URL without options. Retries and hedges are also counted in the
requests of their kind. The fields of each object:

` + jsonFields(control.Schema()) + `
docs/operations.md explains each field and names its Prometheus metric.`,
		Example: `  milkweed status
  milkweed status --watch --interval 5s /mnt/imagenet
  milkweed status --json /mnt/imagenet | jq '.tiers[] | {name, used_bytes}'`,
		Args:              usage(cobra.MaximumNArgs(1)),
		ValidArgsFunction: completeMounts,
		RunE: func(c *cobra.Command, args []string) error {
			show := printStatus
			if asJSON {
				show = func(w io.Writer, s control.Status) error { return printJSON(w, s) }
			}
			if follow {
				return watchStatus(c.Context(), c.OutOrStdout(), args, interval, asJSON)
			}
			if len(args) == 0 {
				return showEvery(c.Context(), c.OutOrStdout(), show)
			}
			m, _, err := control.Find(args[0])
			if err != nil {
				return err
			}
			status, err := statusOf(c.Context(), m.Point)
			if err != nil {
				return err
			}
			return show(c.OutOrStdout(), status)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVarP(&follow, "watch", "w", false, "print the status again and again")
	c.Flags().DurationVar(&interval, "interval", 2*time.Second, "with --watch: the time between two of them")
	return c
}

// clearScreen moves the cursor of a terminal to its top, and clears what is below.
const clearScreen = "\x1b[H\x1b[J"

// watchStatus prints the status of a mount every interval, until ctx is done.
func watchStatus(ctx context.Context, w io.Writer, args []string, interval time.Duration, asJSON bool) error {
	if err := checkInterval(interval); err != nil {
		return err
	}
	point, _, err := warmupNames(args)
	if err != nil {
		return err
	}
	f, ok := w.(*os.File)
	onTerminal := ok && !asJSON && term.IsTerminal(int(f.Fd()))
	err = watch(ctx, point, interval, func(s sample) error {
		if s.err != nil {
			return s.err
		}
		if asJSON {
			return printJSON(w, s.status)
		}
		var page bytes.Buffer
		if onTerminal {
			page.WriteString(clearScreen)
		}
		if err := printStatus(&page, s.status); err != nil {
			return err
		}
		page.WriteByte('\n')
		if s.rated {
			printLine(&page, s.rates, true)
		}
		_, err := w.Write(page.Bytes())
		return err
	})
	if ctx.Err() != nil {
		return nil // an interrupt is how it ends
	}
	return err
}

// jsonFields lists the names of fields by the object that has them, in lines that fit a
// terminal.
func jsonFields(fields []control.Field) string {
	const indent, width = "                      ", 80
	var objects []string
	names := make(map[string][]string) // of the fields of an object
	for _, f := range fields {
		i := strings.LastIndexByte(f.Path, '.')
		object, name := f.Path[:max(i, 0)], f.Path[i+1:]
		if names[object] == nil {
			objects = append(objects, object)
		}
		names[object] = append(names[object], name)
	}
	var b strings.Builder
	for _, object := range objects {
		line := fmt.Sprintf("  %-*s", len(indent)-2, cmp.Or(object, "(status)"))
		for i, name := range names[object] {
			if i < len(names[object])-1 {
				name += ","
			}
			if len(line)+len(" ")+len(name) > width {
				b.WriteString(line + "\n")
				line = indent
			}
			line += " " + name
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// mountPoints returns the mount points of all mounts.
func mountPoints() ([]string, error) {
	mounts, err := control.Mounts()
	var points []string
	for _, m := range mounts {
		points = append(points, m.Point)
	}
	return points, err
}

// errNotMounted is the error of a command without a path if nothing is mounted, and nothing is about to be.
var errNotMounted = &exit.Error{
	Code:   exit.NotMounted,
	Err:    errors.New("no Milkweed is mounted"),
	Remedy: "`milkweed mount SOURCE MOUNTPOINT` mounts a dataset.",
}

// notMounted returns the error of a command without a path if nothing is mounted.
func notMounted() error { return cmp.Or(starting(context.Background()), error(errNotMounted)) }

// starting returns the errors of the daemons that have no mount yet, or nil if there are none.
func starting(ctx context.Context) error {
	var errs []error
	for _, s := range control.AllStarting(ctx) {
		errs = append(errs, s.Err)
		s.Close()
	}
	return errors.Join(errs...)
}

// showEvery calls show with the status of every mount and of every daemon that drains. It goes on
// after an error; a daemon that has no mount yet is one. An error of the mount of another user,
// whose daemon may be inaccessible or dead, is not one of the command.
func showEvery(ctx context.Context, w io.Writer, show func(io.Writer, control.Status) error) error {
	mounts, err := control.Mounts()
	if err != nil {
		return err
	}
	var errs []error
	shown := 0
	for _, c := range control.Draining(ctx) {
		if s, err := c.Status(ctx); err == nil { // otherwise it has just ended
			errs = append(errs, show(w, s))
			shown++
		}
		c.Close()
	}
	for _, m := range mounts {
		if m.Part != "" && m.Whole(mounts) != "" {
			continue // the whole mount is shown
		}
		own := m.UID == os.Geteuid()
		s, err := statusOfMount(ctx, m.Point, own)
		switch {
		case err == nil:
			errs = append(errs, show(w, s))
			shown++
		case own:
			errs = append(errs, err)
		}
	}
	errs = append(errs, starting(ctx))
	if err := errors.Join(errs...); err != nil || shown > 0 {
		return err
	}
	return errNotMounted
}

// foreignTimeout bounds how long the daemon of another user may take for the status of all mounts.
const foreignTimeout = 5 * time.Second

// statusOfMount is statusOf. If the mount is not one of this user, it takes neither long nor the name of another one.
func statusOfMount(ctx context.Context, mountPoint string, own bool) (control.Status, error) {
	if own {
		return statusOf(ctx, mountPoint)
	}
	ctx, cancel := context.WithTimeout(ctx, foreignTimeout)
	defer cancel()
	s, err := statusOf(ctx, mountPoint)
	s.MountPoint = mountPoint
	return s, err
}

func statusOf(ctx context.Context, mountPoint string) (control.Status, error) {
	c, err := control.Visit(ctx, mountPoint)
	if err != nil {
		return control.Status{}, err
	}
	defer c.Close()
	return c.Status(ctx)
}

// printStatus prints a status in tables, in one write: the nodes of a job may write to one file.
func printStatus(out io.Writer, s control.Status) error {
	w := new(bytes.Buffer)
	state := "ready"
	switch {
	case s.Draining:
		state = "draining"
	case !s.Ready:
		state = "not ready"
	}
	up := time.Duration(s.UptimeSeconds) * time.Second
	fmt.Fprintf(w, "%s: %s, up %v, process %d, milkweed %s\n", text(s.MountPoint), state, up, s.PID, s.Milkweed)
	fmt.Fprintf(w, "mode %s: %s\n", s.Mode, cmp.Or(s.ModeReason, "-"))
	switch {
	case s.GenerationGone:
		fmt.Fprintf(w, "generation %s, which the source no longer has\n", text(s.Generation))
	case s.Generation != "":
		fmt.Fprintf(w, "generation %s\n", text(s.Generation))
	}

	if s.WhileLocked != "" {
		fmt.Fprintf(w, "ends when no process has a lock on %s\n", text(s.WhileLocked))
	}
	if s.Crashes > 0 || s.Panics > 0 {
		fmt.Fprintf(w, "mounted again after %s; %s: see the log\n", plural(s.Crashes, "crash", "crashes"), plural(s.Panics, "panic", "panics"))
	}
	if s.StuckRequests > 0 {
		fmt.Fprintf(w, "%s for more than a minute, the oldest for %v: see the log\n",
			plural(s.StuckRequests, "request waits", "requests wait"), time.Duration(s.OldestRequestSeconds)*time.Second)
	}
	if s.WaitingCalls > 0 {
		fmt.Fprintf(w, "%s for others to end, because the daemon may have no more threads\n",
			plural(s.WaitingCalls, "call of the source or a tier waits", "calls of the source or a tier wait"))
	}
	for _, n := range s.Elsewhere {
		fmt.Fprintf(w, "mounted in %s\n", text(n.String()))
	}

	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nLEVEL\tUSED\tQUOTA\tUSE%\tFILES\tREADS\tBYTES READ\tERRORS\tCORRUPT\tHEALTH\tPATH")
	for _, r := range s.Tiers {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			r.Name, size(r.UsedBytes), size(r.QuotaBytes), percent(r.UsedBytes, r.QuotaBytes), count(r.Files),
			count(r.Reads), size(r.Bytes), count(r.Errors), count(r.Corrupt), health(r.Health, r.Reason), text(r.Path))
	}
	if p := s.Peers; p != nil {
		fmt.Fprintf(t, "%s\t\t\t\t\t%s\t%s\t%s\t\t%s of %s up\t\n", peersLevel, count(p.Reads), size(p.Bytes), count(p.Failovers), count(p.Up), count(p.Roster.Nodes-1))
	}
	r := s.Source
	fmt.Fprintf(t, "%s\t\t\t\t\t%s\t%s\t%s\t\t%s\t%s\n", sourceLevel,
		count(r.Reads), size(r.Bytes), count(r.Errors), "-", text(r.Path))

	printOpens(t, s)
	printWaits(t, s)
	fmt.Fprintf(t, "\nopens\t%s\n", opensLine(s))
	fmt.Fprintf(t, "complete\t%s\n", completeLine(s))
	fmt.Fprintf(t, "placed\t%s (%s), %s prefetched, %s skipped, %s failed\n",
		files(s.Placement.Placed), size(s.Placement.PlacedBytes), count(s.Placement.Prefetched), count(s.Placement.Skipped), count(s.Placement.Failed))
	fmt.Fprintf(t, "in flight\t%s (%s), %s queued\n", files(s.Fills.InFlight), size(s.Fills.InFlightBytes), count(s.Fills.Queued))
	if n := s.Fills.Lazy; n > 0 {
		fmt.Fprintf(t, "in parts\t%s above 8 MiB, of which only what jobs ask for is copied: %s\n", files(n), size(s.Fills.LazyBytes))
	}
	if n := s.Names.UnopenedFiles; n > 0 {
		fmt.Fprintf(t, "unopened\t%s (%s) copied ahead, which no job has opened\n", files(n), size(s.Names.UnopenedBytes))
	}
	fmt.Fprintf(t, "limit\t%s of at most %s in flight in the background; requests take %.1f × the time of an idle source\n",
		plural(s.Fills.Background, "block", "blocks"), count(s.Fills.BackgroundLimit), s.Fills.SourceSlowdown)
	if w := s.Window; w.Size > 0 {
		fmt.Fprintf(t, "window\t%s\n", windowLine(w))
	}
	if s.Plan.StreamCount > 0 {
		fmt.Fprintf(t, "plan\t%s\n", planSummary(s.Plan))
	}
	if s.Peers != nil {
		fmt.Fprintf(t, "peers\t%s\n", peersLine(*s.Peers))
	}
	fmt.Fprintf(t, "scrub\t%s\n", scrubStatus(s.Scrub))
	if r.Manifest != "" {
		fmt.Fprintf(t, "manifest\t%s; %s not as it says\n", text(r.Manifest), plural(s.Placement.Mismatched, "file is", "files are"))
	}
	operations, total := byKind(&s, "source_operations_total")
	if r.RacyFiles > 0 {
		fmt.Fprintf(t, "racy\t%s changed less than %v ago and not copied yet\n", files(r.RacyFiles),
			time.Duration(r.RacyWindowSeconds*float64(time.Second)))
	}
	fmt.Fprintf(t, "source\t%s, %s operations: %s\n", plural(r.IdleHandles, "idle handle", "idle handles"), count(total), operations)
	if sweeps, total := byKind(&s, "sweep_operations_total"); total > 0 {
		fmt.Fprintf(t, "sweep\t%s of these operations: %s; %s found, %s failed; within %v\n",
			count(total), sweeps, plural(s.Sweep.Changes, "change", "changes"), count(s.Sweep.Errors), time.Duration(s.Sweep.OldestSeconds)*time.Second)
	}
	if q := r.Requests; q != nil {
		requests, total := byKind(&s, "source_requests_total")
		fmt.Fprintf(t, "bucket\t%s requests: %s; %s received\n", count(total), requests, size(q.Bytes))
		fmt.Fprintf(t, "\t%s, %s, %s throttled; %s\n",
			plural(q.Retries, "retry", "retries"), plural(q.Hedges, "hedge", "hedges"), count(q.Throttled),
			plural(q.Hidden, "hidden key", "hidden keys"))
		if q.Refused != "" {
			fmt.Fprintf(t, "\tthe store has refused the credentials for %v: %s\n", time.Duration(q.RefusedSeconds*float64(time.Second)).Round(time.Second), q.Refused)
		}
		if q.Archived > 0 {
			fmt.Fprintf(t, "\t%s archived, and must be restored to be read\n", plural(q.Archived, "object is", "objects are"))
		}
		if q.Denied > 0 {
			fmt.Fprintf(t, "\taccess to %s was denied\n", plural(q.Denied, "object", "objects"))
		}
		if q.ClockOffsetSeconds != 0 {
			fmt.Fprintf(t, "\t%s\n", q.Clock())
		}
		for _, text := range q.Oddities {
			fmt.Fprintf(t, "\t%s\n", text)
		}
	}
	t.Flush()
	_, err := out.Write(bytes.Map(visible, w.Bytes()))
	return err
}

// byKind lists the counters of a metric by the value of its last label, as in "20 open, 40
// read", and returns their sum.
func byKind(s *control.Status, metric string) (list string, total int64) {
	kinds := make(map[string]int64)
	control.Walk(s, func(f control.Field) {
		if f.Metric == metric {
			kinds[f.Labels[len(f.Labels)-1].Value] = f.Value.Int()
			total += f.Value.Int()
		}
	})
	return byName(kinds), total
}

// printOpens prints the opens of each level by mode, the fastest level first, and whether the
// kernel reads the files of the level directly.
func printOpens(w io.Writer, s control.Status) {
	fmt.Fprintln(w, "\nLEVEL\tMODE\tOPENS\tBYTES READ\tPASSTHROUGH")
	for _, level := range levels(s) {
		name, on := level, passthrough(s, level)
		for _, mode := range slices.Sorted(maps.Keys(s.Opens[level])) {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", name, mode, count(s.Opens[level][mode]), toReaders(s, level, mode), on)
			name, on = "", "" // only on the first line of a level
		}
		if name != "" {
			fmt.Fprintf(w, "%s\t-\t0\t0 B\t%s\n", name, on)
		}
	}
	if s.Mode == string(config.Passthrough) {
		fmt.Fprintln(w, `READS and BYTES READ do not include reads in passthrough, which the kernel does directly: "opened" means the sizes of the opened files.`)
	}
}

// toReaders returns what readers got from a level in a mode or, in passthrough, the sizes of the files
// that they opened.
func toReaders(s control.Status, level, mode string) string {
	if mode == string(config.Passthrough) {
		return size(s.OpenedBytes[level][mode]) + " opened"
	}
	return size(s.ReadBytes[level])
}

// passthrough returns the PASSTHROUGH column of a level.
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

// opensLine returns the number of opens, and the share that a tier served.
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

// completeLine says whether the dataset is complete in the tiers: whether another epoch would read
// content from the source.
func completeLine(s control.Status) string {
	n := s.Names
	missing, known := n.Missing(), ""
	if !n.NamesKnown() {
		known = " known"
	}
	var answer string
	switch {
	case s.Draining:
		return "no: copies are not read"
	case n.Complete && n.Files == 0:
		return "yes: the dataset has no files"
	case n.Complete:
		return fmt.Sprintf("yes: all %s (%s) have copies; another epoch reads no content from the source", files(n.Files), size(n.Bytes))
	case missing > 0:
		answer = fmt.Sprintf("no: %s of %s%s files (%s) %s no copy", count(missing), count(n.Files), known, size(n.Bytes-n.CopiedBytes), has(missing))
	default:
		answer = fmt.Sprintf("not known: %s of %s known files have copies", count(n.CopiedFiles), count(n.Files))
	}
	parts := []string{answer}
	if d := n.UnlistedDirs; d > 0 {
		parts = append(parts, plural(d, "directory is", "directories are")+" not listed yet")
	}
	if u := n.UnknownNames; u > 0 {
		parts = append(parts, plural(u, "name has", "names have")+" no attributes yet")
	}
	if u := n.UnknownFiles; u > 0 {
		parts = append(parts, "the pieces of "+files(u)+" were not looked for yet")
	}
	if d := n.DeniedDirs; d > 0 {
		parts = append(parts, plural(d, "directory", "directories")+" cannot be listed: permission denied")
	}
	switch {
	case n.OpenedComplete:
		parts = append(parts, fmt.Sprintf("another epoch over the %s opened reads no content from the source", files(n.OpenedFiles)))
	case n.OpenedMissing > 0:
		parts = append(parts, fmt.Sprintf("%s of the %s opened %s no copy", count(n.OpenedMissing), files(n.OpenedFiles), has(n.OpenedMissing)))
	}
	if s.Peers != nil {
		parts = append(parts, "other nodes may have copies")
	}
	return strings.Join(parts, "; ")
}

// has returns the verb of a number of files.
func has(n int64) string {
	if n == 1 {
		return "has"
	}
	return "have"
}

// The names of the source and of the other nodes as levels.
const (
	sourceLevel = control.SourceLevel
	peersLevel  = control.PeersLevel
)

// windowLine returns how full the window is.
func windowLine(w placement.WindowStats) string {
	return fmt.Sprintf("%s of %s used, %s; %s dropped after use, %s before",
		size(w.Taken), size(w.Size), plural(w.Files, "file", "files"), count(w.Used), count(w.Unused))
}

// peersLine returns what passed between this node and the others.
func peersLine(p control.Peers) string {
	return fmt.Sprintf("%s of %s: %s read from others, %s, %s; %s served to others, %s from copies in flight",
		cmp.Or(text(p.Self), "none"), members(p.Roster), size(p.Bytes), plural(p.Failovers, "failover", "failovers"),
		plural(p.Misses, "miss", "misses"), size(p.ServedBytes), plural(p.Joined, "request", "requests"))
}

// levels lists the tiers, the source, and the other levels under which opens are counted.
func levels(s control.Status) []string {
	var names []string
	for _, t := range s.Tiers {
		names = append(names, t.Name)
	}
	if s.Peers != nil {
		names = append(names, peersLevel)
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

// completeMounts is a shell completion of mount points.
func completeMounts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	points, err := mountPoints()
	if err != nil {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return points, cobra.ShellCompDirectiveDefault
}
