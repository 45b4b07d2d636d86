package roster

// A Group is the part of a roster that forms one cache.
type Group struct {
	*Roster
	Number int // from 1
	Of     int // number of groups
}

// Group divides the roster into groups of at most size nodes, or into one if size is 0, and returns
// that of the node with an index in Nodes. The nodes of a group follow each other in the list that
// New got, so that the list can keep together the nodes of a rack. The sizes of two groups differ by
// one at most. Nodes whose rosters have the same order agree about all groups; the groups of others
// have other hashes.
func (r *Roster) Group(size, node int) Group {
	n := len(r.nodes)
	if size <= 0 || size >= n {
		return Group{r, 1, 1}
	}
	groups := (n + size - 1) / size
	for i := range groups {
		var nodes []Node
		found := false
		for _, j := range r.listed[i*n/groups : (i+1)*n/groups] {
			nodes = append(nodes, r.nodes[j])
			found = found || j == node
		}
		if found {
			group, err := New(nodes)
			if err != nil {
				panic(err) // a part of a roster is one
			}
			return Group{group, i + 1, groups}
		}
	}
	panic("the roster has no such node")
}
