package benchmark

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/bench"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/dataset"
	"github.com/milkweedfs/milkweed/cmd/internal/reader"
	"github.com/milkweedfs/milkweed/cmd/internal/sandbox"
	"github.com/milkweedfs/milkweed/cmd/internal/simpfs"
)

// The sides that read through Milkweed.
const (
	milkweed = "milkweed"
	planned  = "milkweed, plan*" // the readers tell it their order
)

// An experiment is a training on a dataset that a simulated PFS serves.
type experiment struct {
	*benchmark
	bench.Training
	npz     bool  // each file is a NumPy archive
	size    int64 // of the dataset
	files   []dataset.File
	sizes   []int64
	pfs     *simpfs.PFS
	trainer trainer
	readers *reader.Group // for copying and comparing, outside of the training
}

// startExperiment writes the dataset and starts the processes. The caller must
// call end.
func (b *benchmark) startExperiment(ctx context.Context, w bench.Workload) (e *experiment, err error) {
	e = &experiment{benchmark: b, Training: b.training(w)}
	e.npz = w.NPZ && b.Format == "npz"
	e.sizes = e.Sizes()
	b.progress("%s: write %d files", w.Name, e.Files)
	if err := e.write(ctx); err != nil {
		return nil, errors.Join(err, b.emptyData())
	}
	if e.pfs, err = simpfs.Start(ctx, b.data, b.source, b.Source); err != nil {
		return nil, errors.Join(err, b.emptyData())
	}
	if e.trainer, err = startTrainer(ctx, b.Accelerators); err != nil {
		return nil, errors.Join(err, e.pfs.Stop(), e.emptyData())
	}
	if e.readers, err = reader.Start(ctx, trainReaders, nil); err != nil {
		e.trainer.stop()
		return nil, errors.Join(err, e.pfs.Stop(), e.emptyData())
	}
	return e, nil
}

// end stops the processes and removes the dataset.
func (e *experiment) end() error {
	e.readers.Stop()
	e.trainer.stop()
	return errors.Join(e.pfs.Stop(), e.emptyData())
}

// write writes the dataset.
func (e *experiment) write(ctx context.Context) error {
	for i, size := range e.sizes {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f := dataset.File{Name: fmt.Sprintf("%s%05d", e.Name, i), Size: size}
		write := f.Write
		switch {
		case e.npz:
			write = f.WriteNPZ
		case e.NPZ:
			write = f.WriteNPY
		}
		if err := write(e.data, uint64(i)); err != nil {
			return err
		}
		e.sizes[i] = f.Size
		e.size += f.Size
		e.files = append(e.files, f)
	}
	return nil
}

// calibrate doubles the compute time of a step until native reading keeps the
// accelerator busy. It returns the factor.
func (e *experiment) calibrate() (slowdown int, err error) {
	const minUtilization, maxSlowdown = 0.98, 64
	for slowdown = 1; ; slowdown *= 2 {
		best := 0.0
		for epoch := range 2 {
			e.progress("%s: calibrate, demand divided by %d", e.Name, slowdown)
			r, err := e.epoch(epoch, e.all(e.data))
			if err != nil {
				return 0, err
			}
			best = max(best, r.Utilization)
		}
		if best >= minUtilization || slowdown >= maxSlowdown {
			return slowdown, nil
		}
		e.Compute *= 2
	}
}

// An experimentSide reads the dataset epochCount times in one way and returns a
// result for each epoch.
type experimentSide struct {
	name string
	run  func(context.Context) ([]bench.Run, error)
}

// sideEpochs are the results of a side, by run and by epoch.
type sideEpochs struct {
	side   string
	epochs [][]bench.Run
}

// runAll measures the sides, which take turns in each run.
func (e *experiment) runAll(ctx context.Context, sides []experimentSide) ([]sideEpochs, error) {
	all := make([]sideEpochs, len(sides))
	for run := range e.Runs {
		for i, s := range sides {
			e.progress("%s: %s, run %d of %d", e.Name, s.name, run+1, e.Runs)
			epochs, err := s.run(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			all[i].side = s.name
			all[i].epochs = append(all[i].epochs, epochs)
		}
	}
	return all, nil
}

// cases computes the case of the first epoch, that of the later epochs, and with
// total that of all epochs.
func (e *experiment) cases(all []sideEpochs, total bool) []bench.Case {
	newCase := func(name string, bytes int64, f func(epochs []bench.Run) bench.Run) bench.Case {
		var sides []bench.Side
		for _, s := range all {
			side := bench.Side{Name: s.side}
			for _, epochs := range s.epochs {
				side.Runs = append(side.Runs, f(epochs))
			}
			sides = append(sides, side)
		}
		c := bench.NewCase(e.Name+", "+name, bench.Duration, bytes, int64(e.Files), sides)
		if e.Training.Compute > 0 {
			c.Samples = bytes / e.size * int64(e.Files) * int64(e.SamplesPerFile)
		}
		return c
	}
	cases := []bench.Case{
		newCase("epoch 1", e.size, func(epochs []bench.Run) bench.Run { return epochs[0] }),
		newCase("later epochs", e.size, func(epochs []bench.Run) bench.Run { return bench.Mean(epochs[1:]) }),
	}
	if total {
		cases = append(cases, newCase("three epochs", epochCount*e.size, bench.Sum))
	}
	return cases
}

// A layout returns the folder from which a trainer reads a file, and whether its
// pages are dropped after it was read, which is the case for files of a mount.
type layout func(file int) (folder string, drop bool)

// all is the layout with all files in one folder.
func (e *experiment) all(folder string) layout {
	return func(int) (string, bool) { return folder, folder != e.data }
}

// epoch reads an epoch.
func (e *experiment) epoch(n int, files layout) (bench.Run, error) {
	request := trainRequest{Compute: e.Compute, Barrier: e.Barrier}
	for _, batches := range e.Batches(e.sizes, n, e.Accelerators*trainReaders) {
		var share [][]reader.Extent
		for _, b := range batches {
			share = append(share, e.extents(b, files))
		}
		request.Batches = append(request.Batches, share)
	}
	r, err := e.trainer.train(request)
	if err == nil && r.Bytes != e.size {
		err = fmt.Errorf("%d bytes were read of a dataset of %d", r.Bytes, e.size)
	}
	return bench.Run{Seconds: r.Seconds, Utilization: r.Utilization}, err
}

func (e *experiment) extents(b bench.Batch, files layout) []reader.Extent {
	var extents []reader.Extent
	for _, x := range b {
		folder, drop := files(x.File)
		extents = append(extents, reader.Extent{
			Path:   filepath.Join(folder, e.files[x.File].Name),
			Offset: x.Offset, Length: x.Length, Last: x.Last, NPZ: e.npz, Direct: e.Direct, Drop: drop,
		})
	}
	return extents
}

// epochs reads the dataset epochCount times and counts the operations of the
// source. After each epoch it calls settle, which waits for the copies that the
// epoch started and returns the number of bytes that have a local copy then.
//
// Between epochs it drops the pages of the source, including those of files that
// a mount keeps open, as the kernel does when memory is short.
func (e *experiment) epochs(ctx context.Context, files layout, settle func(context.Context) (int64, error)) ([]bench.Run, error) {
	var runs []bench.Run
	local := int64(0)
	for n := range epochCount {
		if n > 0 && local < e.size {
			if err := e.dropSource(); err != nil {
				return nil, err
			}
		}
		before, err := e.pfs.Use()
		if err != nil {
			return nil, err
		}
		run, err := e.epoch(n, files)
		if err != nil {
			return nil, err
		}
		settled, err := settle(ctx)
		if err != nil {
			return nil, err
		}
		after, err := e.pfs.Use()
		if err != nil {
			return nil, err
		}
		run.Source = sourceUse(before, after, e.size-local)
		runs = append(runs, run)
		local = settled
	}
	return runs, e.compare(files)
}

// dropSource drops the pages of the source.
func (e *experiment) dropSource() error {
	_, err := e.readers.DoSplit(reader.Task{Kind: reader.Drop, Folder: e.source, Files: e.files}, nil)
	return err
}

func sourceUse(before, after simpfs.Use, unplaced int64) *bench.SourceUse {
	u := after.Sub(before)
	return &bench.SourceUse{Operations: u.Operations, Opens: u.Opens, Bytes: u.Bytes, UnplacedBytes: unplaced}
}

// compare compares every file with the dataset.
func (e *experiment) compare(files layout) error {
	task := reader.Task{Kind: reader.Check}
	for i, f := range e.files {
		folder, _ := files(i)
		f.Name = filepath.Join(folder, f.Name)
		task.Files = append(task.Files, f)
	}
	_, err := e.readers.DoSplit(task, nil)
	return err
}

// noCopies is the settle function of a side that starts no copies and has n bytes
// locally.
func noCopies(n int64) func(context.Context) (int64, error) {
	return func(context.Context) (int64, error) { return n, nil }
}

// native reads the files that the simulated PFS serves, without the PFS.
func (e *experiment) native(context.Context) ([]bench.Run, error) {
	var runs []bench.Run
	for n := range epochCount {
		run, err := e.epoch(n, e.all(e.data))
		if err != nil {
			return nil, err
		}
		runs = append(runs, run)
	}
	return runs, e.compare(e.all(e.data))
}

// direct reads the source.
func (e *experiment) direct(ctx context.Context) ([]bench.Run, error) {
	return e.epochs(ctx, e.all(e.source), noCopies(0))
}

// milkweed reads a mount of Milkweed with empty tiers. With plan, the readers tell
// it the order of each epoch before they begin it. The time to tell the first one is
// part of epoch 1, but not of its utilisation.
func (e *experiment) milkweed(ctx context.Context, tiers []sandbox.Tier, plan bool) (runs []bench.Run, err error) {
	m, err := e.box.Mount(ctx, sandbox.MountConfig{
		Name: milkweed, Source: e.source, Mode: "auto", Tiers: tiers, Private: true,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Remove()) }()
	e.mode = m.Mode
	var planning bench.Run
	if plan {
		if planning, err = e.planFirst(ctx, m); err != nil {
			return nil, err
		}
	}
	var total bench.Waits
	var waits []*bench.Waits // by epoch
	runs, err = e.epochs(ctx, e.all(m.Point), func(ctx context.Context) (int64, error) {
		s, err := m.WaitCopied(ctx)
		if next := len(waits) + 1; plan && err == nil && next < epochCount {
			err = e.plan(ctx, m, next)
		}
		now := totalWaits(s.Waits)
		waits = append(waits, &bench.Waits{
			Latency: now.Latency - total.Latency, Bandwidth: now.Bandwidth - total.Bandwidth,
			Fill: now.Fill - total.Fill, Tier: now.Tier - total.Tier,
		})
		total = now
		return s.Placement.PlacedBytes, err
	})
	if err != nil {
		return nil, err
	}
	for i := range runs {
		runs[i].Waits = waits[i]
	}
	runs[0] = bench.Sum([]bench.Run{planning, runs[0]})
	return runs, nil
}

// planFirst is plan for the first epoch. It returns the time, and the use of the
// source in it.
func (e *experiment) planFirst(ctx context.Context, m *sandbox.Mount) (bench.Run, error) {
	before, err := e.pfs.Use()
	if err != nil {
		return bench.Run{}, err
	}
	start := time.Now()
	if err := e.plan(ctx, m, 0); err != nil {
		return bench.Run{}, err
	}
	took := time.Since(start)
	after, err := e.pfs.Use()
	return bench.Run{Seconds: took.Seconds(), Source: sourceUse(before, after, 0)}, err
}

// plan tells a mount in which order each reader opens the files in an epoch.
func (e *experiment) plan(ctx context.Context, m *sandbox.Mount, epoch int) error {
	for i, batches := range e.Batches(e.sizes, epoch, e.Accelerators*trainReaders) {
		var names []string
		lead := 0
		for n, batch := range batches {
			for _, x := range batch {
				if x.Offset == 0 {
					names = append(names, e.files[x.File].Name)
				}
			}
			if n < prefetch {
				lead = len(names)
			}
		}
		if len(names) == 0 {
			continue
		}
		if err := m.Plan(ctx, fmt.Sprintf("reader%d", i), epoch, lead, names); err != nil {
			return err
		}
	}
	return nil
}

// totalWaits returns how long readers waited since the mount.
func totalWaits(all []control.Wait) (w bench.Waits) {
	for _, wait := range all {
		switch wait.Cause {
		case control.Latency:
			w.Latency += wait.Seconds
		case control.Bandwidth:
			w.Bandwidth += wait.Seconds
		case control.FillCause:
			w.Fill += wait.Seconds
		case control.TierCause:
			w.Tier += wait.Seconds
		}
	}
	return w
}

// rclone reads a mount of rclone with an empty cache.
func (e *experiment) rclone(ctx context.Context) (runs []bench.Run, err error) {
	m, err := e.box.MountRclone(ctx, ":local:"+e.source, "")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Remove()) }()
	return e.epochs(ctx, e.all(m.Point), noCopies(e.size))
}

// stageIn copies files, in the order of their names, up to a total of quota bytes.
// It then reads the copies, and the other files from the source.
func (e *experiment) stageIn(ctx context.Context, quota int64) (runs []bench.Run, err error) {
	folder, err := e.box.Mkdir("staged")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	staged, size := 0, int64(0)
	for staged < len(e.files) && size+e.sizes[staged] <= quota {
		size += e.sizes[staged]
		staged++
	}
	before, err := e.pfs.Use()
	if err != nil {
		return nil, err
	}
	copied, err := e.readers.DoSplit(reader.Task{Kind: reader.Copy, Folder: e.source, Target: folder, Files: e.files[:staged]}, nil)
	if err != nil {
		return nil, err
	}
	after, err := e.pfs.Use()
	if err != nil {
		return nil, err
	}
	runs, err = e.epochs(ctx, func(file int) (string, bool) {
		if file < staged {
			return folder, false
		}
		return e.source, true
	}, noCopies(size))
	if err != nil {
		return nil, err
	}
	copying := bench.Run{Seconds: copied.Seconds, Source: sourceUse(before, after, 0)}
	runs[0] = bench.Sum([]bench.Run{copying, runs[0]})
	return runs, nil
}
