package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/milkweedfs/milkweed/cmd/internal/bench"
	"github.com/milkweedfs/milkweed/drivers/limit"
)

// An experiment is a dataset, the slow source that has it, and a trainer.
type experiment struct {
	*benchmark
	bench.Training
	size    int64 // of the dataset
	samples []sample
	sizes   []int64
	source  *standIn
	trainer readerPeer
	crew    readerCrew // copies and compares
}

func (b *benchmark) startExperiment(ctx context.Context, w bench.Workload) (e *experiment, err error) {
	e = &experiment{benchmark: b, Training: w.Scaled(b.scale)}
	e.sizes = e.Sizes()
	b.say("%s: write %d files", w.Name, e.Files)
	if err := e.write(ctx); err != nil {
		return nil, errors.Join(err, b.emptyData())
	}
	if e.source, err = startStandIn(ctx, b.p.data(), b.p.source(), b.speed, b.stderr); err != nil {
		return nil, errors.Join(err, b.emptyData())
	}
	p, err := startPeer(self(ctx, "bench", "train"), b.stderr)
	if err == nil {
		e.trainer = readerPeer{p}
		e.crew, err = startCrew(ctx, trainReaders, nil, b.stderr)
	}
	if err != nil {
		return nil, errors.Join(err, e.end())
	}
	return e, nil
}

// end ends the processes and removes the dataset.
func (e *experiment) end() error {
	e.crew.stop()
	if e.trainer.peer != nil {
		e.trainer.stop()
	}
	return errors.Join(e.source.stop(), e.emptyData())
}

// write makes the files, and notes what they are.
func (e *experiment) write(ctx context.Context) error {
	for i, size := range e.sizes {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s := sample{Name: fmt.Sprintf("%s%05d", e.Name, i), Size: size}
		write := s.write
		if e.NPZ {
			write = s.writeNPZ
		}
		if err := write(e.p.data(), uint64(i)); err != nil {
			return err
		}
		e.sizes[i] = s.Size
		e.size += s.Size
		e.samples = append(e.samples, s)
	}
	return nil
}

// calibrate makes a step compute for longer, by powers of two, until native
// reading keeps the accelerator busy. It returns by how much longer.
func (e *experiment) calibrate() (slowdown int, err error) {
	const enough, most = 0.98, 64
	for slowdown = 1; ; slowdown *= 2 {
		best := 0.0
		for epoch := range 2 {
			e.say("%s: calibrate, demand by %d", e.Name, slowdown)
			r, err := e.epoch(epoch, e.in(e.p.data()))
			if err != nil {
				return 0, err
			}
			best = max(best, r.Utilization)
		}
		if best >= enough || slowdown >= most {
			return slowdown, nil
		}
		e.Compute *= 2
	}
}

// An experimentSide reads the dataset benchEpochs times, and returns how each
// epoch went.
type experimentSide struct {
	name string
	run  func(context.Context) ([]bench.Run, error)
}

// epochsOf is how the epochs of a side went, in each run.
type epochsOf struct {
	side   string
	epochs [][]bench.Run
}

// runAll runs the sides in turn.
func (e *experiment) runAll(ctx context.Context, sides []experimentSide) ([]epochsOf, error) {
	all := make([]epochsOf, len(sides))
	for run := range e.runs {
		for i, s := range sides {
			e.say("%s: %s, run %d of %d", e.Name, s.name, run+1, e.runs)
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

// cases are the first epoch, the later ones, and, if it is asked for, all
// together.
func (e *experiment) cases(all []epochsOf, together bool) []bench.Case {
	pick := func(name string, bytes int64, f func(epochs []bench.Run) bench.Run) bench.Case {
		var sides []bench.Side
		for _, s := range all {
			side := bench.Side{Name: s.side}
			for _, epochs := range s.epochs {
				side.Runs = append(side.Runs, f(epochs))
			}
			sides = append(sides, side)
		}
		return bench.NewCase(e.Name+", "+name, bench.Duration, bytes, int64(e.Files), sides)
	}
	cases := []bench.Case{
		pick("epoch 1", e.size, func(epochs []bench.Run) bench.Run { return epochs[0] }),
		pick("later epochs", e.size, func(epochs []bench.Run) bench.Run { return bench.Mean(epochs[1:]) }),
	}
	if together {
		cases = append(cases, pick("three epochs", benchEpochs*e.size, bench.Sum))
	}
	return cases
}

// A place is where a trainer finds a file.
type place struct {
	folder string
	drop   bool // its pages after it was read: they are those of a mount
}

// in says that all files are in one folder.
func (e *experiment) in(folder string) func(file int) place {
	return func(int) place { return place{folder, folder != e.p.data()} }
}

// epoch has the trainer read an epoch.
func (e *experiment) epoch(n int, where func(file int) place) (bench.Run, error) {
	l := lesson{Compute: e.Compute}
	for _, batches := range e.Batches(e.sizes, n, trainReaders) {
		var share [][]part
		for _, b := range batches {
			share = append(share, e.parts(b, where))
		}
		l.Batches = append(l.Batches, share)
	}
	if err := e.trainer.send(l); err != nil {
		return bench.Run{}, err
	}
	a, err := e.trainer.receive()
	if err == nil && a.Bytes != e.size {
		err = fmt.Errorf("%d bytes were read, and the dataset has %d", a.Bytes, e.size)
	}
	return bench.Run{Seconds: a.Seconds, Utilization: a.Utilization}, err
}

func (e *experiment) parts(b bench.Batch, where func(file int) place) []part {
	var parts []part
	for _, x := range b {
		at := where(x.File)
		parts = append(parts, part{
			Path:   filepath.Join(at.folder, e.samples[x.File].Name),
			Offset: x.Offset, Length: x.Length, Last: x.Last, NPZ: e.NPZ, Drop: at.drop,
		})
	}
	return parts
}

// epochs reads the dataset benchEpochs times, and counts what the source is
// asked. After each epoch it calls settle, which returns how many bytes are
// local then; before the first there are none. The pages that the kernel keeps
// of the source are dropped between epochs, also of files that somebody keeps
// open, as where memory is short.
func (e *experiment) epochs(ctx context.Context, where func(file int) place, settle func(context.Context) (int64, error)) ([]bench.Run, error) {
	var runs []bench.Run
	local := int64(0)
	for n := range benchEpochs {
		if n > 0 && local < e.size {
			if err := e.dropSource(); err != nil {
				return nil, err
			}
		}
		before, err := e.source.stats()
		if err != nil {
			return nil, err
		}
		run, err := e.epoch(n, where)
		if err != nil {
			return nil, err
		}
		now, err := settle(ctx)
		if err != nil {
			return nil, err
		}
		after, err := e.source.stats()
		if err != nil {
			return nil, err
		}
		run.Source = sourceOf(before, after, e.size-local)
		runs = append(runs, run)
		local = now
	}
	return runs, e.compare(where)
}

// dropSource has the kernel forget the pages of the source.
func (e *experiment) dropSource() error {
	_, err := e.crew.do(e.crew.share(errand{Do: dropFiles, Folder: e.p.source(), Files: e.samples}))
	return err
}

// sourceOf is what the source was asked between two moments, while so many bytes
// were nowhere else.
func sourceOf(before, after limit.Stats, unplaced int64) *bench.SourceUse {
	u := sourceUse(before, after)
	return &bench.SourceUse{Operations: u.Operations, Opens: u.Opens, Bytes: u.Bytes, UnplacedBytes: unplaced}
}

// compare compares every file with what was written.
func (e *experiment) compare(where func(file int) place) error {
	var files []sample
	for i, s := range e.samples {
		s.Name = filepath.Join(where(i).folder, s.Name)
		files = append(files, s)
	}
	_, err := e.crew.do(e.crew.share(errand{Do: checkFiles, Files: files}))
	return err
}

// unsettled is for sides that copy nothing after an epoch, and hold n bytes.
func unsettled(n int64) func(context.Context) (int64, error) {
	return func(context.Context) (int64, error) { return n, nil }
}

// native reads the files that the source has, where they are.
func (e *experiment) native(context.Context) ([]bench.Run, error) {
	var runs []bench.Run
	for n := range benchEpochs {
		run, err := e.epoch(n, e.in(e.p.data()))
		if err != nil {
			return nil, err
		}
		runs = append(runs, run)
	}
	return runs, e.compare(e.in(e.p.data()))
}

// direct reads the source.
func (e *experiment) direct(ctx context.Context) ([]bench.Run, error) {
	return e.epochs(ctx, e.in(e.p.source()), unsettled(0))
}

// milkweed reads a mount whose tiers are empty.
func (e *experiment) milkweed(ctx context.Context, tiers []benchTier) (runs []bench.Run, err error) {
	for _, t := range tiers {
		if _, err := makeFor(t.folder, nil); err != nil {
			return nil, err
		}
	}
	m, err := e.p.mountFor(ctx, "milkweed", "auto", e.p.source(), tiers, nil)
	if err != nil {
		return nil, err
	}
	defer also(&err, m.remove)
	e.mode = m.mode
	return e.epochs(ctx, e.in(m.point), m.settle)
}

// rclone reads a mount of rclone whose cache is empty.
func (e *experiment) rclone(ctx context.Context) (runs []bench.Run, err error) {
	m, err := e.p.mountRclone(ctx, ":local:"+e.p.source(), "")
	if err != nil {
		return nil, err
	}
	defer also(&err, m.remove)
	return e.epochs(ctx, e.in(m.point), unsettled(e.size))
}

// stageIn copies files, in the order of their names, until no more fit into
// room, and reads the copies, and of the others the source.
func (e *experiment) stageIn(ctx context.Context, room int64) (runs []bench.Run, err error) {
	folder, err := e.p.make("staged", nil)
	if err != nil {
		return nil, err
	}
	defer also(&err, func() error { return os.RemoveAll(folder) })
	staged, size := 0, int64(0)
	for staged < len(e.samples) && size+e.sizes[staged] <= room {
		size += e.sizes[staged]
		staged++
	}
	before, err := e.source.stats()
	if err != nil {
		return nil, err
	}
	copied, err := e.crew.do(e.crew.share(errand{Do: copyFiles, Folder: e.p.source(), To: folder, Files: e.samples[:staged]}))
	if err != nil {
		return nil, err
	}
	after, err := e.source.stats()
	if err != nil {
		return nil, err
	}
	runs, err = e.epochs(ctx, func(file int) place {
		if file < staged {
			return place{folder, false}
		}
		return place{e.p.source(), true}
	}, unsettled(size))
	if err != nil {
		return nil, err
	}
	copying := bench.Run{Seconds: copied.Seconds, Source: sourceOf(before, after, 0)}
	runs[0] = bench.Sum([]bench.Run{copying, runs[0]})
	return runs, nil
}
