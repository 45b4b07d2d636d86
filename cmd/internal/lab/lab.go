// Package lab builds the programs of this module for tests that run them. Its subpackages are the
// support of such tests: networks, clusters, browsers, disks that fail. No released program depends
// on them.
package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// ProgramsEnv is the environment variable with the folder in which all packages share the programs
// that they build. Package suite sets it. Without it, each process of tests has a temporary folder.
const ProgramsEnv = "MILKWEED_TEST_PROGRAMS"

// BuildEnv is the environment variable with the build ID of the program milkweed. Go repeats a test
// whose result it has cached if a variable that the test has read changes.
const BuildEnv = "MILKWEED_TEST_BUILD"

// OpenTimeout is a variable for the environment of daemons: they wait 30 s for their tiers, instead of
// half a second, after which a mount on a machine with a busy disk starts without them.
const OpenTimeout = "MILKWEED_TEST_OPEN_TIMEOUT=30"

// Module is the import path of this module.
const Module = "github.com/milkweedfs/milkweed"

var temporary = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "milkweed-programs-"); err == nil {
		err = os.Chmod(dir, 0o755) // other users run the programs
	}
	return dir, err
})

// Programs returns the folder of the programs.
func Programs() (dir string, err error) {
	os.Getenv(BuildEnv)
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

type program struct {
	name string
	race bool
}

// built has the programs that this process has built: a program to a function that returns its path.
var built sync.Map

// Program builds a command of this module, such as "cmd/milkweed", unless that was done with the same
// source, and returns its path. With race it has the race detector.
func Program(command string, race bool) (path string, err error) {
	once, _ := built.LoadOrStore(program{command, race}, sync.OnceValues(func() (string, error) { return build(command, race) }))
	return once.(func() (string, error))()
}

func build(command string, race bool) (string, error) {
	dir, err := Programs()
	if err != nil {
		return "", err
	}
	if race {
		dir = filepath.Join(dir, "race")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	// Tests of several packages run at the same time.
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	path := filepath.Join(dir, filepath.Base(command))
	out, err := exec.Command("go", "build", "-o", path, fmt.Sprintf("-race=%v", race), Module+"/"+command).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build %s: %w\n%s", command, err, out)
	}
	return path, nil
}
