// Package examples runs the tests of the examples, which are in Python.
package examples

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

const python = "/usr/bin/python3"

func TestTensorFlow(t *testing.T) {
	drivertest.Need(t, python, "python3-numpy")
	runTests(t, "tensorflow")
}

func TestPyTorch(t *testing.T) {
	drivertest.Need(t, python, "python3-numpy", "python3-torch")
	runTests(t, "pytorch")
}

// runTests runs the tests in a folder.
func runTests(t *testing.T, folder string) {
	t.Helper()
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(folder, "*.py"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests in %s: %v", folder, err)
	}
	for _, file := range files { // so that Go runs this test again when one of them changes
		if _, err := os.Stat(file); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(python, "-B", "-m", "unittest")
	cmd.Dir = folder
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
