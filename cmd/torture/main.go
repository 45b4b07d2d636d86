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
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/torture"
	"github.com/milkweedfs/milkweed/fs/faultdisk"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(1)
	}
}

// run plays the role that the first argument names: of a child process, or of the run.
func run(args []string) error {
	role := ""
	if len(args) > 0 {
		role = args[0]
	}
	switch role {
	case "disk":
		size, err := strconv.ParseInt(args[2], 10, 64)
		if err != nil {
			return err
		}
		return faultdisk.Run(args[1], size, args[3], os.Stdin, os.Stdout)
	case "read":
		seed, err := strconv.ParseUint(args[1], 10, 64)
		if err != nil {
			return err
		}
		count, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		return torture.ServeReader(torture.Model{Seed: seed, Count: count}, args[3], os.Stdin, os.Stdout)
	case "share":
		return torture.ServeSharer(args[1:], os.Stdout)
	}
	if os.Getenv(insideEnv) == "" {
		return enter(args)
	}
	return torturing(args)
}

// insideEnv is set in the process that has a mount namespace of its own.
const insideEnv = "MILKWEED_TORTURE_INSIDE"

// enter runs this program again in a mount namespace of its own. Whatever happens to the
// run, the kernel removes its mounts with the namespace. Ctrl-C reaches both processes,
// and this one waits for the other.
func enter(args []string) error {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Setpgid: true}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("a mount namespace needs root: %w", err)
	}
	go func() {
		for s := range signals {
			cmd.Process.Signal(s)
		}
	}()
	err := cmd.Wait()
	if ended, ok := errors.AsType[*exec.ExitError](err); ok && ended.Exited() {
		os.Exit(ended.ExitCode()) // it has reported the error
	}
	return err
}

// Options are the flags of a run.
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
		o.Seed = rand.Uint64N(1 << 32)
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
	return fmt.Sprintf("%s -seed %d -fs %s -faults %s -files %d -readers %d -duration 24h -cycles %d",
		os.Args[0], o.Seed, o.FileSystem, o.groups, o.Files, o.Readers, s.Cycles+1)
}

func torturing(args []string) error {
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fmt.Fprintf(os.Stderr, "seed %d, %v on %s\n", o.Seed, o.Duration, o.FileSystem)
	summary, err := torture.Run(ctx, o.Config)
	if summary == nil {
		return err
	}
	summary.Print(os.Stdout)
	if o.json != "" {
		err = errors.Join(err, writeJSON(o.json, summary))
	}
	if !summary.OK() {
		err = errors.Join(err, fmt.Errorf("%d wrong and %d stale reads, %d errors, %d hangs; to replay:\n  %s",
			summary.WrongReads, summary.StaleReads, summary.Errors, summary.Hangs, o.replay(summary)))
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
