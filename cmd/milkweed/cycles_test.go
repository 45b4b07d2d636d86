package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// halls bound how much of a package must be read at once: the files of its largest cycle, which reach each
// other by uses of names, and the fields and methods of its central type. The limits are what the packages
// have now. They go down, and a new feature does not raise them.
var halls = []struct {
	name            string
	cycle           int
	central         string
	fields, methods int
}{
	{"placement", 45, "Handler", 37, 145},
	{"metadata", 29, "Container", 29, 153},
	{"tiers", 16, "Tier", 25, 68},
	{"fs", 11, "fileSystem", 24, 35},
	{"drivers/posix", 7, "Store", 6, 25},
}

func TestCyclesOfFiles(t *testing.T) {
	for _, s := range halls {
		p := analyse(t, s.name)
		if files := p.largestCycle(); len(files) > s.cycle {
			t.Errorf("%s: %d files reach each other, at most %d may: %s", s.name, len(files), s.cycle, strings.Join(files, " "))
		}
		if fields, methods := p.central(t, s.central); fields > s.fields || methods > s.methods {
			t.Errorf("%s.%s has %d fields and %d methods, at most %d and %d are allowed", s.name, s.central, fields, methods, s.fields, s.methods)
		}
	}
}

// An analysed is a package with the uses of its names.
type analysed struct {
	pkg   *types.Package
	files map[string]map[string]bool // by name; the files whose names it uses
}

// analyse reads the files of a package of this module without its tests.
func analyse(t *testing.T, name string) *analysed {
	t.Helper()
	// The export data of the dependencies is in the cache of the build.
	list := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}\t{{.Dir}}\t{{join .GoFiles \" \"}}", module+name)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	exports := make(map[string]string)
	var dir string
	var names []string
	for line := range strings.Lines(string(out)) {
		columns := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		exports[columns[0]] = columns[1]
		if columns[0] == module+name {
			dir, names = columns[2], strings.Fields(columns[3])
		}
	}
	set := token.NewFileSet()
	var files []*ast.File
	for _, file := range names {
		f, err := parser.ParseFile(set, filepath.Join(dir, file), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	config := types.Config{Importer: importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) {
		data, err := os.ReadFile(exports[path])
		if err != nil {
			return nil, fmt.Errorf("export data of %s: %w", path, err)
		}
		return io.NopCloser(bytes.NewReader(data)), nil
	})}
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object)}
	a := &analysed{files: make(map[string]map[string]bool)}
	if a.pkg, err = config.Check(module+name, set, files, info); err != nil {
		t.Fatal(err)
	}
	for _, f := range names {
		a.files[f] = make(map[string]bool)
	}
	fileOf := func(pos token.Pos) string { return filepath.Base(set.Position(pos).Filename) }
	for id, used := range info.Uses {
		if used.Pkg() == a.pkg && used.Pos().IsValid() {
			a.files[fileOf(id.Pos())][fileOf(used.Pos())] = true
		}
	}
	return a
}

// largestCycle returns the largest set of files of which each reaches each other.
func (a *analysed) largestCycle() (largest []string) {
	reached := make(map[string]map[string]bool)
	for f := range a.files {
		seen := make(map[string]bool)
		for next := []string{f}; len(next) > 0; {
			last := next[len(next)-1]
			next = next[:len(next)-1]
			for used := range a.files[last] {
				if !seen[used] {
					seen[used] = true
					next = append(next, used)
				}
			}
		}
		reached[f] = seen
	}
	for f := range a.files {
		var cycle []string
		for g := range reached[f] {
			if reached[g][f] {
				cycle = append(cycle, g)
			}
		}
		if len(cycle) > len(largest) {
			largest = cycle
		}
	}
	slices.Sort(largest)
	return largest
}

// central returns the number of fields and of methods of a struct.
func (a *analysed) central(t *testing.T, name string) (fields, methods int) {
	t.Helper()
	o := a.pkg.Scope().Lookup(name)
	if o == nil {
		t.Fatalf("%s has no %s", a.pkg.Path(), name)
	}
	return o.Type().Underlying().(*types.Struct).NumFields(), o.Type().(*types.Named).NumMethods()
}
