package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/limit"
	"github.com/milkweedfs/milkweed/tiers"
)

// A rereading is what a daemon needs to read its configuration again.
type rereading struct {
	// read reads the same file, options, flags and arguments as at the mount. If they set no tiers, it uses
	// the given ones.
	read     func([]config.Tier) (*config.Config, error)
	asked    *config.Config // what read has returned, as far as it is in effect; guarded by reloading.mu
	setLevel func(slog.Level)
	hangups  chan os.Signal // SIGHUP
}

// A reloading holds what a daemon can change while it is mounted.
type reloading struct {
	rereading
	effective   atomic.Pointer[config.Config] // what is in effect; never changed in place
	limiter     *limit.Driver                 // of the source
	rescheduled chan struct{}                 // for scheduleScrubs: effective has changed

	mu sync.Mutex // held during a reload
}

// catchHangups returns a channel that gets SIGHUP, unless that means that the terminal is gone.
func catchHangups() chan os.Signal {
	c := make(chan os.Signal, 1)
	if !slices.Contains(shutdownSignals(), os.Signal(syscall.SIGHUP)) {
		signal.Notify(c, syscall.SIGHUP)
	}
	return c
}

// awaitHangups reloads the configuration after each SIGHUP. Reload logs the result.
func (d *daemon) awaitHangups(ctx context.Context) {
	for {
		select {
		case <-d.hangups:
			d.Reload(ctx, false)
		case <-ctx.Done():
			return
		}
	}
}

// Reload implements control.Daemon.
func (d *daemon) Reload(ctx context.Context, dryRun bool) (control.Reloaded, error) {
	if d.draining.Load() {
		return control.Reloaded{}, errDraining
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	next, err := d.read(slices.Clone(d.asked.Tiers))
	if err != nil {
		if !dryRun {
			f := control.Fail(err)
			d.log.Error("the configuration is not reloaded", "err", f.Message, "remedy", f.Remedy)
		}
		return control.Reloaded{}, err
	}
	r := control.Reloaded{Changed: []config.Change{}, Refused: []control.Refusal{}}
	var fixed []config.Change
	r.Changed, fixed = d.asked.Compare(next)
	for _, c := range fixed {
		r.Refused = append(r.Refused, control.Refusal{Change: c, Reason: "it cannot be changed while mounted; unmount and mount again"})
	}
	if dryRun {
		return r, nil
	}
	return r, d.apply(ctx, next, &r)
}

// apply makes the changes of r effective, and logs them. Those that fail move to r.Refused. d.mu must be held.
func (d *daemon) apply(ctx context.Context, next *config.Config, r *control.Reloaded) error {
	effective := d.effective.Load().Clone()
	if err := errors.Join(effective.Adopt(next, r.Changed), d.asked.Adopt(next, r.Changed)); err != nil {
		return err
	}
	d.memory.bound(effective, d.memoryRoom(effective), d.log)
	before := d.effective.Load()
	d.setLevel(min(before.Log.Level, effective.Log.Level)) // so that the changes are logged
	for i, t := range d.levels.Tiers() {
		q := effective.Tiers[i].Quota
		err := t.Resize(ctx, tiers.Quota{Bytes: q.Bytes, Percent: q.Percent})
		if err == nil {
			continue
		}
		effective.Tiers[i].Quota = before.Tiers[i].Quota
		key := "tier." + t.Name() + ".quota"
		if at := slices.IndexFunc(r.Changed, func(c config.Change) bool { return c.Key == key }); at >= 0 {
			r.Refused = append(r.Refused, control.Refusal{Change: r.Changed[at], Reason: err.Error()})
			r.Changed = slices.Delete(r.Changed, at, at+1)
			d.asked.Tiers[i].Quota = before.Tiers[i].Quota // the next reload tries it again
		}
	}
	d.handler.SetWorkers(effective.Placement.Workers)
	d.limiter.SetRates(effective.Source.Bandwidth, effective.Source.Operations)
	d.effective.Store(effective)
	select {
	case d.rescheduled <- struct{}{}:
	default: // it is announced already
	}
	for _, c := range r.Changed {
		d.log.Info("configuration changed", "key", c.Key, "from", c.Old, "to", c.New, "origin", c.Origin)
	}
	for _, c := range r.Refused {
		d.log.Warn("configuration not changed", "key", c.Key, "in_effect", c.Old, "configured", c.New, "reason", c.Reason)
	}
	d.log.Info("configuration reloaded", "changed", len(r.Changed), "refused", len(r.Refused))
	d.setLevel(effective.Log.Level)
	return nil
}

// memoryRoom returns the room of the tiers in memory, by index: what is free, and what copies occupy.
func (d *daemon) memoryRoom(c *config.Config) map[int]int64 {
	room := memoryTiers(c)
	for i := range room {
		room[i] += d.levels.Tiers()[i].Stats().Used
	}
	return room
}

func newConfigReload() *cobra.Command {
	var (
		dryRun, asJSON bool
		file           string
	)
	c := &cobra.Command{
		Use:   "reload [-c FILE | MOUNT]",
		Short: "Make a mount take over its changed configuration",
		Long: `Reload makes the daemon of a mount read its configuration again: the same file,
options, flags and arguments as at the mount. SIGHUP does the same, except for a
mount in the foreground of a terminal, which it ends.

These keys take effect at once: log.level, placement.workers, source.bandwidth,
source.operations, tier.quota, scrub.interval and scrub.rate. A changed key that
cannot be reloaded is named, and the others are applied. An invalid
configuration changes nothing.

With -c, the mount is the one whose mount point is in FILE.

If a quota becomes smaller than what a tier holds, the copies stay, and none is
added until they take less. If it becomes larger, files that had no room are
copied when they are opened again. Percentages are determined anew.

Reload exits with 2 if the configuration is invalid, and with 8 if a key was not
applied. With --json it prints an object with changed and refused.`,
		Example: `  milkweed config reload /mnt/imagenet
  milkweed config reload --dry-run /mnt/imagenet
  milkweed config reload -c /etc/milkweed/imagenet.toml`,
		Args: usage(func(c *cobra.Command, args []string) error {
			if file != "" {
				return cobra.NoArgs(c, args)
			}
			return cobra.MaximumNArgs(1)(c, args)
		}),
		ValidArgsFunction: completeMounts,
		RunE: func(c *cobra.Command, args []string) error {
			if file != "" {
				conf, err := config.Load(file)
				if err != nil {
					return err
				}
				if conf.Mount.Point == "" {
					return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("%s has no mount.point", text(file)), Remedy: "Name the mount instead of the file."}
				}
				args = []string{conf.Mount.Point}
			}
			client, err := dialOne(c.Context(), args)
			if err != nil {
				return err
			}
			defer client.Close()
			r, err := client.Reload(c.Context(), dryRun)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(c.OutOrStdout(), r)
			} else {
				err = writeReloaded(c.OutOrStdout(), r)
			}
			return errors.Join(err, refusedError(r))
		},
	}
	c.Flags().StringVarP(&file, "config", "c", "", "the mount of this configuration `FILE`")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "print what would change, and change nothing")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// writeReloaded writes a line for each change and each refusal.
func writeReloaded(w io.Writer, r control.Reloaded) error {
	if len(r.Changed)+len(r.Refused) == 0 {
		_, err := fmt.Fprintln(w, "nothing has changed")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range r.Changed {
		fmt.Fprintf(t, "%s\t%s → %s\t%s\n", c.Key, shown(c.Old), shown(c.New), c.Origin)
	}
	for _, c := range r.Refused {
		fmt.Fprintf(t, "%s\t%s, not %s\t%s\t%s\n", c.Key, shown(c.Old), shown(c.New), c.Origin, text(c.Reason))
	}
	return t.Flush()
}

// shown returns a value for display.
func shown(value string) string {
	if value == "" {
		return `""`
	}
	return text(value)
}

// refusedError returns an error if some keys were not applied.
func refusedError(r control.Reloaded) error {
	var keys []string
	for _, c := range r.Refused {
		keys = append(keys, c.Key)
	}
	if len(keys) == 0 {
		return nil
	}
	return &exit.Error{
		Code: exit.Incomplete, Err: fmt.Errorf("not applied: %s", strings.Join(keys, ", ")),
		Remedy: "Unmount and mount again to apply a key that cannot be changed while mounted.",
	}
}
