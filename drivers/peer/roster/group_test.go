package roster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// Each node is in one group, all nodes of a group agree about it, the sizes differ by one at most,
// and a group follows the order of the list.
func TestGroup(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		n, size := 1+random.IntN(70), random.IntN(80)
		list := make([]Node, n)
		for i, j := range random.Perm(n) {
			list[i] = Node{Name: fmt.Sprintf("node%d", j), Address: fmt.Sprintf("h:%d", j+1), Weight: 1 + random.Int64N(3)}
		}
		r, err := New(list)
		if err != nil {
			t.Fatal(err)
		}
		want := 1
		if size > 0 {
			want = (n + size - 1) / size
		}
		members := make(map[int][]string) // names, by the number of their group
		hashes := make(map[int]string)
		for i := range list {
			node, err := r.Find(Identity{Name: list[i].Name})
			if err != nil {
				t.Fatal(err)
			}
			g := r.Group(size, node)
			if g.Of != want || g.Number < 1 || g.Number > g.Of {
				t.Fatalf("%d nodes in groups of %d: group %d of %d, want %d groups", n, size, g.Number, g.Of, want)
			}
			if !slices.Contains(g.Nodes(), r.Nodes()[node]) {
				t.Fatalf("group %d of %s does not have it", g.Number, list[i].Name)
			}
			if hash := hashes[g.Number]; hash != "" && hash != g.Hash() {
				t.Fatalf("two nodes of group %d have different rosters", g.Number)
			}
			hashes[g.Number] = g.Hash()
			members[g.Number] = append(members[g.Number], list[i].Name)
		}
		var order []string
		least, most := n, 0
		for i := range want {
			order = append(order, members[i+1]...)
			least, most = min(least, len(members[i+1])), max(most, len(members[i+1]))
		}
		if most-least > 1 || size > 0 && most > size {
			t.Errorf("%d nodes in groups of %d: sizes from %d to %d", n, size, least, most)
		}
		if !slices.EqualFunc(order, list, func(name string, n Node) bool { return name == n.Name }) {
			t.Errorf("%d nodes in groups of %d: the groups do not follow the list", n, size)
		}
		slices.Sort(order)
		if len(slices.Compact(order)) != n {
			t.Errorf("%d nodes in groups of %d: a node is in two groups", n, size)
		}
	}
}

// One group has the hash of the roster, and each of several has its own.
func TestGroupHash(t *testing.T) {
	r, err := New([]Node{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 4, 5} {
		if g := r.Group(size, 2); g.Hash() != r.Hash() || g.Of != 1 {
			t.Errorf("groups of %d: got %d groups, and hash %s, want %s", size, g.Of, g.Hash(), r.Hash())
		}
	}
	one, other := r.Group(2, 1), r.Group(2, 2)
	if one.Hash() == other.Hash() || one.Hash() == r.Hash() {
		t.Error("groups of different nodes have the same hash")
	}
}
