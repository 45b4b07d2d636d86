package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/lab"
)

// A step is a command that a suite runs.
type step struct {
	part    string   // the steps of a part can be started alone
	name    string   // unique in the suite; a run that resumes passes over a step that has a result
	env     []string // additional variables
	words   []string // the command
	goTest  bool     // the command prints what `go test -json` prints
	skips   bool     // skipped tests are allowed
	load    bool     // the machine is kept busy meanwhile
	program bool     // the program milkweed is built before, so that Go's cache of results knows of it
}

// String returns the step as a command of the shell.
func (s step) String() string {
	var words []string
	for _, w := range slices.Concat(s.env, s.words) {
		if strings.ContainsAny(w, " \"'$|()*?<>&;") {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

// A runner runs steps in a checkout.
type runner struct {
	*machine
	out io.Writer
	ci  bool // a skipped test is a failure
}

// tail is how many bytes of the output of a test, or of a command, are kept.
const tail = 16 << 10

// run runs a step to its end. The error is one of the runner; that of the step is in the result.
func (r *runner) run(ctx context.Context, s step) (result, error) {
	before, err := r.look()
	if err != nil {
		return result{}, err
	}
	done := result{Step: s.name, Command: s.String(), Start: time.Now().UTC(), Load: s.load}
	if s.load {
		end, err := startLoad(r.temp())
		if err != nil {
			return result{}, err
		}
		defer end()
	}
	env, err := r.environment(s)
	if err != nil {
		done.Error = err.Error()
		return done, nil
	}
	cmd := exec.CommandContext(ctx, s.words[0], s.words[1:]...)
	cmd.Dir = r.repo
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	if s.goTest {
		p := &testParser{runner: r, step: s, result: &done, running: make(map[string]*running)}
		err = p.command(cmd)
	} else {
		last := &tailWriter{to: r.out}
		cmd.Stdout, cmd.Stderr = last, last
		if err = cmd.Run(); err != nil {
			err = fmt.Errorf("%w\n%s", err, last.lines(20))
		}
	}
	if ctx.Err() != nil {
		return done, errors.Join(context.Cause(ctx), r.clean())
	}
	if err != nil && len(done.Failed) == 0 {
		done.Error = err.Error()
	}
	if r.ci && !s.skips && len(done.Skipped) > 0 {
		done.Failed = append(done.Failed, done.Skipped...)
	}
	done.Seconds = time.Since(done.Start).Seconds()
	if done.Left, err = r.left(before); err != nil {
		return done, err
	}
	return done, r.clean()
}

// environment returns the environment of a step.
func (r *runner) environment(s step) ([]string, error) {
	env := append([]string{"GORACE=" + lab.RaceOptions}, os.Environ()...)
	env = append(env, "TMPDIR="+r.temp(), "GOTMPDIR="+filepath.Join(r.dir, "go"), lab.ProgramsEnv+"="+r.programs(),
		"XDG_STATE_HOME="+filepath.Join(r.dir, "state"), // logs of daemons, which stay after a demo
		control.FolderEnv+"="+filepath.Join(r.dir, "run"))
	if r.ci {
		env = append(env, "CI=true")
	}
	if s.program {
		path := filepath.Join(r.programs(), "milkweed")
		build := exec.Command("go", "build", "-o", path, "./cmd/milkweed")
		build.Dir = r.repo
		build.Env = append(env, s.env...)
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go build ./cmd/milkweed: %w\n%s", err, out)
		}
		id, err := exec.Command("go", "tool", "buildid", path).Output()
		if err != nil {
			return nil, fmt.Errorf("go tool buildid: %w", err)
		}
		env = append(env, lab.BuildEnv+"="+string(bytes.TrimSpace(id)))
	}
	return append(env, s.env...), nil
}

// A tailWriter passes on what is written, and keeps the last part of it.
type tailWriter struct {
	to   io.Writer
	last []byte
}

func (w *tailWriter) Write(p []byte) (int, error) {
	w.last = append(w.last, p...)
	w.last = w.last[max(0, len(w.last)-tail):]
	return w.to.Write(p)
}

// lines returns the last n lines.
func (w *tailWriter) lines(n int) string { return lastLines(string(w.last), n) }

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// A running test is one that has not ended.
type running struct{ output []byte }

// A testParser reads the output of go test -json, prints a line for each package and each failed test,
// and collects the results.
type testParser struct {
	*runner
	step    step
	result  *result
	running map[string]*running // package, tab and test to the test; without a test, the package
	builds  []byte              // what the compiler printed
}

func (p *testParser) command(cmd *exec.Cmd) error {
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	problems := &tailWriter{to: p.out}
	cmd.Stderr = problems
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break // Wait returns why the command has ended
		}
		p.line(line)
	}
	err = cmd.Wait()
	if err != nil {
		err = fmt.Errorf("%w\n%s%s", err, lastLines(string(p.builds), 20), problems.lines(10))
	}
	return err
}

// line reads a line of output, which is an event, or a text of a program below go test.
func (p *testParser) line(line []byte) {
	var e struct {
		Action, Package, Test, Output, ImportPath string
		FailedBuild                               string
		Elapsed                                   float64
	}
	if err := json.Unmarshal(line, &e); err != nil {
		p.out.Write(line)
		return
	}
	key := e.Package + "\t" + e.Test
	switch e.Action {
	case "build-output":
		p.builds = append(p.builds, e.Output...)
	case "start", "run":
		p.running[key] = new(running)
	case "output":
		if t := p.running[key]; t != nil {
			t.output = append(t.output, e.Output...)
			t.output = t.output[max(0, len(t.output)-tail):]
		}
	case "pass", "fail", "skip":
		p.ended(e.Package, e.Test, e.Action, e.Elapsed)
	}
}

func (p *testParser) ended(pkg, test, action string, seconds float64) {
	key, pkg := pkg+"\t"+test, relative(pkg)
	output := ""
	if t := p.running[key]; t != nil {
		output = string(t.output)
	}
	delete(p.running, key)
	if test == "" {
		p.packageEnded(pkg, action, output, seconds)
		return
	}
	name, _, isSubtest := strings.Cut(test, "/")
	switch f := (failure{pkg + "." + test, p.step.repeat(pkg, name), clip(output), seconds}); {
	case action == "pass" && !isSubtest:
		p.result.Passed++
	case action == "skip":
		p.result.Skipped = append(p.result.Skipped, f)
	case action == "fail":
		// A test fails if a subtest does. The messages of the subtest may be those of the test, whose
		// helpers it has called.
		i := slices.IndexFunc(p.result.Failed, func(o failure) bool { return strings.HasPrefix(o.Test, f.Test+"/") })
		switch {
		case i < 0:
			p.result.Failed = append(p.result.Failed, f)
		case f.Output != "":
			p.result.Failed[i].Output += "\n" + f.Output
		default:
			return
		}
		fmt.Fprintf(p.out, "--- FAIL: %s (%.1f s)\n%s\n", f.Test, seconds, f.Output)
	}
}

// packageEnded notes the end of the tests of a package. A package may fail without a failed test: it
// does not compile, it panicked, or its TestMain found something.
func (p *testParser) packageEnded(pkg, action, output string, seconds float64) {
	if action == "skip" {
		return // no test of it was selected
	}
	fmt.Fprintf(p.out, "%-4s %7.1f s  %s\n", map[string]string{"pass": "ok", "fail": "FAIL"}[action], seconds, pkg)
	prefix := pkg + "."
	if action == "pass" || slices.ContainsFunc(p.result.Failed, func(f failure) bool { return strings.HasPrefix(f.Test, prefix) }) {
		return
	}
	// The tests that were running have the output of a panic.
	for key, t := range p.running {
		if of, test, _ := strings.Cut(key, "\t"); relative(of) == pkg && test != "" {
			output += string(t.output)
			delete(p.running, key)
		}
	}
	if len(p.builds) > 0 {
		output = string(p.builds) + output
	}
	f := failure{pkg, p.step.repeat(pkg, ""), clip(output), seconds}
	p.result.Failed = append(p.result.Failed, f)
	fmt.Fprintf(p.out, "FAIL: %s\n%s\n", f.Test, f.Output)
}

// clip drops the lines of go test that say nothing about a failure.
func clip(output string) string {
	var kept []string
	for line := range strings.Lines(output) {
		text := strings.TrimSpace(line)
		if text == "" || strings.HasPrefix(text, "=== ") || strings.HasPrefix(text, "--- ") || strings.HasPrefix(text, "FAIL\t") || text == "FAIL" {
			continue
		}
		kept = append(kept, strings.TrimRight(line, "\n"))
	}
	// Of a panic and of a data race, the first lines say what it is.
	for i, line := range kept {
		for _, prefix := range []string{"panic: ", "fatal error: ", "WARNING: DATA RACE"} {
			if strings.HasPrefix(line, prefix) {
				return strings.Join(kept[i:min(len(kept), i+20)], "\n")
			}
		}
	}
	return strings.Join(kept, "\n")
}

// repeat returns a command that runs one test of the step.
func (s step) repeat(pkg, test string) string {
	if s.words[0] != "go" {
		return s.String() // make starts what the tests need
	}
	alone := step{env: s.env, words: []string{"go", "test", "-count=1"}}
	for _, w := range s.words {
		if w == "-race" || w == "-short" || strings.HasPrefix(w, "-tags") {
			alone.words = append(alone.words, w)
		}
	}
	if test != "" {
		alone.words = append(alone.words, "-run", "^"+test+"$")
	}
	alone.words = append(alone.words, "./"+pkg)
	return alone.String()
}
