package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// A Workload is what a training asks of its storage. The numbers of each are
// those of MLPerf Storage's configuration files.
type Workload struct {
	Name           string
	Accelerator    string        // that the compute time is of
	NPZ            bool          // a file is a numpy archive, which is read as numpy does: its end, its head, and all in sequence
	SampleBytes    int64         // mean size of a sample
	Deviation      int64         // standard deviation of that size
	SamplesPerFile int           // where it is not 1 all samples have the same size
	Batch          int           // samples in a step
	Compute        time.Duration // of the accelerator in a step

	shrink  float64 // how much smaller a step is at scale 1
	samples bool    // it is so by smaller samples, and not by fewer
	steps   float64 // of an epoch at scale 1: many more than are read ahead
}

// Workloads are those that are emulated.
var Workloads = []Workload{
	{Name: "unet3d", Accelerator: "H100", NPZ: true, SampleBytes: 146600628, Deviation: 68341808, SamplesPerFile: 1,
		Batch: 7, Compute: 323 * time.Millisecond, shrink: 96, samples: true, steps: 24},
	{Name: "retinanet", Accelerator: "B200", SampleBytes: 322957, SamplesPerFile: 1,
		Batch: 24, Compute: 47550 * time.Microsecond, shrink: 4, steps: 32},
	{Name: "resnet50", Accelerator: "H100", SampleBytes: 114660, SamplesPerFile: 1251,
		Batch: 400, Compute: 224 * time.Millisecond, shrink: 20, steps: 32},
	{Name: "cosmoflow", Accelerator: "H100", SampleBytes: 2828486, Deviation: 71311, SamplesPerFile: 1,
		Batch: 1, Compute: 3500 * time.Microsecond, shrink: 1, steps: 32},
}

// Tiering is the experiment of the Monarch paper, a dataset that is larger than
// the tiers, read by readers that do not compute.
var Tiering = Workload{Name: "monarch", SampleBytes: 1e6, Deviation: 300e3, SamplesPerFile: 1, Batch: 1, shrink: 1, steps: 144}

// Demand is the bytes that a step reads, by the time that it computes.
func (w Workload) Demand() float64 {
	return float64(w.SampleBytes) * float64(w.Batch) / w.Compute.Seconds()
}

// minSteps is how many steps an epoch has at least: one is not counted, and
// every reader shall have one.
const minSteps = 4

// leastScale is the scale below which steps do not become smaller.
const leastScale = 0.1

// A Training is a workload at the scale at which it is run. A step is smaller and
// computes for less time by the same factor, so that the demand is that of the
// workload.
type Training struct {
	Workload
	Shrink float64 // by how much a step is smaller
	Files  int
}

// Scaled returns the workload with a dataset of so many times the size that it
// has at scale 1. Steps grow to their real size before there are more. Where a
// file has many samples it has fewer, as a step has.
func (w Workload) Scaled(scale float64) Training {
	t := Training{Workload: w, Shrink: max(1, w.shrink/max(leastScale, scale))}
	if w.samples {
		t.SampleBytes = int64(float64(w.SampleBytes) / t.Shrink)
		t.Deviation = int64(float64(w.Deviation) / t.Shrink)
	} else {
		t.Batch = max(1, int(math.Round(float64(w.Batch)/t.Shrink)))
		t.Shrink = float64(w.Batch) / float64(t.Batch)
		t.SamplesPerFile = max(1, int(math.Round(float64(w.SamplesPerFile)/t.Shrink)))
	}
	t.Compute = time.Duration(float64(w.Compute) / t.Shrink)
	steps := max(minSteps, math.Round(w.steps*scale*t.Shrink/w.shrink))
	t.Files = int(math.Ceil(steps * float64(t.Batch) / float64(t.SamplesPerFile)))
	return t
}

// String says what a step is and asks for.
func (t Training) String() string {
	share := "as in reality"
	if t.Shrink > 1 {
		share = fmt.Sprintf("1/%.3g of the real one", t.Shrink)
	}
	return fmt.Sprintf("%s: %d files of %s; a step is %d × %s, %s",
		t.Name, t.Files, Bytes(t.SampleBytes*int64(t.SamplesPerFile)), t.Batch, Bytes(t.SampleBytes), share)
}

// Sizes returns the size of each file, the same for each call.
func (t Training) Sizes() []int64 {
	rng := rand.New(rand.NewPCG(3, uint64(t.Files)))
	sizes := make([]int64, t.Files)
	for i := range sizes {
		deviation := max(-2, min(2, rng.NormFloat64())) * float64(t.Deviation)
		sizes[i] = int64(t.SamplesPerFile) * (t.SampleBytes + int64(deviation))
		sizes[i] = max(sizes[i], int64(t.SamplesPerFile)*t.SampleBytes/10)
	}
	return sizes
}

// An Extent is a part of a file.
type Extent struct {
	File   int // its index
	Offset int64
	Length int64
	Last   bool // it ends where the file ends
}

// A Batch is what one reader reads for one step.
type Batch []Extent

// Batches returns, for each reader, the batches that it reads in an epoch, in an
// order that is the epoch's own. Every file is read once and whole. The trainer
// takes the first batch of each reader, then the second of each, and so on.
func (t Training) Batches(sizes []int64, epoch, readers int) [][]Batch {
	rng := rand.New(rand.NewPCG(4, uint64(epoch)))
	order := rng.Perm(len(sizes))
	if t.SamplesPerFile == 1 {
		return t.dealSamples(sizes, order, readers)
	}
	return t.cutShares(sizes, order, readers)
}

// dealSamples deals batches of whole files.
func (t Training) dealSamples(sizes []int64, order []int, readers int) [][]Batch {
	shares := make([][]Batch, readers)
	for i := 0; i*t.Batch < len(order); i++ {
		var b Batch
		for _, file := range order[i*t.Batch : min((i+1)*t.Batch, len(order))] {
			b = append(b, Extent{File: file, Length: sizes[file], Last: true})
		}
		shares[i%readers] = append(shares[i%readers], b)
	}
	return shares
}

// cutShares deals files, each reader's share of which is one stream, and cuts the
// streams into batches. What is left at the end of a stream is in its last
// batch.
func (t Training) cutShares(sizes []int64, order []int, readers int) [][]Batch {
	streams := make([]stream, readers)
	for i, file := range order {
		s := &streams[i%readers]
		s.files = append(s.files, file)
		s.left += sizes[file]
	}
	step := t.SampleBytes * int64(t.Batch)
	shares := make([][]Batch, readers)
	for r := range streams {
		for s := &streams[r]; s.left > 0; {
			n := step
			if s.left < 2*step {
				n = s.left
			}
			shares[r] = append(shares[r], s.cut(sizes, n))
		}
	}
	return shares
}

// A stream is files one after the other.
type stream struct {
	files []int
	at    int64 // in the first of them
	left  int64 // of all
}

// cut takes the next n bytes off the stream, which has them.
func (s *stream) cut(sizes []int64, n int64) Batch {
	var b Batch
	s.left -= n
	for n > 0 {
		x := Extent{File: s.files[0], Offset: s.at, Length: min(n, sizes[s.files[0]]-s.at)}
		x.Last = x.Offset+x.Length == sizes[x.File]
		b = append(b, x)
		n -= x.Length
		s.at += x.Length
		if x.Last {
			s.at, s.files = 0, s.files[1:]
		}
	}
	return b
}
