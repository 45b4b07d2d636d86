package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func ids(mutants []mutant) (ids []string) {
	for _, m := range mutants {
		ids = append(ids, m.ID)
	}
	return ids
}

func TestSample(t *testing.T) {
	var sites []mutant
	for i, kind := range kinds {
		for j := range 10 * i { // none of the first kind
			sites = append(sites, mutant{ID: fmt.Sprintf("%s:p/p.go:f:%d", kind, j), Kind: kind})
		}
	}
	first, again, other := sample(sites, 1, 55), sample(sites, 1, 55), sample(sites, 2, 55)
	if !slices.Equal(ids(first), ids(again)) {
		t.Errorf("the same seed gives\n%q\nand\n%q", ids(first), ids(again))
	}
	if slices.Equal(ids(first), ids(other)) {
		t.Errorf("two seeds give %q", ids(first))
	}
	// One site less in the source is at most one other mutant.
	kept := 0
	without := ids(sample(sites[1:], 1, 55))
	for _, id := range ids(first) {
		if slices.Contains(without, id) {
			kept++
		}
	}
	if kept < 54 {
		t.Errorf("without one site, %d of 55 candidates are the same", kept)
	}
	// A kind with more sites does not come earlier in the order.
	many := slices.Clone(sites[:10])
	for j := range 1000 {
		many = append(many, mutant{ID: fmt.Sprintf("%s:p/p.go:f:%d", kinds[4], j), Kind: kinds[4]})
	}
	early := 0
	for _, m := range sample(many, 1, 20)[:10] {
		if m.Kind == kinds[4] {
			early++
		}
	}
	if early == 0 || early == 10 {
		t.Errorf("%d of the first 10 candidates are of the kind with more sites", early)
	}
	got := make(map[string]int)
	for _, m := range first {
		got[m.Kind]++
	}
	want := map[string]int{kinds[1]: 10, kinds[2]: 15, kinds[3]: 15, kinds[4]: 15}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if all := ids(sample(sites, 1, 1000)); len(all) != len(sites) || len(slices.Compact(slices.Sorted(slices.Values(all)))) != len(sites) {
		t.Errorf("got %d of %d sites", len(all), len(sites))
	}
}

func TestDrawReplaces(t *testing.T) {
	const text = `package p

func f(n int) string {
	switch n {
	case 1:
		return "one"
	case 2:
		return "two"
	case 4:
		return "four"
	}
	return ""
}
`
	candidates := newPackage(t, "p", text).sites()
	var out strings.Builder
	drawn, err := draw(candidates, 1, map[string]string{"offbyone:p/p.go:f:2": "nobody has three"}, &out)
	if got := ids(drawn); err != nil || !slices.Equal(got, []string{"offbyone:p/p.go:f:3"}) {
		t.Errorf("drew %q, %v", got, err)
	}
	const want = `offbyone:p/p.go:f:1 (p/p.go:5:7)
    - case 1:
    + case 2:
    replaced: does not compile: p/p.go:7:7: duplicate case 2
offbyone:p/p.go:f:2 (p/p.go:7:7)
    - case 2:
    + case 3:
    replaced: equivalent: nobody has three
`
	// The compiler says more.
	if got := regexp.MustCompile("(duplicate case 2).*").ReplaceAllString(out.String(), "$1"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if _, err := draw(candidates, 3, nil, &out); err == nil {
		t.Error("drew 3 of 3, one of which does not compile")
	}
}

func TestReadEquivalent(t *testing.T) {
	sites := newPackage(t, "p", "package p\n\nvar n = 1\n").sites()
	for _, c := range []struct{ text, want string }{
		{"# a comment\n\noffbyone:p/p.go:n:1\tnobody reads n\n", "map[offbyone:p/p.go:n:1:nobody reads n]"},
		{"swap:other/o.go:f:1\tis in a package without faults", "map[swap:other/o.go:f:1:is in a package without faults]"},
		{"\noffbyone:p/p.go:n:2\tnone\n", ":2: there is no mutant offbyone:p/p.go:n:2"},
		{"offbyone:p/p.go:n:1 a space\n", ":1: not an ID, a tab and a reason"},
		{"offbyone:p/p.go:n:1\t\n", ":1: not an ID, a tab and a reason"},
	} {
		file := filepath.Join(t.TempDir(), "equivalent.txt")
		if err := os.WriteFile(file, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		reasons, err := readEquivalent(file, sites)
		got := fmt.Sprint(reasons)
		if err != nil {
			got = strings.TrimPrefix(err.Error(), file)
		}
		if got != c.want {
			t.Errorf("%q: got %s, want %s", c.text, got, c.want)
		}
	}
}
