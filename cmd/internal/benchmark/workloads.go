package benchmark

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/bench"
	"github.com/milkweedfs/milkweed/cmd/internal/sandbox"
)

// epochCount is the number of epochs of each side in a run.
const epochCount = 3

// workloadSides are the sides that Config.Sides may name. Milkweed is measured with and without a plan.
var workloadSides = []string{bench.Native, bench.Direct, milkweed, bench.StageIn, bench.Rclone}

// maxAccelerators is the largest number of accelerators. Each has trainReaders processes.
const maxAccelerators = 64

// selected returns the workloads that are measured.
func (c *Config) selected() []bench.Workload {
	if len(c.Workloads) == 0 {
		return bench.Workloads
	}
	return slices.DeleteFunc(slices.Clone(bench.Workloads), func(w bench.Workload) bool { return !slices.Contains(c.Workloads, w.Name) })
}

// training returns a workload whose dataset has enough files for all accelerators.
func (c *Config) training(w bench.Workload) bench.Training {
	t := w.Scaled(c.Scale)
	t.Files *= max(1, c.Accelerators)
	return t
}

// trainingSpace returns the space for a dataset and for the copies of one side.
func (c *Config) trainingSpace(w bench.Workload) int64 {
	size := int64(0)
	for _, n := range c.training(w).Sizes() {
		size += n
	}
	return 5 * size / 2
}

// division returns the division of MLPerf Storage whose rules a benchmark without a plan keeps, and why.
func (c *Config) division() string {
	var changes []string
	if c.Format != Formats[0] {
		changes = append(changes, "--format "+c.Format)
	}
	if c.Barrier != BarrierBatch {
		changes = append(changes, "--barrier "+string(c.Barrier))
	}
	if c.Direct {
		changes = append(changes, "--direct")
	}
	if len(changes) == 0 {
		return "The readers keep the rules of the division CLOSED"
	}
	return "Only the division OPEN permits " + strings.Join(changes, " and ")
}

// workloads runs the group of that name.
func (b *benchmark) workloads(ctx context.Context) (bench.Group, error) {
	g := bench.Group{Name: "workloads", LeftOut: []string{}, Caption: []string{
		fmt.Sprintf("Based on the configurations of MLPerf Storage. Accelerators: %d; four processes read for each, each with two batches in flight", b.Accelerators),
		"(MLPerf has 8 for retinanet and resnet50). A step is one batch. Its bytes and its compute time are reduced by the same",
		"factor, which keeps the demand. If native reading cannot meet the demand, it is divided by the number shown.",
		"UTILISATION is compute time by elapsed time, from the end of the first step, as the mean of the accelerators. SAMPLES/S",
		"is of all accelerators, first step included. " + b.Barrier.caption(),
		b.division() + " of MLPerf Storage v1.0; its datasets are larger, with 500 steps.",
		"stage-in copies with four processes; the time of the copy is part of epoch 1, but not of its utilisation.",
		"WAITED: how long the requests of the readers waited in the daemon, summed: for the latency and the bandwidth of the",
		"source, for copies in flight, and for tiers. Readers prefetch, so that the accelerator does not wait for all of it.",
		"Later epochs: the mean of epochs 2 and 3. BYTES/UNPLACED: bytes read from the source by bytes that have no local copy.",
		"Pages of a mount are dropped after each file is read; the files of the tiers are in the page cache.",
		"milkweed is a mount in mode auto; the line of each workload shows the mode that it selects.",
		"*: the readers hand over the order of each epoch before it begins; for epoch 1, that time is part of it, but not of its",
		"utilisation. The rules of MLPerf Storage forbid storage that knows the order.",
	}}
	if b.noRclone != nil {
		g.LeftOut = append(g.LeftOut, fmt.Sprintf("%s: %v", bench.Rclone, b.noRclone))
	}
	for _, w := range b.selected() {
		cases, caption, err := b.workload(ctx, w)
		if err != nil {
			return g, fmt.Errorf("%s: %w", w.Name, err)
		}
		g.Cases = append(g.Cases, cases...)
		g.Caption = append(g.Caption, caption)
	}
	return g, nil
}

// workload measures one workload.
func (b *benchmark) workload(ctx context.Context, w bench.Workload) (cases []bench.Case, caption string, err error) {
	e, err := b.startExperiment(ctx, w)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, e.end()) }()
	slowdown := b.Slowdown
	e.Compute *= time.Duration(max(1, slowdown))
	if slowdown == 0 {
		if slowdown, err = e.calibrate(); err != nil {
			return nil, "", err
		}
	}
	mounted := func(plan bool) func(context.Context) ([]bench.Run, error) {
		return func(ctx context.Context) ([]bench.Run, error) {
			return e.milkweed(ctx, []sandbox.Tier{{Name: "tier", Quota: e.size + e.size/8 + 1<<20}}, plan)
		}
	}
	sides := []experimentSide{
		{bench.Native, e.native},
		{bench.Direct, e.direct},
		{milkweed, mounted(false)},
		{planned, mounted(true)},
		{bench.StageIn, func(ctx context.Context) ([]bench.Run, error) { return e.stageIn(ctx, e.size) }},
	}
	if b.noRclone == nil {
		sides = append(sides, experimentSide{bench.Rclone, e.rclone})
	}
	sides = slices.DeleteFunc(sides, func(s experimentSide) bool {
		name, _, _ := strings.Cut(s.name, ",")
		return len(b.Sides) > 0 && !slices.Contains(b.Sides, name)
	})
	runs, err := e.runAll(ctx, sides)
	if err != nil {
		return nil, "", err
	}
	demand := fmt.Sprintf("the demand of one %s, %s/s", w.Accelerator, bench.Bytes(int64(w.Demand())))
	if slowdown > 1 {
		demand += fmt.Sprintf(", divided by %d", slowdown)
	}
	return e.cases(runs, false), fmt.Sprintf("%s; %s; mode %s.", e.Training, demand, b.mode), nil
}

// monarch runs the group of that name.
func (b *benchmark) monarch(ctx context.Context) (g bench.Group, err error) {
	e, err := b.startExperiment(ctx, bench.Tiering)
	if err != nil {
		return g, err
	}
	defer func() { err = errors.Join(err, e.end()) }()
	quota := int64(float64(e.size) / datasetPerTiers)
	ram := sandbox.Tier{Name: "ram", Memory: true, Quota: quota / 3}
	ssd := sandbox.Tier{Name: "ssd", Quota: quota - ram.Quota}
	runs, err := e.runAll(ctx, []experimentSide{
		{bench.Direct, e.direct},
		{milkweed, func(ctx context.Context) ([]bench.Run, error) {
			return e.milkweed(ctx, []sandbox.Tier{ram, ssd}, false)
		}},
		{bench.StageIn, func(ctx context.Context) ([]bench.Run, error) { return e.stageIn(ctx, quota) }},
	})
	if err != nil {
		return g, err
	}
	return bench.Group{Name: "monarch", LeftOut: []string{}, Cases: e.cases(runs, true), Caption: []string{
		fmt.Sprintf("%d files of about %s, together %s, %g times the size of the tiers:",
			e.Files, bench.Bytes(e.SampleBytes), bench.Bytes(e.size), datasetPerTiers),
		fmt.Sprintf("ram of %s (%s) and ssd of %s (%s).",
			bench.Bytes(ram.Quota), fileSystem(b.box.Memory), bench.Bytes(ssd.Quota), fileSystem(b.box.Root)),
		"Four readers in random order, which do not compute. stage-in copies files up to the size of the tiers and reads the",
		"others from the source; the time of the copy is part of epoch 1.",
		"BYTES/UNPLACED: bytes read from the source by bytes that have no local copy. Pages of a mount are dropped.",
		fmt.Sprintf("milkweed is a mount in mode auto, which selects %s here.", b.mode),
	}}, nil
}

// datasetPerTiers is the ratio of the dataset to the tiers in group monarch.
const datasetPerTiers = 1.8
