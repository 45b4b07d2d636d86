package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/milkweedfs/milkweed/cmd/internal/bench"
)

// The dataset of micro at scale 1. Above it, large files do not grow.
const (
	microLargeSize  = 256 << 20
	microLarge      = 2 // as many as there are readers
	microSmallSize  = 110e3
	microSmall      = 400
	microManySize   = 1000
	microMany       = 10_000
	microRandom     = 4096 // reads
	microSmallTimes = 5    // how often each small file is read in a run
)

// A microData is that dataset.
type microData struct {
	large, small, many []sample
}

// planMicro returns the samples, without their checksums.
func planMicro(scale float64) microData {
	scaled := func(n int, least int) int { return max(least, int(float64(n)*scale)) }
	return microData{
		large: samplesOf("large", microLarge, int64(scaled(microLargeSize, 1<<20))&^(1<<20-1)),
		small: samplesOf("small", scaled(microSmall, 20), microSmallSize),
		many:  samplesOf("many", scaled(microMany, 200), microManySize),
	}
}

// perFolder is how many files are in a folder.
const perFolder = 1000

func samplesOf(name string, n int, size int64) []sample {
	samples := make([]sample, n)
	for i := range samples {
		samples[i] = sample{Name: fmt.Sprintf("%s/%03d/%06d", name, i/perFolder, i), Size: size}
	}
	return samples
}

// microNeed is the room for the dataset and a copy for each side.
func (f *benchFlags) microNeed() int64 {
	d := planMicro(f.scale)
	size := totalSize(d.large) + totalSize(d.small) + 4<<10*int64(len(d.many)) // a file takes a page
	return size * int64(len(f.modes)+3)
}

// A microSide is a side of micro, with two readers.
type microSide struct {
	name    string
	folder  string
	readers readerCrew
	pages   bool         // the kernel keeps pages for it beside those of the files
	remove  func() error // ends it
}

// A microCase is a case of micro.
type microCase struct {
	name       string
	unit       bench.Unit
	bytes      int64 // that are read, or that the sizes found add up to
	operations int
	drop       bool     // the pages of the mount before each run
	errands    []errand // of each reader
}

// cases lists what is measured.
func (d microData) cases() []microCase {
	sequential := func(name string, readers int, drop bool) microCase {
		var errands []errand
		for i := range readers {
			errands = append(errands, errand{Do: readFiles, Files: d.large[i : i+1]})
		}
		return microCase{name, bench.Throughput, totalSize(d.large[:readers]), readers, drop, errands}
	}
	random := func(name string, drop bool) microCase {
		return microCase{name, bench.Latency, microRandom * randomSize, microRandom, drop,
			[]errand{{Do: readRandom, Files: d.large[:1], Count: microRandom}}}
	}
	var small []sample
	for range microSmallTimes {
		small = append(small, d.small...)
	}
	many := func(name, do string) microCase {
		return microCase{name, bench.Latency, totalSize(d.many), len(d.many), false, []errand{{Do: do, Folder: "many"}}}
	}
	list := many("list, each file", listFolder)
	list.bytes = 0
	stat := many("stat", statFiles)
	stat.errands[0].Folder, stat.errands[0].Files = "", d.many
	return []microCase{
		sequential("sequential, pages dropped", 1, true),
		sequential("sequential, 2 readers, pages dropped", 2, true),
		sequential("sequential, pages kept", 1, false),
		random("random 4 KiB, pages dropped", true),
		random("random 4 KiB, pages kept", false),
		{"open+read+close of 110 KB, pages kept", bench.Latency, totalSize(small), len(small), false,
			[]errand{{Do: readFiles, Files: small}}},
		stat,
		list,
		many("find -size, each file", findFolder),
	}
}

// micro is the group.
func (b *benchmark) micro(ctx context.Context) (g bench.Group, err error) {
	d := planMicro(b.scale)
	for _, samples := range [][]sample{d.large, d.small, d.many} {
		b.say("micro: write %d files", len(samples))
		if err := writeDataset(ctx, b.p.data(), samples); err != nil {
			return g, err
		}
	}
	defer also(&err, b.emptyData)
	g = bench.Group{Name: "micro", LeftOut: []string{}, Caption: []string{
		fmt.Sprintf("%d files of %s, %d of 110 KB and %d of 1 KB; all are placed, and the tier has them in the page cache.",
			len(d.large), bench.Bytes(d.large[0].Size), len(d.small), len(d.many)),
		"A read asks for 256 KiB. Pages dropped or kept are those that the kernel keeps of a mount itself.",
		"Before it is measured, each case is run once; so names and sizes are known to the kernel, as far as the mount lets it.",
	}}
	sides, err := b.microSides(ctx, &g)
	defer also(&err, func() error { return removeSides(sides) })
	if err != nil {
		return g, err
	}
	for _, s := range sides {
		b.say("micro: compare the files of %s", s.name)
		for _, samples := range [][]sample{d.large, d.small} {
			if _, err := s.readers.do([]errand{{Do: checkFiles, Folder: s.folder, Files: samples}}); err != nil {
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

func (b *benchmark) emptyData() error {
	return errors.Join(os.RemoveAll(b.p.data()), os.Mkdir(b.p.data(), 0o755))
}

// measure runs a case, the sides in turn. The first run is not counted.
func (b *benchmark) measure(c microCase, sides []microSide) (bench.Case, error) {
	results := make([]bench.Side, len(sides))
	for run := range b.runs + 1 {
		for i, s := range sides {
			b.say("micro: %s: %s, run %d of %d", c.name, s.name, run, b.runs)
			a, err := s.readers.do(s.errands(c))
			if err == nil && a.Bytes != c.bytes {
				err = fmt.Errorf("%d bytes were read, and there are %d", a.Bytes, c.bytes)
			}
			if err != nil {
				return bench.Case{}, fmt.Errorf("%s: %s: %w", c.name, s.name, err)
			}
			results[i].Name = s.name
			if run > 0 {
				results[i].Runs = append(results[i].Runs, bench.Run{Seconds: a.Seconds})
			}
		}
	}
	return bench.NewCase(c.name, c.unit, c.bytes, int64(c.operations), results), nil
}

// errands are those of a case in the folder of the side.
func (s microSide) errands(c microCase) []errand {
	var errands []errand
	for _, e := range c.errands {
		e.Folder = filepath.Join(s.folder, e.Folder)
		e.Drop = c.drop && s.pages
		errands = append(errands, e)
	}
	return errands
}

// microSides starts all sides that can be had, and notes in g which cannot. What
// it returns is to be removed, with an error too.
func (b *benchmark) microSides(ctx context.Context, g *bench.Group) (sides []microSide, err error) {
	readers, err := startCrew(ctx, microLarge, nil, b.stderr)
	if err != nil {
		return nil, err
	}
	sides = []microSide{{name: bench.Native, folder: b.p.data(), readers: readers}}
	leaveOut := func(name string, why error) {
		g.LeftOut = append(g.LeftOut, fmt.Sprintf("%s: %v", name, why))
	}
	for _, mode := range b.modes {
		b.say("micro: mount and warm up %s", mode)
		s, err := b.placedSide(ctx, mode, mode, nil)
		if err == nil {
			sides = append(sides, s)
		} else if ctx.Err() == nil {
			leaveOut(mode, err)
		} else {
			return sides, err
		}
	}
	if user, err := unprivileged(); err != nil {
		leaveOut("user", err)
	} else if s, err := b.placedSide(ctx, "user", "auto", user); err != nil {
		leaveOut("user", err)
	} else {
		sides = append(sides, s)
		g.Caption = append(g.Caption, fmt.Sprintf("user is a mount in mode auto that uid %d made by way of fusermount3.", user.Uid))
	}
	if b.noRclone != nil {
		leaveOut(bench.Rclone, b.noRclone)
		return sides, nil
	}
	s, err := b.rcloneSide(ctx)
	if err == nil {
		sides = append(sides, s)
		g.Caption = append(g.Caption, "rclone is rclone mount "+rcloneWords+", with all that is read in its cache.")
	}
	return sides, err
}

// placedSide is a mount of the dataset with all files placed.
func (b *benchmark) placedSide(ctx context.Context, name, mode string, user *benchUser) (s microSide, err error) {
	tier, err := b.p.make("tier-"+name, user)
	if err != nil {
		return s, err
	}
	m, err := b.p.mountFor(ctx, name, mode, b.p.data(), []benchTier{{"tier", tier, b.microNeed()}}, user)
	if err != nil {
		return s, errors.Join(err, os.RemoveAll(tier))
	}
	if err := m.warm(ctx); err != nil {
		return s, errors.Join(err, m.remove())
	}
	s = microSide{name: name, folder: m.point, pages: true, remove: m.remove}
	if s.readers, err = startCrew(ctx, microLarge, user, b.stderr); err != nil {
		return s, errors.Join(err, m.remove())
	}
	return s, nil
}

// rcloneSide is a mount of rclone. The check of all files fills its cache.
func (b *benchmark) rcloneSide(ctx context.Context) (s microSide, err error) {
	m, err := b.p.mountRclone(ctx, ":local:"+b.p.data(), "")
	if err != nil {
		return s, err
	}
	s = microSide{name: bench.Rclone, folder: m.point, pages: true, remove: m.remove}
	if s.readers, err = startCrew(ctx, microLarge, nil, b.stderr); err != nil {
		return s, errors.Join(err, m.remove())
	}
	return s, nil
}

// removeSides ends the readers of each side, and then the side.
func removeSides(sides []microSide) error {
	var errs []error
	for _, s := range sides {
		s.readers.stop()
		if s.remove != nil {
			errs = append(errs, s.remove())
		}
	}
	return errors.Join(errs...)
}
