// Torture runs the program while faults hit its tiers, its source and its daemon, and
// compares every byte that readers get with a model.
//
// Usage:
//
//	torture [flags]
//
// docs/reliability.md explains the faults, the rules, and how to replay a run. It needs
// root, and Linux 6.6 or later.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/lab/enclosure"
	"github.com/milkweedfs/milkweed/cmd/internal/lab/torture"
	"github.com/milkweedfs/milkweed/fs/faultdisk"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// run plays the role that the first argument names. It returns the exit code.
func run(args []string) (code int, err error) {
	role := ""
	if len(args) > 0 {
		role = args[0]
	}
	switch role {
	case "disk":
		return 0, disk(args[1:])
	case "read":
		return 0, read(args[1:])
	case "share":
		return 0, torture.ServeSharer(args[1:], os.Stdout)
	}
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0, nil
	} else if err != nil {
		return 2, err
	}
	return enclosure.Run("milkweed-torture-", func(folder string) (int, error) {
		o.Folder = folder
		return 0, torturing(o)
	})
}

// disk is the process of a fault disk. Its arguments are the file of the image, its size,
// and the folder to mount it at.
func disk(args []string) error {
	size, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	return faultdisk.Run(args[0], size, args[2], os.Stdin, os.Stdout)
}

// read is a reader process. Its arguments are the seed, the number of files, and the mount
// point.
func read(args []string) error {
	seed, err := strconv.ParseUint(args[0], 10, 64)
	if err != nil {
		return err
	}
	count, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	return torture.ServeReader(torture.Model{Seed: seed, Count: count}, args[2], os.Stdin, os.Stdout)
}

// options are the flags of a run.
type options struct {
	torture.Config
	groups string
	json   string
}

func parse(args []string) (options, error) {
	o := options{Config: torture.Config{Log: os.Stderr}}
	flags := flag.NewFlagSet("torture", flag.ContinueOnError)
	flags.Uint64Var(&o.Seed, "seed", 0, "the `SEED` of the plan; 0 chooses one")
	flags.DurationVar(&o.Duration, "duration", time.Hour, "the `TIME` after which no cycle begins")
	flags.IntVar(&o.Cycles, "cycles", 0, "the most `CYCLES`; 0 is no limit")
	flags.StringVar(&o.FileSystem, "fs", "ext4", "the `TYPE` of the file systems: ext4, xfs or btrfs")
	flags.BoolVar(&o.Bucket, "bucket", false, "the source is a bucket whose ETags repeat")
	flags.StringVar(&o.Program, "program", "build/milkweed", "the `PATH` of the program under test")
	flags.StringVar(&o.groups, "faults", strings.Join(torture.Groups, ","), "the `GROUPS` of faults")
	flags.IntVar(&o.Files, "files", 200, "the `NUMBER` of files of the dataset")
	flags.IntVar(&o.Readers, "readers", 6, "the `NUMBER` of reader processes")
	flags.StringVar(&o.json, "json", "", "the `FILE` to which the summary is written as JSON")
	flags.BoolVar(&o.FailFast, "failfast", false, "end at the first finding")
	flags.BoolVar(&o.Verbose, "v", false, "log each event")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.Seed == 0 {
		o.Seed = 1 + rand.Uint64N(1<<32)
	}
	o.Groups = strings.Split(o.groups, ",")
	for _, g := range o.Groups {
		if g != "" && !slices.Contains(torture.Groups, g) {
			return o, fmt.Errorf("%q: not a group of faults; there are %s", g, strings.Join(torture.Groups, ", "))
		}
	}
	var err error
	o.Program, err = filepath.Abs(o.Program)
	return o, err
}

// replay returns the command that repeats a run.
func (o options) replay(s *torture.Summary) string {
	return fmt.Sprintf("%s -seed %d -fs %s -bucket=%v -faults %s -files %d -readers %d -duration 24h -cycles %d",
		os.Args[0], o.Seed, o.FileSystem, o.Bucket, o.groups, o.Files, o.Readers, s.Cycles+1)
}

func torturing(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fmt.Fprintf(os.Stderr, "seed %d, %v on %s\n", o.Seed, o.Duration, o.FileSystem)
	summary, err := torture.Run(ctx, o.Config)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	if summary == nil {
		return err
	}
	summary.Print(os.Stdout)
	if o.json != "" {
		err = errors.Join(err, writeJSON(o.json, summary))
	}
	if !summary.OK() {
		err = errors.Join(err, fmt.Errorf("%d wrong and %d stale reads, %d of denied files, %d errors, %d hangs, %d errors of scrubs; to replay:\n  %s",
			summary.WrongReads, summary.StaleReads, summary.DeniedReads, summary.Errors, summary.Hangs, summary.ScrubErrors, o.replay(summary)))
	}
	return err
}

func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
