package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

func newWarmup() *cobra.Command {
	var asJSON, dryRun bool
	c := &cobra.Command{
		Use:   "warmup [PATH…]",
		Short: "Copy files into the tiers before a job reads them",
		Long: `Warmup copies the files below each PATH into the tiers, and shows its progress.
All paths are in one mount. Without PATH, warmup copies the whole dataset; this
needs exactly one mount. Files that have a copy in a tier are not copied again.
Files that no tier accepts, because it has no room or is not healthy, are
skipped. With peers, each node copies its own files, and files of other nodes as
far as its own leave room: run warmup on all nodes.

The progress is a bar on a terminal. In a log it is a line every 10 seconds,
with the rate; and with the share and the time left, when all directories are
listed. With --json these lines are objects, on standard error.

With --dry-run, warmup lists the directories and copies nothing. It says how
many files are to be copied, what their copies need and what the tiers have
left, as in "this needs 140 GiB, and the tiers have 96 GiB". It exits with 8 if
there is no room for all, or a name cannot be copied or listed. With --json, the
object has needed_bytes, room_bytes and files_without_inodes, too; files_done
are files that have copies already.

Ctrl-C stops the warm-up. Complete copies stay.

Warmup goes on after an error of the source. A name or a directory that the
source does not show counts as one file that failed.

Warmup exits with 8 if files could not be copied or if it was stopped. With
--json it prints the result as one object: files_total, files_done,
files_skipped, files_failed, bytes_total, bytes_done, bytes_skipped,
bytes_failed, and errors[], which has the path and the error of the first files
that failed. With a manifest it has files_mismatched: of the failed files, those
that the source does not have as in the manifest, and that cannot be read. With
peers it has files_elsewhere and bytes_elsewhere, which are on other nodes.`,
		Example: `  milkweed warmup
  milkweed warmup --dry-run /mnt/imagenet
  milkweed warmup /mnt/imagenet/val /mnt/imagenet/train/n01440764`,
		RunE: func(c *cobra.Command, args []string) error {
			point, names, err := warmupNames(args)
			if err != nil {
				return err
			}
			d := newDisplay(c.ErrOrStderr(), asJSON)
			run, print, ended := (*control.Client).Warmup, printWarmup, outcome
			if dryRun {
				run, print, ended = (*control.Client).Estimate, printEstimate, estimateOutcome
			}
			start := time.Now()
			last, err := warmup(c.Context(), point, names, run, func(p control.Progress) { d.show(warmupStep(p)) })
			d.end()
			if err != nil && !errors.Is(err, context.Canceled) {
				return err
			}
			if err := print(c.OutOrStdout(), last, time.Since(start), asJSON); err != nil {
				return err
			}
			for _, f := range last.Errors {
				fmt.Fprintf(c.ErrOrStderr(), "%s: %s\n", text(f.Path), f.Error)
			}
			return ended(last, err)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be copied and whether there is room, and copy nothing")
	return c
}

// warmupNames returns the mount point of the mount that all paths are in, and their names below
// it. It is an error if they are in more than one mount.
func warmupNames(paths []string) (point string, names []string, err error) {
	if len(paths) == 0 {
		points, err := mountPoints()
		if err == nil && len(points) == 0 {
			err = notMounted()
		}
		if err != nil {
			return "", nil, err
		}
		if len(points) > 1 {
			return "", nil, severalMounts(points[0], points[1])
		}
		return points[0], []string{"."}, nil
	}
	for _, path := range paths {
		m, name, err := control.Find(path)
		if err != nil {
			return "", nil, err
		}
		if point != "" && point != m.Point {
			return "", nil, severalMounts(point, m.Point)
		}
		point = m.Point
		names = append(names, name)
	}
	return point, names, nil
}

func severalMounts(first, second string) error {
	return &exit.Error{
		Code:   exit.Usage,
		Err:    fmt.Errorf("the paths are in two mounts, %s and %s", text(first), text(second)),
		Remedy: "Name paths in one mount.",
	}
}

// warmup calls run, a request that reports the progress of a warm-up.
func warmup(
	ctx context.Context, point string, names []string,
	run func(*control.Client, context.Context, []string, func(control.Progress)) (control.Progress, error),
	progress func(control.Progress),
) (control.Progress, error) {
	c, err := control.Dial(ctx, point)
	if err != nil {
		return control.Progress{}, err
	}
	defer c.Close()
	return run(c, ctx, names, progress)
}

// printWarmup prints the result of a warm-up.
func printWarmup(w io.Writer, p control.Progress, took time.Duration, asJSON bool) error {
	if asJSON {
		return printJSON(w, p)
	}
	_, err := fmt.Fprintln(w, summary(p, took))
	return err
}

// printEstimate prints what a warm-up would do.
func printEstimate(w io.Writer, p control.Progress, _ time.Duration, asJSON bool) error {
	if asJSON {
		return printJSON(w, struct {
			control.Progress
			Needed int64 `json:"needed_bytes"` // also 0
			Room   int64 `json:"room_bytes"`
		}{p, p.NeededBytes, p.RoomBytes})
	}
	line := fmt.Sprintf("%s of %s (%s of %s) to copy: this needs %s, and the tiers have %s", count(p.FilesTotal-p.FilesDone-p.FilesElsewhere-p.FilesFailed), files(p.FilesTotal),
		size(p.BytesTotal-p.BytesDone-p.BytesElsewhere-p.BytesFailed), size(p.BytesTotal), size(p.NeededBytes), size(p.RoomBytes))
	if p.BytesSkipped > 0 {
		line += fmt.Sprintf("; no room for %s (%s)", files(p.FilesSkipped), size(p.BytesSkipped))
	}
	if p.FilesNoInode > 0 {
		line += fmt.Sprintf(", for %s of them because there are too few inodes", count(p.FilesNoInode))
	}
	if p.FilesElsewhere > 0 {
		line += fmt.Sprintf("; %s (%s) for other nodes to copy", files(p.FilesElsewhere), size(p.BytesElsewhere))
	}
	_, err := fmt.Fprintln(w, line)
	return err
}

// estimateOutcome is outcome for an estimate.
func estimateOutcome(p control.Progress, err error) error {
	e := &exit.Error{Code: exit.Incomplete}
	switch {
	case err != nil: // Ctrl-C
		e.Err = errors.New("stopped before all files were counted")
		e.Remedy = "Run it again to count all."
	case p.BytesSkipped > 0:
		e.Err = fmt.Errorf("the tiers have no room for %s", size(p.BytesSkipped))
		e.Remedy = "It would be read from the source in every epoch. Raise a quota, add a tier, or make room with `milkweed evict`."
		if p.FilesNoInode > 0 {
			e.Remedy = "It would be read from the source in every epoch. Put a tier on a file system with more inodes, or pack the files."
		}
	case p.FilesFailed > 0:
		e.Err = fmt.Errorf("%s cannot be copied or listed", plural(p.FilesFailed, "name", "names"))
		e.Remedy = "The lines above say why. If the source has failed, run it again when it works."
	default:
		return nil
	}
	return e
}

// summary returns the last line of the output.
func summary(p control.Progress, took time.Duration) string {
	line := fmt.Sprintf("%s of %s (%s of %s) in the tiers after %v",
		count(p.FilesDone), files(p.FilesTotal), size(p.BytesDone), size(p.BytesTotal), took.Round(10*time.Millisecond))
	if p.FilesTotal == 0 && p.FilesFailed == 0 && !p.Scanning {
		line += "; there is no regular file, and links in directories are not followed"
	}
	if p.FilesSkipped > 0 {
		line += fmt.Sprintf("; %s (%s) skipped, because no tier has room", files(p.FilesSkipped), size(p.BytesSkipped))
	}
	if p.FilesElsewhere > 0 {
		line += fmt.Sprintf("; %s (%s) on other nodes", files(p.FilesElsewhere), size(p.BytesElsewhere))
	}
	if p.FilesFailed > 0 {
		line += fmt.Sprintf("; %s (%s) failed", files(p.FilesFailed), size(p.BytesFailed))
	}
	return line
}

// outcome returns the error of a warm-up. p is its last progress, and err is not nil if it was
// interrupted.
func outcome(p control.Progress, err error) error {
	switch {
	case err != nil: // Ctrl-C
		return &exit.Error{
			Code:   exit.Incomplete,
			Err:    errors.New("the warm-up was stopped"),
			Remedy: "Complete copies stay. Run it again to copy the rest.",
		}
	case p.FilesFailed == 0:
		return nil
	}
	return notCopied(p.FilesFailed, p.FilesMismatched)
}

// notCopied returns the error for files that failed, some of which the source does not have as in the manifest.
func notCopied(failed, mismatched int64) error {
	e := &exit.Error{
		Code:   exit.Incomplete,
		Err:    fmt.Errorf("%s could not be copied", files(failed)),
		Remedy: "Run it again to retry. Until then, a job that opens them reads the source, with its errors.",
	}
	if mismatched > 0 {
		e.Err = fmt.Errorf("%w; %s of them cannot be read, because the source and the manifest differ", e.Err, count(mismatched))
		e.Remedy = "`milkweed check --manifest` names what differs. Restore the files, or write a new manifest and mount with it."
	}
	return e
}

// warmupStep returns the progress p for a display. While directories are listed, it has no total.
func warmupStep(p control.Progress) step {
	s := step{bytes: p.BytesDone + p.BytesSkipped + p.BytesElsewhere + p.BytesFailed, state: p}
	ended := p.FilesDone + p.FilesSkipped + p.FilesElsewhere + p.FilesFailed
	if p.Scanning {
		s.text = fmt.Sprintf("listing: %s (%s) found so far, %s done", files(p.FilesTotal), size(p.BytesTotal), count(ended))
		return s
	}
	s.text, s.total = fmt.Sprintf("%s of %s", count(ended), files(p.FilesTotal)), p.BytesTotal
	return s
}
