package kubetest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/lab"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// folders are the folders of examples/kubernetes for kubectl apply -k, and how many objects each has.
var folders = map[string]int{
	"peers": 2, "csi": 3, "volumes": 4, "fluid": 1, "train/csi": 4, "train/peers": 2, "train/fluid": 4,
}

// schemas returns the schemas. It skips the test if a program or schema is not installed.
func schemas(t *testing.T) Schemas {
	t.Helper()
	drivertest.Need(t, "kustomize", "kubeconform")
	for _, dep := range [][2]string{
		{"kubernetes", "kubernetes@*/swagger.json"}, {"fluid", "fluid@*/bases"},
	} {
		if _, err := installed(dep[0], dep[1]); err != nil {
			drivertest.Skipf(t, "%v", err)
		}
	}
	s, err := allSchemas()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// allSchemas writes the schemas once.
var allSchemas = sync.OnceValues(func() (Schemas, error) { return WriteSchemas(folder) })

// folder is a temporary folder of these tests.
var folder string

func TestMain(m *testing.M) {
	var err error
	if folder, err = os.MkdirTemp("", "milkweed-kubetest-"); err != nil {
		panic(err)
	}
	code := m.Run()
	if err := errors.Join(os.RemoveAll(folder), lab.RemovePrograms()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// example returns the manifests of a folder of examples/kubernetes, which kustomize builds once.
func example(t *testing.T, folder string) string {
	t.Helper()
	once, _ := examples.LoadOrStore(folder, sync.OnceValues(func() ([]byte, error) {
		return Build(filepath.Join(root(t), "examples/kubernetes", folder))
	}))
	out, err := once.(func() ([]byte, error))()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// examples has the manifests of the folders, each as a function that returns them.
var examples sync.Map

// Each folder is built by kustomize, and its objects agree with the schemas.
func TestManifestsAreValid(t *testing.T) {
	s := schemas(t)
	for folder, want := range folders {
		t.Run(folder, func(t *testing.T) {
			manifests := example(t, folder)
			if err := s.Validate([]byte(manifests)); err != nil {
				t.Error(err)
			}
			objects, err := Parse([]byte(manifests))
			if err != nil {
				t.Fatal(err)
			}
			if len(objects) != want {
				t.Errorf("%d objects, want %d", len(objects), want)
			}
		})
	}
	data, err := os.ReadFile(filepath.Join(root(t), "examples/kubernetes/namespace.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(data); err != nil {
		t.Error(err)
	}
	// No folder is forgotten.
	filepath.WalkDir(filepath.Join(root(t), "examples/kubernetes"), func(path string, d os.DirEntry, err error) error {
		folder, _ := filepath.Rel(filepath.Join(root(t), "examples/kubernetes"), filepath.Dir(path))
		if d.Name() == "kustomization.yaml" && folders[folder] == 0 && folder != "train/base" {
			t.Errorf("%s is not tested", folder)
		}
		return err
	})
}

// A misspelling is a change of the manifests of a folder.
type misspelling struct{ folder, from, to string }

// says is what the error says.
func (m misspelling) says() string {
	if strings.HasPrefix(m.to, "kind: ") || strings.HasPrefix(m.to, "apiVersion: ") {
		return "could not find schema"
	}
	return " is invalid: "
}

// The schemas are not satisfied by anything: a misspelt field, a value of the wrong type and a missing
// field are found, at the top and deep in an object.
func TestValidateRefuses(t *testing.T) {
	s := schemas(t)
	for _, c := range []misspelling{
		{"csi", "attachRequired", "attachRequried"},
		{"csi", "podInfoOnMount: true", "podInfoOnMount: 1"},
		{"csi", "readOnlyRootFilesystem", "readOnlyRootFileSystem"},
		{"csi", "mountPropagation", "mountPropagatoin"},
		{"csi", "requiresRepublish", "requireRepublish"},
		{"csi", "kind: CSIDriver", "kind: CSIDrivers"},
		{"csi", "apiVersion: storage.k8s.io/v1", "apiVersion: storage.k8s.io/v2"},
		{"csi", "    spec:\n      automount", "    sepc:\n      automount"},
		{"peers", "publishNotReadyAddresses", "publishNotReadyAdresses"},
		{"peers", "port: 7440", "port: x"},
		{"peers", "hostNetwork: true", "hostNetwork: 1"},
		{"peers", "defaultMode: ", "defaultMode: x"},
		{"train/csi", "claimName: digits", "claimname: digits"},
		{"train/csi", "backoffLimit: 0", "backofLimit: 0"},
		{"train/csi", "volumeHandle", "volumehandle"},
		{"volumes", "volumeAttributes", "volumeAttribute"},
		{"fluid", "fileSystemType", "filesystemType"},
		{"fluid", "imageTag", "tag"},
		{"fluid", "preStop", "prestop"},
		{"train/fluid", "profileName", "profile"},
		{"train/fluid", "encryptOptions", "encryptedOptions"},
		{"train/fluid", "path: /\n", "path: 1\n"},
	} {
		manifests := example(t, c.folder)
		changed := strings.Replace(manifests, c.from, c.to, 1)
		if changed == manifests {
			t.Errorf("%s has no %q", c.folder, c.from)
		} else if err := s.Validate([]byte(changed)); err == nil || !strings.Contains(err.Error(), c.says()) {
			t.Errorf("%s with %q: %v", c.folder, c.to, err)
		}
	}
	if err := s.Validate([]byte("apiVersion: example.org/v1\nkind: Unknown\nmetadata: {name: x}\n")); err == nil {
		t.Error("an unknown kind was accepted")
	}
}
