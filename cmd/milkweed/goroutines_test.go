package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// uncontained are the functions that start a goroutine without package panics, with the reason.
var uncontained = map[string]string{
	"drivers/blob/withWatchdog": "it only cancels a context",
	"drivers/limit/serve":       "callers wait for what it does",
	"fs/New":                    "go-fuse contains the panics of requests; the rest of its loop has no substitute",
	"fs/unmountedServer":        "it runs before the mount",
	"placement/Warmup":          "Place contains panics",
	"placement/refetch":         "Place contains panics",
	"cmd/milkweed/spawn":        "it reads from a pipe",
	"cmd/milkweed/serve":        "it waits for a process",
	"cmd/milkweed/end":          "it kills a process",
}

// A goroutine of the daemon contains its panics by package panics, except those listed.
func TestGoroutinesContainPanics(t *testing.T) {
	used := make(map[string]bool)
	for _, dir := range []string{"drivers", "drivers/posix", "drivers/blob", "drivers/limit", "drivers/peer", "drivers/peer/gossip", "tiers", "metadata", "placement", "fs", "cmd/milkweed", "cmd/milkweed-k8s"} {
		paths, err := filepath.Glob(filepath.Join("../..", dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			functions := make(map[string]*ast.FuncDecl)
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok {
					functions[fn.Name.Name] = fn
				}
			}
			for _, d := range f.Decls {
				for _, started := range goroutines(d) {
					if key := dir + "/" + d.(*ast.FuncDecl).Name.Name; uncontained[key] != "" {
						used[key] = true
					} else if !containsPanics(started, functions) {
						t.Errorf("%s: the goroutine does not contain panics", fset.Position(started.Pos()))
					}
				}
			}
		}
	}
	for key := range uncontained {
		if !used[key] {
			t.Errorf("%s starts no goroutine", key)
		}
	}
}

// notShared are the files whose locks do not guard data that requests share.
var notShared = map[string]string{
	"fs/request.go":            "one request",
	"metadata/tree.go":         "a call of Walk: it is held while a callback runs",
	"metadata/walk.go":         "a call of Revalidate: it is held while a callback runs",
	"placement/mover.go":       "a call of measure or place",
	"placement/prune.go":       "a call of Prune: it is held while a callback runs",
	"placement/prepare.go":     "a call of Prepare: it is held while a callback runs",
	"placement/scrub.go":       "a scrub: it is held while a callback runs",
	"placement/scrubreport.go": "the report of a scrub",
	"placement/warmup.go":      "a call of Warmup: it is held while a callback runs",
	"tiers/tier.go":            "the quota: it is held while the device is called",
}

// Data that requests share is guarded by the locks of package panics, so that a panic that may have
// left it half changed ends the daemon.
func TestSharedLocksEndTheDaemon(t *testing.T) {
	used := make(map[string]bool)
	for _, dir := range []string{"tiers", "metadata", "placement", "fs"} {
		paths, err := filepath.Glob(filepath.Join("../..", dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			name := dir + "/" + filepath.Base(path)
			if strings.HasSuffix(path, "_test.go") || !regexp.MustCompile(`sync\.(RW)?Mutex`).Match(text) {
				continue
			}
			if used[name] = true; notShared[name] == "" {
				t.Errorf("%s has a lock of package sync", name)
			}
		}
	}
	for name := range notShared {
		if !used[name] {
			t.Errorf("%s has no lock of package sync", name)
		}
	}
}

// goroutines returns what the go statements, and the calls of methods named Go and of
// time.AfterFunc in a function start.
func goroutines(in ast.Node) (started []ast.Node) {
	ast.Inspect(in, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			started = append(started, n.Call)
		case *ast.CallExpr:
			s, ok := n.Fun.(*ast.SelectorExpr)
			if !ok || len(n.Args) == 0 {
				break
			}
			x, _ := s.X.(*ast.Ident)
			if s.Sel.Name == "Go" || s.Sel.Name == "AfterFunc" && x != nil && x.Name == "time" {
				started = append(started, n.Args[len(n.Args)-1])
			}
		}
		return true
	})
	return started
}

// containsPanics reports whether a goroutine calls package panics, itself or in the function of the
// same file that it runs.
func containsPanics(started ast.Node, functions map[string]*ast.FuncDecl) (found bool) {
	if call, ok := started.(*ast.CallExpr); ok {
		if s, ok := call.Fun.(*ast.SelectorExpr); ok && functions[s.Sel.Name] != nil {
			started = functions[s.Sel.Name]
		}
	}
	ast.Inspect(started, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && (id.Name == "panics" || id.Name == "caught") {
			found = true
		}
		return !found
	})
	return found
}
