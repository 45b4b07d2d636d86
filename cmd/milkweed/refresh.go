package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/placement"
)

func newRefresh() *cobra.Command {
	var flags refreshFlags
	c := &cobra.Command{
		Use:   "refresh [PATH…]",
		Short: "Make changes of the source visible now",
		Long: `Refresh compares the names and attributes that are cached below each PATH with
the source. When it returns, every later open, lookup and listing below PATH
sees what the source had when refresh was called. Open files keep their
version. A PATH is a mount point, or a file or directory in a mount. Without
PATH, refresh does this for all mounts of the user, or as root for all mounts.

Without refresh, changes are seen within mount.consistency, a minute by default,
and later if many names are in use; see docs/SEMANTICS.md.

Only what is cached costs requests: one listing for each cached directory, and
a lookup for each name in a directory that was never listed. Up to 8 requests
are in flight. The kernel drops what has changed and nothing else. Copies of
unchanged files stay.

With --prune, refresh then removes the copies of files that the source no longer
has, below each PATH and in all tiers. It asks the source for each file before
it removes a copy, and keeps what it cannot examine. Open files stay readable.
With --dry-run it lists these copies and removes none. Directories with copies
whose names are not cached cost one listing each.

A part of the source may be missing only because it is not mounted. So --prune
removes nothing if the source is empty, cannot be read, does not answer for a
minute, or lacks the files of more than half of the copies below a PATH; and it
keeps the copies in directories that are empty now, or on another file system
than when they were first seen. It then prints the directories of these copies.
With --force they are removed, unless the source itself is empty.

Refresh exits with 8 if names could not be compared or if it was stopped, with 1
if a PATH does not exist, with 3 if the source cannot be read or if --prune has
kept copies of files that it lacks, and with 7 if a PATH is not in a mount or
its daemon does not answer.
With --json it prints one object on one line for each mount: mount_point, names,
added, removed, replaced and failed, which are counts; changes[], which has the
path below the mount point and the change (added, removed or replaced) of up to
100,000 names, and changes_omitted, the number of others; and errors[], which
has the path and the error of the first names that failed. With --prune, pruned
has the counts of copies and their bytes, and pruned_directories[] has path,
copies, bytes and, if it was kept for one, the reason. A directory that was
removed counts once. If a path is not UTF-8, path_bytes has it in base64.`,
		Example: `  milkweed refresh /mnt/imagenet/train
  milkweed refresh --prune --dry-run /mnt/imagenet
  milkweed refresh --json | jq -r '.changes[]? | .change + " " + .path'`,
		RunE: func(c *cobra.Command, args []string) error {
			if (flags.dryRun || flags.force) && !flags.prune {
				return usageError(c, errors.New("--dry-run and --force need --prune"))
			}
			targets, err := refreshTargets(args)
			if err != nil {
				return err
			}
			var errs []error
			for _, t := range targets {
				errs = append(errs, t.refresh(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), flags))
			}
			return errors.Join(errs...)
		},
	}
	c.Flags().BoolVar(&flags.asJSON, "json", false, "print the result as JSON")
	c.Flags().BoolVarP(&flags.verbose, "verbose", "v", false, "print the names that were added, removed and replaced")
	c.Flags().BoolVar(&flags.prune, "prune", false, "remove the copies of files that the source no longer has")
	c.Flags().BoolVar(&flags.dryRun, "dry-run", false, "with --prune: list these copies and keep them")
	c.Flags().BoolVar(&flags.force, "force", false, "with --prune: remove them also if much of the source is missing")
	return c
}

// refreshFlags are the flags of the command refresh.
type refreshFlags struct{ asJSON, verbose, prune, dryRun, force bool }

// A refreshTarget is a mount with the names in it that are refreshed.
type refreshTarget struct {
	point string
	names []string
}

// refreshTargets returns the mounts that the paths are in, and without paths all mounts of this
// user.
func refreshTargets(paths []string) ([]refreshTarget, error) {
	var targets []refreshTarget
	at := make(map[string]int) // positions in targets, by mount point
	for _, path := range paths {
		m, name, err := control.Find(path)
		if err != nil {
			return nil, err
		}
		i, ok := at[m.Point]
		if !ok {
			i = len(targets)
			at[m.Point] = i
			targets = append(targets, refreshTarget{point: m.Point})
		}
		targets[i].names = append(targets[i].names, name)
	}
	if len(paths) > 0 {
		return targets, nil
	}
	mounts, err := control.Mounts()
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		if m.UID == os.Geteuid() || os.Geteuid() == 0 {
			targets = append(targets, refreshTarget{m.Point, []string{"."}})
		}
	}
	if len(targets) == 0 {
		points, err := mountPoints()
		switch {
		case err != nil:
		case len(points) == 0:
			err = notMounted()
		default:
			err = &exit.Error{Code: exit.NotMounted, Err: errors.New("this user has no mount"), Remedy: "`milkweed status` shows all mounts."}
		}
		return nil, err
	}
	return targets, nil
}

// refresh refreshes one mount and prints the result.
func (t refreshTarget) refresh(ctx context.Context, stdout, stderr io.Writer, flags refreshFlags) error {
	client, err := control.Dial(ctx, t.point)
	if err != nil {
		return err
	}
	defer client.Close()
	d := newDisplay(stderr, flags.asJSON)
	start := time.Now()
	r, err := client.Refresh(ctx, t.names, control.RefreshOptions{Prune: flags.prune, DryRun: flags.dryRun, Force: flags.force}, func(r control.Refreshed) {
		d.show(step{text: refreshLine(r), state: refreshResult{t.point, r}})
	})
	d.end()
	if err != nil && !errors.Is(err, context.Canceled) && len(r.PrunedDirs) == 0 {
		return err
	}
	if flags.asJSON {
		if err := printJSON(stdout, refreshResult{t.point, r}); err != nil {
			return err
		}
	} else {
		if flags.verbose {
			t.printChanges(stdout, r)
		}
		fmt.Fprintf(stdout, "%s: %s after %v\n", text(t.point), refreshSummary(r), time.Since(start).Round(10*time.Millisecond))
		if r.Pruned != nil {
			fmt.Fprintf(stdout, "%s: %s\n", text(t.point), pruneSummary(*r.Pruned))
			t.printDirs(stdout, r.PrunedDirs, flags.verbose)
		}
	}
	for _, f := range r.Errors {
		fmt.Fprintf(stderr, "%s: %s\n", text(filepath.Join(t.point, f.Path)), f.Error)
	}
	if _, failed := errors.AsType[*exit.Error](err); failed {
		return err
	}
	return refreshOutcome(t.point, r, err)
}

// printDirs prints directories of copies, at most fewDirs unless all is set.
func (t refreshTarget) printDirs(w io.Writer, dirs []control.PrunedDir, all bool) {
	shown := dirs
	if !all && len(dirs) > fewDirs {
		shown = dirs[:fewDirs]
	}
	for _, d := range shown {
		line := fmt.Sprintf("  %s: %s (%s)", text(filepath.Join(t.point, d.Path)), plural(d.Copies, "copy", "copies"), size(d.Bytes))
		if d.Reason != "" {
			line += ", " + d.Reason
		}
		fmt.Fprintln(w, line)
	}
	if n := len(dirs) - len(shown); n > 0 {
		fmt.Fprintf(w, "  and %s; -v shows all\n", plural(int64(n), "other directory", "other directories"))
	}
}

// fewDirs is the number of directories that are printed without -v.
const fewDirs = 20

// A refreshResult is the JSON that refresh prints.
type refreshResult struct {
	MountPoint string `json:"mount_point"`
	control.Refreshed
}

// printChanges prints the names that have changed, one on each line.
func (t refreshTarget) printChanges(w io.Writer, r control.Refreshed) {
	for _, c := range r.Changes {
		fmt.Fprintf(w, "%s %s\n", c.Change, text(filepath.Join(t.point, c.Path)))
	}
	if r.Omitted > 0 {
		fmt.Fprintf(w, "%s are not shown\n", plural(r.Omitted, "more change", "more changes"))
	}
}

// refreshSummary describes the result of comparing names.
func refreshSummary(r control.Refreshed) string {
	line := fmt.Sprintf("%s compared: %s added, %s removed, %s replaced",
		plural(r.Names, "name", "names"), count(r.Added), count(r.Removed), count(r.Replaced))
	if r.Failed > 0 {
		line += fmt.Sprintf(", %s failed", count(r.Failed))
	}
	return line
}

// refreshLine describes the state of a refresh for a display.
func refreshLine(r control.Refreshed) string {
	if r.Pruned != nil {
		return pruneSummary(*r.Pruned)
	}
	return refreshSummary(r)
}

// pruneSummary describes the result of --prune.
func pruneSummary(p placement.PruneReport) string {
	line := fmt.Sprintf("%s examined, %s (%s) of files that the source does not have", plural(p.Examined, "copy", "copies"), count(p.Orphans), size(p.Bytes))
	if p.DryRun {
		line += "; none was removed, because of --dry-run"
		if p.NeedsForce {
			line += ", and --force is needed to remove all"
		}
		return line
	}
	return line + fmt.Sprintf("; %s (%s) removed", count(p.Removed), size(p.Freed))
}

// refreshOutcome returns the error of a refresh. err is not nil if it was interrupted.
func refreshOutcome(point string, r control.Refreshed, err error) error {
	switch {
	case err != nil: // Ctrl-C
		return &exit.Error{
			Code:   exit.Incomplete,
			Err:    fmt.Errorf("the refresh of %s was stopped", text(point)),
			Remedy: "Run it again: some changes may not be visible yet.",
		}
	case r.Failed == 0 && r.Pruned != nil && r.Pruned.Failed+r.Pruned.Skipped > 0:
		return &exit.Error{
			Code:   exit.Incomplete,
			Err:    fmt.Errorf("%s: %s and %s could not be examined or removed: %s", text(point), plural(r.Pruned.Failed, "copy", "copies"), plural(r.Pruned.Skipped, "tier", "tiers"), r.Pruned.Error),
			Remedy: "They stay. Run it again to retry.",
		}
	case r.Failed == 0:
		return nil
	}
	return &exit.Error{
		Code:   exit.Incomplete,
		Err:    fmt.Errorf("%s: %s could not be compared with the source", text(point), plural(r.Failed, "name", "names")),
		Remedy: "What is cached of them stays. Run it again to retry.",
	}
}
