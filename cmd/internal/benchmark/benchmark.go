// Package benchmark compares Milkweed with other ways to read a dataset, on one
// machine. Package bench computes and prints the results.
//
// The processes of a benchmark are the caller of Run, which makes the datasets
// and computes; the simulated PFS (package simpfs); `milkweed mount` and `rclone
// mount` (package sandbox); readers (package reader); and trainers with readers of
// their own.
package benchmark

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/bench"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/sandbox"
	"github.com/milkweedfs/milkweed/cmd/internal/simpfs"
	"github.com/milkweedfs/milkweed/drivers/posix"
)

// Groups are the names of the groups of cases, in the order of Run.
var Groups = []string{"micro", "workloads", "monarch"}

// Config describes a benchmark.
type Config struct {
	Groups []string // names of Groups; empty for all
	Source simpfs.Speed
	Scale  float64  // size of the datasets; 1 takes about five minutes
	Runs   int      // number of measurements of each side
	Modes  []string // modes of Milkweed that group micro measures
	Tier   string   // folder for the tiers; "" for memory
	Rclone bool     // measure rclone too, if it is installed

	// Of group workloads.
	Workloads    []string // names of bench.Workloads; empty for all
	Sides        []string // names of the sides that are measured; empty for all
	Accelerators int      // that train on the dataset at the same time
	Barrier      Barrier  // when they wait for each other
	Format       string   // of the files of unet3d, one of Formats
	Direct       bool     // readers open files with O_DIRECT
	Slowdown     int      // the divisor of the demand; 0: as small as native reading permits

	Version string // of this program, for the report
	Command string // for the report

	Out      io.Writer // receives the facts and a table for each group
	Progress io.Writer // a terminal that shows the progress, or io.Discard
}

// Formats are the formats of unet3d's files: a NumPy archive, and a plain NumPy array.
var Formats = []string{"npz", "npy"}

// Validate checks the values that a user can set.
func (c *Config) Validate() error {
	switch {
	case !(c.Scale > 0 && c.Scale <= 1000):
		return fmt.Errorf("scale %g is not in the range above 0 up to 1000", c.Scale)
	case c.Runs < 1:
		return fmt.Errorf("%d runs: at least one is needed", c.Runs)
	case c.Source.Latency < 0:
		return fmt.Errorf("latency %v is negative", c.Source.Latency)
	case c.Accelerators < 1 || c.Accelerators > maxAccelerators:
		return fmt.Errorf("%d accelerators: use 1 to %d", c.Accelerators, maxAccelerators)
	case !slices.Contains(Barriers, c.Barrier):
		return fmt.Errorf("barrier is %q, not one of %s", c.Barrier, Barriers)
	case !slices.Contains(Formats, c.Format):
		return fmt.Errorf("format is %q, not one of %s", c.Format, Formats)
	case c.Slowdown < 0:
		return fmt.Errorf("slowdown %d is negative", c.Slowdown)
	}
	for _, name := range c.Workloads {
		if !slices.ContainsFunc(bench.Workloads, func(w bench.Workload) bool { return w.Name == name }) {
			return fmt.Errorf("there is no workload %q", name)
		}
	}
	for _, m := range c.Modes {
		valid := config.Default()
		if err := valid.Set("mount.mode", m, "flag --modes"); err != nil {
			return err
		}
	}
	for _, name := range c.Sides {
		if !slices.Contains(workloadSides, name) {
			return fmt.Errorf("there is no side %q; the sides are %s", name, strings.Join(workloadSides, ", "))
		}
	}
	return nil
}

// A benchmark is the state of Run.
type benchmark struct {
	Config
	box      *sandbox.Sandbox
	data     string // folder of the current dataset
	source   string // mount point of the simulated PFS
	report   *bench.Report
	mode     string // in effect in the last mount in mode auto
	noRclone error  // why rclone is left out; nil if it is measured
}

// Run runs a benchmark. It returns a report when all groups were measured, even
// if the clean-up then fails; otherwise the report is nil.
func Run(ctx context.Context, c Config) (report *bench.Report, err error) {
	if len(c.Groups) == 0 {
		c.Groups = Groups
	}
	parent := cmp.Or(c.Tier, sandbox.SHM)
	if err := checkSpace(parent, c.space()); err != nil {
		return nil, err
	}
	b := &benchmark{Config: c}
	if b.box, err = sandbox.New(parent, "milkweed-bench-", c.space()); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.box.Remove()) }()
	if b.data, err = b.box.Mkdir("data"); err != nil {
		return nil, err
	}
	if b.source, err = b.box.Mkdir("source"); err != nil {
		return nil, err
	}
	if err := sandbox.CheckMount(ctx, b.data, b.source); err != nil {
		return nil, err
	}
	b.describe(ctx)
	if err := b.report.Head(b.Out); err != nil {
		return nil, err
	}
	for i, run := range []func(context.Context) (bench.Group, error){b.micro, b.workloads, b.monarch} {
		if !slices.Contains(c.Groups, Groups[i]) {
			continue
		}
		g, err := run(ctx)
		fmt.Fprint(b.Progress, clearLine)
		if err != nil {
			return nil, cmp.Or(ctx.Err(), err)
		}
		b.report.Groups = append(b.report.Groups, g)
		if err := g.Table(b.Out); err != nil {
			return nil, err
		}
	}
	return b.report, nil
}

// clearLine clears the current line of a terminal.
const clearLine = "\r\x1b[K"

// progress shows the current step.
func (b *benchmark) progress(format string, args ...any) {
	fmt.Fprintf(b.Progress, clearLine+format, args...)
}

// space returns the number of bytes that the groups need.
func (c *Config) space() int64 {
	space := int64(0)
	for _, name := range c.Groups {
		switch name {
		case "micro":
			space = max(space, c.microSpace())
		case "workloads":
			for _, w := range c.selected() {
				space = max(space, c.trainingSpace(w))
			}
		case "monarch":
			space = max(space, c.trainingSpace(bench.Tiering))
		}
	}
	return space
}

// checkSpace returns an error if a file system has less than n bytes of free
// space.
func checkSpace(dir string, n int64) error {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return &exit.Error{
			Code:   exit.Tier,
			Err:    &os.PathError{Op: "statfs", Path: dir, Err: err},
			Remedy: "Select another folder with --tier DIR.",
		}
	}
	if free := int64(s.Bavail) * s.Bsize; free < n {
		return &exit.Error{
			Code:   exit.Tier,
			Err:    fmt.Errorf("%s: %s of free space, and the benchmark needs %s", dir, bench.Bytes(free), bench.Bytes(n)),
			Remedy: "Use a smaller --scale, or select another folder with --tier DIR.",
		}
	}
	return nil
}

// describe begins the report with the machine and the configuration.
func (b *benchmark) describe(ctx context.Context) {
	var (
		name unix.Utsname
		info unix.Sysinfo_t
	)
	unix.Uname(&name)
	unix.Sysinfo(&info)
	b.report = &bench.Report{
		Date:             time.Now(),
		Version:          b.Version + ", " + runtime.Version(),
		Kernel:           unix.ByteSliceToString(name.Release[:]),
		CPUs:             runtime.NumCPU(),
		MemoryBytes:      int64(info.Totalram) * int64(info.Unit),
		Command:          b.Command,
		Scale:            b.Scale,
		Runs:             b.Runs,
		LatencySeconds:   b.Config.Source.Latency.Seconds(),
		SourceBandwidth:  b.Config.Source.BytesPerSecond,
		SourceBehaviour:  "the pages of a file are dropped at each open, and all pages after each epoch; names have a TTL of 1s",
		TierFolder:       b.box.Root,
		TierFileSystem:   fileSystem(b.box.Root),
		Groups:           []bench.Group{},
		TemporaryFolders: b.box.Folders(),
	}
	version, err := "", errors.New("by --rclone off")
	if b.Rclone {
		version, err = sandbox.RcloneVersion(ctx)
	}
	if b.report.Rclone = version; err != nil {
		b.noRclone = err
		b.report.Rclone = "left out: " + err.Error()
	}
}

// fileSystem returns the type of the file system of a folder.
func fileSystem(dir string) string {
	d, err := posix.OpenDir(dir)
	if err != nil {
		return "unknown"
	}
	defer d.Close()
	kind := d.FSType()
	if kind == "tmpfs" {
		kind += ", which is memory"
	}
	return kind
}
