// Package kubetest is the support of tests about containers and Kubernetes. It needs no cluster:
// it builds the manifests of examples/kubernetes with kustomize, checks objects against the
// schemas of Kubernetes and of Fluid, and offers a kubectl that does only this.
package kubetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Programs builds the static programs milkweed and milkweed-k8s, as an image has them, and returns
// their folder. It exists until the end of the test.
func Programs(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.release=test", "-o", dir+"/", "./cmd/milkweed", "./cmd/milkweed-k8s")
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
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
