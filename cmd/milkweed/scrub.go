package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/placement"
)

// scrubFlags are the flags of the command scrub.
type scrubFlags struct {
	asJSON, background bool
	rate               string
}

func newScrub() *cobra.Command {
	var flags scrubFlags
	c := &cobra.Command{
		Use:   "scrub [PATH]",
		Short: "Compare all copies in the tiers with their checksums",
		Long: `Scrub reads the copies in all tiers of a mount from their disks, compares them
with their checksums, and shows its progress. It removes corrupt copies, and
copies their files again. A file whose attributes the mount has not cached is
copied again when it is next opened. Otherwise scrub makes no request to the
source.

PATH is a mount point, or a directory or file below one, whose copies scrub
verifies. Without PATH, scrub needs exactly one mount.

Scrub reads one block of 1 MiB at a time, and waits up to 0.1 s before each
while programs read through the daemon. It does not notice programs whose reads
the kernel serves directly, in mode passthrough; use --rate to leave them
bandwidth. The copies leave the page cache.

Ctrl-C stops the scrub. With --background, scrub returns at once and the daemon
goes on; milkweed status shows the progress and the result. A mount has one
scrub at a time. scrub.interval in tiering.toml makes the daemon start scrubs
itself.

Scrub exits with 8 if a copy was corrupt, even if its file was copied again; if
a copy could not be read or a tier was skipped; or if it was stopped. With
--json it prints the result as one object, which has the fields of scrub.last in
milkweed status --json.`,
		Example: `  milkweed scrub
  milkweed scrub --rate 100MB --background /mnt/imagenet
  milkweed scrub --json | jq .copies_corrupt`,
		Args:              usage(cobra.MaximumNArgs(1)),
		ValidArgsFunction: completeMounts,
		RunE: func(c *cobra.Command, args []string) error {
			return runScrub(c, flags, args)
		},
	}
	c.Flags().StringVar(&flags.rate, "rate", "", "read at most `SIZE` bytes per second from the tiers, such as 100MB; the default is no limit")
	c.Flags().BoolVar(&flags.background, "background", false, "return at once; the daemon goes on")
	c.Flags().BoolVar(&flags.asJSON, "json", false, "print the result as JSON")
	return c
}

func runScrub(c *cobra.Command, flags scrubFlags, args []string) error {
	rate, err := config.ParseRate(flags.rate)
	if err != nil {
		return usageError(c, fmt.Errorf("--rate: %w", err))
	}
	if flags.background && flags.asJSON {
		return usageError(c, errors.New("--background has no result that --json could print"))
	}
	point, names, err := warmupNames(args)
	if err != nil {
		return err
	}
	client, err := control.Dial(c.Context(), point)
	if err != nil {
		return err
	}
	defer client.Close()
	req := control.ScrubRequest{Name: []byte(names[0]), Rate: rate}
	if flags.background {
		if err := client.StartScrub(c.Context(), req); err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "scrub started; `milkweed status %s` shows its progress\n", text(point))
		return nil
	}
	d := newDisplay(c.ErrOrStderr(), flags.asJSON)
	last, err := client.Scrub(c.Context(), req, func(r placement.ScrubReport) { d.show(scrubStep(r)) })
	d.end()
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return printScrub(c, flags, last, err)
}

// printScrub prints the result of a scrub, and returns the error of the command. err is not nil
// if the scrub was interrupted.
func printScrub(c *cobra.Command, flags scrubFlags, last placement.ScrubReport, err error) error {
	if flags.asJSON {
		if err := printJSON(c.OutOrStdout(), last); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(c.OutOrStdout(), scrubSummary(last))
	}
	for _, e := range last.Errors {
		fmt.Fprintf(c.ErrOrStderr(), "%s: %s\n", text(e.Path), e.Error)
	}
	for _, t := range last.Skipped {
		fmt.Fprintf(c.ErrOrStderr(), "tier %s was not verified to the end: %s\n", t.Tier, t.Reason)
	}
	return scrubOutcome(last, err)
}

// scrubSummary describes the result of a scrub, or its state, on one line.
func scrubSummary(r placement.ScrubReport) string {
	took := time.Duration(r.Seconds * float64(time.Second)).Round(10 * time.Millisecond)
	line := fmt.Sprintf("%s (%s) verified in %v, %s corrupt",
		plural(r.CopiesRight+r.CopiesCorrupt, "copy", "copies"), size(r.BytesRead), took, count(r.CopiesCorrupt))
	if r.Refetched > 0 {
		line += fmt.Sprintf(", %s copied again", files(r.Refetched))
	}
	if r.CopiesFailed > 0 {
		line += fmt.Sprintf("; %s failed", plural(r.CopiesFailed, "copy", "copies"))
	}
	if n := int64(len(r.Skipped)); n > 0 {
		line += fmt.Sprintf("; %s skipped", plural(n, "tier", "tiers"))
	}
	if r.Stopped {
		line += "; it was stopped"
	}
	return line
}

// scrubOutcome returns the error of a scrub with the result r. err is not nil if it was
// interrupted.
func scrubOutcome(r placement.ScrubReport, err error) error {
	e := &exit.Error{Code: exit.Incomplete}
	switch {
	case err != nil: // Ctrl-C
		e.Err, e.Remedy = errors.New("the scrub was stopped"), "Run it again to verify all copies."
	case r.CopiesCorrupt > 0:
		e.Err = fmt.Errorf("%s corrupt", plural(r.CopiesCorrupt, "copy was", "copies were"))
		e.Remedy = "Corrupt copies are removed and made again. If more appear, replace the disk or the memory of the tier."
	case r.CopiesFailed > 0:
		e.Err = fmt.Errorf("%s could not be verified", plural(r.CopiesFailed, "copy", "copies"))
		e.Remedy = "The log of the daemon has the reasons."
	case len(r.Skipped) > 0:
		e.Err = fmt.Errorf("%s not verified", plural(int64(len(r.Skipped)), "tier was", "tiers were"))
		e.Remedy = "`milkweed status` shows the health of each tier."
	default:
		return nil
	}
	return e
}

// scrubStep returns the state r for a display. The total of a part of the dataset is unknown.
func scrubStep(r placement.ScrubReport) step {
	s := step{text: scrubLine(r), bytes: r.BytesRead, state: r}
	if r.BytesExpected > 0 {
		s.total = max(r.BytesExpected, r.BytesFound)
	}
	return s
}

func scrubLine(r placement.ScrubReport) string {
	return fmt.Sprintf("%s of %s, %s corrupt", count(r.CopiesRight+r.CopiesCorrupt+r.CopiesFailed+r.CopiesGone),
		plural(max(r.CopiesExpected, r.CopiesFound), "copy", "copies"), count(r.CopiesCorrupt))
}

// scrubStatus describes the scrubs of a mount for the output of status.
func scrubStatus(s placement.ScrubStats) string {
	switch {
	case s.Current != nil:
		return fmt.Sprintf("in progress since %s: %s, %s read", s.Current.Started.Local().Format(time.DateTime), scrubLine(*s.Current), size(s.Current.BytesRead))
	case s.Last != nil:
		return fmt.Sprintf("%s of %s: %s", s.Last.Started.Local().Format(time.DateTime), text(s.Last.Path), scrubSummary(*s.Last))
	}
	return "none since the mount"
}
