package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A suite is what one of the commands test, check and soak runs.
type suite struct {
	steps   []step
	leftOut map[string][]string // the tests without one of their requirements, by requirement
}

// An option changes the steps.
type options struct {
	fuzztime string // for each target, as in go test
	rounds   int    // how often soak repeats each package
	duration string // of each torture of soak
}

// goTest begins the words of the steps that run tests. A package may take ten minutes, which only one
// that hangs does. `make lint` vets the code.
func goTest(flags ...string) []string {
	return append([]string{"go", "test", "-json", "-vet=off", "-timeout=10m"}, flags...)
}

// steps returns the steps of a suite. lacks says whether the machine meets a requirement.
func newSuite(command string, all []test, lacks func(string) error, o options, suspects []string) (suite, error) {
	switch command {
	case "test":
		return testSuite(all, lacks), nil
	case "check":
		return checkSuite(all, o), nil
	case "soak":
		return soakSuite(all, o, suspects), nil
	}
	return suite{}, fmt.Errorf("no suite is called %q; there are test, check and soak", command)
}

// inTest reports whether `make test` runs a test.
func inTest(t test) bool { return !t.has(onlyCheck) && !t.has(onlyPFS) }

// testSuite has what a newcomer and every commit runs. Go repeats only the tests whose packages, files
// and variables have changed.
func testSuite(all []test, lacks func(string) error) suite {
	s := suite{leftOut: make(map[string][]string)}
	there := make(map[string]bool)
	for _, t := range all {
		lacking := slices.IndexFunc(t.needs, func(w string) bool { return lacks(w) != nil })
		if there[t.id()] = inTest(t) && lacking < 0; inTest(t) && lacking >= 0 {
			s.leftOut[t.needs[lacking]] = append(s.leftOut[t.needs[lacking]], t.id())
		}
	}
	// Three packages at once: while tests wait, others are compiled.
	s.add("tests", selectTests(all, func(t test) bool { return there[t.id()] }), step{program: true, skips: true, words: goTest("-p=3")})
	return s
}

// add adds a step like the given one for each selection.
func (s *suite) add(part string, selections []selection, like step) {
	for i, sel := range selections {
		one := like
		one.part, one.goTest = part, true
		if one.name == "" {
			one.name = part
		}
		if i > 0 {
			one.name = fmt.Sprintf("%s, %d", one.name, i+1)
		}
		one.words = append(slices.Clone(like.words), sel.arguments()...)
		s.steps = append(s.steps, one)
	}
}

func (s *suite) command(part, name string, env []string, words ...string) {
	s.steps = append(s.steps, step{part: part, name: name, env: env, words: words})
}

// raced reports whether `make check` runs a test with the race detector. It takes most of the time in
// the tests of whole programs, and sees what the tests of the libraries show.
func raced(t test) bool {
	for _, whole := range []string{"cmd/milkweed", "cmd/milkweed-k8s", "cmd/release", "cmd/torture", "cmd/internal/peertest", "cmd/internal/scale", "cmd/internal/page", "examples"} {
		if t.pkg == whole {
			return false
		}
	}
	return !strings.HasPrefix(t.pkg, "cmd/internal/lab/") && !t.has(noRace) && !t.has(onlyPFS)
}

// killed has the tests of daemons that are killed, which run with the race detector.
func killed(t test) bool { return t.pkg == "cmd/milkweed" && strings.HasPrefix(t.name, "TestKilled") }

// checkSuite has everything that a change must pass.
func checkSuite(all []test, o options) suite {
	var s suite
	s.command("deps", "deps", nil, ".ci/deps.sh")
	s.command("lint", "lint", nil, "make", "build", "lint")
	s.add("tests", selectTests(all, inTest), step{program: true, words: goTest("-p=3", "-count=1")})
	s.add("whole", selectTests(all, func(t test) bool { return t.has(onlyCheck) && !raced(t) && !killed(t) }),
		step{program: true, words: goTest("-p=3", "-count=1", "-timeout=20m")})
	s.add("race", selectTests(all, raced),
		step{words: goTest("-p=2", "-count=1", "-race", "-timeout=20m")})
	s.add("killed", selectTests(all, killed), step{words: goTest("-count=1", "-race")})
	s.add("oneproc", selectTests(all, func(t test) bool { return t.has(oneProc) }),
		step{env: []string{"GOMAXPROCS=1"}, words: goTest("-p=1", "-count=1")})
	s.pfs()
	for _, source := range []string{"ext4", "xfs", bucket} {
		s.torture(source, "1m")
	}
	s.fuzz(all, o.fuzztime)
	// One iteration of each benchmark at a small size shows that it runs; it gives no useful times.
	s.steps = append(s.steps, step{part: "bench", name: "bench", goTest: true,
		words: []string{"make", "--silent", "bench", "BENCHTIME=1x", "TESTFLAGS=-short -json -vet=off"}})
	s.command("demo", "demo", nil, "make", "demo")
	return s
}

func (s *suite) pfs() {
	s.steps = append(s.steps, step{part: "pfs", name: "pfs", goTest: true, words: []string{"make", "--silent", "test-pfs", "TESTFLAGS=-json"}})
}

// torture runs the torture suite with the source and the tier on a file system, or with a bucket as source.
func (s *suite) torture(source, duration string) {
	choice := "FS=" + source
	if source == bucket {
		choice = "TORTUREFLAGS=-bucket"
	}
	s.command("torture", "torture "+source, nil, "make", "torture", "RACE=1", choice, "DURATION="+duration)
}

func (s *suite) fuzz(all []test, duration string) {
	for _, t := range all {
		if t.isFuzz() {
			s.command("fuzz", "fuzz "+t.id(), nil, ".ci/fuzz.sh", duration, "./"+t.pkg, t.name)
		}
	}
}

// repeated are the packages that soak repeats.
var repeated = []string{"fs", "placement", "cmd/milkweed", "cmd/internal/peertest"}

// bucket is a source of torture.
const bucket = "bucket"

// suspectRuns is how often soak repeats a test that has failed before.
const suspectRuns = 500

// soakSuite has what is for a night.
func soakSuite(all []test, o options, suspects []string) suite {
	var s suite
	s.command("deps", "deps", nil, ".ci/deps.sh")
	for _, id := range suspects {
		pkg, name, _ := strings.Cut(id, ".")
		for n := range suspectRuns / 50 {
			s.steps = append(s.steps, step{part: "suspects", name: fmt.Sprintf("suspects %s %d", id, n+1), goTest: true, load: true,
				words: goTest("-count=50", "-run=^"+name+"$", "./"+pkg)})
		}
	}
	for n := range o.rounds {
		for _, pkg := range repeated {
			sel := selectTests(all, func(t test) bool { return t.pkg == pkg && !t.has(onlyPFS) })
			s.add("repeat", sel, step{name: fmt.Sprintf("%s, round %d", pkg, n+1), load: true, words: goTest("-count=1", "-timeout=1h")})
		}
	}
	s.add("oneproc", selectTests(all, func(t test) bool { return !t.has(onlyPFS) }),
		step{env: []string{"GOMAXPROCS=1"}, words: goTest("-p=1", "-count=1", "-timeout=1h")})
	s.add("race", selectTests(all, func(t test) bool { return !raced(t) && !t.has(onlyPFS) }),
		step{env: []string{"MILKWEED_TEST_RACE=1"}, words: goTest("-p=1", "-count=1", "-race", "-timeout=2h")})
	for _, source := range []string{"ext4", "xfs", "btrfs", bucket} {
		s.torture(source, o.duration)
	}
	s.pfs()
	s.fuzz(all, o.fuzztime)
	s.command("bench", "bench", nil, "make", "bench")
	s.command("mutate", "mutate", nil, "go", "run", "./cmd/internal/lab/mutate", "-resume")
	return s
}

// parts returns the names of the parts, in their order.
func (s suite) parts() []string {
	var names []string
	for _, one := range s.steps {
		if !slices.Contains(names, one.part) {
			names = append(names, one.part)
		}
	}
	return names
}

// only drops the steps of parts that are not named. Without names it keeps all.
func (s *suite) only(parts []string) error {
	for _, p := range parts {
		if !slices.Contains(s.parts(), p) {
			return fmt.Errorf("no part is called %q; there are %s", p, strings.Join(s.parts(), ", "))
		}
	}
	s.steps = slices.DeleteFunc(s.steps, func(one step) bool { return len(parts) > 0 && !slices.Contains(parts, one.part) })
	return nil
}

// findSuspects returns the tests that have failed in runs whose results are in a folder.
func findSuspects(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var found []string
	for _, file := range files {
		all, err := readResults(file)
		if err != nil {
			return nil, err
		}
		for _, r := range all {
			for _, f := range r.Failed {
				if pkg, test, ok := strings.Cut(f.Test, ".Test"); ok {
					name, _, _ := strings.Cut(test, "/") // without the subtest
					found = append(found, pkg+".Test"+name)
				}
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// describe prints what a suite would run.
func (s suite) describe() string {
	var b strings.Builder
	for _, one := range s.steps {
		fmt.Fprintf(&b, "%s\t%s\n", strconv.Quote(one.name), one)
	}
	return b.String()
}
