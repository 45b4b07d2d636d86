package bench

import (
	"cmp"
	"slices"
)

// A Spread is what a number was over several runs.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// spread is the spread of one or more numbers. The median of an even number of
// them is the mean of the two in the middle.
func spread(numbers []float64) Spread {
	sorted := slices.Sorted(slices.Values(numbers))
	n := len(sorted)
	return Spread{
		Median: (sorted[(n-1)/2] + sorted[n/2]) / 2,
		Min:    sorted[0],
		Max:    sorted[n-1],
	}
}

// ratio is the spread of the ratios, pair by pair, of numbers that were measured
// in turn.
func ratio(these, those []float64) Spread {
	ratios := make([]float64, len(these))
	for i := range these {
		ratios[i] = these[i] / those[i]
	}
	return spread(ratios)
}

func seconds(runs []Run) []float64 {
	s := make([]float64, len(runs))
	for i, r := range runs {
		s[i] = r.Seconds
	}
	return s
}

// Sum is runs that follow one another as one run. Its utilization is the mean
// of those that have one.
func Sum(runs []Run) Run {
	var all Run
	counted := 0
	for _, r := range runs {
		all.Seconds += r.Seconds
		if r.Utilization > 0 {
			all.Utilization += r.Utilization
			counted++
		}
		all.Source = addSource(all.Source, r.Source)
	}
	all.Utilization /= float64(max(counted, 1))
	return all
}

// addSource adds up what the source was asked; either may be nil.
func addSource(a, b *SourceUse) *SourceUse {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return &SourceUse{
		Operations:    a.Operations + b.Operations,
		Opens:         a.Opens + b.Opens,
		Bytes:         a.Bytes + b.Bytes,
		UnplacedBytes: a.UnplacedBytes + b.UnplacedBytes,
	}
}

// Mean is the mean of runs.
func Mean(runs []Run) Run {
	n := int64(len(runs))
	all := Sum(runs)
	all.Seconds /= float64(n)
	if s := all.Source; s != nil {
		all.Source = &SourceUse{Operations: s.Operations / n, Opens: s.Opens / n, Bytes: s.Bytes / n, UnplacedBytes: s.UnplacedBytes / n}
	}
	return all
}

// utilizations is nil where no accelerator is emulated.
func utilizations(runs []Run) *Spread {
	var all []float64
	for _, r := range runs {
		if r.Utilization > 0 {
			all = append(all, r.Utilization)
		}
	}
	if len(all) == 0 {
		return nil
	}
	s := spread(all)
	return &s
}

// medianSource is what the source was asked in the run that asked for a median
// number of bytes; nil where there is no source.
func medianSource(runs []Run) *SourceUse {
	var uses []SourceUse
	for _, r := range runs {
		if r.Source != nil {
			uses = append(uses, *r.Source)
		}
	}
	if len(uses) == 0 {
		return nil
	}
	slices.SortStableFunc(uses, func(a, b SourceUse) int { return cmp.Compare(a.Bytes, b.Bytes) })
	return &uses[(len(uses)-1)/2]
}

func isBase(side string) bool { return slices.Contains(bases, side) }

// A Step is a step of a training: the accelerator waits for a batch, and
// computes.
type Step struct {
	Compute float64 // seconds that it computed
	End     float64 // when it had, in seconds from the start of the epoch
}

// Utilization is the accelerator utilisation as MLPerf Storage defines it: the
// time computed by the time passed, from the end of the first step on, since
// with that step the prefetching begins. It is 0 for fewer than two steps.
func Utilization(steps []Step) float64 {
	if len(steps) < 2 {
		return 0
	}
	compute := 0.0
	for _, s := range steps[1:] {
		compute += s.Compute
	}
	return compute / (steps[len(steps)-1].End - steps[0].End)
}
