package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/lab"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
)

// quickTimeout ends the first step, which takes a minute without a mutant.
const quickTimeout = 3 * time.Minute

// A runner runs the steps.
type runner struct {
	options
	goflags string // of the user
	dir     string // for the overlay and temp
	temp    string // TMPDIR of the steps, which is emptied after each
	logs    string // folder of the output of the steps
}

// A step is a command that runs tests.
type step struct {
	name  string
	words []string
	limit time.Duration
}

func (s step) String() string { return strings.Join(s.words, " ") }

// runAll runs the mutants that have no result yet, and returns the results of all.
func runAll(ctx context.Context, o options, mutants []mutant, out io.Writer) (results []result, err error) {
	earlier := make(map[string]result)
	if o.resume {
		if earlier, err = readResults(o.results, o.test); err != nil {
			return nil, err
		}
	}
	r, err := newRunner(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.empty(), os.RemoveAll(r.dir)) }()
	if o.baseline {
		left := slices.DeleteFunc(slices.Clone(mutants), func(m mutant) bool { return earlier[m.key()].ID != "" })
		if err := r.passWithout(ctx, left, out); err != nil {
			return nil, err
		}
	}
	for i, m := range mutants {
		done, ok := earlier[m.key()]
		if !ok {
			fmt.Fprintf(out, "%d of %d: %v", i+1, len(mutants), m)
			if done, err = r.try(ctx, m); err != nil {
				return results, err
			}
			fmt.Fprintf(out, "    %s after %.1f s\n", done.verdict(), done.Seconds)
			if err := done.append(o.results); err != nil {
				return results, err
			}
		}
		results = append(results, done)
	}
	return results, nil
}

func newRunner(ctx context.Context, o options) (*runner, error) {
	// Daemons that tests leave become children of this process.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("prctl: %w", err)
	}
	goflags, err := exec.CommandContext(ctx, "go", "env", "GOFLAGS").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	r := &runner{options: o, goflags: strings.TrimSpace(string(goflags)), logs: strings.TrimSuffix(o.results, ".jsonl")}
	if err := os.MkdirAll(r.logs, 0o755); err != nil {
		return nil, err
	}
	// The names are short because the path of a socket has at most 107 bytes.
	if r.dir, err = os.MkdirTemp("", "m"); err != nil {
		return nil, err
	}
	r.temp = filepath.Join(r.dir, "t")
	if err := errors.Join(os.Chmod(r.dir, 0o755), r.empty()); err != nil { // tests have other users
		return nil, errors.Join(err, os.RemoveAll(r.dir))
	}
	return r, nil
}

// steps returns the steps for faults in the packages in dirs.
func (r *runner) steps(dirs ...string) (steps []step) {
	if r.quick != "" {
		for _, dir := range dirs {
			steps = append(steps, step{"quick", []string{"sh", "-c", strings.ReplaceAll(r.quick, "PACKAGE", dir)}, min(r.timeout, quickTimeout)})
		}
	}
	return append(steps, step{"test", []string{"sh", "-c", r.test}, r.timeout})
}

// passWithout returns an error if the steps of the mutants do not pass without a fault.
func (r *runner) passWithout(ctx context.Context, mutants []mutant, out io.Writer) error {
	if len(mutants) == 0 {
		return nil
	}
	var dirs []string
	for _, m := range mutants {
		dirs = append(dirs, m.pkg.dir)
	}
	slices.Sort(dirs)
	for _, s := range r.steps(slices.Compact(dirs)...) {
		fmt.Fprintf(out, "without a mutant: %v\n", s)
		log := filepath.Join(r.logs, "baseline."+s.name+".log")
		by, err := r.do(ctx, s, nil, log)
		if err != nil {
			return err
		}
		if len(by) > 0 {
			return fmt.Errorf("%v: fails without a mutant: %s; its output is in %s", s, strings.Join(by, " "), log)
		}
	}
	return nil
}

// try runs the steps until one finds the mutant.
func (r *runner) try(ctx context.Context, m mutant) (result, error) {
	done := result{mutant: m, Test: r.test}
	env, err := r.overlay(m)
	if err != nil {
		return done, err
	}
	start := time.Now()
	for _, s := range r.steps(m.pkg.dir) {
		done.By, err = r.do(ctx, s, env, filepath.Join(r.logs, url.PathEscape(m.ID)+"."+s.name+".log"))
		if err != nil {
			return done, err
		}
		if len(done.By) > 0 {
			done.Step = s.name
			break
		}
	}
	done.Seconds = time.Since(start).Seconds()
	return done, nil
}

// overlay returns variables of the environment with which go commands read the mutant.
func (r *runner) overlay(m mutant) ([]string, error) {
	replaced, overlay := filepath.Join(r.dir, "mutant.go"), filepath.Join(r.dir, "overlay.json")
	original := filepath.Join(m.pkg.abs, filepath.Base(m.File))
	table, err := json.Marshal(map[string]any{"Replace": map[string]string{original: replaced}})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.WriteFile(replaced, m.source(), 0o644), os.WriteFile(overlay, table, 0o644)); err != nil {
		return nil, err
	}
	// A test that runs a program reads lab.BuildEnv, so that the go command does not use its cached
	// result of another mutant.
	return []string{"GOFLAGS=" + strings.TrimSpace(r.goflags+" -overlay="+overlay), lab.BuildEnv + "=" + m.ID}, nil
}

// do runs a step, whose output it writes to a file. It returns what failed, and nothing if the step
// has passed. All processes, mounts and temporary files of the step are gone afterwards.
func (r *runner) do(ctx context.Context, s step, env []string, log string) (by []string, err error) {
	f, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	limited, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	cmd := exec.CommandContext(limited, s.words[0], s.words[1:]...)
	cmd.Env = append(append(os.Environ(), "TMPDIR="+r.temp), env...)
	cmd.Stdout, cmd.Stderr = f, f
	// A session is also a process group. Unlike a group only, it has no terminal to stop for.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	failed := cmd.Run()
	if err := errors.Join(r.killDescendants(), r.empty()); err != nil {
		return nil, fmt.Errorf("after %v: %w", s, err)
	}
	_, exited := errors.AsType[*exec.ExitError](failed)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case failed == nil:
		return nil, nil
	case limited.Err() != nil:
		return []string{"hang"}, nil
	case !exited:
		return nil, failed
	}
	text, err := os.ReadFile(log)
	return findings(string(text), failed), err
}

// settleTime is how long killed processes may take to end.
const settleTime = 10 * time.Second

// killDescendants kills all descendants of this process, and waits for them.
func (r *runner) killDescendants() error {
	start := time.Now()
	for deadline := start.Add(settleTime); ; time.Sleep(time.Millisecond) {
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if err == unix.ECHILD {
				return nil
			}
			if pid == 0 {
				break
			}
		}
		var running []string
		threads, err := filepath.Glob("/proc/self/task/*/children")
		if err != nil {
			return err
		}
		for _, file := range threads {
			children, _ := os.ReadFile(file) // the thread may have ended
			running = append(running, strings.Fields(string(children))...)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("these processes do not end after SIGKILL: %s", strings.Join(running, " "))
		}
		if time.Since(start) > settleTime/10 { // one may wait for a reply of a daemon that was killed
			if err := mounts.End(r.temp); err != nil {
				return err
			}
		}
		for _, child := range running {
			if pid, err := strconv.Atoi(child); err == nil {
				unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
}

// empty removes the mounts and files in the temporary folder.
func (r *runner) empty() error {
	if err := mounts.End(r.temp); err != nil {
		return err // no file is removed through a mount
	}
	return errors.Join(os.RemoveAll(r.temp), os.Mkdir(r.temp, 0o755), os.Chmod(r.temp, 0o1777))
}

// failedTest matches the line that names a failed test, of Go or Python.
var failedTest = regexp.MustCompile(`(?m)^(?:--- FAIL|FAIL|ERROR): (\S+)`)

// causes are lines of the output of a command that fails, and what they mean.
var causes = []struct {
	line  *regexp.Regexp
	cause string
}{
	{regexp.MustCompile(`(?m)^panic: test timed out`), "timeout"},
	{regexp.MustCompile(`(?m)^WARNING: DATA RACE`), "data race"},
	{regexp.MustCompile(`(?m)^(panic|fatal error): `), "panic"},
	{regexp.MustCompile(`(?m)^FAIL\t.*\[build failed\]`), "build"}, // of tests, or go vet
}

// findings returns the tests that failed according to the output of a command, or the cause.
func findings(output string, failed error) (by []string) {
	for _, m := range failedTest.FindAllStringSubmatch(output, -1) {
		if !slices.Contains(by, m[1]) {
			by = append(by, m[1])
		}
	}
	if len(by) > 0 {
		return by
	}
	for _, c := range causes {
		if c.line.MatchString(output) {
			return []string{c.cause}
		}
	}
	return []string{failed.Error()}
}
