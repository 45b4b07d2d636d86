package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
)

// A demo is a family of processes, so that none uses a mount that it serves:
//
//   - this one, which makes the dataset, starts the others and prints;
//   - the stand-in for a parallel file system, a mount of its own
//     (standin.go);
//   - `milkweed mount`, as a user would call it, with the stand-in as its source;
//   - the readers (demo_read.go), which read the one mount and then the other.

func newDemo() *cobra.Command {
	f := demoFlags{speed: sourceSpeed{latency: 2 * time.Millisecond, bandwidth: 200e6}}
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show what Milkweed does, on this machine, in under a minute",
		Long: `Demo makes a dataset of many small files and a few large ones, and a slow source
that has it: a stand-in for a parallel file system, which is a mount of its own,
takes its time for each operation, has a limited bandwidth for all, and counts
what it is asked. It mounts that source as ` + "`milkweed mount`" + ` does, and four
processes list the dataset and read it, every file once in an epoch and in a new
order each time: straight from the source, and through Milkweed. It prints a
line for each: the time, the rate, what was read of each tier, by Milkweed or by
the kernel itself, and what the source was asked.

Of neither mount does the kernel keep pages from one epoch to the next, as with
a dataset that is larger than memory: the stand-in keeps none from one open to
the next, and the readers drop each file that they have read. The SSD tier is a
folder, whose pages it may keep. Every file is compared with what was written,
by a checksum.

All is in temporary folders, in $TMPDIR and for the RAM tier in /dev/shm, which
take twice the size of the dataset, and are removed at the end, also after
Ctrl-C, but not after kill -9. ` + "`milkweed status`" + ` in another terminal shows the
mount meanwhile.

It exits with 1 if a byte is wrong, if the source is read from after the first
epoch, or if it gives more than 1.02 times the dataset in the first.

With --json it prints one object: files, bytes, latency_seconds,
bandwidth_bytes_per_second, readers, folders[], problems[], and epochs[] with
epoch, via ("source" or "milkweed"), seconds, files, bytes, tier_bytes {tier:
bytes}, and source {operations, opens, reads, bytes}.`,
		Example: `  milkweed demo
  milkweed demo --latency 5ms --bandwidth 50MB --files 500
  milkweed demo --json | jq '.epochs[] | {epoch, via, seconds}'`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.validate(); err != nil {
				return usageError(c, err)
			}
			return f.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := c.Flags()
	flags.IntVar(&f.files, "files", 2000, "small files, of 60 to 110 KB")
	flags.IntVar(&f.large, "large", 4, "large files, of 32 MB")
	flags.IntVar(&f.epochs, "epochs", 3, "how often the dataset is read each way")
	flags.DurationVar(&f.speed.latency, "latency", f.speed.latency, "what each operation of the source takes; what is below 1ms comes out near that")
	flags.Var((*byteRate)(&f.speed.bandwidth), "bandwidth", "`BYTES` that the source gives all readers together in a second")
	flags.BoolVar(&f.keep, "keep", false, "keep the dataset and the copies")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	c.AddCommand(newDemoSource(), newDemoReader())
	return c
}

type demoFlags struct {
	speed                sourceSpeed
	files, large, epochs int
	keep, asJSON         bool
}

func (f *demoFlags) validate() error {
	switch {
	case f.files < 0 || f.large < 0 || f.files+f.large == 0:
		return fmt.Errorf("%d small files and %d large ones are no dataset", f.files, f.large)
	case f.epochs < 1:
		return fmt.Errorf("%d epochs are none", f.epochs)
	case f.speed.latency < 0:
		return fmt.Errorf("a latency of %v is negative", f.speed.latency)
	}
	return nil
}

// run is the demonstration. What it starts is ended in the opposite order.
func (f *demoFlags) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	defer survivePipes()()
	samples := planDataset(f.files, f.large)
	p, err := makeDemoPlaces(totalSize(samples))
	if err != nil {
		return err
	}
	defer also(&err, func() error { return p.remove(f.keep, stderr) })
	if err := checkMount(ctx, p.data(), p.point()); err != nil {
		return err
	}
	r := newDemoReport(f, samples, p, stdout)
	if err := writeDataset(ctx, p.data(), samples); err != nil {
		return err
	}
	source, err := startStandIn(ctx, p.data(), p.source(), f.speed, stderr)
	if err != nil {
		return err
	}
	defer also(&err, source.stop)
	m, err := mountDemo(ctx, p, stderr)
	if err != nil {
		return err
	}
	defer also(&err, m.unmount)
	readers, err := startReaders(ctx, stderr)
	if err != nil {
		return err
	}
	defer readers.stop()

	d := demo{p: p, samples: samples, source: source, mount: m, readers: readers, progress: progressTo(stderr)}
	for epoch := 1; epoch <= f.epochs; epoch++ {
		for _, read := range []func(context.Context, int) (demoEpoch, error){d.straight, d.milkweed} {
			e, err := read(ctx, epoch)
			if err == nil {
				err = r.add(e)
			}
			if err != nil {
				return interruption(ctx, err)
			}
		}
	}
	return r.finish()
}

// progressTo is where a progress bar goes: to a terminal. In a log the table
// itself is the progress.
func progressTo(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return w
	}
	return io.Discard
}

// checkMount finds out what would keep this machine from mounting, before the
// work of making a dataset.
func checkMount(ctx context.Context, source, point string) error {
	c := config.Default()
	if err := setArguments(&c, []string{source, point}); err != nil {
		return err
	}
	return check.First(check.Run(ctx, &c))
}

// A demo has what is needed to read an epoch.
type demo struct {
	p        *demoPlaces
	samples  []sample
	source   *standIn
	mount    *demoMount
	readers  demoReaders
	progress io.Writer
}

// straight reads an epoch from the source.
func (d *demo) straight(ctx context.Context, epoch int) (demoEpoch, error) {
	return d.read(ctx, epoch, sourceLevel, d.p.source())
}

// milkweed reads an epoch through Milkweed, and notes which tier answered how
// much.
func (d *demo) milkweed(ctx context.Context, epoch int) (demoEpoch, error) {
	before, err := d.mount.Status(ctx)
	if err != nil {
		return demoEpoch{}, err
	}
	e, err := d.read(ctx, epoch, viaMilkweed, d.p.point())
	if err != nil {
		return e, err
	}
	after, err := d.mount.Status(ctx)
	if err != nil {
		return e, err
	}
	e.TierBytes = make(map[string]int64)
	for i, t := range after.Tiers {
		e.TierBytes[t.Name] = t.Bytes - before.Tiers[i].Bytes + lent(after, t.Name) - lent(before, t.Name)
	}
	return e, nil
}

// lent is the size of the files of a tier that were opened to be read by the
// kernel itself, which the readers then did, once.
func lent(s control.Status, tier string) int64 {
	return s.OpenedBytes[tier][string(config.Passthrough)]
}

// read has the readers read an epoch from a folder, both ways in the same order.
// What the source was asked is the source's own count, until all copies that the
// epoch began have ended.
func (d *demo) read(ctx context.Context, epoch int, via, folder string) (demoEpoch, error) {
	before, err := d.source.stats()
	if err != nil {
		return demoEpoch{}, err
	}
	shower := newShower(d.progress)
	total := totalSize(d.samples)
	start := time.Now()
	t, err := d.readers.read(folder, shuffled(d.samples, epoch), func(t tally) {
		shower.show(control.Progress{
			FilesTotal: int64(len(d.samples)), FilesDone: t.Files,
			BytesTotal: total, BytesDone: t.Bytes,
		})
	})
	took := time.Since(start)
	shower.end()
	if err != nil {
		return demoEpoch{}, err
	}
	if err := d.mount.settle(ctx); err != nil {
		return demoEpoch{}, err
	}
	after, err := d.source.stats()
	if err != nil {
		return demoEpoch{}, err
	}
	return demoEpoch{
		Epoch: epoch, Via: via, Seconds: took.Seconds(),
		Files: t.Files, Bytes: t.Bytes, Source: sourceUse(before, after), wrong: t.Wrong,
	}, nil
}

// A demoMount is the mount of `milkweed mount`.
type demoMount struct {
	*control.Client
	point  string
	daemon process
}

// mountDemo mounts as a user would. The RAM tier has room for a third of the
// dataset, the other for all of it.
func mountDemo(ctx context.Context, p *demoPlaces, stderr io.Writer) (*demoMount, error) {
	m := &demoMount{point: p.point(), daemon: process{pidfd: -1}}
	cmd := self(ctx, "mount", "--log-file", p.log(),
		"--tier", fmt.Sprintf("ram:%s:%d", p.ram(), p.ramQuota),
		"--tier", fmt.Sprintf("ssd:%s:%d", p.ssd(), p.ssdQuota),
		p.source(), p.point())
	// It ends its daemon first.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = termTimeout + time.Second
	cmd.Stderr = stderr
	err := cmd.Run()
	if err != nil {
		m.unmount() // it may have been ready at the moment that ctx was done
		return nil, interruption(ctx, mountError(err))
	}
	m.daemon = daemonOf(ctx, m.point)
	if m.Client, err = control.Dial(ctx, m.point); err != nil {
		return nil, errors.Join(interruption(ctx, err), m.unmount())
	}
	return m, nil
}

// settleTimeout is how long the copies that an epoch began may take after it.
const settleTimeout = 10 * time.Second

// settle waits until no copy is under way.
func (m *demoMount) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settleTimeout, errors.New("the copies do not end"))
	defer cancel()
	for {
		s, err := m.Status(ctx)
		if err != nil || s.Fills.InFlight == 0 {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// unmount unmounts. When somebody has gone into the mount and stays there, the
// daemon is killed instead; demoPlaces.remove takes away what it leaves, or says
// that it could not.
func (m *demoMount) unmount() error {
	if m.Client != nil {
		m.Client.Close()
	}
	defer m.daemon.close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*termTimeout)
	defer cancel()
	if err := umount(ctx, m.point, false); err != nil && m.daemon.pidfd >= 0 {
		unix.PidfdSendSignal(m.daemon.pidfd, unix.SIGKILL, nil, 0)
	}
	return m.daemon.wait(ctx)
}

// rate is bytes in a second as the table shows them.
func rate(bytes int64, seconds float64) string {
	return strconv.FormatFloat(float64(bytes)/seconds/1e6, 'f', 0, 64)
}

// decimal is a number of bytes in the units that bandwidth has.
func decimal(n int64) string { return humanize.Bytes(uint64(max(n, 0))) }
