package bench

import (
	"math"
	"reflect"
	"testing"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		numbers []float64
		want    Spread
	}{
		{[]float64{3}, Spread{3, 3, 3}},
		{[]float64{3, 1, 2}, Spread{2, 1, 3}},
		{[]float64{4, 1, 2, 3}, Spread{2.5, 1, 4}},
	} {
		if got := spread(c.numbers); got != c.want {
			t.Errorf("%v: got %+v, want %+v", c.numbers, got, c.want)
		}
	}
}

func runs(seconds ...float64) []Run {
	var all []Run
	for _, s := range seconds {
		all = append(all, Run{Seconds: s})
	}
	return all
}

// A ratio is the median of the ratios of the pairs, not the ratio of the medians: a
// slow moment of the machine slows both runs of a pair.
func TestRatiosArePairByPair(t *testing.T) {
	c := NewCase("c", Duration, 0, 1, []Side{
		{Native, runs(1, 10, 2)},
		{"milkweed", runs(2, 20, 10)},
	})
	if got, want := c.Results[1].Ratios[Native], (Spread{2, 2, 5}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := c.Results[0].Ratios; len(got) != 0 {
		t.Errorf("native is compared with %v, but milkweed is not a base", got)
	}
}

func TestValueIsInTheUnit(t *testing.T) {
	for unit, want := range map[Unit]float64{Throughput: 0.004, Latency: 50_000, Duration: 0.5} {
		c := NewCase("c", unit, 2e6, 10, []Side{{Native, runs(0.5)}})
		if got := c.Results[0].Value; !near(got, want) {
			t.Errorf("%s: got %g, want %g", unit, got, want)
		}
	}
}

// The first step and the wait for it do not count.
func TestUtilization(t *testing.T) {
	for _, c := range []struct {
		name  string
		steps []Step
		want  float64
	}{
		{"none", nil, 0},
		{"one", []Step{{1, 1}}, 0},
		{"busy", []Step{{1, 9}, {1, 10}, {1, 11}}, 1},
		{"waits", []Step{{1, 9}, {1, 11}, {1, 13}}, 0.5},
	} {
		if got := Utilization(c.steps); !near(got, c.want) {
			t.Errorf("%s: got %g, want %g", c.name, got, c.want)
		}
	}
}

func TestSumAndMean(t *testing.T) {
	two := []Run{
		{Seconds: 1, Utilization: 0.5, Source: &SourceUse{Operations: 10, Opens: 2, Bytes: 100, UnplacedBytes: 100}},
		{Seconds: 3, Utilization: 1, Source: &SourceUse{Operations: 20, Opens: 4, Bytes: 50, UnplacedBytes: 50}},
	}
	want := Run{Seconds: 4, Utilization: 0.75, Source: &SourceUse{Operations: 30, Opens: 6, Bytes: 150, UnplacedBytes: 150}}
	if got := Sum(two); !reflect.DeepEqual(got, want) {
		t.Errorf("sum: got %+v, want %+v", got, want)
	}
	want = Run{Seconds: 2, Utilization: 0.75, Source: &SourceUse{Operations: 15, Opens: 3, Bytes: 75, UnplacedBytes: 75}}
	if got := Mean(two); !reflect.DeepEqual(got, want) {
		t.Errorf("mean: got %+v, want %+v", got, want)
	}
	// The time of a copy counts, although it has no utilization.
	if got := Sum([]Run{{Seconds: 5}, two[1]}); got.Utilization != 1 || got.Seconds != 8 {
		t.Errorf("copy and epoch: got %+v", got)
	}
	if got := two[0].Source.Bytes; got != 100 {
		t.Errorf("a run was changed: %d bytes", got)
	}
}

func TestMedianSourceIsOfOneRun(t *testing.T) {
	use := func(opens, bytes int64) Run { return Run{Source: &SourceUse{Opens: opens, Bytes: bytes}} }
	got := medianSource([]Run{use(1, 30), use(2, 10), use(3, 20)})
	if want := (SourceUse{Opens: 3, Bytes: 20}); *got != want {
		t.Errorf("got %+v, want %+v", *got, want)
	}
	if got := medianSource(runs(1)); got != nil {
		t.Errorf("without a source: %+v", got)
	}
}
