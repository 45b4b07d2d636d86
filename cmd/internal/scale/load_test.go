package scale

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/peer/roster"
)

// A unit is what a node owns: a file, or a range of a large one.
type unit struct {
	name string
	size int64
}

// images returns n files with a mean of 110 KB, whose sizes differ as those of photographs do if
// spread is not 0: they have a log-normal distribution, and spread is the standard deviation of the
// logarithm.
func images(n int, spread float64) []unit {
	rng := rand.New(rand.NewPCG(1, 1))
	units := make([]unit, n)
	for i := range units {
		size := 110_000 * math.Exp(spread*rng.NormFloat64()-spread*spread/2)
		units[i] = unit{fmt.Sprintf("n%05d/n%05d_%d.JPEG", i/1300, i/1300, i), int64(size)}
	}
	return units
}

// records returns the ranges of n files of 140 MB, with at most length bytes each.
func records(n int, length int64) (units []unit) {
	for i := range n {
		name := fmt.Sprintf("train-%05d-of-%05d", i, n)
		for off, left := int64(0), int64(140e6); left > 0; off, left = off+length, left-length {
			units = append(units, unit{fmt.Sprintf("%s@%d", name, off), min(left, length)})
		}
	}
	return units
}

// owners returns the owner of each unit.
func owners(r *roster.Roster, units []unit) []int {
	cores := runtime.GOMAXPROCS(0)
	owners := make([]int, len(units))
	var all sync.WaitGroup
	for core := range cores {
		all.Go(func() {
			for i := core; i < len(units); i += cores {
				owners[i] = r.Owner(units[i].name)
			}
		})
	}
	all.Wait()
	return owners
}

// load returns the bytes that each node of a roster owns, divided by its weight.
func load(r *roster.Roster, owners []int, units []unit) []int64 {
	owned := make([]int64, r.Len())
	for i, node := range owners {
		owned[node] += units[i].size
	}
	for i, node := range r.Nodes() {
		owned[i] /= node.Weight
	}
	return owned
}

// weighted returns the roster of n nodes of which each second one has tiers of twice the size.
func weighted(t testing.TB, n int) *roster.Roster {
	t.Helper()
	nodes := make([]roster.Node, n)
	for i := range nodes {
		nodes[i] = roster.Node{Name: fmt.Sprintf("node%05d", i), Weight: int64(1 + i%2)}
	}
	r, err := roster.New(nodes)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
