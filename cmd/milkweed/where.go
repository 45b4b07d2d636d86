package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

func newWhere() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "where PATH…",
		Short: "Show which tier has the copy of a file",
		Long: `Where shows the state of each PATH, which is a file in a mount, and the level
that serves its reads:

  placed      a tier has a copy; the path of the copy follows
  filling     a copy is in flight; the share that is copied follows, and the
              reason if only what readers ask for is copied
  source      only the source has the file; its next open starts a copy
  not placed  only the source has the file, and it is not copied; the reason
              follows

Where does not open the file and starts no copy. It follows symbolic links. In
the mount of another user with allow_other, it shows what this user may read.

With --json, where prints one object on one line for each PATH: path, type,
size_bytes, level, tier_path, state (placed, filling, source or not_placed),
reason, filled_bytes. If a path is not UTF-8, path_bytes and tier_path_bytes
have it in base64.`,
		Example: `  milkweed where /mnt/imagenet/train/n01440764/*.JPEG
  milkweed where --json /mnt/imagenet/train.tar | jq -r .state`,
		Args: usage(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			locations, err := where(c.Context(), args)
			print := printLocations
			if asJSON {
				print = printLocationsJSON
			}
			return errors.Join(print(c.OutOrStdout(), locations), err)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// where returns the locations of the paths. The error joins those of the paths that failed.
func where(ctx context.Context, paths []string) ([]control.Location, error) {
	clients := make(map[string]*control.Client)
	defer func() {
		for _, c := range clients {
			c.Close()
		}
	}()
	var locations []control.Location
	var errs []error
	for _, path := range paths {
		m, name, err := control.Find(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c := clients[m.Point]
		if c == nil {
			if c, err = control.Visit(ctx, m.Point); err != nil {
				return locations, errors.Join(append(errs, err)...)
			}
			clients[m.Point] = c
		}
		loc, err := c.Where(ctx, name)
		if err != nil {
			errs = append(errs, whereError(path, err))
			continue
		}
		loc.Path = path
		locations = append(locations, loc)
	}
	return locations, errors.Join(errs...)
}

// whereError adds the path, as the user wrote it, to an error of the daemon.
func whereError(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return &exit.Error{Code: exit.Of(err), Err: fmt.Errorf("%s: %w", text(path), fs.ErrNotExist)}
	}
	return fmt.Errorf("%s: %w", text(path), err)
}

func printLocations(w io.Writer, locations []control.Location) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, l := range locations {
		fmt.Fprintf(t, "%s\t%s\n", text(l.Path), strings.Map(visible, describe(l)))
	}
	return t.Flush()
}

// describe returns the columns of a file: state, level, size and details.
func describe(l control.Location) string {
	if l.State == "" {
		return l.Type
	}
	row := func(state, detail string) string {
		return fmt.Sprintf("%s\t%s\t%s\t%s", state, l.Level, size(l.SizeBytes), detail)
	}
	switch l.State {
	case control.Placed:
		return row("placed", text(l.TierPath))
	case control.Filling:
		detail := size(l.FilledBytes) + " copied"
		if l.Reason != "" {
			detail += "; " + l.Reason
		}
		return row("filling", detail)
	case control.NotPlaced:
		return row("not placed", l.Reason)
	default:
		return row(string(l.State), l.Reason)
	}
}

func printLocationsJSON(w io.Writer, locations []control.Location) error {
	for _, l := range locations {
		if err := printJSON(w, l); err != nil {
			return err
		}
	}
	return nil
}
