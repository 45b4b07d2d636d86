package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

func newWarmup() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "warmup [PATH…]",
		Short: "Copy files into the tiers before a job asks for them",
		Long: `Warmup has the daemon copy the files below each PATH, which is in a mount, into
the tiers, and shows how far it is. Without PATH it copies the whole dataset of
the one mount that there is. Files that a tier holds are not copied again; files
that no tier has room for are skipped.

Ctrl-C stops it; what is copied until then stays.

It exits with 8 when files could not be copied, or when it was stopped. With
--json it prints the last state as one object: files_total, files_done,
files_skipped, files_failed, bytes_total, bytes_done, bytes_skipped,
bytes_failed, and errors[], the path and the error of the first few that failed.`,
		Example: `  milkweed warmup
  milkweed warmup /mnt/imagenet/val /mnt/imagenet/train/n01440764`,
		RunE: func(c *cobra.Command, args []string) error {
			point, names, err := warmupNames(args)
			if err != nil {
				return err
			}
			shower := newShower(c.ErrOrStderr())
			start := time.Now()
			last, err := warmup(c.Context(), point, names, shower.show)
			shower.end()
			if err != nil && !errors.Is(err, context.Canceled) {
				return err
			}
			if asJSON {
				if err := printJSON(c.OutOrStdout(), last); err != nil {
					return err
				}
			} else {
				fmt.Fprintln(c.OutOrStdout(), summary(last, time.Since(start)))
			}
			for _, f := range last.Errors {
				fmt.Fprintf(c.ErrOrStderr(), "%s: %s\n", text(f.Path), f.Error)
			}
			return outcome(last, err)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the last state as JSON")
	return c
}

// warmupNames returns the one mount that all paths are in, and their names.
func warmupNames(paths []string) (point string, names []string, err error) {
	if len(paths) == 0 {
		points, err := mountPoints(nil)
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
		Err:    fmt.Errorf("one mount is warmed up at a time, not %s and %s", text(first), text(second)),
		Remedy: "Name the paths of one.",
	}
}

func warmup(ctx context.Context, point string, names []string, progress func(control.Progress)) (control.Progress, error) {
	c, err := control.Dial(ctx, point)
	if err != nil {
		return control.Progress{}, err
	}
	defer c.Close()
	return c.Warmup(ctx, names, progress)
}

// summary is the last line.
func summary(p control.Progress, took time.Duration) string {
	line := fmt.Sprintf("%s of %s (%s of %s) in the tiers after %v",
		count(p.FilesDone), files(p.FilesTotal), size(p.BytesDone), size(p.BytesTotal), took.Round(10*time.Millisecond))
	if p.FilesSkipped > 0 {
		line += fmt.Sprintf("; %s (%s) skipped, for want of room", files(p.FilesSkipped), size(p.BytesSkipped))
	}
	if p.FilesFailed > 0 {
		line += fmt.Sprintf("; %s (%s) failed", files(p.FilesFailed), size(p.BytesFailed))
	}
	return line
}

// outcome is the error of a warm-up that ended as p says.
func outcome(p control.Progress, err error) error {
	switch {
	case err != nil: // Ctrl-C
		return &exit.Error{
			Code:   exit.Incomplete,
			Err:    errors.New("the warm-up was stopped"),
			Remedy: "What is copied stays. Run it again to copy the rest.",
		}
	case p.FilesFailed == 0:
		return nil
	}
	return &exit.Error{
		Code:   exit.Incomplete,
		Err:    fmt.Errorf("%s could not be copied", files(p.FilesFailed)),
		Remedy: "They are read from the source. Run it again to try them again.",
	}
}

// A shower shows how far a warm-up is.
type shower interface {
	show(control.Progress)
	end()
}

func newShower(w io.Writer) shower {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return newBar(f)
	}
	return &lines{w: w, last: time.Now()}
}

// A bar shows it on a terminal.
type bar struct{ *progressbar.ProgressBar }

func newBar(w io.Writer) bar {
	return bar{progressbar.NewOptions64(1,
		progressbar.OptionSetWriter(w),
		progressbar.OptionShowBytes(true),
		progressbar.OptionShowTotalBytes(true),
		progressbar.OptionUseIECUnits(true),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetWidth(20),
	)}
}

func (b bar) show(p control.Progress) {
	b.Describe(filesLine(p))
	// A bar that was full once stays full, and while it is scanning the daemon
	// may have copied all that it has found: so it is never quite full.
	total := max(p.BytesTotal, 1)
	b.ChangeMax64(total)
	b.Set64(min(bytesEnded(p), total-1))
}

func (b bar) end() { b.Clear() }

// lines shows it in a log.
type lines struct {
	w    io.Writer
	last time.Time
}

const linesEvery = 5 * time.Second

func (l *lines) show(p control.Progress) {
	if time.Since(l.last) < linesEvery {
		return
	}
	l.last = time.Now()
	fmt.Fprintf(l.w, "%s, %s of %s\n", filesLine(p), size(bytesEnded(p)), size(p.BytesTotal))
}

func (l *lines) end() {}

func filesLine(p control.Progress) string {
	found := files(p.FilesTotal)
	if p.Scanning {
		found += " found so far"
	}
	return fmt.Sprintf("%s of %s", count(p.FilesDone+p.FilesSkipped+p.FilesFailed), found)
}

// bytesEnded is how much of the total needs nothing any more.
func bytesEnded(p control.Progress) int64 { return p.BytesDone + p.BytesSkipped + p.BytesFailed }
