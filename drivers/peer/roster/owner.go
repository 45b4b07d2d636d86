package roster

import (
	"math/bits"
	"slices"
)

// Ownership is weighted rendezvous hashing: each node has a score for each file, and the node with
// the best score owns the file. A node that joins or leaves changes the owner of its own files
// only, and the files of a lost node go to all others in equal shares.
//
//   - D. Thaler, C. Ravishankar: Using Name-Based Mappings to Increase Hit Rates. IEEE/ACM
//     Transactions on Networking 6(1), 1998
//   - C. Schindelhauer, G. Schomaker: Weighted Distributed Hash Tables. SPAA 2005
//     (the logarithmic method)
//
// All builds of Milkweed must compute the same owners. The functions below are therefore written
// in integer arithmetic, and TestGolden fixes their results:
//
//	seed of a node      mix(fnv1a(name of the node) + golden)
//	draw of a node      mix(fnv1a(name of the file) ^ seed), a uniform number below 2⁶⁴
//	score, equal weights    the draw; the largest is best
//	score, other weights    -log2((draw + 1) / 2⁶⁴) / weight; the smallest is best
//
// Ties go to the node whose name is first. hashVersion changes with any of this.
const hashVersion = 1

// golden is 2⁶⁴ divided by the golden ratio. It makes the seed of a node differ from the hash of a
// file of the same name.
const golden = 0x9e3779b97f4a7c15

// fnv1a is the 64-bit FNV-1a hash of name.
func fnv1a(name string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 0x100000001b3
	}
	return h
}

// mix is the finalizer of SplitMix64: a bijection in which each bit depends on all others.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func seed(node string) uint64 { return mix(fnv1a(node) + golden) }

// logBits is the number of fraction bits of logarithms in fixed point.
const logBits = 57

// logs[i] is log2(1 + i/256) in fixed point.
var logs = func() (table [257]uint64) {
	for i := range table[:256] {
		x := uint64(256+i) << 55 // between 1 and 2, with 63 fraction bits
		for range logBits {
			// The next bit of the logarithm of x is whether the square of x is at least 2.
			hi, lo := bits.Mul64(x, x)
			table[i] <<= 1
			if x = hi<<1 | lo>>63; hi>>63 != 0 {
				table[i] |= 1
				x = hi
			}
		}
	}
	table[256] = 1 << logBits
	return table
}()

// negLog2 returns -log2((draw+1) / 2⁶⁴) in fixed point. It does not grow with draw. It is linear
// between the entries of logs, which changes the share of a node by less than 1 in 10,000.
func negLog2(draw uint64) uint64 {
	if draw++; draw == 0 {
		return 0
	}
	zeros := bits.LeadingZeros64(draw)
	m := draw << zeros // between 1 and 2, with 63 fraction bits
	i := m >> 55 & 0xff
	part, _ := bits.Mul64(logs[i+1]-logs[i], m<<9)
	return uint64(zeros+1)<<logBits - logs[i] - part
}

// A score is how well a node suits a file. The smallest is best.
type score struct {
	cost float64 // by weight; 0 if all weights are equal
	miss uint64  // complement of the draw; decides if the cost is equal
	node int     // decides if both are equal
}

func (s score) before(t score) bool {
	if s.cost != t.cost {
		return s.cost < t.cost
	}
	if s.miss != t.miss {
		return s.miss < t.miss
	}
	return s.node < t.node
}

// score returns the score of a node for the file with hash h.
func (r *Roster) score(h uint64, node int) score {
	draw := mix(h ^ r.seeds[node])
	s := score{miss: ^draw, node: node}
	if r.inverse != nil {
		// One conversion and one product: there is no sum with which a compiler could fuse it.
		s.cost = float64(negLog2(draw)) * r.inverse[node]
	}
	return s
}

// Owner returns the index in Nodes of the node that owns name.
func (r *Roster) Owner(name string) int {
	h := fnv1a(name)
	if r.inverse != nil {
		best := r.score(h, 0)
		for i := 1; i < len(r.nodes); i++ {
			if s := r.score(h, i); s.before(best) {
				best = s
			}
		}
		return best.node
	}
	owner, most := 0, uint64(0)
	for i, seed := range r.seeds {
		if draw := mix(h ^ seed); draw > most {
			owner, most = i, draw
		}
	}
	return owner
}

// Owners returns the indexes in Nodes of the n nodes that suit name best, the owner first, or of
// all nodes if there are fewer. If the owner of a file is not available, the next one is to hold it.
func (r *Roster) Owners(name string, n int) []int {
	n = min(n, len(r.nodes))
	if n <= 0 {
		return nil
	}
	h := fnv1a(name)
	best := make([]score, 0, n) // sorted
	for i := range r.nodes {
		s := r.score(h, i)
		if len(best) == n {
			if !s.before(best[n-1]) {
				continue
			}
			best = best[:n-1]
		}
		at := len(best)
		for at > 0 && s.before(best[at-1]) {
			at--
		}
		best = slices.Insert(best, at, s)
	}
	owners := make([]int, n)
	for i, s := range best {
		owners[i] = s.node
	}
	return owners
}

// Rank returns the index of node in Owners(name, Len()): 0 if it owns name. It allocates nothing.
func (r *Roster) Rank(name string, node int) int {
	h := fnv1a(name)
	own := r.score(h, node)
	rank := 0
	for i := range r.nodes {
		if r.score(h, i).before(own) {
			rank++
		}
	}
	return rank
}
