package bench

import (
	"fmt"
	"math"
	"reflect"
	"testing"
)

// The demand of an accelerator, in bytes per second, follows from MLPerf's numbers.
func TestDemand(t *testing.T) {
	want := map[string]float64{"unet3d": 3.177e9, "retinanet": 163e6, "resnet50": 204.75e6, "cosmoflow": 808.1e6}
	for _, w := range Workloads {
		if got := w.Demand(); math.Abs(got/want[w.Name]-1) > 0.002 {
			t.Errorf("%s: got %g, want %g", w.Name, got, want[w.Name])
		}
	}
}

// A smaller step has the same demand.
func TestScaledKeepsTheDemand(t *testing.T) {
	for _, w := range Workloads {
		for _, scale := range []float64{0.01, 0.5, 1, 3, 10, 100} {
			s := w.Scaled(scale)
			if got := s.Demand() / w.Demand(); math.Abs(got-1) > 0.02 {
				t.Errorf("%s at %g: %.3f of the demand", w.Name, scale, got)
			}
		}
	}
}

// The dataset grows with the scale, both when steps grow and when their number
// grows.
func TestScaledDataset(t *testing.T) {
	for _, w := range Workloads {
		one := sum(w.Scaled(1).Sizes())
		for _, scale := range []float64{4, 64} {
			got := float64(sum(w.Scaled(scale).Sizes())) / float64(one)
			if got < 0.7*scale || got > 1.4*scale {
				t.Errorf("%s at %g: %.2f times the dataset", w.Name, scale, got)
			}
		}
	}
}

func sum(sizes []int64) int64 {
	total := int64(0)
	for _, n := range sizes {
		total += n
	}
	return total
}

// At a large scale, a step has the size that MLPerf defines.
func TestScaledReachesTheRealSize(t *testing.T) {
	for _, w := range Workloads {
		s := w.Scaled(1000)
		if s.SampleBytes != w.SampleBytes || s.Batch != w.Batch || s.SamplesPerFile != w.SamplesPerFile || s.Compute != w.Compute {
			t.Errorf("%s: %+v", w.Name, s)
		}
	}
}

// In each epoch, every byte is in one batch, and one reader reads a file from
// beginning to end.
func TestBatchesReadEachByteOnce(t *testing.T) {
	for _, w := range append([]Workload{Tiering}, Workloads...) {
		for epoch := range 3 {
			t.Run(fmt.Sprintf("%s/%d", w.Name, epoch), func(t *testing.T) {
				training := w.Scaled(1)
				sizes := training.Sizes()
				next := make([]int64, len(sizes))
				reader := make([]int, len(sizes))
				for r, share := range training.Batches(sizes, epoch, 4) {
					for _, b := range share {
						for _, x := range b {
							if x.Offset != next[x.File] || x.Length <= 0 {
								t.Fatalf("file %d: %+v after %d", x.File, x, next[x.File])
							}
							if x.Offset > 0 && reader[x.File] != r {
								t.Fatalf("file %d: read by %d and %d", x.File, reader[x.File], r)
							}
							reader[x.File] = r
							next[x.File] += x.Length
							if x.Last != (next[x.File] == sizes[x.File]) {
								t.Fatalf("file %d: %+v of %d", x.File, x, sizes[x.File])
							}
						}
					}
				}
				if !reflect.DeepEqual(next, sizes) {
					t.Errorf("read %v of %v", next, sizes)
				}
			})
		}
	}
}

// A batch has the samples of one step. The last batch of a reader has up to twice
// as many.
func TestBatchesHaveTheirSize(t *testing.T) {
	for _, w := range Workloads {
		training := w.Scaled(1)
		sizes := training.Sizes()
		for r, share := range training.Batches(sizes, 0, 4) {
			for i, b := range share {
				samples := len(b)
				if training.SamplesPerFile > 1 {
					bytes := int64(0)
					for _, x := range b {
						bytes += x.Length
					}
					samples = int(bytes / training.SampleBytes)
				}
				last := i == len(share)-1
				if !last && samples != training.Batch || last && (samples == 0 || samples >= 2*training.Batch && training.Batch > 1) {
					t.Errorf("%s: reader %d, batch %d: %d samples", w.Name, r, i, samples)
				}
			}
		}
	}
}

func TestEpochsHaveTheirOwnOrder(t *testing.T) {
	training := Tiering.Scaled(1)
	sizes := training.Sizes()
	first := training.Batches(sizes, 1, 4)
	if !reflect.DeepEqual(first, training.Batches(sizes, 1, 4)) {
		t.Error("the order of an epoch is not the same each time")
	}
	if reflect.DeepEqual(first, training.Batches(sizes, 2, 4)) {
		t.Error("two epochs have the same order")
	}
}
