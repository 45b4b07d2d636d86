package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/milkweedfs/milkweed/"

// walls lists the packages of this module and the libraries on which each package may depend,
// directly or indirectly. The packages are layers: drivers, tiers, metadata, and then placement
// and fs, which do not import each other. Only cmd imports all.
var walls = []struct {
	pattern   string
	packages  []string // of this module
	libraries []string // prefixes of import paths, without the standard library
}{
	{"drivers", []string{"drivers/panics"}, semaphore},
	{"drivers/panics", nil, nil},
	{"drivers/refcount", nil, nil},
	{"drivers/sequential", nil, nil},
	{"drivers/posix", []string{"drivers", "drivers/panics", "drivers/refcount"}, []string{"golang.org/x/sys/", "golang.org/x/sync/"}},
	{"drivers/limit", []string{"drivers", "drivers/panics"}, semaphore},
	{"drivers/readahead", []string{"drivers", "drivers/panics", "drivers/sequential"}, semaphore},
	{"drivers/blob", []string{"drivers", "drivers/panics"}, vendors},
	{"drivers/peer/gossip", []string{"drivers/panics"}, gossips},
	{"drivers/peer/roster", nil, nil},
	{"drivers/peer", []string{"drivers", "drivers/panics", "drivers/peer/roster"}, semaphore},
	{"tiers", []string{"drivers", "drivers/panics", "drivers/refcount"}, semaphore},
	{"metadata", []string{"drivers", "drivers/panics", "drivers/refcount", "tiers"}, semaphore},
	{"placement/exchange", nil, nil},
	{"placement", []string{"drivers", "drivers/limit", "drivers/panics", "drivers/readahead", "drivers/refcount", "drivers/sequential", "tiers", "metadata", "placement/exchange"}, semaphore},
	{"fs/fusectl", nil, []string{"golang.org/x/sys/"}},
	{"fs", []string{"drivers", "drivers/panics", "drivers/refcount", "fs/fusectl", "tiers", "metadata"}, []string{"github.com/hanwen/go-fuse/v2/", "golang.org/x/sys/", semaphore[0]}},
	{"fs/pfs", []string{"drivers", "drivers/limit", "drivers/panics"}, []string{"github.com/hanwen/go-fuse/v2/", "golang.org/x/sys/", semaphore[0]}},
	{"fs/faultdisk", nil, []string{"github.com/hanwen/go-fuse/v2/", "golang.org/x/sys/"}},
	{"cmd/internal/bench", nil, []string{"github.com/dustin/go-humanize"}},
	{"cmd/internal/child", []string{"cmd/internal/exit"}, nil},
	{"cmd/internal/dataset", nil, nil},
	{"cmd/internal/reader", []string{"cmd/internal/child", "cmd/internal/dataset", "cmd/internal/exit"}, []string{"golang.org/x/sys/", "golang.org/x/sync/"}},
	{"cmd/internal/paths", nil, nil},
	{"cmd/internal/mounts", []string{"cmd/internal/paths", "fs/fusectl"}, []string{"github.com/moby/sys/mountinfo", "golang.org/x/sys/"}},
	{"cmd/internal/procs", []string{"cmd/internal/mounts", "cmd/internal/paths", "fs/fusectl"}, []string{"github.com/moby/sys/mountinfo", "golang.org/x/sys/"}},
	{"cmd/milkweed-k8s", []string{"cmd/internal/child", "cmd/internal/exit", "cmd/internal/mounts", "cmd/internal/paths", "cmd/internal/procs", "drivers/panics", "fs/fusectl"}, kubernetes},
	{"cmd/internal/config", []string{"cmd/internal/exit", "cmd/internal/paths", "drivers/peer/roster"}, []string{"github.com/BurntSushi/toml", "github.com/agext/levenshtein", "github.com/dustin/go-humanize", "golang.org/x/sys/"}},
}

// semaphore is the library of drivers.CallLimit.
var semaphore = []string{"golang.org/x/sync/semaphore"}

// vendors are the libraries of the vendors of object stores, and their dependencies.
var vendors = []string{
	"github.com/aws/",
	"github.com/Azure/", "github.com/AzureAD/", "github.com/golang-jwt/", "github.com/google/uuid", "github.com/kylelemons/", "github.com/pkg/browser",
	"cloud.google.com/go/compute/metadata",
	"golang.org/x/oauth2", "golang.org/x/crypto/", "golang.org/x/net/", "golang.org/x/sync/", "golang.org/x/sys/", "golang.org/x/text/",
}

// kubernetes are gRPC and the CSI specification, with their dependencies, and what the program itself
// uses.
var kubernetes = []string{
	"google.golang.org/grpc", "google.golang.org/protobuf/", "google.golang.org/genproto/", "github.com/container-storage-interface/spec/",
	"golang.org/x/net/", "golang.org/x/sys/", "golang.org/x/text/",
	"github.com/BurntSushi/toml", "github.com/moby/sys/mountinfo", "github.com/spf13/",
}

// gossips are memberlist and its dependencies.
var gossips = []string{
	"github.com/hashicorp/", "github.com/google/btree", "github.com/miekg/dns", "github.com/sean-/seed",
	"golang.org/x/net/", "golang.org/x/sys/",
}

// A listed is a package of this module.
type listed struct {
	imports []string
	deps    []string // directly or indirectly
}

// packages lists the packages of this module by import path.
var packages = sync.OnceValues(func() (map[string]listed, error) {
	const format = `{{.ImportPath}}|{{range .Imports}} {{.}}{{end}}|{{range .Deps}} {{.}}{{end}}`
	out, err := exec.Command("go", "list", "-f", format, module+"...").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	all := make(map[string]listed)
	for line := range strings.Lines(string(out)) {
		columns := strings.Split(strings.TrimSuffix(line, "\n"), "|")
		all[columns[0]] = listed{strings.Fields(columns[1]), strings.Fields(columns[2])}
	}
	return all, nil
})

// needPackages returns packages.
func needPackages(t *testing.T) map[string]listed {
	t.Helper()
	all, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// dependencies returns the packages on which a package of this module depends.
func dependencies(t *testing.T, name string) []string {
	t.Helper()
	p, ok := needPackages(t)[module+name]
	if !ok {
		t.Errorf("there is no package %s", name)
	}
	return p.deps
}

// isStandard reports whether a package is one of the standard library.
func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func TestWalls(t *testing.T) {
	for _, w := range walls {
		for _, dep := range dependencies(t, w.pattern) {
			if !isStandard(dep) && !allowed(dep, w.packages, w.libraries) {
				t.Errorf("%s depends on %s", w.pattern, dep)
			}
		}
	}
}

// A released program has no test support in it.
func TestNoTestSupportInThePrograms(t *testing.T) {
	for _, program := range []string{"cmd/milkweed", "cmd/milkweed-k8s"} {
		for _, dep := range dependencies(t, program) {
			support := dep == "testing"
			for _, home := range []string{"cmd/internal/lab/", "drivers/drivertest/", "drivers/blob/blobtest/", "fs/faultdisk/"} {
				support = support || strings.HasPrefix(dep+"/", module+home)
			}
			if support {
				t.Errorf("%s depends on %s", program, dep)
			}
		}
	}
}

// The libraries that once were half of the program are not in it.
func TestNoServiceLibrariesInTheProgram(t *testing.T) {
	for _, dep := range dependencies(t, "cmd/milkweed") {
		for _, library := range []string{"gocloud.dev/", "cloud.google.com/go/storage", "google.golang.org/grpc", "go.opentelemetry.io/", "github.com/envoyproxy/", "github.com/cncf/xds/"} {
			if strings.HasPrefix(dep, library) {
				t.Errorf("cmd/milkweed depends on %s", dep)
			}
		}
	}
}

// The program that `make build` makes has at most maxProgram bytes. It lacks methods that
// nothing calls: a call of a method by its name, as in text/template, would keep them all.
func TestProgramIsSmall(t *testing.T) {
	if testing.Short() {
		t.Skip("links the program")
	}
	const maxProgram = 30e6
	path := filepath.Join(t.TempDir(), "milkweed")
	if out, err := exec.Command("make", "-C", "../..", "build", "BIN="+path).CombinedOutput(); err != nil {
		t.Fatalf("make build: %v\n%s", err, out)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(program) > maxProgram {
		t.Errorf("the program has %d bytes, want at most %d", len(program), int(maxProgram))
	}
	const s3Client = "github.com/aws/aws-sdk-go-v2/service/s3.(*Client)."
	if !bytes.Contains(program, []byte(s3Client+"GetObject")) {
		t.Error("the program cannot read from S3")
	}
	if bytes.Contains(program, []byte(s3Client+"DeleteBucket")) {
		t.Error("the program has methods that nothing calls")
	}
}

func allowed(dep string, packages, libraries []string) bool {
	for _, p := range packages {
		if dep == module+p {
			return true
		}
	}
	for _, l := range libraries {
		if strings.HasPrefix(dep, l) {
			return true
		}
	}
	return false
}

// Each of these libraries is imported by one part of the module only.
func TestLibrariesHaveOneHome(t *testing.T) {
	homes := map[string]string{
		"github.com/hanwen/go-fuse/":              "fs",
		"github.com/BurntSushi/toml":              "cmd/",
		"github.com/spf13/cobra":                  "cmd/",
		"github.com/prometheus/":                  "cmd/",
		"github.com/schollz/progressbar":          "cmd/",
		"github.com/gdamore/tcell/":               "cmd/milkweed",
		"github.com/aws/":                         "drivers/blob",
		"github.com/Azure/":                       "drivers/blob",
		"cloud.google.com/go/":                    "drivers/blob",
		"golang.org/x/oauth2":                     "drivers/blob",
		"github.com/hashicorp/":                   "drivers/peer/gossip",
		"google.golang.org/":                      "cmd/milkweed-k8s",
		"github.com/container-storage-interface/": "cmd/milkweed-k8s",
	}
	for path, p := range needPackages(t) {
		pkg := strings.TrimPrefix(path, module)
		for _, imported := range p.imports {
			for library, home := range homes {
				if strings.HasPrefix(imported, library) && !strings.HasPrefix(pkg+"/", home) && pkg != home {
					t.Errorf("%s imports %s; only %s may import it", pkg, imported, home)
				}
			}
		}
	}
}
