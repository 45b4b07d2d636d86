package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
)

// A pkg is a package whose source gets faults.
type pkg struct {
	dir     string // relative to the root
	abs     string // dir, absolute
	path    string // import path
	files   []file
	fset    *token.FileSet
	imports types.Importer
	info    types.Info
}

// A file is a file of a package.
type file struct {
	name string // its path, relative to the root
	text []byte
	tree *ast.File
}

// listed is what go list prints about a package.
type listed struct {
	Dir        string
	ImportPath string
	Export     string // the file of its export data
	GoFiles    []string
	DepOnly    bool
}

// load reads packages from folders of the working directory, as a build for linux/amd64 does.
func load(ctx context.Context, dirs []string) ([]*pkg, error) {
	args := []string{"list", "-export", "-deps", "-json=Dir,ImportPath,Export,GoFiles,DepOnly", "--"}
	for _, dir := range dirs {
		args = append(args, "./"+dir)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, &stderr)
	}
	exports := make(map[string]string)
	var targets []listed
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var l listed
		if err := d.Decode(&l); err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		exports[l.ImportPath] = l.Export
		if !l.DepOnly {
			targets = append(targets, l)
		}
	}
	slices.SortFunc(targets, func(a, b listed) int { return cmp.Compare(a.ImportPath, b.ImportPath) })
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	var packages []*pkg
	for _, l := range targets {
		dir, err := filepath.Rel(root, l.Dir)
		if err != nil {
			return nil, err
		}
		p := &pkg{dir: dir, abs: l.Dir, path: l.ImportPath, fset: fset, imports: imports}
		for _, name := range l.GoFiles {
			text, err := os.ReadFile(filepath.Join(l.Dir, name))
			if err != nil {
				return nil, err
			}
			p.files = append(p.files, file{name: path.Join(dir, name), text: text})
		}
		if err := p.analyse(); err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
	return packages, nil
}

// analyse parses the files and finds the types.
func (p *pkg) analyse() error {
	trees := make([]*ast.File, len(p.files))
	for i := range p.files {
		tree, err := p.parse(p.files[i])
		if err != nil {
			return err
		}
		p.files[i].tree, trees[i] = tree, tree
	}
	p.info = types.Info{Types: make(map[ast.Expr]types.TypeAndValue)}
	return p.check(trees, &p.info)
}

func (p *pkg) parse(f file) (*ast.File, error) {
	return parser.ParseFile(p.fset, f.name, f.text, parser.SkipObjectResolution)
}

// check returns the first error of the compiler in the files. info may be nil.
func (p *pkg) check(trees []*ast.File, info *types.Info) error {
	config := types.Config{Importer: p.imports, Sizes: types.SizesFor("gc", "amd64")}
	_, err := config.Check(p.path, p.fset, trees, info)
	return err
}

// compile returns the error of the compiler if the package does not compile with the fault.
func (m mutant) compile() error {
	trees := make([]*ast.File, len(m.pkg.files))
	for i, f := range m.pkg.files {
		trees[i] = f.tree
		if f.name != m.File {
			continue
		}
		var err error
		if trees[i], err = m.pkg.parse(file{name: f.name, text: m.source()}); err != nil {
			return err
		}
	}
	return m.pkg.check(trees, nil)
}
