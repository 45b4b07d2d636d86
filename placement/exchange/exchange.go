// Package exchange computes partial local shuffling: which node of a job holds which file in which
// epoch. Each node trains on its own share of the files, and between two epochs a fraction of each
// share moves to other nodes.
//
// All nodes compute the same plan from the same arguments, without communication:
//
//   - In epoch 0, every node gets a random share of the files.
//   - Before each later epoch, every node chooses the same number of its files at random. The files that
//     are chosen first on each node move along one random permutation of the nodes without fixed
//     points, those that are chosen second along another one, and so on. Each node therefore sends
//     and receives the same number of files.
//
// The construction is that of T. T. Nguyen, F. Trahay, J. Domke, A. Drozd, E. Vatai, J. Liao, M. Wahib,
// B. Gerofi: Why Globally Re-shuffle? Revisiting Data Shuffling in Large Scale Deep Learning. IPDPS
// 2022. There, a permutation may have fixed points. The permutations here are those of S. Sattolo: An
// algorithm to generate a random cyclic permutation. Information Processing Letters 22(6), 1986. Every
// other node is equally likely to receive a file.
//
// examples/pytorch/milkweed.py computes the same plan, and testdata fixes the results of both. The
// random numbers are the 64-bit little-endian words of SHAKE128 of the text
//
//	milkweed exchange 1 seed SEED epoch EPOCH
//
// with a newline at the end. A number below n is the upper half of the product of n and the next word.
package exchange

import (
	"bufio"
	"crypto/sha3"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// The largest arguments of New.
const (
	MaxNodes = 65536
	MaxFiles = 1 << 31
)

// A Config determines a Plan.
type Config struct {
	Files    int     // at most MaxFiles; they are numbered from 0 on
	Nodes    int     // from 1 to MaxNodes; they are numbered from 0 on
	Seed     uint64  // of all random choices
	Fraction float64 // of each share that moves before an epoch, from 0 to 1

	// Sizes of the files, in bytes. If it is not nil, the shares are balanced by bytes, too: files of
	// similar sizes form rows, each node holds one file of each row in every epoch, and whole rows are
	// exchanged.
	Sizes []int64
}

// A Plan is the plan of all epochs. It is immutable.
type Plan struct {
	cfg   Config
	width int // slots of each node: the largest share, in files
	moves int // files that each node sends before each epoch
}

// New returns the plan for cfg.
func New(cfg Config) (*Plan, error) {
	switch {
	case cfg.Nodes < 1 || cfg.Nodes > MaxNodes:
		return nil, fmt.Errorf("exchange: %d nodes; there may be 1 to %d", cfg.Nodes, MaxNodes)
	case cfg.Files < 0 || cfg.Files > MaxFiles:
		return nil, fmt.Errorf("exchange: %d files; there may be up to %d", cfg.Files, MaxFiles)
	case !(cfg.Fraction >= 0 && cfg.Fraction <= 1): // also NaN
		return nil, fmt.Errorf("exchange: the fraction %v is not between 0 and 1", cfg.Fraction)
	case cfg.Sizes != nil && len(cfg.Sizes) != cfg.Files:
		return nil, fmt.Errorf("exchange: %d sizes for %d files", len(cfg.Sizes), cfg.Files)
	case slices.ContainsFunc(cfg.Sizes, func(size int64) bool { return size < 0 }):
		return nil, errors.New("exchange: a size is negative")
	}
	p := &Plan{cfg: cfg, width: (cfg.Files + cfg.Nodes - 1) / cfg.Nodes}
	full := cfg.Files / cfg.Nodes // the smallest share
	if cfg.Sizes != nil {
		full = p.width
	}
	if cfg.Nodes > 1 {
		p.moves = int(math.Floor(float64(cfg.Fraction*float64(full)) + 0.5)) // the conversion forbids a fused operation
	}
	return p, nil
}

// Nodes returns the number of nodes.
func (p *Plan) Nodes() int { return p.cfg.Nodes }

// Files returns the number of files.
func (p *Plan) Files() int { return p.cfg.Files }

// Moves returns the number of files that each node sends before each epoch. If the shares are balanced
// by bytes and differ in the number of files, some nodes send one less.
func (p *Plan) Moves() int { return p.moves }

// none is the content of an empty slot.
const none = math.MaxUint32

// An Epoch says which node holds which file in one epoch. It takes 6 bytes for each file. Methods
// other than Advance may be called concurrently.
type Epoch struct {
	plan   *Plan
	number int
	slots  []uint32 // of node n from n·width on: a file, or none
	holder []uint16 // by file
}

// Start returns epoch 0. It takes time in proportion to the number of files, and to n log n if they
// have sizes.
func (p *Plan) Start() *Epoch {
	files := make([]uint32, p.cfg.Files)
	for i := range files {
		files[i] = uint32(i)
	}
	d := newDraws(p.cfg.Seed, 0)
	for i := len(files) - 1; i > 0; i-- {
		j := d.below(i + 1)
		files[i], files[j] = files[j], files[i]
	}
	e := &Epoch{plan: p, slots: make([]uint32, p.width*p.cfg.Nodes), holder: make([]uint16, len(files))}
	if p.cfg.Sizes == nil {
		e.deal(files)
	} else {
		e.dealBySize(files)
	}
	e.index()
	return e
}

// deal gives the nodes equal numbers of files. The first nodes get the rest.
func (e *Epoch) deal(files []uint32) {
	p := e.plan
	for n := range p.cfg.Nodes {
		share := e.segment(n)
		count := len(files) / (p.cfg.Nodes - n)
		if len(files)%(p.cfg.Nodes-n) != 0 {
			count++
		}
		for i := copy(share, files[:count]); i < len(share); i++ {
			share[i] = none
		}
		files = files[count:]
	}
}

// dealBySize gives each node one file of each row of similar sizes: the largest of a row to the node
// that has the fewest bytes. Files of one size are in a random order.
func (e *Epoch) dealBySize(files []uint32) {
	p := e.plan
	slices.SortStableFunc(files, func(a, b uint32) int {
		switch x, y := p.cfg.Sizes[a], p.cfg.Sizes[b]; {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	for i := range e.slots {
		e.slots[i] = none
	}
	bytes := make([]int64, p.cfg.Nodes)
	order := make([]int, p.cfg.Nodes) // nodes, those with the fewest bytes first
	for n := range order {
		order[n] = n
	}
	for row := range p.width {
		slices.SortFunc(order, func(a, b int) int {
			switch {
			case bytes[a] < bytes[b]:
				return -1
			case bytes[a] > bytes[b]:
				return 1
			}
			return a - b
		})
		for _, n := range order {
			if len(files) == 0 {
				return
			}
			e.slots[n*p.width+row] = files[0]
			bytes[n] += p.cfg.Sizes[files[0]]
			files = files[1:]
		}
	}
}

// Advance makes e the epoch that follows. It takes time in proportion to the files that move.
func (e *Epoch) Advance() {
	e.number++
	p := e.plan
	if p.moves == 0 {
		return
	}
	d := newDraws(p.cfg.Seed, e.number)
	e.choose(d)
	var (
		ring = make([]int, p.cfg.Nodes)
		sent = make([]uint32, p.cfg.Nodes)
	)
	for i := range p.moves {
		for n := range ring {
			ring[n] = n
			sent[n] = e.slots[n*p.width+i]
		}
		for n := len(ring) - 1; n > 0; n-- {
			m := d.below(n)
			ring[n], ring[m] = ring[m], ring[n]
		}
		for n, to := range ring {
			e.slots[to*p.width+i] = sent[n]
			if sent[n] != none {
				e.holder[sent[n]] = uint16(to)
			}
		}
	}
}

// choose moves the files of each node that are sent to the first slots.
func (e *Epoch) choose(d *draws) {
	p := e.plan
	if p.cfg.Sizes != nil { // the same slots of all nodes, which have files of similar sizes
		for i := range p.moves {
			j := i + d.below(p.width-i)
			for n := range p.cfg.Nodes {
				share := e.segment(n)
				share[i], share[j] = share[j], share[i]
			}
		}
		return
	}
	for n := range p.cfg.Nodes {
		share := e.Share(n)
		for i := range p.moves {
			j := i + d.below(len(share)-i)
			share[i], share[j] = share[j], share[i]
		}
	}
}

// index sets the holders from the slots.
func (e *Epoch) index() {
	for n := range e.plan.cfg.Nodes {
		for _, file := range e.segment(n) {
			if file != none {
				e.holder[file] = uint16(n)
			}
		}
	}
}

// segment returns the slots of a node.
func (e *Epoch) segment(node int) []uint32 {
	return e.slots[node*e.plan.width : (node+1)*e.plan.width]
}

// Number returns the number of the epoch.
func (e *Epoch) Number() int { return e.number }

// Holder returns the node that holds a file.
func (e *Epoch) Holder(file int) int { return int(e.holder[file]) }

// Share returns the files that a node holds, in no certain order. The slice belongs to e, and must not
// be changed.
func (e *Epoch) Share(node int) []uint32 {
	share := e.segment(node)
	if e.plan.cfg.Sizes == nil { // only the last slot may be empty
		if i := len(share) - 1; i >= 0 && share[i] == none {
			return share[:i]
		}
		return share
	}
	if i := slices.Index(share, none); i >= 0 {
		return slices.Concat(share[:i], share[i+1:])
	}
	return share
}

// Clone returns a copy of e.
func (e *Epoch) Clone() *Epoch {
	return &Epoch{plan: e.plan, number: e.number, slots: slices.Clone(e.slots), holder: slices.Clone(e.holder)}
}

// draws are the random numbers of one epoch.
type draws struct{ words *bufio.Reader }

func newDraws(seed uint64, epoch int) *draws {
	h := sha3.NewSHAKE128()
	fmt.Fprintf(h, "milkweed exchange 1 seed %d epoch %d\n", seed, epoch)
	return &draws{bufio.NewReaderSize(h, 8<<10)}
}

// below returns a number from 0 to n-1.
func (d *draws) below(n int) int {
	word, err := d.words.Peek(8)
	if err != nil {
		panic(err) // SHAKE has no end
	}
	hi, _ := bits.Mul64(binary.LittleEndian.Uint64(word), uint64(n))
	d.words.Discard(8)
	return int(hi)
}
