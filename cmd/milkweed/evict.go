package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/placement"
)

func newEvict() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "evict PATH…",
		Short: "Remove the copies of files from the tiers",
		Long: `Evict removes the copies of the files at and below each PATH from all tiers, to
make room for others. The files stay in the mount, and the source is not
changed: Milkweed reads them from the source from then on, and copies a file
again when a job opens it or prefetching reaches it. A copy that is being made
stays.

Open files stay readable. The room of a copy that is open or mapped is returned
when its last user has closed it.

All paths are in one mount. The mount point itself stands for all copies of the
dataset, or of the generation that the mount shows. PATH may be a file that the
source no longer has. To remove the copies of all such files, use milkweed
refresh --prune.

Evict exits with 2 if there is no copy and a PATH does not exist, and with 8 if
copies could not be removed or if it was stopped. With --json it prints one
object with copies_removed, bytes_removed, copies_failed and first_error.`,
		Example: `  milkweed evict /mnt/imagenet/train/n01440764
  milkweed evict --json /mnt/imagenet | jq .bytes_removed`,
		Args: usage(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			point, names, err := warmupNames(args)
			if err != nil {
				return err
			}
			return removeCopies(c, point, text(point), asJSON, func(client *control.Client, show func(placement.DropReport)) (placement.DropReport, error) {
				return client.Evict(c.Context(), names, show)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return c
}

// removeCopies is a command that removes copies by a call of run, with a display of its progress. The result
// begins with what.
func removeCopies(
	c *cobra.Command, point, what string, asJSON bool, run func(*control.Client, func(placement.DropReport)) (placement.DropReport, error),
) error {
	client, err := control.Dial(c.Context(), point)
	if err != nil {
		return err
	}
	defer client.Close()
	d := newDisplay(c.ErrOrStderr(), asJSON)
	r, err := run(client, func(r placement.DropReport) { d.show(step{text: removedLine(r), state: r}) })
	d.end()
	if errors.Is(err, context.Canceled) {
		err = &exit.Error{Code: exit.Incomplete, Err: errors.New("the removal was stopped"), Remedy: "Run it again to remove the rest."}
	}
	if err != nil && exit.Of(err) != exit.Incomplete {
		return err
	}
	if asJSON {
		return errors.Join(printJSON(c.OutOrStdout(), r), err)
	}
	fmt.Fprintf(c.OutOrStdout(), "%s: %s\n", what, removedLine(r))
	return err
}

func removedLine(r placement.DropReport) string {
	return fmt.Sprintf("%s (%s) removed", plural(r.Copies, "copy", "copies"), size(r.Bytes))
}
