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
		Short: "Copy files into the tiers before a job reads them",
		Long: `Warmup copies the files below each PATH into the tiers, and shows its progress.
All paths are in one mount. Without PATH, warmup copies the whole dataset; this
needs exactly one mount. Files that have a copy in a tier are not copied again.
Files that no tier accepts, because it has no room or is not healthy, are
skipped.

Ctrl-C stops the warm-up. Complete copies stay.

Warmup goes on after an error of the source. A name or a directory that the
source does not show counts as one file that failed.

Warmup exits with 8 if files could not be copied or if it was stopped. With
--json it prints the result as one object: files_total, files_done,
files_skipped, files_failed, bytes_total, bytes_done, bytes_skipped,
bytes_failed, and errors[], which has the path and the error of the first files
that failed.`,
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
	c.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return c
}

// warmupNames returns the mount point of the mount that all paths are in, and their names below
// it. It is an error if they are in more than one mount.
func warmupNames(paths []string) (point string, names []string, err error) {
	if len(paths) == 0 {
		points, err := mountPoints()
		if err == nil && len(points) == 0 {
			err = errNotMounted
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

func warmup(ctx context.Context, point string, names []string, progress func(control.Progress)) (control.Progress, error) {
	c, err := control.Dial(ctx, point)
	if err != nil {
		return control.Progress{}, err
	}
	defer c.Close()
	return c.Warmup(ctx, names, progress)
}

// summary returns the last line of the output.
func summary(p control.Progress, took time.Duration) string {
	line := fmt.Sprintf("%s of %s (%s of %s) in the tiers after %v",
		count(p.FilesDone), files(p.FilesTotal), size(p.BytesDone), size(p.BytesTotal), took.Round(10*time.Millisecond))
	if p.FilesSkipped > 0 {
		line += fmt.Sprintf("; %s (%s) skipped, because no tier has room", files(p.FilesSkipped), size(p.BytesSkipped))
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
	return &exit.Error{
		Code:   exit.Incomplete,
		Err:    fmt.Errorf("%s could not be copied", files(p.FilesFailed)),
		Remedy: "They are read from the source. Run it again to retry them.",
	}
}

// A shower shows the progress of a warm-up.
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

// A bar is a progress bar on a terminal.
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
	// A full bar cannot become less full, and during the scan all files found so far may be
	// copied. The bar is therefore never full.
	total := max(p.BytesTotal, 1)
	b.ChangeMax64(total)
	b.Set64(min(bytesEnded(p), total-1))
}

func (b bar) end() { b.Clear() }

// lines prints a line from time to time, where the output is not a terminal.
type lines struct {
	w    io.Writer
	last time.Time
}

const linesEvery = 5 * time.Second

func (l *lines) show(p control.Progress) {
	if l.due() {
		fmt.Fprintf(l.w, "%s, %s of %s\n", filesLine(p), size(bytesEnded(p)), size(p.BytesTotal))
	}
}

// due reports whether it is time for the next line.
func (l *lines) due() bool {
	if time.Since(l.last) < linesEvery {
		return false
	}
	l.last = time.Now()
	return true
}

func (l *lines) end() {}

func filesLine(p control.Progress) string {
	found := files(p.FilesTotal)
	if p.Scanning {
		found += " found so far"
	}
	return fmt.Sprintf("%s of %s", count(p.FilesDone+p.FilesSkipped+p.FilesFailed), found)
}

// bytesEnded returns the sizes of the files that are done, skipped or failed.
func bytesEnded(p control.Progress) int64 { return p.BytesDone + p.BytesSkipped + p.BytesFailed }
