package metadata

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/milkweedfs/milkweed/"

// Every operation on a tier gets its name from Entry.CopyName, so that the name of a copy may
// differ from the path of the file. The names that a tier itself yields have the type
// tiers.CopyName.
func TestTiersUseCopyName(t *testing.T) {
	for pkg, want := range map[string]string{
		"metadata":  "ReadDir Stat",
		"placement": "Create Link Open Remove Stat",
	} {
		fset := token.NewFileSet()
		files, info := check(t, fset, pkg)
		names := copyNames(files, info)
		seen := make(map[string]bool)
		for _, f := range files {
			ast.Inspect(f, func(n ast.Node) bool {
				method, name := tierCall(n, info)
				if method == "" {
					return true
				}
				seen[method] = true
				id, ok := name.(*ast.Ident)
				if !isCopyName(name, info) && !(ok && names[info.Uses[id]]) {
					t.Errorf("%s: Tier.%s is not called with a CopyName", fset.Position(n.Pos()), method)
				}
				return true
			})
		}
		if got := strings.Join(slices.Sorted(maps.Keys(seen)), " "); got != want {
			t.Errorf("package %s calls %s of a tier, want %s", pkg, got, want)
		}
	}
}

// tierCall returns the method and the name of a call of a method of tiers.Tier that takes a
// context and a name.
func tierCall(n ast.Node, info *types.Info) (method string, name ast.Expr) {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return "", nil
	}
	f, ok := callee(call, info)
	if !ok || !strings.HasPrefix(f.FullName(), "(*"+module+"tiers.Tier).") {
		return "", nil
	}
	params := f.Signature().Params()
	if params.Len() < 2 || params.At(1).Type() != types.Typ[types.String] {
		return "", nil
	}
	return f.Name(), call.Args[1]
}

// copyNames returns the variables that are defined by a call of CopyName.
func copyNames(files []*ast.File, info *types.Info) map[types.Object]bool {
	names := make(map[types.Object]bool)
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			a, ok := n.(*ast.AssignStmt)
			if ok && a.Tok == token.DEFINE && len(a.Rhs) == 1 && isCopyName(a.Rhs[0], info) {
				names[info.Defs[a.Lhs[0].(*ast.Ident)]] = true
			}
			return true
		})
	}
	return names
}

func isCopyName(e ast.Expr, info *types.Info) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := callee(call, info)
	return ok && f.FullName() == "(*"+module+"metadata.Entry).CopyName"
}

// callee returns the method that is called.
func callee(call *ast.CallExpr, info *types.Info) (*types.Func, bool) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil, false
	}
	f, ok := info.Uses[sel.Sel].(*types.Func)
	return f, ok
}

// check parses and type-checks a package of this module without its tests.
func check(t *testing.T, fset *token.FileSet, pkg string) ([]*ast.File, *types.Info) {
	t.Helper()
	list := func(args ...string) []string {
		out, err := exec.Command("go", append([]string{"list"}, append(args, module+pkg)...)...).Output()
		if err != nil {
			t.Fatalf("go list %s: %v", pkg, err)
		}
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	var files []*ast.File
	for _, name := range list("-f", `{{range .GoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}`) {
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	exports := make(map[string]string)
	for _, line := range list("-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}") {
		path, file, _ := strings.Cut(line, "=")
		exports[path] = file
	}
	lookup := func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("package %s: no export data", path)
		}
		return os.Open(exports[path])
	}
	info := &types.Info{Defs: make(map[*ast.Ident]types.Object), Uses: make(map[*ast.Ident]types.Object)}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", lookup)}
	if _, err := conf.Check(module+pkg, fset, files, info); err != nil {
		t.Fatal(err)
	}
	return files, info
}
