package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/milkweedfs/milkweed/cmd/internal/lab"
)

// A test is a test function of this module, or a fuzz target, which runs with its corpus.
type test struct {
	pkg   string // without the module, such as drivers/posix
	name  string
	marks []string // the words after //suite: in lines of its doc comment
	needs []string // requirements, as drivertest.Need has them
}

// The marks of a test.
const (
	onlyCheck = "check"   // `make check` runs it, `make test` does not
	noRace    = "norace"  // only `make soak` runs it with the race detector
	onlyPFS   = "pfs"     // it runs on a distributed file system only
	oneProc   = "oneproc" // `make check` runs it with GOMAXPROCS=1, too
)

func (t test) has(mark string) bool { return slices.Contains(t.marks, mark) }

// isFuzz reports whether the test is a fuzz target.
func (t test) isFuzz() bool { return strings.HasPrefix(t.name, "Fuzz") }

// id is the name of the test in documents, such as drivers/posix.TestDir.
func (t test) id() string { return t.pkg + "." + t.name }

// A function is a function of a package, by its name. Methods of all types count as functions of their
// package.
type function struct{ pkg, name string }

// A source is what the files of a module say about their functions.
type source struct {
	tests []test
	calls map[function][]function
	needs map[function][]string
}

// need is the function whose literal arguments are requirements.
var need = function{"drivers/drivertest", "Need"}

// listTests returns all tests of the module in dir, by package and name.
func listTests(dir string) ([]test, error) {
	cmd := exec.Command("go", "list", "-json=Dir,ImportPath,GoFiles,TestGoFiles,XTestGoFiles", "./...")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	src := &source{calls: make(map[function][]function), needs: make(map[function][]string)}
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p struct {
			Dir, ImportPath                    string
			GoFiles, TestGoFiles, XTestGoFiles []string
		}
		if err := d.Decode(&p); err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if err := src.addPackage(relative(p.ImportPath), p.Dir, slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles)); err != nil {
			return nil, err
		}
	}
	for i := range src.tests {
		t := &src.tests[i]
		t.needs = src.needsOf(function{t.pkg, t.name})
	}
	slices.SortFunc(src.tests, func(a, b test) int { return strings.Compare(a.id(), b.id()) })
	return src.tests, nil
}

// relative returns the path of a package without that of the module.
func relative(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, lab.Module), "/")
}

func (s *source) addPackage(pkg, dir string, names []string) error {
	var files []*ast.File
	for set, i := token.NewFileSet(), 0; i < len(names); i++ {
		f, err := parser.ParseFile(set, filepath.Join(dir, names[i]), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	constants := make(map[string]string) // of strings
	for _, f := range files {
		for _, d := range f.Decls {
			if d, ok := d.(*ast.GenDecl); ok && d.Tok == token.CONST {
				addConstants(constants, d)
			}
		}
	}
	for i, f := range files {
		imports := importsOf(f)
		for _, d := range f.Decls {
			d, ok := d.(*ast.FuncDecl)
			if !ok || d.Body == nil {
				continue
			}
			s.addFunction(function{pkg, d.Name.Name}, d, imports, constants)
			if strings.HasSuffix(names[i], "_test.go") && d.Recv == nil {
				s.addTest(pkg, d)
			}
		}
	}
	return nil
}

func addConstants(constants map[string]string, d *ast.GenDecl) {
	for _, spec := range d.Specs {
		spec := spec.(*ast.ValueSpec)
		for i, value := range spec.Values {
			if text, ok := literal(value, nil); ok {
				constants[spec.Names[i].Name] = text
			}
		}
	}
}

// literal returns the value of a string literal or the name of a constant.
func literal(e ast.Expr, constants map[string]string) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			return text, err == nil
		}
	case *ast.Ident:
		text, ok := constants[e.Name]
		return text, ok
	}
	return "", false
}

// importsOf returns the packages of this module that a file imports, by their names in the file.
func importsOf(f *ast.File) map[string]string {
	imports := make(map[string]string)
	for _, i := range f.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		if err != nil || !strings.HasPrefix(path, lab.Module) {
			continue
		}
		name := path[strings.LastIndexByte(path, '/')+1:]
		if i.Name != nil {
			name = i.Name.Name
		}
		imports[name] = relative(path)
	}
	return imports
}

// addFunction notes what a function calls and needs.
func (s *source) addFunction(f function, d *ast.FuncDecl, imports, constants map[string]string) {
	ast.Inspect(d.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		callee := function{pkg: f.pkg}
		switch fun := call.Fun.(type) {
		case *ast.Ident:
			callee.name = fun.Name
		case *ast.SelectorExpr:
			callee.name = fun.Sel.Name
			if x, ok := fun.X.(*ast.Ident); ok && imports[x.Name] != "" {
				callee.pkg = imports[x.Name]
			}
		default:
			return true
		}
		if callee != need {
			s.calls[f] = append(s.calls[f], callee)
			return true
		}
		for _, arg := range call.Args[1:] {
			if text, ok := literal(arg, constants); ok {
				s.needs[f] = append(s.needs[f], text)
			}
		}
		return true
	})
}

// needsOf returns what a function needs, itself or by the functions that it calls, sorted.
func (s *source) needsOf(f function) []string {
	needs, seen := make(map[string]bool), make(map[function]bool)
	var visit func(function)
	visit = func(f function) {
		if seen[f] {
			return
		}
		seen[f] = true
		for _, w := range s.needs[f] {
			needs[w] = true
		}
		for _, callee := range s.calls[f] {
			visit(callee)
		}
	}
	visit(f)
	return slices.Sorted(maps.Keys(needs))
}

func (s *source) addTest(pkg string, d *ast.FuncDecl) {
	if d.Name.Name == "TestMain" || !isTest(d.Name.Name, "Test") && !isTest(d.Name.Name, "Fuzz") {
		return
	}
	t := test{pkg: pkg, name: d.Name.Name}
	if d.Doc != nil {
		for _, c := range d.Doc.List {
			if mark, ok := strings.CutPrefix(c.Text, "//suite:"); ok {
				t.marks = append(t.marks, mark)
			}
		}
	}
	s.tests = append(s.tests, t)
}

// isTest reports whether go test takes a function for one with this prefix.
func isTest(name, prefix string) bool {
	rest, ok := strings.CutPrefix(name, prefix)
	first, _ := utf8.DecodeRuneInString(rest)
	return ok && (rest == "" || !unicode.IsLower(first))
}

// A selection is a part of the tests.
type selection struct {
	packages  []string // without the module, sorted
	run, skip []string // the names of the tests of these packages that are part of it, and of the others
}

// selectTests returns few selections that together have the tests for which in is true. go test runs or
// skips a name in all packages, so that two packages that disagree about a name are in different ones.
func selectTests(all []test, in func(test) bool) []selection {
	wanted, others := make(map[string][]string), make(map[string][]string) // by package
	for _, t := range all {
		if in(t) {
			wanted[t.pkg] = append(wanted[t.pkg], t.name)
		} else {
			others[t.pkg] = append(others[t.pkg], t.name)
		}
	}
	var selections []selection
	for _, pkg := range slices.Sorted(maps.Keys(wanted)) {
		i := slices.IndexFunc(selections, func(s selection) bool {
			return !intersect(s.skip, wanted[pkg]) && !intersect(s.run, others[pkg])
		})
		if i < 0 {
			i = len(selections)
			selections = append(selections, selection{})
		}
		s := &selections[i]
		s.packages = append(s.packages, pkg)
		s.run, s.skip = append(s.run, wanted[pkg]...), append(s.skip, others[pkg]...)
	}
	return selections
}

func intersect(a, b []string) bool {
	return slices.ContainsFunc(a, func(name string) bool { return slices.Contains(b, name) })
}

// arguments returns the arguments of go test that select the tests.
func (s selection) arguments() []string {
	var args []string
	switch {
	case len(s.skip) == 0:
	case len(s.skip) < len(s.run):
		args = append(args, "-skip="+pattern(s.skip))
	default:
		args = append(args, "-run="+pattern(s.run))
	}
	for _, pkg := range s.inOrder() {
		args = append(args, "./"+pkg)
	}
	return args
}

// inOrder returns the packages in the order in which go test begins them: first those that take the
// longest, so that none of them runs alone at the end.
func (s selection) inOrder() []string {
	longest := []string{"cmd/milkweed", "placement", "cmd/release", "cmd/internal/peertest", "fs"}
	order := slices.DeleteFunc(longest, func(pkg string) bool { return !slices.Contains(s.packages, pkg) })
	return append(order, slices.DeleteFunc(slices.Clone(s.packages), func(pkg string) bool { return slices.Contains(order, pkg) })...)
}

// pattern matches these names of tests.
func pattern(names []string) string {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	return "^(" + strings.Join(names, "|") + ")$"
}
