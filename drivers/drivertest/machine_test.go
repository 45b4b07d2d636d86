package drivertest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// find prefers a program in the given directory to one in $PATH.
func TestFind(t *testing.T) {
	dir, path := t.TempDir(), t.TempDir()
	t.Setenv("PATH", path)
	if got, err := find(dir, "server"); err == nil || !strings.Contains(err.Error(), "make deps") {
		t.Errorf("got %q, error %v", got, err)
	}
	for _, want := range []string{filepath.Join(path, "server"), filepath.Join(dir, "bin", "server")} {
		if err := os.MkdirAll(filepath.Dir(want), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(want, nil, 0o700); err != nil {
			t.Fatal(err)
		}
		if got, err := find(dir, "server"); got != want || err != nil {
			t.Errorf("got %q, error %v; want %q", got, err, want)
		}
	}
}

func TestLacks(t *testing.T) {
	for what, met := range map[string]bool{
		"root": os.Geteuid() == 0, "sh": true, "no-such-program": false, "/dev/null": true, "/no/such/file": false, "python3-no_such_module": false,
	} {
		if err := Lacks(what); (err == nil) != met {
			t.Errorf("%s: %v, want it to be met: %v", what, err, met)
		}
	}
}

// What a test lacks skips it, and fails it if everything is required.
func TestNeed(t *testing.T) {
	for _, c := range []struct{ all, need, want string }{{"", "sh", ""}, {"", "no-such-program", "skipped"}, {"true", "sh", ""}, {"true", "no-such-program", "failed"}} {
		t.Setenv(AllEnv, c.all)
		var got outcome
		if Need(&got, c.need); got.is != c.want {
			t.Errorf("%s=%s: %q, want %q", AllEnv, c.all, got.is, c.want)
		}
	}
}

// An outcome is a test that notes whether it was skipped or has failed.
type outcome struct {
	testing.TB
	is string
}

func (o *outcome) Helper()               {}
func (o *outcome) Skipf(string, ...any)  { o.is += "skipped" }
func (o *outcome) Fatalf(string, ...any) { o.is += "failed" }
