package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/bench"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
)

// A benchmark is a family of processes, as a demo is: this one, which makes the
// datasets, starts the others and computes; the stand-in for a parallel file
// system (standin.go); `milkweed mount` and `rclone mount` (bench_mount.go);
// readers (bench_read.go), and trainers with readers of their own
// (bench_train.go). What the numbers mean is in package bench.

func newBench() *cobra.Command {
	f := benchFlags{
		speed: sourceSpeed{latency: 2 * time.Millisecond, bandwidth: 200e6},
		scale: 1, runs: 5, modes: []string{"passthrough", "stateless"}, rclone: "auto",
	}
	c := &cobra.Command{
		Use:   "bench [micro|workloads|monarch]…",
		Short: "Measure Milkweed against what else there is, on this machine",
		Long: `Bench measures how fast files are read through Milkweed, and how fast they are
otherwise, and prints the one by the other. The sides of a comparison take turns
in each of --runs runs, and the ratio is the median of the ratios of each run.
Without an argument it runs all groups:

  micro      single operations on files that are placed: read in sequence, 4 KiB
             at random places, small files, stat, list. Each mode of --modes is
             a mount of its own; "user" is one by a user without rights.
  workloads  epochs of trainings with the sizes and compute times that MLPerf
             Storage has for unet3d, retinanet, resnet50 and cosmoflow, smaller
             by what is printed. Four processes read ahead and an accelerator is
             a sleep; its utilisation is MLPerf's, time computed by time passed
             without the first step. Milkweed starts empty.
  monarch    three epochs over a dataset that is 1.8 times as large as a RAM
             tier and an SSD tier together.

The sides: "native" reads the files on the file system of the tiers; "direct"
reads the source; "stage-in" copies all that fits, with four processes, and then
trains, and its first epoch has the time of the copy; "rclone" is rclone mount
with a full cache, where it is installed. The source is a stand-in for a
parallel file system, a mount of its own that takes --latency for each
operation, has --bandwidth for all readers, and counts what it is asked. The
kernel keeps no pages of it from one open to the next, nor from one epoch to the
next.

The files of the tiers, and those that are read natively, are in memory unless
--tier says otherwise, and in the page cache in any case. The pages that the
kernel keeps of a mount itself are dropped or kept as each case says; workloads
drop those of each file after it was read.

Every file is read once outside of the measured time and compared with what was
written. All is in temporary folders, which are removed at the end, also after
Ctrl-C, but not after kill -9. It takes about five minutes and 3 GB.

It exits with 1 if a byte is wrong, and with 5 if there is no room. A side that
cannot be had is left out, and the table says why.

With --json it prints one object: the facts of the first lines, and groups[]
with name, caption[], left_out[] and cases[]: name, unit, bytes, operations and
results[]: side, value, seconds, ratios {side: {median, min, max}}, utilization,
source {operations, opens, bytes, unplaced_bytes} and runs[].`,
		Example: `  milkweed bench
  milkweed bench micro --modes passthrough,stateless,cached
  milkweed bench workloads --latency 5ms --bandwidth 1GB --scale 4
  milkweed bench monarch --tier /local --svg monarch.svg
  milkweed bench --json | jq '.groups[].cases[] | {name, results}'`,
		ValidArgs: benchGroups,
		Args:      usage(cobra.OnlyValidArgs),
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.validate(); err != nil {
				return usageError(c, err)
			}
			return f.run(c.Context(), args, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := c.Flags()
	flags.Float64Var(&f.scale, "scale", f.scale, "how large the datasets are, 1 for five minutes")
	flags.IntVar(&f.runs, "runs", f.runs, "how often each side of a case is measured")
	flags.DurationVar(&f.speed.latency, "latency", f.speed.latency, "what each operation of the source takes; what is below 1ms comes out near that")
	flags.Var((*byteRate)(&f.speed.bandwidth), "bandwidth", "`BYTES` that the source gives all readers together in a second")
	flags.StringSliceVar(&f.modes, "modes", f.modes, "the `MODES` of Milkweed that micro measures")
	flags.StringVar(&f.tier, "tier", "", "make the tiers in `DIR`, and not in memory")
	flags.StringVar(&f.rclone, "rclone", f.rclone, "auto or off")
	flags.StringVar(&f.svg, "svg", "", "draw the results into `FILE`")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	c.AddCommand(newBenchReader(), newBenchTrainer())
	return c
}

// The groups of cases, in the order in which they are run.
var benchGroups = []string{"micro", "workloads", "monarch"}

type benchFlags struct {
	speed     sourceSpeed
	scale     float64
	runs      int
	modes     []string
	tier, svg string
	rclone    string
	asJSON    bool
}

func (f *benchFlags) validate() error {
	switch {
	case !(f.scale > 0 && f.scale <= 1000):
		return fmt.Errorf("a scale of %g is not above 0 and up to 1000", f.scale)
	case f.runs < 1:
		return fmt.Errorf("%d runs are none", f.runs)
	case f.speed.latency < 0:
		return fmt.Errorf("a latency of %v is negative", f.speed.latency)
	case f.rclone != "auto" && f.rclone != "off":
		return fmt.Errorf("--rclone is %q, not auto or off", f.rclone)
	}
	for _, m := range f.modes {
		c := config.Default()
		if err := c.Set("mount.mode", m, "flag --modes"); err != nil {
			return err
		}
	}
	return nil
}

// A benchmark is what a run needs.
type benchmark struct {
	*benchFlags
	p        *benchPlaces
	report   bench.Report
	mode     string // of the last mount of Milkweed in mode auto
	noRclone error  // why rclone is left out; nil if it is not
	stderr   io.Writer
	progress io.Writer
}

// run is the command.
func (f *benchFlags) run(ctx context.Context, groups []string, stdout, stderr io.Writer) (err error) {
	defer survivePipes()()
	b := &benchmark{benchFlags: f, stderr: stderr, progress: progressTo(stderr)}
	if b.p, err = makeBenchPlaces(f.tier, f.need(groups)); err != nil {
		return err
	}
	defer also(&err, b.p.remove)
	if err := checkMount(ctx, b.p.data(), b.p.source()); err != nil {
		return err
	}
	b.describe(ctx)
	if !f.asJSON {
		if err := b.report.Head(stdout); err != nil {
			return err
		}
	}
	for _, g := range b.groups(groups) {
		if err := b.add(ctx, g, stdout); err != nil {
			return interruption(ctx, err)
		}
	}
	return b.finish(stdout)
}

// groups are the functions that run groups; of none all.
func (b *benchmark) groups(names []string) []func(context.Context) (bench.Group, error) {
	all := []func(context.Context) (bench.Group, error){b.micro, b.workloads, b.monarch}
	var run []func(context.Context) (bench.Group, error)
	for i, name := range benchGroups {
		if len(names) == 0 || slices.Contains(names, name) {
			run = append(run, all[i])
		}
	}
	return run
}

// add runs a group, and prints it.
func (b *benchmark) add(ctx context.Context, run func(context.Context) (bench.Group, error), stdout io.Writer) error {
	g, err := run(ctx)
	fmt.Fprint(b.progress, clearLine)
	if err != nil {
		return err
	}
	b.report.Groups = append(b.report.Groups, g)
	if b.asJSON {
		return nil
	}
	return g.Table(stdout)
}

// finish prints what the user has asked for besides the tables.
func (b *benchmark) finish(stdout io.Writer) error {
	if b.svg != "" {
		if err := writeSVG(b.svg, b.report.Groups); err != nil {
			return err
		}
	}
	if b.asJSON {
		return printJSON(stdout, b.report)
	}
	return nil
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

// clearLine has a terminal forget the line that it is on.
const clearLine = "\r\x1b[K"

// say shows what is being done.
func (b *benchmark) say(format string, args ...any) {
	fmt.Fprintf(b.progress, clearLine+format, args...)
}

// need is how many bytes the groups take, all of them if none is named.
func (f *benchFlags) need(groups []string) int64 {
	all := map[string]int64{"micro": f.microNeed(), "workloads": 0, "monarch": f.trainingNeed(bench.Tiering)}
	for _, w := range bench.Workloads {
		all["workloads"] = max(all["workloads"], f.trainingNeed(w))
	}
	need := int64(0)
	for _, name := range benchGroups {
		if len(groups) == 0 || slices.Contains(groups, name) {
			need = max(need, all[name])
		}
	}
	return need
}

// describe notes the machine, and what there is to measure.
func (b *benchmark) describe(ctx context.Context) {
	var (
		u unix.Utsname
		i unix.Sysinfo_t
	)
	unix.Uname(&u)
	unix.Sysinfo(&i)
	b.report = bench.Report{
		Date:             time.Now(),
		Version:          version() + ", " + runtime.Version(),
		Kernel:           unix.ByteSliceToString(u.Release[:]),
		CPUs:             runtime.NumCPU(),
		MemoryBytes:      int64(i.Totalram) * int64(i.Unit),
		Command:          strings.Join(append([]string{"milkweed"}, os.Args[1:]...), " "),
		Scale:            b.scale,
		Runs:             b.runs,
		LatencySeconds:   b.speed.latency.Seconds(),
		SourceBandwidth:  b.speed.bandwidth,
		SourceBehaviour:  "its client keeps no pages from one open to the next, nor from one epoch to the next, and believes names for a second",
		TierFolder:       b.p.dir,
		TierFileSystem:   fileSystem(b.p.dir),
		Groups:           []bench.Group{},
		TemporaryFolders: b.p.folders(),
	}
	b.report.Rclone, b.noRclone = rcloneVersion(ctx, b.rclone)
	if b.noRclone != nil {
		b.report.Rclone = "left out: " + b.noRclone.Error()
	}
}
