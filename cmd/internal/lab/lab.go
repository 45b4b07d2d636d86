// Package lab builds the programs of this module for tests that run them. Its subpackages are the
// support of such tests: networks, clusters, browsers, disks that fail. No released program depends
// on them.
package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// ProgramsEnv is the environment variable with the folder in which all packages share the programs
// that they build. .ci/gotest.sh sets it. Without it, each process of tests has a temporary folder.
const ProgramsEnv = "MILKWEED_TEST_PROGRAMS"

// OpenTimeout is a variable for the environment of daemons: they wait 30 s for their tiers, instead of
// half a second, after which a mount on a machine with a busy disk starts without them.
const OpenTimeout = "MILKWEED_TEST_OPEN_TIMEOUT=30"

// RaceOptions belong into the variable GORACE of programs with the race detector. They end without a
// sleep of a second, and clear the shadow memory of large allocations in place: to map it anew, as is
// the default, takes a third of the processor time of a test that copies blocks of a MiB, in page faults.
const RaceOptions = "atexit_sleep_ms=20 clear_shadow_mmap_threshold=67108864"

// module is the import path of this module.
const module = "github.com/milkweedfs/milkweed"

var temporary = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "milkweed-programs-"); err == nil {
		err = os.Chmod(dir, 0o755) // other users run the programs
	}
	return dir, err
})

// Programs returns the folder of the programs.
func Programs() (dir string, err error) {
	if dir := os.Getenv(ProgramsEnv); dir != "" {
		return dir, nil
	}
	return temporary()
}

// RemovePrograms removes the programs that only this process uses. TestMain calls it at the end.
func RemovePrograms() error {
	if os.Getenv(ProgramsEnv) != "" {
		return nil
	}
	dir, err := temporary()
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// A program is a command of this module in one of its forms.
type program struct {
	name string
	form form
}

// A form is how a program is built. It is the name of its folder among the programs.
type form string

// The forms.
const (
	plain    form = ""
	withRace form = "race"   // with the race detector
	static   form = "static" // as an image has it
)

// flags returns the flags of go build.
func (f form) flags() []string {
	switch f {
	case withRace:
		return []string{"-race"}
	case static:
		return []string{"-trimpath", "-ldflags", "-s -w -X main.release=test"}
	}
	return nil
}

// built has the programs that this process has built: a program to a function that returns its path.
var built sync.Map

// Program builds a command of this module, such as "cmd/milkweed", unless that was done with the same
// source, and returns its path. With race it has the race detector.
func Program(command string, race bool) (path string, err error) {
	p := program{command, plain}
	if race {
		p.form = withRace
	}
	return p.built()
}

// Static is Program for the programs milkweed and milkweed-k8s as an image has them: they need no
// libraries, and their release is "test". It returns their folder, which has nothing else.
func Static() (dir string, err error) {
	var path string
	for _, name := range [...]string{"milkweed", "milkweed-k8s"} {
		if path, err = (program{"cmd/" + name, static}).built(); err != nil {
			return "", err
		}
	}
	return filepath.Dir(path), nil
}

// built builds a program once, and returns its path.
func (p program) built() (path string, err error) {
	once, _ := built.LoadOrStore(p, sync.OnceValues(p.build))
	return once.(func() (string, error))()
}

func (p program) build() (string, error) {
	all, err := Programs()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(all, string(p.form))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	// Tests of several packages run at the same time.
	lock, err := os.OpenFile(filepath.Join(all, "."+string(p.form)+"lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	path := filepath.Join(dir, filepath.Base(p.name))
	cmd := exec.Command("go", slices.Concat([]string{"build", "-o", path}, p.form.flags(), []string{module + "/" + p.name})...)
	if p.form == static {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %s: %w\n%s", p.name, err, out)
	}
	return path, nil
}
