package fs

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/milkweedfs/milkweed/drivers"
)

// Each error has one errno.
func TestErrnos(t *testing.T) {
	for _, c := range []struct {
		err  error
		want fuse.Status
	}{
		{nil, fuse.OK},
		{context.Canceled, fuse.EINTR},
		{fmt.Errorf("tier: %w", context.DeadlineExceeded), fuse.EINTR},
		{drivers.ErrChanged, fuse.Status(syscall.ESTALE)},
		{fmt.Errorf("%w: %w", syscall.ENOENT, drivers.ErrChanged), fuse.Status(syscall.ESTALE)},
		{&fs.PathError{Op: "open", Path: "f", Err: syscall.ECONNREFUSED}, fuse.Status(syscall.ECONNREFUSED)},
		{fmt.Errorf("f: %w", fs.ErrNotExist), fuse.ENOENT},
		{fmt.Errorf("f: %w", fs.ErrPermission), fuse.EACCES},
		{errors.New("other"), fuse.EIO},
	} {
		if got := statusOf(c.err); got != c.want {
			t.Errorf("%v: got %v, want %v", c.err, got, c.want)
		}
	}
}

// Only errno.go makes a status other than OK: no other file names an errno of go-fuse or
// converts to fuse.Status.
func TestErrnosHaveOneHome(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	made := make(map[string]int)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		conversions := make(map[*ast.SelectorExpr]bool)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if sel, ok := n.Fun.(*ast.SelectorExpr); ok {
					conversions[sel] = true
				}
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				errno := isErrno(n.Sel.Name) || n.Sel.Name == "ToStatus" || n.Sel.Name == "Status" && conversions[n]
				if !ok || x.Name != "fuse" || !errno {
					return true
				}
				if made[name]++; name != "errno.go" {
					t.Errorf("%v: fuse.%s outside errno.go", set.Position(n.Pos()), n.Sel.Name)
				}
			}
			return true
		})
	}
	if made["errno.go"] == 0 {
		t.Error("no status was found in errno.go")
	}
}

// isErrno reports whether a name is that of an errno, such as EIO.
func isErrno(name string) bool {
	return len(name) > 2 && name[0] == 'E' && strings.ToUpper(name) == name
}
