package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == loadRole {
		main()
	}
	os.Exit(m.Run())
}

const repo = "../../../.."

var listOnce = sync.OnceValues(func() ([]test, error) { return listTests(repo) })

func list(t *testing.T) []test {
	t.Helper()
	all, err := listOnce()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Every test has marks that mean something, and a name that has the same ones in all packages, so that
// one run of go test has all of `make test`.
func TestMarks(t *testing.T) {
	if got := selectTests(list(t), inTest); len(got) != 1 {
		t.Errorf("%d runs of go test, the second one for %q: rename the tests there", len(got), got[1].packages)
	}
	for _, one := range list(t) {
		for _, mark := range one.marks {
			if !slices.Contains([]string{onlyCheck, noRace, onlyPFS, oneProc}, mark) {
				t.Errorf("%s: no suite is called %s", one.id(), mark)
			}
		}
	}
}

// `make test` has a test of every package that has tests, and of every section of docs/SEMANTICS.md but
// those in the table of CONTRIBUTING.md.
func TestOfEverything(t *testing.T) {
	tests := make(map[string]bool)
	packages := make(map[string]bool)
	for _, one := range list(t) {
		tests[one.id()] = inTest(one)
		packages[one.pkg] = packages[one.pkg] || inTest(one)
	}
	for pkg, ok := range packages {
		if !ok {
			t.Errorf("`make test` has no test of %s", pkg)
		}
	}
	semantics := read(t, "docs/SEMANTICS.md")
	promises := regexp.MustCompile("(?m)^\\| .*`(fs\\.Test\\w+)`.*\\|$").FindAllStringSubmatch(semantics[:strings.Index(semantics, "\n## The window")], -1)
	if len(promises) != 9 {
		t.Errorf("docs/SEMANTICS.md has %d promises, want 9", len(promises))
	}
	for _, p := range promises {
		if !tests[p[1]] {
			t.Errorf("%s holds a promise and is not in `make test`", p[1])
		}
	}
	listed := tableOf(read(t, "CONTRIBUTING.md"), "section of SEMANTICS")
	named := regexp.MustCompile("`([a-z/0-9-]+\\.Test\\w+)`")
	for _, section := range strings.Split(semantics, "\n## ")[1:] {
		title, _, _ := strings.Cut(section, "\n")
		names, some := named.FindAllStringSubmatch(section, -1), false
		for _, n := range names {
			some = some || tests[n[1]]
		}
		if isListed := slices.Contains(listed, title); len(names) > 0 && some == isListed {
			t.Errorf("section %q: a test of it is in `make test`: %v; CONTRIBUTING.md lists it: %v", title, some, isListed)
		}
	}
}

// CONTRIBUTING.md lists the tests that `make check` has and `make test` has not.
func TestListOfCheck(t *testing.T) {
	text := read(t, "CONTRIBUTING.md")
	var want []string
	for _, one := range list(t) {
		if !inTest(one) {
			want = append(want, one.id())
		}
	}
	var got []string
	for _, line := range strings.Split(text, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !regexp.MustCompile(`^ (Test|Fuzz)[A-Z]`).MatchString(cells[2]) {
			continue
		}
		pkg := strings.Trim(cells[1], " `")
		for _, name := range strings.Fields(cells[2]) {
			got = append(got, pkg+"."+strings.Trim(name, "`,"))
		}
	}
	slices.Sort(got)
	for _, id := range want {
		if !slices.Contains(got, id) {
			t.Errorf("CONTRIBUTING.md does not list %s", id)
		}
	}
	for _, id := range got {
		if !slices.Contains(want, id) {
			t.Errorf("CONTRIBUTING.md lists %s, which is in `make test`, or does not exist", id)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repo, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// tableOf returns the first column of the table whose first heading is given.
func tableOf(text, heading string) (cells []string) {
	_, rest, _ := strings.Cut(text, "| "+heading+" |")
	for i, line := range strings.Split(rest, "\n") {
		if i < 2 {
			continue
		}
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells = append(cells, strings.TrimSpace(strings.Split(line, "|")[1]))
	}
	return cells
}

// module writes a module with one test file for each package.
func module(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	files["go.mod"] = "module github.com/milkweedfs/milkweed\n\ngo 1.26\n"
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A selection with a name that another package skips has a run of its own.
func TestSelections(t *testing.T) {
	all := []test{
		{pkg: "a", name: "TestX"}, {pkg: "a", name: "TestY", marks: []string{onlyCheck}},
		{pkg: "b", name: "TestY"}, {pkg: "b", name: "TestZ"},
		{pkg: "c", name: "TestV"}, {pkg: "d", name: "TestW", marks: []string{onlyCheck}},
	}
	var got []string
	for _, s := range selectTests(all, inTest) {
		got = append(got, strings.Join(s.arguments(), " "))
	}
	want := []string{"-skip=^(TestY)$ ./a ./c", "./b"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	got = nil
	for _, s := range selectTests(all, func(t test) bool { return t.has(onlyCheck) }) {
		got = append(got, strings.Join(s.arguments(), " "))
	}
	if want := []string{"-skip=^(TestX)$ ./a ./d"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What a test needs is found through the functions that it calls.
func TestNeeds(t *testing.T) {
	src := &source{calls: make(map[function][]function), needs: make(map[function][]string)}
	dir := module(t, map[string]string{"a_test.go": `package a
import "github.com/milkweedfs/milkweed/drivers/drivertest"
const python = "/usr/bin/python3"
// TestA is a test.
//
//suite:check
//suite:oneproc
func TestA(t *testing.T) { new(rig).start(t) }
func (r *rig) start(t *testing.T) { drivertest.Need(t, "root", python); help(t) }
func help(t *testing.T) { drivertest.Need(t, "tmux"); help(t) }
func TestB(t *testing.T) {}
func Testament() {}
`})
	if err := src.addPackage("a", dir, []string{"a_test.go"}); err != nil {
		t.Fatal(err)
	}
	if len(src.tests) != 2 || !src.tests[0].has(onlyCheck) || !src.tests[0].has(oneProc) || src.tests[1].has(onlyCheck) {
		t.Errorf("got %+v", src.tests)
	}
	if got, want := src.needsOf(function{"a", "TestA"}), []string{"/usr/bin/python3", "root", "tmux"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := src.needsOf(function{"a", "TestB"}); len(got) > 0 {
		t.Errorf("TestB needs %q", got)
	}
}

// `make test` leaves out what this machine lacks, and says so in one line; `make check` does not.
func TestLeftOut(t *testing.T) {
	all := []test{{pkg: "a", name: "TestX", needs: []string{"root", "tmux"}}, {pkg: "a", name: "TestY"}}
	lacks := func(what string) error {
		if what == "tmux" {
			return errors.New("no tmux")
		}
		return nil
	}
	s, err := newSuite("test", all, lacks, options{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.describe(); strings.Contains(got, "TestX") || !strings.Contains(got, "TestY") || !slices.Equal(s.leftOut["tmux"], []string{"a.TestX"}) {
		t.Errorf("left out %q of\n%s", s.leftOut, got)
	}
	if got := report("test", s.leftOut, &results{}, 0); !strings.Contains(got, "lacks it (number of tests): tmux (1)\n") {
		t.Errorf("reported %s", got)
	}
	check, err := newSuite("check", all, lacks, options{}, nil)
	if err != nil || len(check.leftOut) > 0 {
		t.Errorf("left out %q, %v", check.leftOut, err)
	}
	if _, err := newSuite("chekc", all, lacks, options{}, nil); err == nil {
		t.Error("a suite that does not exist is accepted")
	}
}

func newRunner(t *testing.T, dir string) *runner {
	t.Helper()
	m := &machine{dir: filepath.Join(t.TempDir(), "mw"), repo: dir, settle: time.Second}
	if err := m.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.close(); err != nil {
			t.Error(err)
		}
	})
	return &runner{machine: m, out: t.Output(), ci: true}
}

// The result of a step names each test that has failed or panicked, or that was skipped, its message,
// and a command that runs it alone.
func TestFailures(t *testing.T) {
	dir := module(t, map[string]string{
		"a/a_test.go": `package a
import "testing"
func TestGood(t *testing.T) {}
func TestBad(t *testing.T) { t.Run("sub", func(t *testing.T) { t.Errorf("got %d, want %d", 1, 2) }) }
func TestSkipped(t *testing.T) { t.Skip("no luck") }
func TestHelper(t *testing.T) { t.Run("sub", func(*testing.T) { t.Fatal("of the helper") }) }
`,
		"b/b_test.go": "package b\nimport \"testing\"\nfunc TestPanic(t *testing.T) { panic(\"out of order\") }\n",
		"c/c_test.go": "package c\nfunc TestC(t *testing.T) {}\n",
		"d/d_test.go": "package d\nimport (\n\"os\"\n\"testing\"\n)\nfunc TestMain(m *testing.M) { m.Run(); println(\"a goroutine is left\"); os.Exit(1) }\nfunc TestD(t *testing.T) {}\n",
	})
	r := newRunner(t, dir)
	got, err := r.run(t.Context(), step{part: "tests", name: "tests", goTest: true, words: goTest("-count=1", "./...")})
	if err != nil {
		t.Fatal(err)
	}
	if got.ok() || got.Passed != 2 {
		t.Errorf("passed %d tests, ok %v", got.Passed, got.ok())
	}
	text := report("test", nil, &results{all: []result{got}}, 0)
	for _, want := range []string{
		"a.TestBad/sub", "got 1, want 2", "go test -count=1 -run '^TestBad$' ./a",
		"a.TestSkipped", "no luck", "b.TestPanic", "out of order", "undefined: testing", "repeat: go test -count=1 ./c",
		"a.TestHelper/sub", "of the helper", "a goroutine is left", "repeat: go test -count=1 ./d", "tests: 2 passed, 6 failed, 1 skipped",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
}

// However much has failed, the report names tests in at most 30 lines, and ends with the totals.
func TestReportFitsATerminal(t *testing.T) {
	for _, count := range []int{0, 1, 3, 14, 100} {
		r := &results{path: "file"}
		for i := range count {
			r.all = append(r.all, result{Failed: []failure{{Test: fmt.Sprintf("a.Test%d", i), Output: strings.Repeat("a line\n", 50) + "the message", Repeat: "go test"}}})
		}
		got := report("test", map[string][]string{"tmux": nil}, r, 0)
		lines := strings.Split(strings.TrimRight(got, "\n"), "\n")
		if len(lines) > reportLines || !strings.HasSuffix(got, fmt.Sprintf("tests: 0 passed, %d failed, 0 skipped\n", count)) {
			t.Errorf("%d failures: %d lines\n%s", count, len(lines), got)
		}
		if count > 0 && !strings.Contains(got, "a.Test0\n") {
			t.Errorf("%d failures: the first one is missing:\n%s", count, got)
		}
	}
}

// A step fails if it leaves a file, a process, a mount or a file in the checkout; the next step finds
// none of these.
func TestLeft(t *testing.T) {
	drivertest.Need(t, "root", "git")
	dir := module(t, map[string]string{})
	if out, err := exec.Command("git", "init", "-q", dir).CombinedOutput(); err != nil {
		t.Fatalf("git init: %v\n%s", err, out)
	}
	r := newRunner(t, dir)
	// The mounts of the step are made here, as by a test that forgets them.
	for script, want := range map[string]string{
		`mkdir $TMPDIR/x`:                                "file " + r.temp() + "/x",
		`sleep 1000 >/dev/null 2>&1 &`:                   "process",
		`mkdir $TMPDIR/m; mount -t tmpfs none $TMPDIR/m`: "mount " + r.temp() + "/m",
		`touch new`:                    "file " + dir + "/new",
		`touch /dev/shm/milkweed-left`: "file /dev/shm/milkweed-left",
	} {
		got, err := r.run(t.Context(), step{name: "step", words: []string{"sh", "-ec", script}})
		if err != nil {
			t.Fatal(err)
		}
		if got.ok() || len(got.Left) == 0 || !slices.ContainsFunc(got.Left, func(l string) bool { return strings.HasPrefix(l, want) }) {
			t.Errorf("%s: left %q, want %s", script, got.Left, want)
		}
	}
	os.Remove("/dev/shm/milkweed-left")
	if got, err := r.run(t.Context(), step{name: "step", words: []string{"true"}}); err != nil || !got.ok() {
		t.Errorf("a step that leaves nothing: %+v, %v", got, err)
	}
}

// The report of a fuzz target that fails has the input, which nobody may keep, and the message.
func TestFuzzFailure(t *testing.T) {
	dir := module(t, map[string]string{"a/a_test.go": `package a

import "testing"

func FuzzBad(f *testing.F) {
	f.Add("good")
	f.Fuzz(func(t *testing.T, s string) {
		if s != "good" {
			t.Fatal("this is wrong")
		}
	})
}
`})
	script, err := filepath.Abs(repo + "/.ci/fuzz.sh")
	if err != nil {
		t.Fatal(err)
	}
	got, err := newRunner(t, dir).run(t.Context(), step{name: "fuzz", words: []string{script, "10s", "./a", "FuzzBad"}})
	if err != nil {
		t.Fatal(err)
	}
	if shown := strings.Join(fit([]string{"fuzz\n" + got.Error + "\nrepeat"}, 6), "\n"); !strings.Contains(shown, `string("`) || !strings.Contains(shown, "this is wrong") {
		t.Errorf("got %s\nof %s", shown, got.Error)
	}
}

func TestLeftInterface(t *testing.T) {
	drivertest.Need(t, "root", "ip")
	r := newRunner(t, t.TempDir())
	t.Cleanup(func() { exec.Command("ip", "link", "delete", "mw-left").Run() })
	got, err := r.run(t.Context(), step{name: "step", words: []string{"ip", "link", "add", "mw-left", "type", "bridge"}})
	if err != nil || !slices.Equal(got.Left, []string{"network interface mw-left"}) {
		t.Errorf("left %q, %v", got.Left, err)
	}
}

// A run that is interrupted continues with the step that it had not ended.
func TestResume(t *testing.T) {
	dir := module(t, map[string]string{})
	folder := t.TempDir()
	s := suite{steps: []step{
		{name: "one", words: []string{"sh", "-c", "echo x >>" + folder + "/one"}},
		{name: "two", words: []string{"sh", "-c", "echo x >>" + folder + "/two; test -e " + folder + "/go || sleep 1000"}},
		{name: "three", words: []string{"sh", "-c", "echo x >>" + folder + "/three; exit 3"}},
	}}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		drivertest.Eventually(t, "the second step has begun", func() bool { _, err := os.Stat(folder + "/two"); return err == nil })
		cancel()
	}()
	var out bytes.Buffer
	if code, err := runSuite(ctx, s, "soak", dir, dir+"/build/suite", false, 0, &out); code != 130 || err != nil {
		t.Fatalf("exit code %d, %v\n%s", code, err, &out)
	}
	if err := os.WriteFile(folder+"/go", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	// As if the run had been killed while it wrote a line.
	files, _ := filepath.Glob(dir + "/build/suite/soak-*.jsonl")
	if len(files) != 1 {
		t.Fatalf("files of results: %q", files)
	}
	f, err := os.OpenFile(files[0], os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString(`{"step":"tw`)
	f.Close()
	if code, err := runSuite(t.Context(), s, "soak", dir, dir+"/build/suite", true, 0, &out); code != 1 || err != nil {
		t.Fatalf("exit code %d, %v\n%s", code, err, &out)
	}
	for name, want := range map[string]int{"one": 1, "two": 2, "three": 1} {
		text, _ := os.ReadFile(folder + "/" + name)
		if got := bytes.Count(text, []byte("x")); got != want {
			t.Errorf("step %s ran %d times, want %d", name, got, want)
		}
	}
	all, err := readResults(files[0])
	if err != nil || len(all) != 3 || !all[1].ok() || all[2].ok() || !strings.Contains(all[2].Error, "exit status 3") {
		t.Errorf("results %+v, %v", all, err)
	}
	if !strings.Contains(out.String(), "interrupted; -resume continues with the step two") {
		t.Errorf("printed\n%s", &out)
	}
	if _, err := openResults(dir+"/build/suite", "check", true); err == nil || !strings.Contains(err.Error(), "nothing to resume") {
		t.Errorf("resumed a run that does not exist: %v", err)
	}
}

// Two runs of a checkout do not disturb each other, and a folder of another user is not used.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	first, second := &machine{dir: dir + "/mw", settle: time.Second}, &machine{dir: dir + "/mw", settle: time.Second}
	if err := first.open(); err != nil {
		t.Fatal(err)
	}
	if err := second.open(); err == nil || !strings.Contains(err.Error(), "another run") {
		t.Errorf("a second run: %v", err)
	}
	if err := first.close(); err != nil {
		t.Error(err)
	}
	if err := os.Symlink(dir, dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if err := (&machine{dir: dir + "/link"}).open(); err == nil {
		t.Error("a symbolic link is used as a folder")
	}
}

// The load keeps the processors and the disk busy until it is ended.
func TestLoad(t *testing.T) {
	dir := t.TempDir()
	end, err := startLoad(dir)
	if err != nil {
		t.Fatal(err)
	}
	before := childrenTime()
	time.Sleep(time.Second)
	end()
	if used := childrenTime() - before; used == 0 {
		t.Errorf("used %v of processor time in a second", used)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func childrenTime() time.Duration {
	var u unix.Rusage
	unix.Getrusage(unix.RUSAGE_CHILDREN, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// The tests that failed in earlier runs are repeated more often.
func TestSuspects(t *testing.T) {
	dir := t.TempDir()
	r, err := openResults(dir, "check", false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if err := r.add(result{Failed: []failure{{Test: "fs.TestX/a.b/c"}, {Test: "cmd/internal/peertest.TestClusterY"}, {Test: "tiers"}}}); err != nil {
		t.Fatal(err)
	}
	got, err := findSuspects(dir)
	if want := []string{"cmd/internal/peertest.TestClusterY", "fs.TestX"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	s, err := newSuite("soak", nil, nil, options{rounds: 1}, got)
	if err != nil || !strings.Contains(s.describe(), "-count=50 '-run=^TestX$' ./fs") || strings.Count(s.describe(), "TestClusterY") < suspectRuns/50 {
		t.Errorf("%v\n%s", err, s.describe())
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"tset"}, {"check", "-frobnicate"}, {"check", "rcae"}} {
		if code, err := run(t.Context(), args, t.Output()); code != 2 || err == nil {
			t.Errorf("%q: exit code %d, %v", args, code, err)
		}
	}
	var out bytes.Buffer
	if code, err := run(t.Context(), []string{"check", "-list", "race"}, &out); code != 0 || err != nil || !strings.Contains(out.String(), "-race") {
		t.Errorf("exit code %d, %v: %s", code, err, &out)
	}
	out.Reset()
	if code, err := run(t.Context(), []string{"test", "-list", "-packages", "tiers,drivers"}, &out); code != 0 || err != nil || !strings.HasSuffix(out.String(), " ./drivers ./tiers\n") {
		t.Errorf("of two packages: exit code %d, error %v, output\n%s", code, err, out.String())
	}
	if code, err := run(t.Context(), []string{"test", "-list", "-packages", "tiers,driver"}, &out); code != 2 || err == nil || !strings.Contains(err.Error(), `"driver"`) {
		t.Errorf("of a package that does not exist: exit code %d, error %v", code, err)
	}
}
