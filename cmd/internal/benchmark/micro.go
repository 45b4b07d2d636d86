package benchmark

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/milkweedfs/milkweed/cmd/internal/bench"
	"github.com/milkweedfs/milkweed/cmd/internal/dataset"
	"github.com/milkweedfs/milkweed/cmd/internal/reader"
)

// The dataset of group micro at scale 1. At larger scales there are more files,
// and the large ones are larger.
const (
	microReaders    = 2
	microLargeSize  = 256 << 20
	microSmallSize  = 110e3
	microSmall      = 400
	microManySize   = 1000
	microMany       = 10_000
	microRandom     = 4096 // random reads in a run
	microSmallTimes = 5    // reads of each small file in a run
)

// A microData is that dataset.
type microData struct {
	large []dataset.File // one for each reader
	small []dataset.File
	many  []dataset.File
}

// planMicro returns the files, without their checksums.
func planMicro(scale float64) microData {
	scaled := func(n, least int) int { return max(least, int(float64(n)*scale)) }
	return microData{
		large: filesOf("large", microReaders, int64(scaled(microLargeSize, 1<<20))&^(1<<20-1)),
		small: filesOf("small", scaled(microSmall, 20), microSmallSize),
		many:  filesOf("many", scaled(microMany, 200), microManySize),
	}
}

// filesOf returns n files in folders of 1000.
func filesOf(name string, n int, size int64) []dataset.File {
	files := make([]dataset.File, n)
	for i := range files {
		files[i] = dataset.File{Name: fmt.Sprintf("%s/%03d/%06d", name, i/1000, i), Size: size}
	}
	return files
}

// microSpace returns the space for the dataset and for a copy for each side. A
// file occupies a page at least.
func (c *Config) microSpace() int64 {
	d := planMicro(c.Scale)
	size := dataset.Size(d.large) + dataset.Size(d.small) + 4<<10*int64(len(d.many))
	return size * int64(len(c.Modes)+3)
}

// A microCase is a case of group micro.
type microCase struct {
	name       string
	unit       bench.Unit
	bytes      int64 // expected result of all tasks together
	operations int
	drop       bool          // drop the pages of a mount before each run
	tasks      []reader.Task // one for each reader
}

// cases lists the cases.
func (d microData) cases() []microCase {
	sequential := func(name string, readers int, drop bool) microCase {
		var tasks []reader.Task
		for i := range readers {
			tasks = append(tasks, reader.Task{Kind: reader.Read, Files: d.large[i : i+1]})
		}
		return microCase{name, bench.Throughput, dataset.Size(d.large[:readers]), readers, drop, tasks}
	}
	random := func(name string, drop bool) microCase {
		return microCase{name, bench.Latency, microRandom * reader.RandomSize, microRandom, drop,
			[]reader.Task{{Kind: reader.Random, Files: d.large[:1], Count: microRandom}}}
	}
	many := func(name string, bytes int64, t reader.Task) microCase {
		return microCase{name, bench.Latency, bytes, len(d.many), false, []reader.Task{t}}
	}
	var small []dataset.File
	for range microSmallTimes {
		small = append(small, d.small...)
	}
	return []microCase{
		sequential("sequential, pages dropped", 1, true),
		sequential("sequential, 2 readers, pages dropped", 2, true),
		sequential("sequential, pages kept", 1, false),
		random("random 4 KiB, pages dropped", true),
		random("random 4 KiB, pages kept", false),
		{"open+read+close of 110 KB, pages kept", bench.Latency, dataset.Size(small), len(small), false,
			[]reader.Task{{Kind: reader.Read, Files: small}}},
		many("stat", dataset.Size(d.many), reader.Task{Kind: reader.Stat, Files: d.many}),
		many("list, each file", 0, reader.Task{Kind: reader.List, Folder: "many"}),
		many("find -size, each file", dataset.Size(d.many), reader.Task{Kind: reader.Find, Folder: "many"}),
	}
}

// micro runs the group of that name.
func (b *benchmark) micro(ctx context.Context) (g bench.Group, err error) {
	d := planMicro(b.Scale)
	for _, files := range [][]dataset.File{d.large, d.small, d.many} {
		b.progress("micro: write %d files", len(files))
		if err := dataset.Write(ctx, b.data, files); err != nil {
			return g, err
		}
	}
	defer func() { err = errors.Join(err, b.emptyData()) }()
	g = bench.Group{Name: "micro", LeftOut: []string{}, Caption: []string{
		fmt.Sprintf("%d files of %s, %d of 110 KB and %d of 1 KB; all are placed, and those of the tier are in the page cache.",
			len(d.large), bench.Bytes(d.large[0].Size), len(d.small), len(d.many)),
		"A read has 256 KiB. The pages that are dropped or kept are those of the mount.",
		"Each case runs once before it is measured; the kernel then caches names and sizes, if the mount permits it.",
	}}
	sides, err := b.microSides(ctx, &g)
	defer func() { err = errors.Join(err, removeSides(sides)) }()
	if err != nil {
		return g, err
	}
	for _, s := range sides {
		b.progress("micro: compare the files of %s", s.name)
		for _, files := range [][]dataset.File{d.large, d.small} {
			if _, err := s.readers.Do([]reader.Task{{Kind: reader.Check, Folder: s.folder, Files: files}}, nil); err != nil {
				return g, fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	for _, c := range d.cases() {
		measured, err := b.measure(c, sides)
		if err != nil {
			return g, err
		}
		g.Cases = append(g.Cases, measured)
	}
	return g, nil
}

// emptyData removes the dataset.
func (b *benchmark) emptyData() error {
	return errors.Join(os.RemoveAll(b.data), os.Mkdir(b.data, 0o755))
}

// measure measures a case; the sides take turns in each run. The first run does
// not count.
func (b *benchmark) measure(c microCase, sides []microSide) (bench.Case, error) {
	results := make([]bench.Side, len(sides))
	for run := range b.Runs + 1 {
		for i, s := range sides {
			b.progress("micro: %s: %s, run %d of %d", c.name, s.name, run, b.Runs)
			r, err := s.readers.Do(s.tasks(c), nil)
			if err == nil && r.Bytes != c.bytes {
				err = fmt.Errorf("%d bytes were read, want %d", r.Bytes, c.bytes)
			}
			if err != nil {
				return bench.Case{}, fmt.Errorf("%s: %s: %w", c.name, s.name, err)
			}
			results[i].Name = s.name
			if run > 0 {
				results[i].Runs = append(results[i].Runs, bench.Run{Seconds: r.Seconds})
			}
		}
	}
	return bench.NewCase(c.name, c.unit, c.bytes, int64(c.operations), results), nil
}

// tasks returns the tasks of a case for the folder of the side.
func (s microSide) tasks(c microCase) []reader.Task {
	var tasks []reader.Task
	for _, t := range c.tasks {
		t.Folder = filepath.Join(s.folder, t.Folder)
		t.DropFirst = c.drop && s.isMount
		tasks = append(tasks, t)
	}
	return tasks
}
