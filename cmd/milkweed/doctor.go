package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/doctor"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

func newDoctor() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "doctor [PATH]",
		Short: "Examine a running mount, and say what to change",
		Long: `Doctor examines a running mount: the health and the room of the tiers, the
source, open files and memory of the daemon, clocks, peers, and whether the
settings suit what the job has read. It names what is wrong, with numbers and a
remedy. The command check does so before a mount.

PATH is a mount point or a path below one. Without it, doctor needs exactly one
mount.

Doctor takes the status and the configuration from the daemon. It asks for the
state of the file systems of the tiers, lists a few directories of the source,
requests the attributes of up to 64 files there, and opens up to 8 of them and
reads up to 4 KiB of each. It sends no request to a bucket. What hangs is
named after five seconds.

Each finding is a problem: something does not work, or data is at risk; a
warning: another setting or machine would serve the job better; or a note, which
explains, and needs no change. Doctor exits with 8 if there is a problem,
with 7 if the daemon does not answer, and otherwise with 0.

With --json, doctor prints an object: mount_point; findings, an array of objects
with severity, subject, seen, remedy, and see, a section of the documentation;
and problems, warnings and notes, their numbers.`,
		Example: `  milkweed doctor
  milkweed doctor --json /mnt/imagenet | jq -r '.findings[] | select(.severity != "note") | .remedy'`,
		Args:              usage(cobra.MaximumNArgs(1)),
		ValidArgsFunction: completeMounts,
		RunE: inChild(func(c *cobra.Command, args []string) error {
			client, err := dialOne(c.Context(), args)
			if err != nil {
				return err
			}
			defer client.Close()
			r, err := examine(c.Context(), client)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(c.OutOrStdout(), r)
			} else {
				err = r.write(c.OutOrStdout())
			}
			if err == nil && r.Problems > 0 {
				err = &exit.Error{Code: exit.Incomplete, Err: fmt.Errorf("%s: %s", text(r.MountPoint), plural(int64(r.Problems), "problem", "problems"))}
			}
			return err
		}),
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// A doctorReport is the output of the command doctor.
type doctorReport struct {
	MountPoint string           `json:"mount_point"`
	Findings   []doctor.Finding `json:"findings"`
	Problems   int              `json:"problems"`
	Warnings   int              `json:"warnings"`
	Notes      int              `json:"notes"`
}

func examine(ctx context.Context, c *control.Client) (doctorReport, error) {
	facts, err := doctor.Gather(ctx, c, version())
	if errors.Is(err, doctor.ErrNoAnswer) {
		err = &exit.Error{
			Code: exit.NotMounted, Err: fmt.Errorf("the daemon hangs: it gives %w", err),
			Remedy: "`milkweed debug` collects what is left of it, for a report. `milkweed umount --force` ends the mount; then mount again.",
		}
	}
	if err != nil {
		return doctorReport{}, err
	}
	// Without a finding, the array is empty, and not null.
	r := doctorReport{MountPoint: facts.Status.MountPoint, Findings: append([]doctor.Finding{}, doctor.Examine(facts)...)}
	r.Problems, r.Warnings, r.Notes = doctor.Count(r.Findings, doctor.Problem), doctor.Count(r.Findings, doctor.Warning), doctor.Count(r.Findings, doctor.Note)
	return r, nil
}

func (r doctorReport) write(w io.Writer) error {
	if err := doctor.Write(w, r.Findings); err != nil {
		return err
	}
	if len(r.Findings) > 0 {
		fmt.Fprintln(w)
	}
	if r.Problems+r.Warnings == 0 {
		_, err := fmt.Fprintf(w, "%s: nothing to change\n", text(r.MountPoint))
		return err
	}
	_, err := fmt.Fprintf(w, "%s: %s, %s, %s\n", text(r.MountPoint), plural(int64(r.Problems), "problem", "problems"),
		plural(int64(r.Warnings), "warning", "warnings"), plural(int64(r.Notes), "note", "notes"))
	return err
}

// dialOne returns a client of the daemon of the mount that the argument is in or, without one, of
// the only mount. A daemon that drains counts by its former mount point, if nothing is mounted. The
// caller closes the client.
func dialOne(ctx context.Context, args []string) (*control.Client, error) {
	if len(args) == 1 {
		m, _, err := control.Find(args[0])
		if err == nil {
			return control.Dial(ctx, m.Point)
		}
		path, _ := filepath.Abs(args[0]) // Find has done that, too
		if c := drainingOf(ctx, path); c != nil {
			return c, nil
		}
		return nil, err
	}
	points, err := mountPoints()
	switch {
	case err != nil:
		return nil, err
	case len(points) == 1:
		return control.Dial(ctx, points[0])
	case len(points) == 0:
		if c := drainingOf(ctx, ""); c != nil {
			return c, nil
		}
		return nil, notMounted()
	}
	for i, p := range points {
		points[i] = text(p)
	}
	return nil, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("several mounts: %s", strings.Join(points, ", ")), Remedy: "Name one of them."}
}

// drainingOf returns a client of the daemon that drains a mount point, or nil if there is none. Of
// the mount point "" it is the first one. The caller closes the client.
func drainingOf(ctx context.Context, point string) (found *control.Client) {
	ctx, cancel := context.WithTimeout(ctx, doctor.Timeout)
	defer cancel()
	for _, c := range control.Draining(ctx) {
		if s, err := c.Status(ctx); err == nil && found == nil && (point == "" || s.MountPoint == point) {
			found = c
		} else {
			c.Close()
		}
	}
	return found
}
