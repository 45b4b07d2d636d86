package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// A Workload describes how a training reads its dataset. The numbers of each are
// those of MLPerf Storage's configuration files.
type Workload struct {
	Name           string
	Accelerator    string        // the one to which Compute applies
	NPZ            bool          // each file is a NumPy archive, read as NumPy does
	SampleBytes    int64         // mean size of a sample
	Deviation      int64         // standard deviation of that size
	SamplesPerFile int           // if not 1, all samples have the same size
	Batch          int           // samples per step
	Compute        time.Duration // compute time of a step

	shrink  float64 // the factor by which a step is smaller at scale 1
	samples bool    // a smaller step has smaller samples, not fewer
	steps   float64 // steps per epoch at scale 1; many more than are prefetched
}

// Workloads are the workloads of group workloads.
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

// Tiering is the workload of the Monarch paper: the dataset is larger than the
// tiers, and the readers do not compute.
var Tiering = Workload{Name: "monarch", SampleBytes: 1e6, Deviation: 300e3, SamplesPerFile: 1, Batch: 1, shrink: 1, steps: 144}

// Demand returns the bytes of a step divided by its compute time in seconds.
func (w Workload) Demand() float64 {
	return float64(w.SampleBytes) * float64(w.Batch) / w.Compute.Seconds()
}

// minSteps is the smallest number of steps in an epoch: one for each reader. The
// first step does not count in the utilisation.
const minSteps = 4

// leastScale is the scale below which steps do not become smaller.
const leastScale = 0.1

// A Training is a workload at a scale. The size and the compute time of a step are
// reduced by the same factor, so that the demand is that of the workload.
type Training struct {
	Workload
	Shrink float64 // that factor
	Files  int
}

// Scaled returns the workload with a dataset that is scale times as large as at
// scale 1. With the scale, steps first grow to their real size; then their number
// grows. The number of samples in a file is reduced like that in a step.
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

// String describes the files and the steps.
func (t Training) String() string {
	share := "the real size"
	if t.Shrink > 1 {
		share = fmt.Sprintf("1/%.3g of the real size", t.Shrink)
	}
	return fmt.Sprintf("%s: %d files of %s; a step is %d × %s, %s",
		t.Name, t.Files, Bytes(t.SampleBytes*int64(t.SamplesPerFile)), t.Batch, Bytes(t.SampleBytes), share)
}

// Sizes returns the size of each file. The result is the same in each call.
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

// An Extent is a range of a file.
type Extent struct {
	File   int // index of the file
	Offset int64
	Length int64
	Last   bool // the extent ends at the end of the file
}

// A Batch is the extents that one reader reads for one step.
type Batch []Extent

// Batches returns the batches of each reader in an epoch. Every file is read once,
// from beginning to end, in an order that depends on the epoch. The trainer takes
// the first batch of each reader, then the second of each, and so on.
func (t Training) Batches(sizes []int64, epoch, readers int) [][]Batch {
	rng := rand.New(rand.NewPCG(4, uint64(epoch)))
	order := rng.Perm(len(sizes))
	if t.SamplesPerFile == 1 {
		return t.dealSamples(sizes, order, readers)
	}
	return t.cutShares(sizes, order, readers)
}

// dealSamples deals batches of whole files to the readers.
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

// cutShares deals the files to the readers. It cuts the files of a reader, as one
// stream, into batches. The last batch includes the remainder of the stream.
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

// A stream is a sequence of files.
type stream struct {
	files  []int
	offset int64 // of the next byte, in the first file
	left   int64 // bytes that are not cut yet
}

// cut removes the first n bytes of the stream, which must have as many.
func (s *stream) cut(sizes []int64, n int64) Batch {
	var b Batch
	s.left -= n
	for n > 0 {
		x := Extent{File: s.files[0], Offset: s.offset, Length: min(n, sizes[s.files[0]]-s.offset)}
		x.Last = x.Offset+x.Length == sizes[x.File]
		b = append(b, x)
		n -= x.Length
		s.offset += x.Length
		if x.Last {
			s.offset, s.files = 0, s.files[1:]
		}
	}
	return b
}
