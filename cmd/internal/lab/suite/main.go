// Suite runs the tests of this module: `make test`, `make check` and `make soak` call it.
//
// Usage:
//
//	go run ./cmd/internal/lab/suite test|check|soak [flags] [PART...]
//
// test has what every commit runs, and leaves out what needs a program that this machine lacks. check
// has everything, and fails where something is missing or skipped. soak repeats tests on a machine
// that it keeps busy, and has long runs of the other parts. With names of parts, only these are run;
// -list prints them.
//
// A test is in check only if its doc comment has the line //suite:check. Its requirements are the
// literal arguments of drivertest.Need that it, or a function that it calls, has.
//
// Each step has its temporary files in a folder of the run. It fails if it leaves a process, mount,
// loop device, network interface or file. Each result is a line of build/suite/COMMAND-TIME.jsonl.
// With -resume, the newest such run of the command continues with the first step that has no result.
// At the end, the failed tests are named with their messages and the commands that repeat them.
//
// The exit code is 0 if everything has passed, 1 if not, 2 for a wrong argument, and 130 after Ctrl-C.
//
// Examples:
//
//	go run ./cmd/internal/lab/suite test -packages fs,placement
//	go run ./cmd/internal/lab/suite check -list
//	go run ./cmd/internal/lab/suite check race oneproc
//	go run ./cmd/internal/lab/suite soak -for 1h repeat
//	go run ./cmd/internal/lab/suite soak -resume
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == loadRole {
		dir, err := io.ReadAll(os.Stdin)
		if err == nil {
			err = load(string(dir))
		}
		fmt.Fprintln(os.Stderr, "suite: load:", err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "suite:", err)
	}
	os.Exit(code)
}

// run runs a command line in the root of the repository and returns the exit code.
func run(ctx context.Context, args []string, out io.Writer) (code int, err error) {
	var o options
	flags := flag.NewFlagSet("suite", flag.ContinueOnError)
	list := flags.Bool("list", false, "print the steps of the suite, and do not run them")
	resume := flags.Bool("resume", false, "continue the newest run of the command")
	limit := flags.Duration("for", 0, "start no step after this `time`; 0: no limit")
	flags.StringVar(&o.fuzztime, "fuzztime", "", "how long each fuzz target runs (default 3s in check, 10m in soak)")
	flags.StringVar(&o.duration, "torture", "1h", "how long each torture of soak runs")
	flags.IntVar(&o.rounds, "rounds", 50, "how often soak repeats a package")
	packages := flags.String("packages", "", "run the tests of these `packages` only, such as fs,cmd/milkweed")
	if len(args) == 0 {
		return 2, errors.New("which suite? test, check or soak; `go doc ./cmd/internal/lab/suite` explains them")
	}
	command := args[0]
	if err := flags.Parse(args[1:]); err != nil {
		return 2, err
	}
	if o.fuzztime == "" {
		o.fuzztime = map[string]string{"soak": "10m"}[command]
	}
	if o.fuzztime == "" {
		o.fuzztime = "3s"
	}
	repo, err := root()
	if err != nil {
		return 2, err
	}
	folder := filepath.Join(repo, "build/suite")
	if strings.Contains(os.Getenv("GOFLAGS"), "-overlay") { // what fails for a mutant is no suspect
		folder = filepath.Join(repo, "build/mutate/suite")
	}
	all, err := listTests(repo)
	if err != nil {
		return 1, err
	}
	if *packages != "" {
		names := strings.Split(*packages, ",")
		for _, name := range names {
			if !slices.ContainsFunc(all, func(t test) bool { return t.pkg == name }) {
				return 2, fmt.Errorf("there is no package %q with tests; -packages fs,cmd/milkweed names two", name)
			}
		}
		all = slices.DeleteFunc(all, func(t test) bool { return !slices.Contains(names, t.pkg) })
	}
	suspects, err := findSuspects(folder)
	if err != nil {
		return 1, err
	}
	s, err := newSuite(command, all, drivertest.Lacks, o, suspects)
	if err != nil {
		return 2, err
	}
	if err := s.only(flags.Args()); err != nil {
		return 2, err
	}
	if *list {
		fmt.Fprint(out, s.describe())
		return 0, nil
	}
	return runSuite(ctx, s, command, repo, folder, *resume, *limit, out)
}

func runSuite(ctx context.Context, s suite, command, repo, folder string, resume bool, limit time.Duration, out io.Writer) (code int, err error) {
	m := &machine{dir: filepath.Join(os.TempDir(), fmt.Sprintf("mw-%x", sha256.Sum256([]byte(repo)))[:11]), repo: repo, settle: settleTime, alone: command != "test"}
	if err := m.open(); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	all, err := openResults(folder, command, resume)
	if err != nil {
		return 1, err
	}
	defer all.close()
	r := &runner{machine: m, out: out, ci: command != "test" || os.Getenv("CI") == "true"}
	start := time.Now()
	for _, one := range s.steps {
		if all.done(one.name) {
			continue
		}
		if limit > 0 && time.Since(start) > limit {
			fmt.Fprintf(out, "== %v are over; -resume continues with the step %s\n", limit, one.name)
			break
		}
		fmt.Fprintf(out, "== %s\n", one.name)
		result, err := r.run(ctx, one)
		if err != nil {
			if ctx.Err() != nil {
				fmt.Fprintf(out, "== interrupted; -resume continues with the step %s\n", one.name)
				return 130, nil
			}
			return 1, err
		}
		if err := all.add(result); err != nil {
			return 1, err
		}
		fmt.Fprintf(out, "== %s: %s after %.0f s\n", one.name, verdict(result), result.Seconds)
		if one.part == "deps" && !result.ok() {
			break
		}
	}
	fmt.Fprint(out, report(command, s.leftOut, all, time.Since(start)))
	if slices.ContainsFunc(all.all, func(r result) bool { return !r.ok() }) {
		return 1, nil
	}
	return 0, nil
}

func verdict(r result) string {
	if r.ok() {
		return "passed"
	}
	return "FAILED"
}

// root returns the folder of the module, in which the current folder is.
func root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == "/" {
			return "", errors.New("there is no go.mod here or above; run it in the repository")
		}
	}
}

// reportLines is the number of lines in which a run must say what failed: a terminal shows them.
const reportLines = 30

// report returns the end of the output of a run, of at most reportLines lines.
func report(command string, leftOut map[string][]string, r *results, elapsed time.Duration) string {
	var head, items []string
	passed, failed, skipped := 0, 0, 0
	for _, one := range r.all {
		passed += one.Passed
		for _, f := range one.Failed {
			failed++
			items = append(items, fmt.Sprintf("%s\n%s\n  repeat: %s", f.Test, f.Output, f.Repeat))
		}
		skipped += len(one.Skipped)
		if one.Error != "" {
			failed++
			items = append(items, fmt.Sprintf("%s\n%s\n  repeat: %s", one.Step, one.Error, one.Command))
		}
		if len(one.Left) > 0 {
			failed++
			items = append(items, fmt.Sprintf("%s has left\n%s\n  repeat: %s", one.Step, strings.Join(one.Left, "\n"), one.Command))
		}
	}
	if len(leftOut) > 0 {
		var what []string
		for _, need := range slices.Sorted(maps.Keys(leftOut)) {
			what = append(what, fmt.Sprintf("%s (%d)", need, len(leftOut[need])))
		}
		head = append(head, "left out, because this machine lacks it (number of tests): "+strings.Join(what, ", "))
	}
	if skipped > 0 {
		var names []string
		for _, one := range r.all {
			for _, f := range one.Skipped {
				names = append(names, f.Test+": "+lastLines(f.Output, 1))
			}
		}
		head = append(head, clipLine("skipped: "+strings.Join(names, "; ")))
	}
	tailLines := []string{
		fmt.Sprintf("make %s: %.0f s, results in %s", command, elapsed.Seconds(), r.path),
		fmt.Sprintf("tests: %d passed, %d failed, %d skipped", passed, failed, skipped),
	}
	room := reportLines - len(head) - len(tailLines)
	if len(items) > 0 {
		head = append(head, "failed:")
		head = append(head, fit(items, room-1)...)
	}
	return strings.Join(append(head, tailLines...), "\n") + "\n"
}

// fit returns the items in at most n lines: of each the first line, the last one, which repeats it, and
// as much of its message as there is room for: the beginning of a panic, the end of other output.
func fit(items []string, n int) []string {
	if most := n / 2; len(items) > most {
		rest := len(items) - most + 1
		items = append(slices.Clone(items[:most-1]), fmt.Sprintf("and %d more\n  see the file of results", rest))
	}
	each := n / len(items)
	var lines []string
	for _, item := range items {
		all := strings.Split(item, "\n")
		if len(all) > each {
			if middle := all[1 : len(all)-1]; strings.HasPrefix(middle[0], "panic: ") {
				all = append(all[:each-1:each-1], all[len(all)-1])
			} else {
				all = append(all[:1:1], all[len(all)-each+1:]...)
			}
		}
		for _, line := range all {
			lines = append(lines, clipLine(line))
		}
	}
	return lines
}

// clipLine keeps a line so short that a terminal does not break it into many.
func clipLine(line string) string {
	const most = 240
	if r := []rune(line); len(r) > most {
		return string(r[:most]) + " ..."
	}
	return line
}
