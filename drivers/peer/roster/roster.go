// Package roster is the fixed list of nodes that share their tiers. The nodes of a job have the
// same roster, and which node owns a file is a hash over it and nothing else, so that all nodes
// agree without exchanging messages.
package roster

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// MaxNodes is the largest number of nodes of a Roster.
const MaxNodes = 65536

// A Node is one member of a roster.
type Node struct {
	Name    string // unique, visible ASCII; part of the hash that decides ownership
	Address string // HOST:PORT, unique unless empty; it does not decide ownership
	Weight  int64  // the share of the files it owns, relative to other nodes; 0 is 1
}

// A Roster is an immutable list of nodes. Its methods may be called concurrently.
type Roster struct {
	nodes   []Node    // sorted by name
	listed  []int     // indexes of the nodes, in the order in which New got them
	seeds   []uint64  // of the nodes, see seed
	inverse []float64 // 1 / weight of the nodes; nil if all weights are equal
	hash    string
}

// New returns a roster of nodes, whose order matters to Group only. There is at least one and at
// most MaxNodes. Names and addresses are unique, names are visible ASCII, and no weight is negative.
func New(nodes []Node) (*Roster, error) {
	if len(nodes) == 0 {
		return nil, errors.New("the roster has no nodes")
	}
	if len(nodes) > MaxNodes {
		return nil, errTooMany
	}
	r := &Roster{nodes: slices.Clone(nodes)}
	slices.SortFunc(r.nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	addresses := make(map[string]string, len(nodes))
	for i := range r.nodes {
		n := &r.nodes[i]
		if n.Weight == 0 {
			n.Weight = 1
		}
		if n.Name == "" {
			return nil, errors.New("a node of the roster has no name")
		}
		if strings.ContainsFunc(n.Name, func(c rune) bool { return c <= ' ' || c > '~' }) {
			return nil, fmt.Errorf("the name %q has other characters than visible ASCII", n.Name)
		}
		if n.Weight < 0 {
			return nil, fmt.Errorf("node %s has the negative weight %d", n.Name, n.Weight)
		}
		if i > 0 && r.nodes[i-1].Name == n.Name {
			return nil, fmt.Errorf("node %s is in the roster twice", n.Name)
		}
		if other, ok := addresses[n.Address]; ok && n.Address != "" {
			return nil, fmt.Errorf("nodes %s and %s have the same address %s", other, n.Name, n.Address)
		}
		addresses[n.Address] = n.Name
	}
	r.listed = make([]int, len(nodes))
	for i, n := range nodes {
		r.listed[i], _ = slices.BinarySearchFunc(r.nodes, n.Name, byName)
	}
	r.prepare()
	return r, nil
}

func byName(n Node, name string) int { return strings.Compare(n.Name, name) }

var errTooMany = fmt.Errorf("more than %d nodes", MaxNodes)

// prepare computes what ownership needs of the nodes.
func (r *Roster) prepare() {
	sum := sha256.New()
	fmt.Fprintf(sum, "milkweed roster %d\n", hashVersion)
	equal := true
	for _, n := range r.nodes {
		fmt.Fprintf(sum, "%d %s %d\n", len(n.Name), n.Name, n.Weight)
		r.seeds = append(r.seeds, seed(n.Name))
		r.inverse = append(r.inverse, 1/float64(n.Weight))
		equal = equal && n.Weight == r.nodes[0].Weight
	}
	if equal {
		r.inverse = nil
	}
	r.hash = hex.EncodeToString(sum.Sum(nil)[:16])
}

// Nodes returns the nodes in the order of their names. Callers must not modify them.
func (r *Roster) Nodes() []Node { return r.nodes }

// Len returns the number of nodes.
func (r *Roster) Len() int { return len(r.nodes) }

// Hash identifies the ownership of all files: rosters with the same hash agree on it. It covers
// names, weights and the version of the hash function, and not addresses.
func (r *Roster) Hash() string { return r.hash }
