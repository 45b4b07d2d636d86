package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/limit"
	"github.com/milkweedfs/milkweed/drivers/posix"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// The stand-in for a parallel file system is a process that mounts a folder, as
// slow as it is told. How it talks with
// the process that starts it:
//
//  1. When the mount is ready, or cannot be made, it writes a verdict to its
//     standard output.
//  2. For each line of its standard input it writes a limit.Stats.
//  3. When its standard input ends, as it does when that process dies, it unmounts
//     and ends.

// sourceSpeed is how slow the stand-in is.
type sourceSpeed struct {
	latency   time.Duration // of each operation
	bandwidth int64         // bytes in a second, for all readers together
}

// sourceTimeout is how long a client of the stand-in believes names and
// attributes: as long as one of a parallel file system does.
const sourceTimeout = time.Second

// A byteRate is a flag for bytes in a second, such as 200MB.
type byteRate int64

func (r *byteRate) Set(s string) error {
	q, err := config.ParseQuota(s)
	if err != nil || q.Bytes == 0 {
		return fmt.Errorf("%q is not a number of bytes above 0", s)
	}
	*r = byteRate(q.Bytes)
	return nil
}

func (r *byteRate) String() string { return config.Quota{Bytes: int64(*r)}.String() }

func (r *byteRate) Type() string { return "bytes" }

func newDemoSource() *cobra.Command {
	var speed sourceSpeed
	c := &cobra.Command{
		Use:     "source FOLDER MOUNTPOINT",
		Short:   "Mount a folder as a slow file system",
		Long:    "Source is the stand-in for a parallel file system that `milkweed demo` starts.",
		Example: "  milkweed demo source --latency 1ms --bandwidth 200MB data mnt",
		Hidden:  true,
		Args:    usage(cobra.ExactArgs(2)),
		RunE: func(c *cobra.Command, args []string) error {
			return serveStandIn(c.Context(), args[0], args[1], speed, c.InOrStdin(), c.OutOrStdout())
		},
	}
	c.Flags().DurationVar(&speed.latency, "latency", 0, "what each operation takes")
	c.Flags().Var((*byteRate)(&speed.bandwidth), "bandwidth", "`BYTES` in a second")
	return c
}

// serveStandIn is the process.
func serveStandIn(ctx context.Context, folder, point string, speed sourceSpeed, in io.Reader, out io.Writer) error {
	say := json.NewEncoder(out)
	slow, mount, err := mountStandIn(ctx, folder, point, speed)
	if err != nil {
		f := control.Fail(err)
		say.Encode(verdict{Failure: &f})
		return &reported{err}
	}
	say.Encode(verdict{Ready: true})
	done := make(chan struct{})
	go func() { // it ends with in, or with the process
		defer close(done)
		for asked := bufio.NewScanner(in); asked.Scan(); {
			say.Encode(slow.Stats())
		}
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	if err := mount.Unmount(); err != nil {
		if err := mount.Detach(); err != nil {
			return err
		}
	}
	mount.Wait()
	return nil
}

func mountStandIn(ctx context.Context, folder, point string, speed sourceSpeed) (*limit.Driver, *fs.Mount, error) {
	log := slog.New(slog.DiscardHandler)
	dir, err := posix.OpenDir(folder)
	if err != nil {
		return nil, nil, err
	}
	slow := limit.New(dir, limit.Config{Latency: speed.latency, BytesPerSecond: speed.bandwidth})
	levels, err := tiers.New(slow, nil, tiers.Options{}, log)
	if err != nil {
		return nil, nil, err
	}
	names, err := metadata.New(ctx, levels, metadata.Options{TTL: sourceTimeout}, log)
	if err != nil {
		return nil, nil, err
	}
	mount, err := fs.New(names, straight{levels.Source()}, fs.Config{
		Point: point, Source: "milkweed-demo", Timeout: sourceTimeout, Reread: true,
	}, log)
	return slow, mount, err
}

// straight opens files at the source: there are no tiers.
type straight struct{ source *tiers.Source }

var _ fs.Opener = straight{}

func (s straight) Open(ctx context.Context, e *metadata.Entry) (drivers.Object, error) {
	return s.source.Open(ctx, e.Path())
}

// A standIn is that process as the one that starts it sees it.
type standIn struct{ *peer }

// startStandIn returns when the stand-in is mounted.
func startStandIn(ctx context.Context, folder, point string, speed sourceSpeed, stderr io.Writer) (*standIn, error) {
	// Not with ctx: Milkweed is unmounted before its source goes.
	cmd := self(context.WithoutCancel(ctx), "demo", "source", folder, point,
		"--latency", speed.latency.String(), "--bandwidth", fmt.Sprint(speed.bandwidth))
	cmd.Dir = "/"
	p, err := startPeer(cmd, stderr)
	if err != nil {
		return nil, err
	}
	s := &standIn{p}
	var v verdict
	err = s.out.Decode(&v)
	switch {
	case err == nil && v.Ready:
		return s, nil
	case v.Failure != nil:
		err = v.Failure.Err()
	default:
		err = fmt.Errorf("the stand-in died before it was mounted: %w", err)
	}
	s.stop()
	return nil, err
}

// stats returns what the stand-in was asked so far.
func (s *standIn) stats() (limit.Stats, error) {
	var stats limit.Stats
	_, err := fmt.Fprintln(s.in, "stats")
	if err == nil {
		err = s.out.Decode(&stats)
	}
	if err != nil {
		err = fmt.Errorf("ask the stand-in: %w", err)
	}
	return stats, err
}

// stop ends the stand-in.
func (s *standIn) stop() error {
	if err := s.peer.stop(); err != nil {
		return fmt.Errorf("end the stand-in: %w", err)
	}
	return nil
}

// sourceUse is what the source was asked between two moments.
func sourceUse(before, after limit.Stats) demoSourceUse {
	return demoSourceUse{
		Operations: operations(after) - operations(before),
		Opens:      after.Opens - before.Opens,
		Reads:      after.Reads - before.Reads,
		Bytes:      after.BytesRead - before.BytesRead,
	}
}

func operations(s limit.Stats) int64 {
	return s.Opens + s.ReadDirs + s.Stats + s.Reads + s.Readlinks + s.Xattrs + s.Statfs
}
