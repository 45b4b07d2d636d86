package exchange

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

var update = flag.Bool("update", false, "rewrite testdata/golden.json")

// start returns epoch 0 of a plan that must be valid.
func start(t testing.TB, cfg Config) *Epoch {
	t.Helper()
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p.Start()
}

// someSizes returns log-normal sizes, of which some are equal and some 0.
func someSizes(files int, seed uint64) []int64 {
	r := rand.New(rand.NewPCG(seed, 5))
	sizes := make([]int64, files)
	for i := range sizes {
		sizes[i] = int64(40 * math.Exp(r.NormFloat64()))
		if r.IntN(20) == 0 {
			sizes[i] = 0
		}
	}
	return sizes
}

// configs yields plans of many shapes.
func configs(yield func(Config) bool) {
	for _, files := range []int{0, 1, 2, 3, 7, 24, 100, 101, 1000} {
		for _, nodes := range []int{1, 2, 3, 8, 24, 25, 150} {
			for _, fraction := range []float64{0, 0.01, 0.1, 0.5, 0.9, 1} {
				cfg := Config{Files: files, Nodes: nodes, Seed: uint64(files * nodes), Fraction: fraction}
				if !yield(cfg) {
					return
				}
				cfg.Sizes = someSizes(files, cfg.Seed)
				if !yield(cfg) {
					return
				}
			}
		}
	}
}

// checkPartition fails if the shares and the holders differ, if the shares differ by more than one
// file, or if they differ by more bytes than the largest file has.
//
// The last bound holds if there are sizes: a node holds one file of each row, and no file of a row is
// larger than any of the row before. The differences within the rows therefore add up to at most the
// difference between the largest and the smallest file, or no file.
func checkPartition(t testing.TB, e *Epoch) {
	t.Helper()
	cfg := e.plan.cfg
	seen := make([]bool, cfg.Files)
	counts, bytes := make([]int, cfg.Nodes), make([]int64, cfg.Nodes)
	for n := range cfg.Nodes {
		for _, file := range e.Share(n) {
			if seen[file] {
				t.Fatalf("epoch %d: file %d is in two shares", e.Number(), file)
			}
			if seen[file] = true; e.Holder(int(file)) != n {
				t.Fatalf("epoch %d: file %d is in the share of %d, and %d holds it", e.Number(), file, n, e.Holder(int(file)))
			}
			counts[n]++
			if cfg.Sizes != nil {
				bytes[n] += cfg.Sizes[file]
			}
		}
	}
	if file := slices.Index(seen, false); file >= 0 {
		t.Fatalf("epoch %d: file %d is in no share", e.Number(), file)
	}
	if slices.Max(counts)-slices.Min(counts) > 1 {
		t.Fatalf("epoch %d: shares of %d to %d files", e.Number(), slices.Min(counts), slices.Max(counts))
	}
	if cfg.Files > 0 && cfg.Sizes != nil && slices.Max(bytes)-slices.Min(bytes) > slices.Max(cfg.Sizes) {
		t.Fatalf("epoch %d: shares of %d to %d bytes; the largest file has %d", e.Number(), slices.Min(bytes), slices.Max(bytes), slices.Max(cfg.Sizes))
	}
}

// checkMoves fails if nodes do not send and receive as many files as the plan says.
func checkMoves(t testing.TB, before, after *Epoch) {
	t.Helper()
	p := after.plan
	sent, received := make([]int, p.Nodes()), make([]int, p.Nodes())
	for file := range p.Files() {
		if from, to := before.Holder(file), after.Holder(file); from != to {
			sent[from]++
			received[to]++
		}
	}
	least := p.Moves()
	if p.cfg.Sizes != nil && p.Files()%p.Nodes() != 0 {
		least = max(0, least-1)
	}
	if min(slices.Min(sent), slices.Min(received)) < least || max(slices.Max(sent), slices.Max(received)) > p.Moves() {
		t.Fatalf("epoch %d: nodes send %d to %d files and receive %d to %d, want %d to %d", after.Number(),
			slices.Min(sent), slices.Max(sent), slices.Min(received), slices.Max(received), least, p.Moves())
	}
}

// In every epoch, each file has one holder, the shares are balanced, and each node sends and receives
// the same number of files.
func TestEveryEpochIsABalancedPartition(t *testing.T) {
	for cfg := range configs {
		e := start(t, cfg)
		share := cfg.Files / cfg.Nodes
		if cfg.Sizes != nil {
			share = (cfg.Files + cfg.Nodes - 1) / cfg.Nodes
		}
		if want := int(math.Floor(cfg.Fraction*float64(share) + 0.5)); cfg.Nodes > 1 && e.plan.Moves() != want {
			t.Errorf("%d moves for a fraction %v of %d files, want %d", e.plan.Moves(), cfg.Fraction, share, want)
		} else if cfg.Nodes == 1 && e.plan.Moves() != 0 {
			t.Errorf("one node: %d moves", e.plan.Moves())
		}
		checkPartition(t, e)
		for epoch := 1; epoch <= 6; epoch++ {
			before := e.Clone()
			e.Advance()
			if e.Number() != epoch || before.Number() != epoch-1 {
				t.Fatalf("epochs %d and %d, want %d and %d", before.Number(), e.Number(), epoch-1, epoch)
			}
			checkPartition(t, e)
			checkMoves(t, before, e)
		}
		if t.Failed() {
			t.Fatalf("files %d, nodes %d, fraction %v, sizes %t", cfg.Files, cfg.Nodes, cfg.Fraction, cfg.Sizes != nil)
		}
	}
}

// chiSquare fails if counts do not look like draws from equally likely cells.
func chiSquare(t *testing.T, what string, counts []int) {
	t.Helper()
	total := 0
	for _, n := range counts {
		total += n
	}
	want := float64(total) / float64(len(counts))
	var x float64
	for _, n := range counts {
		x += (float64(n) - want) * (float64(n) - want) / want
	}
	df := float64(len(counts) - 1)
	t.Logf("%s: χ² %.1f of %v degrees of freedom", what, x, df)
	if x > df+4*math.Sqrt(2*df)+4 { // beyond the quantile of 0.9999
		t.Errorf("%s: %v is not uniform", what, counts)
	}
}

// The node that holds a file at first, and after some epochs, and the node to which a file moves are
// uniformly distributed. So is where a file is after many epochs that began on one node. Two files
// that were together are then together as often as any two are.
func TestSharesMix(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates many epochs")
	}
	const (
		nodes  = 6
		share  = 5
		files  = nodes * share
		epochs = 14
		plans  = 6000
	)
	for _, sizes := range [][]int64{nil, slices.Repeat([]int64{1}, files)} {
		var (
			first, last, target, fromOne [nodes]int
			stayed, together, pairs      int
		)
		for seed := range plans {
			e := start(t, Config{Files: files, Nodes: nodes, Seed: uint64(seed), Fraction: 0.4, Sizes: sizes})
			began, mates := e.Holder(3), slices.Clone(e.Share(e.Holder(3)))
			first[began]++
			e.Advance()
			if to := e.Holder(3); to == began {
				stayed++
			} else {
				target[(to-began+nodes)%nodes]++
			}
			for e.Number() < epochs {
				e.Advance()
			}
			last[e.Holder(3)]++
			fromOne[(e.Holder(3)-began+nodes)%nodes]++
			for _, mate := range mates {
				if mate != 3 {
					pairs++
					if e.Holder(int(mate)) == e.Holder(3) {
						together++
					}
				}
			}
		}
		what := "balanced by files"
		// In a share, share-1 of the other files-1 are together with a file. With sizes, none of its
		// own row is, and nodes·(share-1) others may be.
		want := float64(share-1) / float64(files-1)
		if sizes != nil {
			what, want = "by bytes", 1.0/nodes
		}
		chiSquare(t, what+", first holder", first[:])
		chiSquare(t, what+", last holder", last[:])
		chiSquare(t, what+", last holder, from the first", fromOne[:])
		chiSquare(t, what+", other node that receives it", target[1:])
		near(t, what+", stays", stayed, plans, 1-0.4)
		near(t, what+", pairs together again", together, pairs, want)
	}
}

// near fails if n of total is not about what a probability says.
func near(t *testing.T, what string, n, total int, p float64) {
	t.Helper()
	got, sigma := float64(n)/float64(total), math.Sqrt(p*(1-p)/float64(total))
	t.Logf("%s: %.4f of the times, expected %.4f", what, got, p)
	if math.Abs(got-p) > 5*sigma {
		t.Errorf("%s: %.4f of the times, want %.4f ± %.4f", what, got, p, sigma)
	}
}

// Files of similar sizes are never together if the shares are balanced by bytes.
func TestFilesOfARowStayApart(t *testing.T) {
	e := start(t, Config{Files: 40, Nodes: 8, Fraction: 0.5, Sizes: countdown(40)})
	for range 50 {
		for row := range 5 {
			var nodes [8]bool
			for file := 8 * row; file < 8*row+8; file++ {
				nodes[e.Holder(file)] = true
			}
			if slices.Contains(nodes[:], false) {
				t.Fatalf("epoch %d: two files of row %d are together", e.Number(), row)
			}
		}
		e.Advance()
	}
}

// countdown returns the sizes files, files-1, …, 1.
func countdown(files int) []int64 {
	sizes := make([]int64, files)
	for i := range sizes {
		sizes[i] = int64(files - i)
	}
	return sizes
}

// A plan may be used concurrently. The result does not depend on the number of processors.
func TestPlansAreReproducible(t *testing.T) {
	for _, sizes := range [][]int64{nil, someSizes(5000, 1)} {
		p, err := New(Config{Files: 5000, Nodes: 48, Seed: 1, Fraction: 0.3, Sizes: sizes})
		if err != nil {
			t.Fatal(err)
		}
		run := func() *Epoch {
			e := p.Start()
			for range 4 {
				e.Advance()
			}
			return e
		}
		want := run()
		for _, procs := range []int{1, 2, 8} {
			before := runtime.GOMAXPROCS(procs)
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					if got := run(); !slices.Equal(got.holder, want.holder) || !slices.Equal(got.slots, want.slots) {
						t.Errorf("another plan with %d processors", procs)
					}
				})
			}
			wg.Wait()
			runtime.GOMAXPROCS(before)
		}
	}
}

// A clone and its original advance independently, to the same epoch.
func TestClone(t *testing.T) {
	e := start(t, Config{Files: 100, Nodes: 7, Fraction: 0.5})
	clone, holder := e.Clone(), slices.Clone(e.holder)
	clone.Advance()
	if !slices.Equal(e.holder, holder) || e.Number() != 0 {
		t.Error("the clone's Advance changed the original")
	}
	e.Advance()
	if !reflect.DeepEqual(e, clone) {
		t.Error("the clone and the original differ")
	}
}

func TestNewRefusesArguments(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, "0 nodes"},
		{Config{Nodes: -1}, "-1 nodes"},
		{Config{Nodes: MaxNodes + 1}, "65537 nodes"},
		{Config{Nodes: 1, Files: -1}, "-1 files"},
		{Config{Nodes: 1, Files: MaxFiles + 1}, "2147483649 files"},
		{Config{Nodes: 1, Fraction: -0.1}, "fraction -0.1"},
		{Config{Nodes: 1, Fraction: 1.1}, "fraction 1.1"},
		{Config{Nodes: 1, Fraction: math.NaN()}, "fraction NaN"},
		{Config{Nodes: 1, Fraction: math.Inf(1)}, "fraction +Inf"},
		{Config{Nodes: 1, Files: 2, Sizes: []int64{1}}, "1 sizes for 2 files"},
		{Config{Nodes: 1, Files: 2, Sizes: []int64{1, -1}}, "size is negative"},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %q", c.cfg, err, c.want)
		}
	}
	if _, err := New(Config{Nodes: MaxNodes, Files: MaxFiles, Fraction: 1}); err != nil {
		t.Error(err)
	}
}

// A node has the number MaxNodes-1 as well.
func TestManyNodes(t *testing.T) {
	e := start(t, Config{Files: 70000, Nodes: MaxNodes, Fraction: 1})
	e.Advance()
	checkPartition(t, e)
}

// golden is the content of testdata/golden.json.
type golden struct {
	Comment []string
	Plans   []goldenPlan
}

type goldenPlan struct {
	Files    int     `json:"files"`
	Nodes    int     `json:"nodes"`
	Seed     uint64  `json:"seed"`
	Fraction float64 `json:"fraction"`
	Sizes    []int64 `json:"sizes"`
	Rule     *struct {
		Factor  int64 `json:"factor"`
		Modulus int64 `json:"modulus"`
	} `json:"sizes_rule,omitempty"`
	Moves   int               `json:"moves"`
	Holders map[string]string `json:"holders,omitempty"`
	SHA256  map[string]string `json:"holders_sha256,omitempty"`
}

// The plans of all versions and of both implementations are the same.
func TestGolden(t *testing.T) {
	const path = "testdata/golden.json"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(text, &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Plans) == 0 {
		t.Fatal("no plans")
	}
	for i := range g.Plans {
		plan := &g.Plans[i]
		want := *plan
		cfg := Config{Files: plan.Files, Nodes: plan.Nodes, Seed: plan.Seed, Fraction: plan.Fraction, Sizes: plan.Sizes}
		if plan.Rule != nil {
			cfg.Sizes = make([]int64, cfg.Files)
			for i := range cfg.Sizes {
				cfg.Sizes[i] = int64(i) * plan.Rule.Factor % plan.Rule.Modulus
			}
		}
		e := start(t, cfg)
		plan.Moves, plan.Holders, plan.SHA256 = e.plan.Moves(), map[string]string{}, map[string]string{}
		for _, number := range []int{0, 1, 2, 5} {
			for e.Number() < number {
				e.Advance()
			}
			if cfg.Files <= 100 {
				plan.Holders[strconv.Itoa(number)] = strings.Trim(fmt.Sprint(e.holder), "[]")
				continue
			}
			var b []byte
			for _, n := range e.holder {
				b = binary.LittleEndian.AppendUint16(b, n)
			}
			sum := sha256.Sum256(b)
			plan.SHA256[strconv.Itoa(number)] = hex.EncodeToString(sum[:])
		}
		if *update {
			continue
		}
		if plan.Moves != want.Moves {
			t.Errorf("plan %d: %d moves, want %d", i, plan.Moves, want.Moves)
		}
		for number, got := range plan.Holders {
			if got != want.Holders[number] {
				t.Errorf("plan %d, epoch %s: got %s, want %s", i, number, got, want.Holders[number])
			}
		}
		for number, got := range plan.SHA256 {
			if got != want.SHA256[number] {
				t.Errorf("plan %d, epoch %s: got %s, want %s", i, number, got, want.SHA256[number])
			}
		}
	}
	if *update {
		writeGolden(t, path, g)
	}
}

// writeGolden writes one plan on each line.
func writeGolden(t *testing.T, path string, g golden) {
	t.Helper()
	var b strings.Builder
	comment, err := json.MarshalIndent(g.Comment, "  ", "  ")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, "{\n  \"comment\": %s,\n  \"plans\": [\n", comment)
	for i, plan := range g.Plans {
		line, err := json.Marshal(plan)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			b.WriteString(",\n")
		}
		fmt.Fprintf(&b, "    %s", line)
	}
	b.WriteString("\n  ]\n}\n")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

func FuzzPlan(f *testing.F) {
	f.Add(uint16(100), uint16(7), uint64(1), 0.3, false, uint8(4))
	f.Add(uint16(101), uint16(8), uint64(2), 1.0, true, uint8(2))
	f.Add(uint16(3), uint16(8), uint64(3), 0.5, true, uint8(2))
	f.Fuzz(func(t *testing.T, files, nodes uint16, seed uint64, fraction float64, sizes bool, epochs uint8) {
		cfg := Config{Files: int(files % 3000), Nodes: int(nodes % 300), Seed: seed, Fraction: fraction}
		if sizes {
			cfg.Sizes = someSizes(cfg.Files, seed)
		}
		p, err := New(cfg)
		if valid := cfg.Nodes > 0 && fraction >= 0 && fraction <= 1; (err == nil) != valid {
			t.Fatalf("%+v: %v", cfg, err)
		}
		if err != nil {
			return
		}
		e := p.Start()
		checkPartition(t, e)
		for range epochs % 5 {
			before := e.Clone()
			e.Advance()
			checkPartition(t, e)
			checkMoves(t, before, e)
		}
	})
}

// The plan of ImageNet for 2,048 nodes and 90 epochs.
func BenchmarkPlan(b *testing.B) {
	const files, nodes, epochs = 1_300_000, 2048, 90
	for _, fraction := range []float64{0.1, 1} {
		for _, mode := range []string{"files", "bytes"} {
			b.Run(fmt.Sprintf("fraction=%v/balance=%s", fraction, mode), func(b *testing.B) {
				cfg := Config{Files: files, Nodes: nodes, Seed: 1, Fraction: fraction}
				if mode == "bytes" {
					cfg.Sizes = someSizes(files, 1)
				}
				b.ReportAllocs()
				for b.Loop() {
					e := start(b, cfg)
					for range epochs - 1 {
						e.Advance()
					}
				}
				b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/epochs*1e3, "ms/epoch")
			})
		}
	}
}
