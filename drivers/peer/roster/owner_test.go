package roster

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// rosterOf returns a roster of nodes n0, n1 and so on with these weights.
func rosterOf(t testing.TB, weights ...int64) *Roster {
	t.Helper()
	nodes := make([]Node, len(weights))
	for i, w := range weights {
		nodes[i] = Node{Name: fmt.Sprintf("n%04d", i), Weight: w}
	}
	// Their order must not matter.
	rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	r, err := New(nodes)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// equal returns n equal weights.
func equal(n int) []int64 {
	weights := make([]int64, n)
	for i := range weights {
		weights[i] = 1
	}
	return weights
}

func fileName(i int) string { return fmt.Sprintf("train/n%08d/img_%d.JPEG", i%1000, i) }

// Builds of Milkweed share their files only if all of them compute these results.
func TestGolden(t *testing.T) {
	// From the tables of FNV-1a's authors and from SplitMix64's reference, which starts at 0.
	for text, want := range map[string]uint64{"": 0xcbf29ce484222325, "a": 0xaf63dc4c8601ec8c, "foobar": 0x85944171f73967e8} {
		if got := fnv1a(text); got != want {
			t.Errorf("fnv1a(%q) = %#x, want %#x", text, got, want)
		}
	}
	if got, want := mix(golden), uint64(0xe220a8397b1dcdaf); got != want {
		t.Errorf("mix(golden) = %#x, want %#x", got, want)
	}
	if got, want := negLog2(1<<63-1), uint64(1)<<logBits; got != want {
		t.Errorf("negLog2(½) = %#x, want %#x", got, want)
	}
	if got, want := negLog2(0), uint64(64)<<logBits; got != want {
		t.Errorf("negLog2(2⁻⁶⁴) = %#x, want %#x", got, want)
	}

	for _, c := range []struct {
		weights []int64
		hash    string
		owners  []int // of the first files
		sum     uint64
	}{
		{equal(5), "dd5ad92d51e56e1f0b6efedbceee9e59", []int{2, 4, 0, 2, 4, 3, 3, 2, 1, 4}, 0x7c72df773a2454ba},
		{[]int64{1, 2, 3, 4, 5}, "e067bf80a4105d6a61af9fb6cc628879", []int{2, 4, 0, 2, 4, 3, 3, 2, 4, 4}, 0xff275671f87affc1},
	} {
		r := rosterOf(t, c.weights...)
		var owners []int
		sum := uint64(0)
		for i := range 10000 {
			o := r.Owners(fileName(i), 2)
			if i < 10 {
				owners = append(owners, o[0])
			}
			sum = sum*31 + uint64(o[0]*5+o[1])
		}
		if r.Hash() != c.hash || !slices.Equal(owners, c.owners) || sum != c.sum {
			t.Errorf("weights %v: got hash %s, owners %#v, and sum %#x", c.weights, r.Hash(), owners, sum)
		}
	}
}

// negLog2 is close to the logarithm and never grows.
func TestNegLog2(t *testing.T) {
	for draw := uint64(math.MaxUint64); draw > 0; draw -= draw/97 + 1 {
		got := float64(negLog2(draw)) / (1 << logBits)
		want := 64 - math.Log2(float64(draw)+1)
		if math.Abs(got-want) > 3e-6 {
			t.Errorf("negLog2(%#x) is %v, want %v", draw, got, want)
		}
		if negLog2(draw-1) < negLog2(draw) {
			t.Errorf("negLog2 grows after %#x", draw-1)
		}
	}
}

// The largest share of a node is not larger than chance makes it. With independent uniform owners,
// the number of files of a node is nearly normal.
func TestBalance(t *testing.T) {
	for _, n := range []int{2, 3, 4, 8, 16, 64, 256, 1000} {
		const perNode = 200
		r := rosterOf(t, equal(n)...)
		owned := make([]int, n)
		for i := range n * perNode {
			owned[r.Owner(fileName(i))]++
		}
		bound := 1 + 5/math.Sqrt(perNode)
		if most := float64(slices.Max(owned)) / perNode; most > bound {
			t.Errorf("%d nodes: a node has %.3f times its share, want at most %.3f", n, most, bound)
		}
		chi := 0.0
		for _, files := range owned {
			chi += float64((files-perNode)*(files-perNode)) / perNode
		}
		if df := float64(n - 1); math.Abs(chi-df) > 5*math.Sqrt(2*df) {
			t.Errorf("%d nodes: the sum of the squares is %.1f, want about %.0f", n, chi, df)
		}
	}
}

func TestWeights(t *testing.T) {
	for _, weights := range [][]int64{{1, 2}, {1, 2, 3, 4}, {1000, 1, 1, 1}, {5, 5, 1, 10, 20, 30, 7}, {1 << 40, 1 << 41}} {
		r := rosterOf(t, weights...)
		const files = 200_000
		owned := make([]int, len(weights))
		for i := range files {
			owned[r.Owner(fileName(i))]++
		}
		total := 0.0
		for _, w := range weights {
			total += float64(w)
		}
		for i, w := range weights {
			want := files * float64(w) / total
			if diff := math.Abs(float64(owned[i]) - want); diff > 5*math.Sqrt(want) {
				t.Errorf("weights %v: node %d has %d files, want %.0f", weights, i, owned[i], want)
			}
		}
	}
}

// A node that leaves moves its own files only, and the next choice for each becomes its owner.
func TestRemovalMovesOwnFilesOnly(t *testing.T) {
	for _, weights := range [][]int64{equal(10), {1, 2, 3, 4, 5}} {
		before := rosterOf(t, weights...)
		for lost := range before.Len() {
			after, err := New(slices.Delete(slices.Clone(before.Nodes()), lost, lost+1))
			if err != nil {
				t.Fatal(err)
			}
			for i := range 2000 {
				o := before.Owners(fileName(i), 2)
				want := o[0]
				if want == lost {
					want = o[1]
				}
				got := after.Nodes()[after.Owner(fileName(i))].Name
				if got != before.Nodes()[want].Name {
					t.Fatalf("without node %d, %s goes from node %d to %s", lost, fileName(i), o[0], got)
				}
			}
		}
	}
}

// A node whose weight grows takes files from the others, and no file moves between these.
func TestGrowingWeightMovesFilesToItsNodeOnly(t *testing.T) {
	before, after := rosterOf(t, 1, 2, 3), rosterOf(t, 1, 4, 3)
	for i := range 10000 {
		from, to := before.Owner(fileName(i)), after.Owner(fileName(i))
		if from != to && to != 1 {
			t.Fatalf("%s goes from node %d to node %d", fileName(i), from, to)
		}
	}
}

// The files of each node have the others as second choice, in equal shares.
func TestSecondChoice(t *testing.T) {
	const n, perPair = 8, 1000
	r := rosterOf(t, equal(n)...)
	var pairs [n][n]int
	for i := range n * (n - 1) * perPair {
		o := r.Owners(fileName(i), 2)
		pairs[o[0]][o[1]]++
	}
	for a := range n {
		for b := range n {
			if got := pairs[a][b]; a != b && math.Abs(float64(got-perPair)) > 5*math.Sqrt(perPair) {
				t.Errorf("%d files have the owners %d and %d, want about %d", got, a, b, perPair)
			}
		}
	}
}

// Owners, Owner and Rank agree, and Owners are distinct.
func TestOwners(t *testing.T) {
	for _, weights := range [][]int64{equal(1), equal(7), {3, 1, 2, 1, 9}} {
		r := rosterOf(t, weights...)
		for i := range 500 {
			name := fileName(i)
			all := r.Owners(name, r.Len()+1)
			if len(all) != r.Len() || r.Owner(name) != all[0] {
				t.Fatalf("%s: owner %d of %v", name, r.Owner(name), all)
			}
			for rank, node := range all {
				if got := r.Rank(name, node); got != rank {
					t.Fatalf("%s: node %d has rank %d in %v", name, node, got, all)
				}
				if got := r.Owners(name, rank); !slices.Equal(got, all[:rank]) {
					t.Fatalf("%s: the %d owners are %v, want %v", name, rank, got, all[:rank])
				}
			}
			slices.Sort(all)
			if len(slices.Compact(all)) != r.Len() {
				t.Fatalf("%s: %v", name, all)
			}
		}
		if got := r.Owners("a", -1); got != nil {
			t.Errorf("Owners(-1) = %v", got)
		}
	}
	r := rosterOf(t, 1, 2, 3)
	if allocs := testing.AllocsPerRun(100, func() { r.Owner("a"); r.Rank("a", 1) }); allocs != 0 {
		t.Errorf("Owner and Rank allocate %v times", allocs)
	}
}

// One operation is the owner of one name of 30 bytes.
func BenchmarkOwner(b *testing.B) {
	for _, n := range []int{4, 64, 1024, 10000} {
		weights := equal(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := rosterOf(b, weights...)
			for b.Loop() {
				r.Owner("train/n01440764/img_12345.JPEG")
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/node")
		})
		b.Run(fmt.Sprintf("%d/weights", n), func(b *testing.B) {
			for i := range weights {
				weights[i] = int64(i%7 + 1)
			}
			r := rosterOf(b, weights...)
			for b.Loop() {
				r.Owner("train/n01440764/img_12345.JPEG")
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/node")
		})
		b.Run(fmt.Sprintf("%d/owners", n), func(b *testing.B) {
			r := rosterOf(b, equal(n)...)
			for b.Loop() {
				r.Owners("train/n01440764/img_12345.JPEG", 2)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/node")
		})
	}
}
