package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/bench"
	"github.com/milkweedfs/milkweed/cmd/internal/benchmark"
)

const benchLong = `Bench measures how fast files are read through Milkweed and in other ways, and
prints the ratios. The sides of a comparison take turns in each of --runs runs;
a ratio is the median of the ratios of the runs. Without an argument, bench runs
all groups:

  micro      single operations on files that are placed: sequential reads, 4 KiB
             random reads, small files, stat, list. Each mode of --modes is a
             mount of its own; "user" is a mount by a user without privileges.
  workloads  epochs of trainings with the sizes and compute times that MLPerf
             Storage has for unet3d, retinanet, resnet50 and cosmoflow, reduced
             by a factor that is printed. Four processes prefetch batches and
             the accelerator is a sleep. The utilisation is that of MLPerf:
             compute time by elapsed time, without the first step. Milkweed
             starts with empty tiers, once without and once with a plan: then
             the readers hand over the order in which they will open files. The
             rules of MLPerf forbid storage that knows it. What readers waited
             for is shown as in ` + "`milkweed status`" + `. --accelerators emulates
             several, each with a share of each epoch of its own; the dataset
             grows with their number. By default, they wait for each other
             after each step, and unet3d's files are .npz, as the rules of the
             division CLOSED say; --barrier, --format npy and --direct (readers
             open files with O_DIRECT) need the division OPEN.
  monarch    three epochs over a dataset that is 1.8 times as large as a RAM
             tier and an SSD tier together.

The sides: "native" reads the files from the file system of the tiers; "direct"
reads the source; "stage-in" copies the files that fit, with four processes, and
then trains, where the time of the copy is part of the first epoch; "rclone" is
rclone mount with a full cache, if it is installed. The source is a simulated
parallel file system (PFS), a mount of its own that delays each operation by
--latency, limits the bandwidth of all readers to --bandwidth, and counts
operations. Its pages are dropped at each open and after each epoch.

The files of the tiers and those of "native" are in memory, unless --tier names
another folder, and in the page cache in any case. The pages of a mount itself
are dropped or kept as stated for each case; workloads drops those of each file
after it was read.

Every file is read once outside of the measured time and compared with the one
that was written. All files are in temporary folders, which are removed at the
end, also after Ctrl-C, but not after kill -9. Bench takes about five minutes
and 3 GB.

The exit code is 1 if a byte is wrong, and 5 if there is too little space. The
table names the sides that are left out, and the reasons.

With --json it prints one object: the facts of the first lines, and groups[]
with name, caption[], left_out[] and cases[]: name, unit, bytes, operations,
samples and results[]: side, value, seconds, ratios {side: {median, min, max}},
utilization, source {operations, opens, bytes, unplaced_bytes}, waits
{latency_seconds, bandwidth_seconds, fill_seconds, tier_seconds} and runs[].`

func newBench() *cobra.Command {
	b := benchmark.Config{Source: defaultSpeed, Version: version()}
	var f benchFlags
	c := &cobra.Command{
		Use:   "bench [micro|workloads|monarch]…",
		Short: "Compare Milkweed with other ways to read a dataset, on this machine",
		Long:  benchLong,
		Example: `  milkweed bench
  milkweed bench micro --modes passthrough,stateless,cached
  milkweed bench workloads --latency 5ms --bandwidth 1GB --scale 4
  milkweed bench workloads --workload unet3d --accelerators 4 --direct --format npy --barrier epoch --tier /local
  milkweed bench monarch --tier /local --svg monarch.svg
  milkweed bench --json | jq '.groups[].cases[] | {name, results}'`,
		ValidArgs: benchmark.Groups,
		Args:      usage(cobra.OnlyValidArgs),
		RunE: func(c *cobra.Command, args []string) error {
			if err := errors.Join(f.validate(), b.Validate()); err != nil {
				return usageError(c, err)
			}
			b.Groups, b.Rclone = args, f.rclone == "auto"
			b.Command = strings.Join(append([]string{"milkweed"}, os.Args[1:]...), " ")
			b.Out, b.Progress = c.OutOrStdout(), terminalOf(c.ErrOrStderr())
			return runBench(c.Context(), b, f)
		},
	}
	flags := c.Flags()
	flags.Float64Var(&b.Scale, "scale", 1, "size of the datasets; 1 takes about five minutes")
	flags.IntVar(&b.Runs, "runs", 5, "number of measurements of each side of a case")
	addSpeed(c, &b.Source)
	flags.StringSliceVar(&b.Modes, "modes", []string{"passthrough", "stateless"}, "the `MODES` of Milkweed that micro measures")
	flags.StringVar(&b.Tier, "tier", "", "make the tiers in `DIR` instead of in memory")
	flags.StringSliceVar(&b.Workloads, "workload", nil, "the `NAMES` of the workloads that workloads measures; the default is all")
	flags.StringSliceVar(&b.Sides, "sides", nil, "the `SIDES` that workloads measures: native, direct, milkweed, stage-in, rclone; the default is all")
	flags.IntVar(&b.Accelerators, "accelerators", 1, "workloads: emulate `N` accelerators, each with four reading processes, and N times the dataset")
	flags.StringVar((*string)(&b.Barrier), "barrier", "batch", "workloads: the accelerators wait for each other after each batch, each epoch, or none; `WHEN` is batch, epoch or none")
	flags.StringVar(&b.Format, "format", "npz", "workloads: the `FORMAT` of the files of unet3d, npz or npy")
	flags.BoolVar(&b.Direct, "direct", false, "workloads: read with O_DIRECT")
	flags.IntVar(&b.Slowdown, "slowdown", 0, "workloads: divide the demand by `N`; the default is the least that native reading permits")
	flags.StringVar(&f.rclone, "rclone", "auto", "auto or off")
	flags.StringVar(&f.svg, "svg", "", "draw the results into `FILE`")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	c.AddCommand(newBenchTrain())
	return c
}

// benchFlags are the flags that are not in benchmark.Config.
type benchFlags struct {
	rclone string // auto or off
	svg    string // path of the picture; "" for none
	asJSON bool
}

func (f *benchFlags) validate() error {
	if f.rclone != "auto" && f.rclone != "off" {
		return fmt.Errorf("--rclone is %q, not auto or off", f.rclone)
	}
	return nil
}

func runBench(ctx context.Context, b benchmark.Config, f benchFlags) error {
	defer catchSIGPIPE()()
	stdout := b.Out
	if f.asJSON {
		b.Out = io.Discard
	}
	report, err := benchmark.Run(ctx, b)
	if report == nil {
		return err
	}
	errs := []error{err}
	if f.svg != "" {
		errs = append(errs, writeSVG(f.svg, report.Groups))
	}
	if f.asJSON {
		errs = append(errs, printJSON(stdout, report))
	}
	return errors.Join(errs...)
}

func writeSVG(path string, groups []bench.Group) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := bench.SVG(f, groups); err != nil {
		return err
	}
	return f.Close()
}

// newBenchTrain is the command of the process that package benchmark starts.
func newBenchTrain() *cobra.Command {
	accelerators := 1
	c := &cobra.Command{
		Use:     "train",
		Short:   "Read batches and sleep for the compute time of an accelerator",
		Long:    "Train is a trainer process of a benchmark.",
		Example: `  echo '{"batches": [[[{"path": "/mnt/a", "length": 0}]]], "compute": 1000000}' | milkweed bench train`,
		Hidden:  true,
		Args:    usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return benchmark.ServeTrainer(c.Context(), c.InOrStdin(), c.OutOrStdout(), accelerators)
		},
	}
	c.Flags().IntVar(&accelerators, "accelerators", accelerators, "the number of accelerators")
	return c
}
