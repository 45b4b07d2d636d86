package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
	}
	os.Exit(code)
}

// options are the flags.
type options struct {
	packages    string
	seed        uint64
	count, draw int
	want        int
	equivalent  string
	list        bool
	test        string
	quick       string
	baseline    bool
	timeout     time.Duration
	results     string
	resume      bool
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("mutate", flag.ContinueOnError)
	flags.StringVar(&o.packages, "packages", "placement,metadata,tiers,drivers/posix,fs", "the `FOLDERS` of the packages that get faults")
	flags.Uint64Var(&o.seed, "seed", 1, "the `SEED` that selects the mutants")
	flags.IntVar(&o.count, "count", 200, "the `NUMBER` of candidates")
	flags.IntVar(&o.draw, "draw", 20, "the `NUMBER` of candidates that are run")
	flags.IntVar(&o.want, "want", 17, "the `NUMBER` of mutants that the tests must find")
	flags.StringVar(&o.equivalent, "equivalent", "cmd/internal/lab/mutate/equivalent.txt", "the `FILE` of the mutants that no test can find")
	flags.BoolVar(&o.list, "list", false, "print the mutants, and run none")
	flags.StringVar(&o.test, "test", "make test", "the shell `COMMAND` that runs the tests")
	flags.StringVar(&o.quick, "quick", "make --silent test ARGS='-packages PACKAGE'", "the shell `COMMAND` that runs the tests of a package before -test; empty: none")
	flags.BoolVar(&o.baseline, "baseline", true, "run the tests without a mutant first; they must pass")
	flags.DurationVar(&o.timeout, "timeout", 10*time.Minute, "the `TIME` after which a step is killed, and the mutant counts as found")
	flags.StringVar(&o.results, "results", "", "the `FILE` to which the results are appended (default build/mutate/seed-N.jsonl)")
	flags.BoolVar(&o.resume, "resume", false, "do not run mutants that have a result")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	switch {
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.draw < 1 || o.draw > o.count:
		err = fmt.Errorf("-draw %d: must be 1 to -count, which is %d", o.draw, o.count)
	case !o.list && o.want > o.draw:
		err = fmt.Errorf("-want %d: exceeds -draw, which is %d", o.want, o.draw)
	}
	if err != nil {
		fmt.Fprintln(flags.Output(), err)
	}
	if o.results == "" {
		o.results = fmt.Sprintf("build/mutate/seed-%d.jsonl", o.seed)
	}
	return o, err
}

// run returns the exit code, and an error that has not been printed.
func run(ctx context.Context, args []string, out io.Writer) (code int, err error) {
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0, nil
	} else if err != nil {
		return 2, nil
	}
	mutants, err := choose(ctx, o, out)
	if err != nil {
		return 1, err
	}
	if o.list {
		for _, m := range mutants {
			fmt.Fprint(out, m)
		}
		return 0, nil
	}
	results, err := runAll(ctx, o, mutants, out)
	found := printTable(out, results)
	fmt.Fprintf(out, "found %d of %d by %s\n", found, len(results), o.test)
	if ctx.Err() != nil {
		return 1, errors.New("interrupted")
	}
	if err != nil || found < o.want {
		return 1, err
	}
	return 0, nil
}

// choose returns the mutants that the seed and the list of equivalent mutants select.
func choose(ctx context.Context, o options, out io.Writer) ([]mutant, error) {
	packages, err := load(ctx, strings.Split(o.packages, ","))
	if err != nil {
		return nil, err
	}
	var sites []mutant
	for _, p := range packages {
		sites = append(sites, p.sites()...)
	}
	equivalent, err := readEquivalent(o.equivalent, sites)
	if err != nil {
		return nil, err
	}
	return draw(sample(sites, o.seed, o.count), o.draw, equivalent, out)
}
