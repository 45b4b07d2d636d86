package main

import (
	"go/token"
	"slices"
	"strings"
	"testing"
)

// newPackage returns a package with one file, p/p.go, that imports nothing.
func newPackage(t *testing.T, path, text string) *pkg {
	t.Helper()
	p := &pkg{dir: "p", path: path, fset: token.NewFileSet(), files: []file{{name: "p/p.go", text: []byte(text)}}}
	if err := p.analyse(); err != nil {
		t.Fatal(err)
	}
	return p
}

// declared is the part of the sources that the cases need and that has no sites.
const declared = `package p

type lock struct{}

func (lock) Unlock()  {}
func (lock) RUnlock() {}
func (lock) unlock()  {}

func fail() error                            { return nil }
func format(f string, a, b int, rest ...any) {}

var mu lock

`

func TestSites(t *testing.T) {
	for _, c := range []struct {
		kind, code string
		want       []string // the code with each fault
	}{
		{"negate", "func f(b bool) { if b { return } }", []string{"func f(b bool) { if !(b) { return } }"}},
		{"negate", "func f(b bool) { for b { } }", []string{"func f(b bool) { for !(b) { } }"}},
		{"negate", "func f(b bool) { for { } }", nil},
		{"negate", "func f(n int) { if m := n; m == 1 || n == 2 { } else if n != m { } }", []string{
			"func f(n int) { if m := n; !(m == 1 || n == 2) { } else if n != m { } }",
			"func f(n int) { if m := n; m == 1 || n == 2 { } else if !(n != m) { } }",
		}},
		{"unlock", "func f() { mu.Unlock(); mu.unlock() }", []string{"func f() { ; mu.unlock() }"}},
		{"unlock", "func f() { defer mu.RUnlock() }", []string{"func f() {  }"}},
		{"unlock", "func f() { defer func() { mu.Unlock() }() }", []string{"func f() { defer func() {  }() }"}},
		{"ignore", "func f() error { if err := fail(); err != nil { return err }; return nil }", []string{
			"func f() error { if err := fail(); err != nil && false { return err }; return nil }",
		}},
		{"ignore", "func f(err error, p *int) { if err == nil { return }; if err != nil { f(err, p) }; if p != nil { return } }", nil},
		{"swap", "func f(a, b int) { format(`x`, a, b) }", []string{"func f(a, b int) { format(`x`, b, a) }"}},
		{"swap", "func f(a int, s string) { format(s, a, a, s, `x`) }", []string{"func f(a int, s string) { format(s, a, a, `x`, s) }"}},
		{"swap", "func f(a int, s []any) { format(``, a,\n\ta+a, s...) }", []string{"func f(a int, s []any) { format(``, a+a,\n\ta, s...) }"}},
		{"swap", "func f(a, b int) int { return min(a, b) + max(a, b) + int(a) }", nil},
		{"swap", "func f(a, b []int) { copy(a, b); _ = append(a, b...) }", []string{
			"func f(a, b []int) { copy(b, a); _ = append(a, b...) }",
			"func f(a, b []int) { copy(a, b); _ = append(b, a...) }",
		}},
		{"offbyone", "const n, mode = 1_0, 0o7", nil},
		{"offbyone", "const n, x = 10, 1.5", []string{"const n, x = 11, 1.5"}},
		{"offbyone", "var f float64 = 2", nil},
		{"offbyone", "func f(a []int) bool { return len(a) > 0 }", []string{
			"func f(a []int) bool { return len(a) >= 0 }",
			"func f(a []int) bool { return len(a) > 1 }",
		}},
		{"offbyone", "func f(a, b uint, x string) bool { return a < b || a <= b || x < x }", []string{
			"func f(a, b uint, x string) bool { return a <= b || a <= b || x < x }",
		}},
	} {
		var got []string
		for _, m := range newPackage(t, "p", declared+c.code).sites() {
			if m.Kind != c.kind {
				continue
			}
			if err := m.compile(); err != nil {
				t.Errorf("%s: %v", m, err)
			}
			got = append(got, strings.TrimPrefix(string(m.source()), declared))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s of %q:\n got %q\nwant %q", c.kind, c.code, got, c.want)
		}
	}
}

func TestDurationsAreNotIncreased(t *testing.T) {
	const text = "package time\n\ntype Duration int64\n\nconst Second Duration = 1000\n\nfunc f(d Duration) bool { return d > 5*Second }\n"
	if sites := newPackage(t, "time", text).sites(); len(sites) > 0 {
		t.Errorf("got %v, want none", sites)
	}
}

func TestIDs(t *testing.T) {
	const text = `package p

type list[T any] struct{ n int }

var limit = 7

func (l *list[T]) full() bool {
	return l.n > limit-1
}

func (l *list[T]) has(n int) bool {
	if n > 0 {
		return n < 2
	}
	return false
}
`
	var got strings.Builder
	for _, m := range newPackage(t, "p", text).sites() {
		got.WriteString(m.String())
	}
	const want = `offbyone:p/p.go:limit:1 (p/p.go:5:13)
    - var limit = 7
    + var limit = 8
offbyone:p/p.go:list.full:1 (p/p.go:8:13)
    - return l.n > limit-1
    + return l.n >= limit-1
offbyone:p/p.go:list.full:2 (p/p.go:8:21)
    - return l.n > limit-1
    + return l.n > limit-2
negate:p/p.go:list.has:1 (p/p.go:12:5)
    - if n > 0 {
    + if !(n > 0) {
offbyone:p/p.go:list.has:1 (p/p.go:12:7)
    - if n > 0 {
    + if n >= 0 {
offbyone:p/p.go:list.has:2 (p/p.go:12:9)
    - if n > 0 {
    + if n > 1 {
offbyone:p/p.go:list.has:3 (p/p.go:13:12)
    - return n < 2
    + return n <= 2
offbyone:p/p.go:list.has:4 (p/p.go:13:14)
    - return n < 2
    + return n < 3
`
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &got, want)
	}
}
