package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/demo"
	"github.com/milkweedfs/milkweed/cmd/internal/reader"
	"github.com/milkweedfs/milkweed/cmd/internal/simpfs"
)

const demoLong = `Demo makes a dataset of many small files and a few large ones, and a simulated
parallel file system (PFS) that serves it. The PFS is a mount of its own: it
delays each operation, limits the bandwidth of all readers together, and counts
operations. Demo mounts it as ` + "`milkweed mount`" + ` does. In each epoch four
processes list the dataset and read every file once, in a new order: first
directly from the PFS, then through Milkweed. Demo prints a line for each: the
time, the rate, the bytes read from each tier (by Milkweed, or by the kernel in
passthrough), and the operations of the PFS.

The page cache keeps no data of either mount from one epoch to the next, as
with a dataset that is larger than memory: the PFS drops the pages of a file at
each open, and the readers drop those of each file after they have read it. The
SSD tier is a folder, whose pages stay cached. The checksum of every file is
compared with the one that was written.

All files are in temporary folders, in $TMPDIR and for the RAM tier in
/dev/shm. They occupy twice the size of the dataset. They are removed at the
end, also after Ctrl-C, but not after kill -9. During the demo, another terminal
can show the mount with ` + "`milkweed status`" + `.

The exit code is 1 if a byte is wrong, if the PFS is read after the first
epoch, or if more than 1.02 times the dataset is read from it in the first.

With --json it prints one object: files, bytes, latency_seconds,
bandwidth_bytes_per_second, readers, folders[], problems[], and epochs[] with
epoch, via ("source" or "milkweed"), seconds, files, bytes, tier_bytes {tier:
bytes}, and source {operations, lookups, getattrs, opens, reads, lists, others,
bytes}.`

// defaultSpeed is the default speed of the simulated PFS.
var defaultSpeed = simpfs.Speed{Latency: 2 * time.Millisecond, BytesPerSecond: 200e6, TTL: time.Second}

func newDemo() *cobra.Command {
	d := demo.Config{Source: defaultSpeed}
	var asJSON bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show what Milkweed does, on this machine, in under a minute",
		Long:  demoLong,
		Example: `  milkweed demo
  milkweed demo --latency 5ms --bandwidth 50MB --files 500
  milkweed demo --json | jq '.epochs[] | {epoch, via, seconds}'`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := d.Validate(); err != nil {
				return usageError(c, err)
			}
			d.Out, d.Stderr = c.OutOrStdout(), c.ErrOrStderr()
			return runDemo(c.Context(), d, asJSON)
		},
	}
	flags := c.Flags()
	flags.IntVar(&d.SmallFiles, "files", 2000, "number of small files, of 60 to 110 KB")
	flags.IntVar(&d.LargeFiles, "large", 4, "number of large files, of 32 MB")
	flags.IntVar(&d.Epochs, "epochs", 3, "number of times that the dataset is read each way")
	addSpeed(c, &d.Source)
	flags.BoolVar(&d.Keep, "keep", false, "keep the dataset and the copies")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(newDemoPFS(), newDemoRead())
	return c
}

func runDemo(ctx context.Context, d demo.Config, asJSON bool) error {
	defer catchSIGPIPE()()
	stdout, terminal := d.Out, terminalOf(d.Stderr)
	if asJSON {
		d.Out = io.Discard
	}
	d.Progress = func() (func(control.Progress), func()) {
		d := newDisplay(terminal, false)
		return func(p control.Progress) { d.show(warmupStep(p)) }, d.end
	}
	report, err := demo.Run(ctx, d)
	if report == nil {
		return err
	}
	errs := []error{report.Err(), err}
	if asJSON {
		errs = append(errs, printJSON(stdout, report))
	}
	return errors.Join(errs...)
}

// terminalOf returns w if it is a terminal, and else a writer that discards. The
// progress of a demo or a benchmark is not for logs, which have the tables.
func terminalOf(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return w
	}
	return io.Discard
}

// catchSIGPIPE makes writes to a standard output or error that nobody reads fail, as in
// `milkweed demo | head`, until stop is called. Without it they end the program.
func catchSIGPIPE() (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGPIPE)
	return func() { signal.Stop(signals) }
}

// addSpeed adds the flags of a simulated PFS. Their defaults are the values of
// speed.
func addSpeed(c *cobra.Command, speed *simpfs.Speed) {
	c.Flags().DurationVar(&speed.Latency, "latency", speed.Latency, "`DURATION` of each operation of the simulated PFS; values below 1ms become about 1ms")
	c.Flags().Var((*byteRate)(&speed.BytesPerSecond), "bandwidth", "`BYTES` per second that all readers of the simulated PFS share")
	c.Flags().DurationVar(&speed.TTL, "ttl", speed.TTL, "`DURATION` for which the client of the simulated PFS caches names; with 0 it revalidates them at each open")
}

// A byteRate is the value of a flag in bytes per second, such as 200MB.
type byteRate int64

// Set implements pflag.Value.
func (r *byteRate) Set(s string) error {
	q, err := config.ParseQuota(s)
	if err != nil || q.Bytes == 0 {
		return fmt.Errorf("%q is not a number of bytes above 0", s)
	}
	*r = byteRate(q.Bytes)
	return nil
}

// String implements pflag.Value.
func (r *byteRate) String() string { return config.Quota{Bytes: int64(*r)}.String() }

// Type implements pflag.Value.
func (r *byteRate) Type() string { return "bytes" }

// newDemoPFS is the command of the process that package simpfs starts.
func newDemoPFS() *cobra.Command {
	var speed simpfs.Speed
	c := &cobra.Command{
		Use:   "pfs FOLDER MOUNTPOINT",
		Short: "Mount a folder as a simulated PFS",
		Long: `Pfs is the process of the simulated parallel file system (PFS). It prints a line
of JSON with the operations so far for each line {} of its standard input, and
unmounts when that ends.`,
		Example: "  milkweed demo pfs --latency 1ms --bandwidth 200MB --ttl 60s data mnt",
		Hidden:  true,
		Args:    usage(cobra.ExactArgs(2)),
		RunE: func(c *cobra.Command, args []string) error {
			return simpfs.Serve(c.Context(), args[0], args[1], speed, c.InOrStdin(), c.OutOrStdout())
		},
	}
	addSpeed(c, &speed)
	c.Flags().BoolVar(&speed.Direct, "direct", false, "let the kernel cache no pages")
	c.Flags().DurationVar(&speed.Ahead, "ahead", 0, "`DURATION` by which the clock of the servers is ahead")
	return c
}

// newDemoRead is the command of the processes that package reader starts.
func newDemoRead() *cobra.Command {
	return &cobra.Command{
		Use:     "read",
		Short:   "Read files and measure the time",
		Long:    "Read is a reader process of a demo or a benchmark.",
		Example: `  echo '{"kind": "find", "folder": "/mnt"}' | milkweed demo read`,
		Hidden:  true,
		Args:    usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return reader.Serve(c.InOrStdin(), c.OutOrStdout())
		},
	}
}
