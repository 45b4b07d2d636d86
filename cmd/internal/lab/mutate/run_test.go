package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tiny is a module whose test finds the first of its three mutants only.
var tiny = map[string]string{
	"go.mod":  "module tiny\n\ngo 1.26\n",
	"p/p.go":  "package p\n\nfunc Positive(n int) bool {\n\tif n > 0 {\n\t\treturn true\n\t}\n\treturn false\n}\n",
	"none":    "",
	"another": "offbyone:p/p.go:Positive:2\tnobody counts to one\n",
	"p/p_test.go": `package p

import "testing"

func TestPositive(t *testing.T) {
	if !Positive(5) || Positive(-5) {
		t.Error("wrong sign")
	}
}
`,
}

// enterTiny makes the module and goes there. It returns the folder for temporary files.
func enterTiny(t *testing.T) (temp string) {
	t.Helper()
	t.Chdir(t.TempDir())
	if err := os.Mkdir("p", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range tiny {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	temp = t.TempDir()
	t.Setenv("TMPDIR", temp)
	return temp
}

// mutate runs the program in the module, and returns the exit code and the output, with TIME for each
// time and without indentation.
func mutate(t *testing.T, ctx context.Context, args ...string) (code int, out string, err error) {
	t.Helper()
	var b strings.Builder
	code, err = run(ctx, append([]string{"-packages", "p", "-equivalent", "none", "-quick", "go test ./PACKAGE"}, args...), &b)
	out = regexp.MustCompile(`\d+\.\d s`).ReplaceAllString(b.String(), "TIME")
	return code, regexp.MustCompile(` +`).ReplaceAllString(out, " "), err
}

func TestRun(t *testing.T) {
	temp := enterTiny(t)
	t.Setenv("GOFLAGS", "-buildvcs=false")
	// The first candidate of this seed is the one that -equivalent names.
	args := []string{"-seed", "2", "-equivalent", "another", "-draw", "2", "-want", "1", "-test", `echo "$GOFLAGS" >flags; touch "$TMPDIR/x"; setsid sleep 1000 & echo $! >pid`}
	code, out, err := mutate(t, t.Context(), args...)
	if code != 0 || err != nil {
		t.Fatalf("got exit code %d and %v, want 0; output:\n%s", code, err, out)
	}
	for _, want := range []string{
		"replaced: equivalent: nobody counts to one\n",
		"negate:p/p.go:Positive:1 found by quick: TestPositive TIME\n",
		"offbyone:p/p.go:Positive:1 missed TIME\n",
		"\nfound 1 of 2 by echo ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the output has no %q:\n%s", want, out)
		}
	}
	flags, err := os.ReadFile("flags")
	if want := regexp.MustCompile(`^-buildvcs=false -overlay=` + temp + `/m\d+/overlay.json\n$`); err != nil || !want.Match(flags) {
		t.Errorf("GOFLAGS is %q, %v, want %v", flags, err, want)
	}
	checkNothingLeft(t, temp)

	// The results are those of the file.
	text, err := os.ReadFile("build/mutate/seed-2.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), `"TestPositive"`, `"TestFromFile"`, 1)
	if err := os.WriteFile("build/mutate/seed-2.jsonl", []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
	code, out, err = mutate(t, t.Context(), append(args, "-resume", "-want", "2")...)
	if code != 1 || err != nil || !strings.Contains(out, "TestFromFile") || strings.Contains(out, " of 2: ") {
		t.Errorf("with -resume, got exit code %d and %v, want 1; output:\n%s", code, err, out)
	}
}

// A step that exceeds its time finds the mutant, and the first must pass without a fault.
func TestHangAndBaseline(t *testing.T) {
	temp := enterTiny(t)
	hang := []string{"-draw", "1", "-want", "1", "-quick", "", "-test", "echo $$ >pid; sleep 1000", "-timeout", "100ms"}
	code, out, err := mutate(t, t.Context(), append(hang, "-baseline=false")...)
	if code != 0 || err != nil || !strings.Contains(out, "found by test: hang") {
		t.Errorf("got exit code %d and %v, want 0; output:\n%s", code, err, out)
	}
	checkNothingLeft(t, temp)
	code, out, err = mutate(t, t.Context(), hang...)
	if code != 1 || err == nil || !strings.Contains(err.Error(), "fails without a mutant: hang") {
		t.Errorf("got exit code %d and %v, want 1; output:\n%s", code, err, out)
	}
}

func TestInterrupt(t *testing.T) {
	temp := enterTiny(t)
	ctx, cancel := context.WithCancel(t.Context())
	var canceller sync.WaitGroup
	defer canceller.Wait()
	defer cancel()
	canceller.Go(func() {
		for ctx.Err() == nil {
			if pid, _ := os.ReadFile("pid"); len(pid) > 0 {
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	})
	code, out, err := mutate(t, ctx, "-draw", "1", "-want", "1", "-quick", "", "-baseline=false", "-test", "setsid sleep 1000 & echo $! >pid; wait")
	if code != 1 || err == nil || err.Error() != "interrupted" || !strings.Contains(out, "found 0 of 0") {
		t.Errorf("got exit code %d and %v, want 1; output:\n%s", code, err, out)
	}
	checkNothingLeft(t, temp)
}

// checkNothingLeft reports an error if the process in the file pid runs, or a temporary file is left.
func checkNothingLeft(t *testing.T, temp string) {
	t.Helper()
	text, err := os.ReadFile("pid")
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, 0); err != unix.ESRCH {
		t.Errorf("the process %d runs: %v", pid, err)
	}
	entries, err := os.ReadDir(temp)
	if err != nil || len(entries) > 0 {
		t.Errorf("left %v, %v", entries, err)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-draw", "0"}, {"-draw", "201"}, {"-draw", "3"}, {"-no-such-flag"}, {"fs"}} {
		if code, _, err := mutate(t, t.Context(), args...); code != 2 || err != nil {
			t.Errorf("%q: got exit code %d and %v, want 2", args, code, err)
		}
	}
}

func TestFindings(t *testing.T) {
	for _, c := range []struct{ output, want string }{
		{"--- FAIL: TestA (0.00s)\n    --- FAIL: TestA/x (0.00s)\nFAIL\n--- FAIL: TestB (1.00s)\n--- FAIL: TestA (0.00s)\nFAIL\tp\t0.1s\n", "TestA TestB"},
		{"FAIL: test_plan (test_milkweed.Test)\nERROR: test_read\n", "test_plan test_read"},
		{"panic: test timed out after 3m0s\n", "timeout"},
		{"WARNING: DATA RACE\n", "data race"},
		{"fatal error: all goroutines are asleep - deadlock!\nFAIL\tp\t0.1s\n", "panic"},
		{"panic: runtime error\n", "panic"},
		{"p/p_test.go:3: x\nFAIL\tp [build failed]\n", "build"},
		{"make: *** [test] Error 1\n", "exit status 2"},
	} {
		if got := strings.Join(findings(c.output, errors.New("exit status 2")), " "); got != c.want {
			t.Errorf("%q: got %q, want %q", c.output, got, c.want)
		}
	}
}

// A result counts for one fault, also if an ID in another source is the same, and for one command.
func TestReadResults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "results.jsonl")
	before := result{mutant: mutant{ID: "negate:p/p.go:f:1", Before: "a", After: "!(a)"}, Test: "make test", Step: "quick", By: []string{"TestA"}}
	for range 2 {
		if err := before.append(file); err != nil {
			t.Fatal(err)
		}
	}
	if results, err := readResults(file, "other"); err != nil || len(results) > 0 {
		t.Errorf("of another command: got %v, %v, want none", results, err)
	}
	results, err := readResults(file, "make test")
	if err != nil || len(results) != 1 || !slices.Equal(results[before.key()].By, before.By) {
		t.Errorf("got %v, %v", results, err)
	}
	if r, ok := results[(mutant{ID: before.ID, Before: "b", After: "!(b)"}).key()]; ok {
		t.Errorf("got %v for another fault", r)
	}
}
