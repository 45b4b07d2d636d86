package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"strconv"
	"strings"
)

// kinds are the kinds of faults.
var kinds = []string{"negate", "unlock", "ignore", "swap", "offbyone"}

// A mutant is a package with one fault: a text of a file is replaced by another one.
type mutant struct {
	ID     string `json:"id"` // kind:file:function:ordinal
	Kind   string `json:"kind"`
	File   string `json:"file"` // relative to the root
	Line   int    `json:"line"`
	Column int    `json:"column"` // in bytes
	Before string `json:"before"`
	After  string `json:"after"`

	pkg    *pkg
	text   []byte // of the file without the fault
	offset int    // of Before in text
}

// source returns the file with the fault.
func (m mutant) source() []byte {
	return []byte(string(m.text[:m.offset]) + m.After + string(m.text[m.offset+len(m.Before):]))
}

// String returns the ID, the place, and the lines that change.
func (m mutant) String() string {
	begin := bytes.LastIndexByte(m.text[:m.offset], '\n') + 1
	after := m.offset + len(m.Before)
	end := bytes.IndexByte(m.text[after:], '\n')
	if end < 0 {
		end = len(m.text) - after
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s:%d:%d)\n", m.ID, m.File, m.Line, m.Column)
	head, tail := string(m.text[begin:m.offset]), string(m.text[after:after+end])
	for _, side := range [][2]string{{"-", m.Before}, {"+", m.After}} {
		for line := range strings.SplitSeq(head+side[1]+tail, "\n") {
			fmt.Fprintln(&b, strings.TrimRight("    "+side[0]+" "+strings.TrimSpace(line), " "))
		}
	}
	return b.String()
}

// sites returns all mutants of the package, in the order of its source.
func (p *pkg) sites() []mutant {
	f := finder{pkg: p, ordinals: make(map[string]int)}
	for _, f.file = range p.files {
		for _, decl := range f.file.tree.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				f.function = functionName(d)
				ast.Inspect(d, f.visit)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if v, ok := spec.(*ast.ValueSpec); ok {
						f.function = v.Names[0].Name
						ast.Inspect(v, f.visit)
					}
				}
			}
		}
	}
	return f.found
}

// functionName returns the name of a function, such as node.Open for a method of node or *node.
func functionName(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	receiver, _, _ := strings.Cut(types.ExprString(d.Recv.List[0].Type), "[")
	return strings.TrimPrefix(receiver, "*") + "." + d.Name.Name
}

// A finder finds the sites of a package.
type finder struct {
	*pkg
	file     file
	function string // or the name of a variable or constant
	ordinals map[string]int
	found    []mutant
}

// add notes a site: the text from pos to end is replaced.
func (f *finder) add(kind string, pos, end token.Pos, after string) {
	site := kind + ":" + f.file.name + ":" + f.function
	f.ordinals[site]++
	at := f.fset.Position(pos)
	f.found = append(f.found, mutant{
		ID:   fmt.Sprintf("%s:%d", site, f.ordinals[site]),
		Kind: kind, File: f.file.name, Line: at.Line, Column: at.Column,
		Before: f.textOf(pos, end), After: after,
		pkg: f.pkg, text: f.file.text, offset: at.Offset,
	})
}

// textOf returns the source from pos to end.
func (f *finder) textOf(pos, end token.Pos) string {
	return string(f.file.text[f.fset.Position(pos).Offset:f.fset.Position(end).Offset])
}

func (f *finder) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.IfStmt:
		f.negate(n.Cond)
		if f.returnsError(n) {
			f.add("ignore", n.Cond.Pos(), n.Cond.End(), f.textOf(n.Cond.Pos(), n.Cond.End())+" && false")
		}
	case *ast.ForStmt:
		if n.Cond != nil {
			f.negate(n.Cond)
		}
	case *ast.ExprStmt:
		if unlocks(n.X) {
			f.add("unlock", n.Pos(), n.End(), "")
		}
	case *ast.DeferStmt:
		if unlocks(n.Call) {
			f.add("unlock", n.Pos(), n.End(), "")
		}
	case *ast.CallExpr:
		for i := range len(n.Args) - 1 {
			a, b := n.Args[i], n.Args[i+1]
			if f.interchangeable(n, i) {
				between := f.textOf(a.End(), b.Pos())
				f.add("swap", a.Pos(), b.End(), f.textOf(b.Pos(), b.End())+between+f.textOf(a.Pos(), a.End()))
			}
		}
	case *ast.BinaryExpr:
		if (n.Op == token.LSS || n.Op == token.GTR) && f.counts(n.X) {
			f.add("offbyone", n.OpPos, n.OpPos+1, n.Op.String()+"=")
		}
	case *ast.BasicLit:
		// Literals in other bases are modes and flags.
		if v, err := strconv.ParseUint(n.Value, 10, 63); err == nil && f.counts(n) {
			f.add("offbyone", n.Pos(), n.End(), strconv.FormatUint(v+1, 10))
		}
	}
	return true
}

func (f *finder) negate(cond ast.Expr) {
	f.add("negate", cond.Pos(), cond.End(), "!("+f.textOf(cond.Pos(), cond.End())+")")
}

// returnsError reports whether n is if err != nil { ... return ... }, perhaps with an initialization.
func (f *finder) returnsError(n *ast.IfStmt) bool {
	cond, ok := n.Cond.(*ast.BinaryExpr)
	if !ok || cond.Op != token.NEQ || !f.info.Types[cond.Y].IsNil() || len(n.Body.List) == 0 {
		return false
	}
	_, ok = n.Body.List[len(n.Body.List)-1].(*ast.ReturnStmt)
	return ok && types.Identical(f.info.TypeOf(cond.X), types.Universe.Lookup("error").Type())
}

// unlocks reports whether e is x.Unlock() or x.RUnlock().
func unlocks(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok || len(call.Args) > 0 {
		return false
	}
	selected, ok := call.Fun.(*ast.SelectorExpr)
	return ok && (selected.Sel.Name == "Unlock" || selected.Sel.Name == "RUnlock")
}

// interchangeable reports whether the arguments i and i+1 of a call have the same type, and their
// parameters, too. The order of the arguments of min and max is of no importance.
func (f *finder) interchangeable(call *ast.CallExpr, i int) bool {
	signature, ok := f.info.TypeOf(call.Fun).Underlying().(*types.Signature)
	if name := types.ExprString(call.Fun); !ok || name == "min" || name == "max" {
		return false
	}
	a, b := call.Args[i], call.Args[i+1]
	return f.textOf(a.Pos(), a.End()) != f.textOf(b.Pos(), b.End()) &&
		types.Identical(f.info.TypeOf(a), f.info.TypeOf(b)) &&
		types.Identical(parameter(signature, call, i), parameter(signature, call, i+1))
}

// parameter returns the type of the parameter that the argument i of a call is assigned to.
func parameter(s *types.Signature, call *ast.CallExpr, i int) types.Type {
	last := s.Params().Len() - 1
	if s.Variadic() && i >= last && !call.Ellipsis.IsValid() {
		return s.Params().At(last).Type().(*types.Slice).Elem()
	}
	return s.Params().At(i).Type()
}

// counts reports whether e is an integer that is not a duration.
func (f *finder) counts(e ast.Expr) bool {
	t := f.info.TypeOf(e)
	if t == nil || t.String() == "time.Duration" {
		return false
	}
	basic, ok := t.Underlying().(*types.Basic)
	return ok && basic.Info()&types.IsInteger != 0
}
