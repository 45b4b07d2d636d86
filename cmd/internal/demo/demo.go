// Package demo shows what Milkweed does, on one machine: reader processes read a
// dataset several times, directly from a simulated PFS and through Milkweed.
//
// No process uses a mount that it serves. The processes of a demo are:
//
//   - the caller of Run, which makes the dataset, starts the others and prints;
//   - the simulated PFS (package simpfs);
//   - `milkweed mount`, as a user runs it, with the simulated PFS as its source;
//   - the readers (package reader).
package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/dataset"
	"github.com/milkweedfs/milkweed/cmd/internal/reader"
	"github.com/milkweedfs/milkweed/cmd/internal/sandbox"
	"github.com/milkweedfs/milkweed/cmd/internal/simpfs"
)

// readerCount is the number of reader processes.
const readerCount = 4

// Config describes a demo.
type Config struct {
	Source     simpfs.Speed
	SmallFiles int  // of 60 to 110 KB
	LargeFiles int  // of 32 MB
	Epochs     int  // number of times that the dataset is read each way
	Keep       bool // keep the folders

	Out    io.Writer // receives the facts and a line for each epoch
	Stderr io.Writer // receives warnings

	// Progress is called at the start of each epoch. It returns a function that
	// shows the progress of the epoch and one that ends it. It must not be nil.
	Progress func() (show func(control.Progress), end func())
}

// Validate checks the values that a user can set.
func (c *Config) Validate() error {
	switch {
	case c.SmallFiles < 0 || c.LargeFiles < 0 || c.SmallFiles+c.LargeFiles == 0:
		return fmt.Errorf("%d small and %d large files: a dataset needs at least one file", c.SmallFiles, c.LargeFiles)
	case c.Epochs < 1:
		return fmt.Errorf("%d epochs: at least one is needed", c.Epochs)
	case c.Source.Latency < 0:
		return fmt.Errorf("latency %v is negative", c.Source.Latency)
	}
	return nil
}

// Run runs a demo. It returns a report when all epochs were read, even if the
// clean-up then fails; otherwise the report is nil.
func Run(ctx context.Context, c Config) (report *Report, err error) {
	files := plan(c.SmallFiles, c.LargeFiles)
	box, err := sandbox.New("", "milkweed-demo-", ramQuota(files))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cleanUp(box, c.Keep, c.Stderr)) }()
	d := demo{Config: c, files: files, report: newReport(&c, files, box)}
	err = d.run(ctx, box)
	if len(d.report.Epochs) == 2*c.Epochs {
		report = d.report
	}
	return report, err
}

func cleanUp(box *sandbox.Sandbox, keep bool, stderr io.Writer) error {
	if !keep {
		return box.Remove()
	}
	fmt.Fprintf(stderr, "The dataset and the copies are in %s.\n", strings.Join(box.Folders(), " and "))
	return box.Unmount()
}

// The RAM tier has space for a third of the dataset, the SSD tier for all of it:
// a copy occupies whole blocks of the file system.
func ramQuota(files []dataset.File) int64 { return dataset.Size(files)/3 + 1 }
func ssdQuota(files []dataset.File) int64 { return dataset.Size(files)*9/8 + 1<<20 }

// A demo is the state of Run.
type demo struct {
	Config
	files  []dataset.File
	report *Report

	// The following are set by run.
	point   string // the mount point of source
	source  *simpfs.PFS
	mount   *sandbox.Mount
	readers *reader.Group
}

// run starts all processes, reads the epochs, and stops the processes in the
// opposite order.
func (d *demo) run(ctx context.Context, box *sandbox.Sandbox) (err error) {
	folder, err := box.Mkdir("data")
	if err != nil {
		return err
	}
	if d.point, err = box.Mkdir("source"); err != nil {
		return err
	}
	if err := sandbox.CheckMount(ctx, folder, d.point); err != nil {
		return err
	}
	if err := d.report.begin(&d.Config, box, ramQuota(d.files)); err != nil {
		return err
	}
	if err := dataset.Write(ctx, folder, d.files); err != nil {
		return err
	}
	if d.source, err = simpfs.Start(ctx, folder, d.point, d.Source); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.source.Stop()) }()
	d.mount, err = box.Mount(ctx, sandbox.MountConfig{
		Name: "milkweed", Source: d.point, Mode: "auto", Stderr: d.Stderr,
		Tiers: []sandbox.Tier{
			{Name: ramTier, Memory: true, Quota: ramQuota(d.files)},
			{Name: ssdTier, Quota: ssdQuota(d.files)},
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.mount.Unmount()) }()
	if d.readers, err = reader.Start(ctx, readerCount, nil); err != nil {
		return err
	}
	defer d.readers.Stop()
	if err := d.readAll(ctx); err != nil {
		return err
	}
	return d.report.conclude()
}

// readAll reads all epochs, each directly from the source and then through
// Milkweed.
func (d *demo) readAll(ctx context.Context) error {
	for epoch := 1; epoch <= d.Epochs; epoch++ {
		for _, read := range []func(context.Context, int) (Epoch, error){d.readSource, d.readMount} {
			e, err := read(ctx, epoch)
			if err != nil {
				return cmp.Or(ctx.Err(), err)
			}
			if err := d.report.add(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// readSource reads an epoch directly from the source.
func (d *demo) readSource(ctx context.Context, epoch int) (Epoch, error) {
	return d.read(ctx, epoch, ViaSource, d.point)
}

// readMount reads an epoch through Milkweed, and counts the bytes by tier.
func (d *demo) readMount(ctx context.Context, epoch int) (Epoch, error) {
	before, err := d.mount.Status(ctx)
	if err != nil {
		return Epoch{}, err
	}
	e, err := d.read(ctx, epoch, ViaMilkweed, d.mount.Point)
	if err != nil {
		return e, err
	}
	after, err := d.mount.Status(ctx)
	if err != nil {
		return e, err
	}
	e.TierBytes = make(map[string]int64)
	for i, t := range after.Tiers {
		e.TierBytes[t.Name] = t.Bytes - before.Tiers[i].Bytes +
			passedThrough(after, t.Name) - passedThrough(before, t.Name)
	}
	return e, nil
}

// passedThrough returns the size of the files of a tier that were opened for
// passthrough. The readers read each of them once, and the kernel answers.
func passedThrough(s control.Status, tier string) int64 {
	return s.OpenedBytes[tier][string(config.Passthrough)]
}

// read reads an epoch from a folder. The order of the files depends on the epoch
// only. The operations of the source include those of the copies that the epoch
// started.
func (d *demo) read(ctx context.Context, epoch int, via, folder string) (Epoch, error) {
	before, err := d.source.Use()
	if err != nil {
		return Epoch{}, err
	}
	show, end := d.Progress()
	total := dataset.Size(d.files)
	start := time.Now()
	r, err := d.readers.DoSplit(
		reader.Task{Kind: reader.Epoch, Folder: folder, Files: shuffled(d.files, epoch)},
		func(r reader.Result) {
			show(control.Progress{
				FilesTotal: int64(len(d.files)), FilesDone: r.Files,
				BytesTotal: total, BytesDone: r.Bytes,
			})
		})
	took := time.Since(start)
	end()
	if err != nil {
		return Epoch{}, err
	}
	if _, err := d.mount.WaitCopied(ctx); err != nil {
		return Epoch{}, err
	}
	after, err := d.source.Use()
	if err != nil {
		return Epoch{}, err
	}
	return Epoch{
		Epoch: epoch, Via: via, Seconds: took.Seconds(),
		Files: r.Files, Bytes: r.Bytes, Source: after.Sub(before), wrong: r.Wrong,
	}, nil
}
