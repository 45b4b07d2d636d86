package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/milkweedfs/milkweed/cmd/internal/bench"
)

// benchEpochs is how often a dataset is read by each side in a run.
const benchEpochs = 3

// trainingNeed is the room for the dataset, and the copies of the side that is
// being run.
func (f *benchFlags) trainingNeed(w bench.Workload) int64 {
	return 5 * sumOf(w.Scaled(f.scale).Sizes()) / 2
}

func sumOf(numbers []int64) int64 {
	sum := int64(0)
	for _, n := range numbers {
		sum += n
	}
	return sum
}

// workloads is the group.
func (b *benchmark) workloads(ctx context.Context) (bench.Group, error) {
	g := bench.Group{Name: "workloads", LeftOut: []string{}, Caption: []string{
		"After the configurations of MLPerf Storage. One accelerator; four processes read, each up to two batches ahead (MLPerf",
		"has 8 for retinanet and resnet50). A step is one batch, and smaller in its bytes and its compute time by the same factor,",
		"so that the demand is the real one, or the real one by what native reading cannot give. UTILISATION is time computed by",
		"time passed, from the end of the first step on. The copying of stage-in, by four processes, is in the time of epoch 1, and",
		"not in its utilisation.",
		"Later epochs: the mean of epochs 2 and 3. BYTES/UNPLACED: bytes that the source gave by those that nothing local had.",
		"Pages of a mount are dropped after each file was read; the files that tiers hold are in the page cache.",
		"milkweed is a mount in mode auto, which is for each workload what its line says.",
	}}
	if b.noRclone != nil {
		g.LeftOut = append(g.LeftOut, fmt.Sprintf("%s: %v", bench.Rclone, b.noRclone))
	}
	for _, w := range bench.Workloads {
		cases, caption, err := b.training(ctx, w)
		if err != nil {
			return g, fmt.Errorf("%s: %w", w.Name, err)
		}
		g.Cases = append(g.Cases, cases...)
		g.Caption = append(g.Caption, caption)
	}
	return g, nil
}

// training is one workload.
func (b *benchmark) training(ctx context.Context, w bench.Workload) (cases []bench.Case, caption string, err error) {
	e, err := b.startExperiment(ctx, w)
	if err != nil {
		return nil, "", err
	}
	defer also(&err, e.end)
	slowdown, err := e.calibrate()
	if err != nil {
		return nil, "", err
	}
	sides := []experimentSide{
		{bench.Native, e.native},
		{bench.Direct, e.direct},
		{"milkweed", func(ctx context.Context) ([]bench.Run, error) {
			return e.milkweed(ctx, []benchTier{{"tier", filepath.Join(b.p.dir, "tier"), e.size + e.size/8 + 1<<20}})
		}},
		{bench.StageIn, func(ctx context.Context) ([]bench.Run, error) { return e.stageIn(ctx, e.size) }},
	}
	if b.noRclone == nil {
		sides = append(sides, experimentSide{bench.Rclone, e.rclone})
	}
	runs, err := e.runAll(ctx, sides)
	if err != nil {
		return nil, "", err
	}
	demand := fmt.Sprintf("the demand of one %s, %s/s", w.Accelerator, bench.Bytes(int64(w.Demand())))
	if slowdown > 1 {
		demand += fmt.Sprintf(", by %d", slowdown)
	}
	return e.cases(runs, false), fmt.Sprintf("%s; %s; auto is %s.", e.Training, demand, b.mode), nil
}

// monarch is the group.
func (b *benchmark) monarch(ctx context.Context) (g bench.Group, err error) {
	e, err := b.startExperiment(ctx, bench.Tiering)
	if err != nil {
		return g, err
	}
	defer also(&err, e.end)
	room := int64(float64(e.size) / datasetByTiers)
	ram := benchTier{"ram", filepath.Join(b.p.ramDir, "ram"), room / 3}
	ssd := benchTier{"ssd", filepath.Join(b.p.dir, "ssd"), room - room/3}
	runs, err := e.runAll(ctx, []experimentSide{
		{bench.Direct, e.direct},
		{"milkweed", func(ctx context.Context) ([]bench.Run, error) { return e.milkweed(ctx, []benchTier{ram, ssd}) }},
		{bench.StageIn, func(ctx context.Context) ([]bench.Run, error) { return e.stageIn(ctx, room) }},
	})
	if err != nil {
		return g, err
	}
	return bench.Group{Name: "monarch", LeftOut: []string{}, Cases: e.cases(runs, true), Caption: []string{
		fmt.Sprintf("%d files of about %s, %s together, 1.8 times as much as fits into the tiers:",
			e.Files, bench.Bytes(e.SampleBytes), bench.Bytes(e.size)),
		fmt.Sprintf("ram of %s (%s) and ssd of %s (%s).",
			bench.Bytes(ram.quota), fileSystem(b.p.ramDir), bench.Bytes(ssd.quota), fileSystem(b.p.dir)),
		"Four readers in random order, which do not compute. stage-in copies files until as much is copied as the tiers hold,",
		"and reads the others from the source; its first epoch has the time of the copy.",
		"BYTES/UNPLACED: bytes that the source gave by those that nothing local had. Pages of a mount are dropped.",
		fmt.Sprintf("milkweed is a mount in mode auto, which is %s here.", b.mode),
	}}, nil
}

// datasetByTiers is how large the dataset of the Monarch experiment is.
const datasetByTiers = 1.8
