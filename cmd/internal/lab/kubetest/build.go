// Package kubetest is the support of tests about containers and Kubernetes. It needs no cluster:
// it builds the manifests of examples/kubernetes with kustomize, checks objects against the
// schemas of Kubernetes and of Fluid, and offers a kubectl that does only this.
package kubetest

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/lab"
)

// Programs returns the folder of the static programs milkweed and milkweed-k8s, as an image has them.
// They are not to be changed. TestMain calls lab.RemovePrograms.
func Programs(t testing.TB) string {
	t.Helper()
	dir, err := lab.Static()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// root returns the folder of the module, in which the current directory is.
func root(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(strings.TrimSpace(string(out)))
}
