package bench

import (
	"cmp"
	"slices"
)

// A Spread describes the distribution of a number over several runs.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// spread returns the spread of one or more numbers. The median of an even number
// of them is the mean of the two in the middle.
func spread(numbers []float64) Spread {
	sorted := slices.Sorted(slices.Values(numbers))
	n := len(sorted)
	return Spread{
		Median: (sorted[(n-1)/2] + sorted[n/2]) / 2,
		Min:    sorted[0],
		Max:    sorted[n-1],
	}
}

// ratio returns the spread of the ratios a[i] / b[i]. Both numbers of a pair were
// measured in the same run.
func ratio(a, b []float64) Spread {
	ratios := make([]float64, len(a))
	for i := range a {
		ratios[i] = a[i] / b[i]
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

// Sum combines consecutive runs into one. Its utilization is the mean of those
// above 0.
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
		all.Waits = addWaits(all.Waits, r.Waits)
	}
	all.Utilization /= float64(max(counted, 1))
	return all
}

// addSource adds two counts; either may be nil.
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

// addWaits adds two times; either may be nil.
func addWaits(a, b *Waits) *Waits {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return &Waits{a.Latency + b.Latency, a.Bandwidth + b.Bandwidth, a.Fill + b.Fill, a.Tier + b.Tier}
}

// Mean returns the mean of runs.
func Mean(runs []Run) Run {
	n := int64(len(runs))
	all := Sum(runs)
	all.Seconds /= float64(n)
	if s := all.Source; s != nil {
		all.Source = &SourceUse{Operations: s.Operations / n, Opens: s.Opens / n, Bytes: s.Bytes / n, UnplacedBytes: s.UnplacedBytes / n}
	}
	if w, n := all.Waits, float64(n); w != nil {
		all.Waits = &Waits{w.Latency / n, w.Bandwidth / n, w.Fill / n, w.Tier / n}
	}
	return all
}

// utilizations returns the spread of the utilizations above 0, or nil if there are
// none.
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

// medianSource returns the counts of the run that read the median number of bytes
// from the source, or nil if no run has a source.
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

// A Step is a step of a training: the accelerator waits for a batch and then
// computes.
type Step struct {
	Compute float64 // compute time in seconds
	End     float64 // end of the computation, in seconds from the start of the epoch
}

// Utilization returns the accelerator utilisation as MLPerf Storage defines it:
// compute time divided by elapsed time. Both start at the end of the first step,
// because prefetching starts with that step. The result is 0 for fewer than two
// steps.
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
