package lab

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A failure that .ci/gotest.sh cannot repeat fails its run. After one that does not occur again, the run
// passes, and its last lines name the test.
func TestFailuresAreRepeated(t *testing.T) {
	script, err := filepath.Abs("../../../.ci/gotest.sh")
	if err != nil {
		t.Fatal(err)
	}
	// once is true in the first of several runs of a package.
	const once = `
func once() bool {
	if _, err := os.Stat(os.Getenv("MARK")); err == nil {
		return false
	}
	os.WriteFile(os.Getenv("MARK"), nil, 0o600)
	return true
}
func TestOther(t *testing.T) {}
`
	for _, c := range []struct {
		name, source string
		flags        []string
		passes       bool
		want         string // in the output
	}{
		{"passes", `func TestX(t *testing.T) {}`, nil, true, "DONE 2 tests"},
		{"fails once", `func TestX(t *testing.T) { if once() { t.Error("got 1, want 2") } }`, nil, true, "flaky: m/x.TestX: 2 runs, 1 failures: x_test.go:8: got 1, want 2"},
		{"fails once without a message", `func TestX(t *testing.T) { if once() { t.FailNow() } }`, nil, true, "flaky: m/x.TestX: 2 runs, 1 failures\n"},
		{"a subtest fails once", `func TestX(t *testing.T) { t.Run("a", func(t *testing.T) { if once() { t.Error("got 1, want 2") } }) }`, nil, true, "flaky: m/x.TestX/a: 2 runs, 1 failures: x_test.go:8: got 1, want 2"},
		{"fails always", `func TestX(t *testing.T) { t.Error("got 1, want 2") }`, nil, false, "DONE 3 runs"},
		{"panics once", `func TestX(t *testing.T) { if once() { panic("out of order") } }`, nil, false, "previous run had a suspected panic"},
		{"ends its process once", `func TestA(t *testing.T) { if once() { os.Exit(1) } }`, nil, false, "A test has ended its process"},
		{"leaves something once", `func TestMain(m *testing.M) {
	code := m.Run()
	if flag.Lookup("test.run").Value.String() == "" && once() {
		println("a process is left")
		code = 1
	}
	os.Exit(code)
}`, nil, true, "flaky: m/x: a process is left"},
		{"leaves something always", `func TestMain(m *testing.M) {
	code := m.Run()
	if flag.Lookup("test.run").Value.String() == "" {
		println("a process is left")
		code = 1
	}
	os.Exit(code)
}`, nil, false, "a process is left"},
		{"races once", `func TestX(t *testing.T) {
	n, done := 0, make(chan bool)
	go func() { n++; close(done) }()
	if once() { n++ }
	<-done
}`, []string{"-race"}, false, "previous run had a data race"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if testing.Short() && c.flags != nil {
				t.Skip("compiles the race detector")
			}
			dir := t.TempDir()
			source := "package x\n\nimport (\n\t\"flag\"\n\t\"os\"\n\t\"testing\"\n)\n" + c.source + once + "\nvar _ = flag.Lookup\n"
			if err := errors.Join(os.Mkdir(dir+"/x", 0o755),
				os.WriteFile(dir+"/go.mod", []byte("module m\n\ngo 1.26\n"), 0o644),
				os.WriteFile(dir+"/x/x_test.go", []byte(source), 0o644)); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(script, append([]string{"./..."}, c.flags...)...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "MARK="+dir+"/mark", "RERUNS=")
			out, err := cmd.CombinedOutput()
			if (err == nil) != c.passes || !strings.Contains(string(out), c.want) {
				t.Errorf("%v; want it to pass: %v, and to print %q\n%s", err, c.passes, c.want, out)
			}
		})
	}
}
