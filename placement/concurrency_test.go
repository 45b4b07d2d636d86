package placement

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// A simulation runs controllers on a simulated source, in simulated time.
type simulation struct {
	now    time.Time
	events events
	random *rand.Rand
	source simulatedSource
	free   time.Time // when the link of the source is idle again
	bytes  int64     // that were transferred
}

// A simulatedSource answers each request after a latency, and then transfers its bytes over a link
// that serves one request after another.
type simulatedSource struct {
	latency time.Duration // the mean
	spread  float64       // of the latency: 0 is constant, 1 is exponentially distributed
	rate    float64       // bytes per second of the link
}

type event struct {
	at time.Time
	do func()
}

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at.Before(e[j].at) }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func newSimulation(source simulatedSource) *simulation {
	return &simulation{now: time.Unix(1, 0), random: rand.New(rand.NewPCG(1, 2)), source: source}
}

func (s *simulation) after(d time.Duration, do func()) {
	heap.Push(&s.events, event{s.now.Add(d), do})
}

// run simulates a time.
func (s *simulation) run(d time.Duration) {
	for end := s.now.Add(d); ; {
		if len(s.events) == 0 || s.events[0].at.After(end) {
			s.now = end
			return
		}
		e := heap.Pop(&s.events).(event)
		s.now = e.at
		e.do()
	}
}

// request sends a request of some bytes, and calls done after its end.
func (s *simulation) request(bytes int64, done func(start time.Time)) {
	start := s.now
	latency := float64(s.source.latency)
	latency *= 1 - s.source.spread + s.source.spread*s.random.ExpFloat64()
	s.after(time.Duration(latency), func() {
		if s.free.Before(s.now) {
			s.free = s.now
		}
		s.free = s.free.Add(time.Duration(float64(bytes) / s.source.rate * 1e9))
		s.after(s.free.Sub(s.now), func() {
			s.bytes += bytes
			done(start)
		})
	})
}

// A simulatedMount is a client of the source with a controller.
type simulatedMount struct {
	*simulation
	controller *controller
	sizes      []int64
	inFlight   int
	workers    int // turns at most
	turns      int
	bytes      int64
	next       int
}

func (s *simulation) mount(max, stride, workers int, sizes ...int64) *simulatedMount {
	m := &simulatedMount{simulation: s, controller: newController(max, stride), sizes: sizes, workers: workers}
	m.start()
	return m
}

// start starts as many background requests as the controller allows.
func (m *simulatedMount) start() {
	for m.turns < m.workers && m.inFlight < m.controller.Limit() {
		size := m.sizes[m.next%len(m.sizes)]
		m.next++
		m.turns++
		m.inFlight += blocks(size)
		m.request(size, func(start time.Time) {
			m.turns--
			m.inFlight -= blocks(size)
			m.bytes += size
			m.controller.Observe(request{start: start, end: m.now, bytes: size})
			m.start()
		})
	}
}

// reader starts a reader that requests some bytes again and again, with a pause in between. It returns
// its latencies.
func (m *simulatedMount) reader(bytes int64, pause time.Duration) *[]time.Duration {
	latencies := new([]time.Duration)
	var next func()
	next = func() {
		m.request(bytes, func(start time.Time) {
			*latencies = append(*latencies, m.now.Sub(start))
			m.controller.Observe(request{start: start, end: m.now, bytes: bytes, demand: true})
			m.after(pause, next)
		})
	}
	next()
	return latencies
}

func mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// variation returns the coefficient of variation.
func variation(x []float64) float64 {
	m, sum := mean(x), 0.0
	for _, v := range x {
		sum += (v - m) * (v - m)
	}
	return math.Sqrt(sum/float64(len(x))) / m
}

func median(x []time.Duration) time.Duration {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}

// percentile returns the latency that a share of x does not exceed.
func percentile(x []time.Duration, share float64) time.Duration {
	x = slices.Sorted(slices.Values(x))
	return x[int(share*float64(len(x)-1))]
}

// A result is what a simulation has measured in its steady state.
type result struct {
	throughput float64       // bytes per second
	p50, p99   time.Duration // of a reader of another program
}

// measure measures for a time. latencies are those of the reader.
func (s *simulation) measure(d time.Duration, latencies *[]time.Duration) result {
	*latencies = nil
	bytes := s.bytes
	s.run(d)
	return result{float64(s.bytes-bytes) / d.Seconds(), percentile(*latencies, 0.5), percentile(*latencies, 0.99)}
}

// direct returns the result beside the fewest readers without Milkweed that have a throughput.
func direct(source simulatedSource, throughput float64, sizes []int64) (r result, readers int) {
	for readers = 1; readers < 300; readers++ {
		s := newSimulation(source)
		m := &simulatedMount{simulation: s, controller: newController(1, 1), sizes: sizes}
		m.workers = readers
		m.controller.limit, m.controller.max = 1e9, 1e9
		m.start()
		other := (&simulatedMount{simulation: s, controller: newController(1, 1)}).reader(90_000, 0)
		s.run(time.Second)
		if r = s.measure(10*time.Second, other); r.throughput >= 0.99*throughput {
			return r, readers
		}
	}
	return r, readers
}

func TestExplore(t *testing.T) {
	for _, c := range []struct {
		name    string
		source  simulatedSource
		stride  int
		max     int
		readers int
		sizes   []int64
	}{
		{"pfs 8ms 200MB 90k", simulatedSource{8 * time.Millisecond, 0, 200e6}, 1, 64, 0, []int64{90_000}},
		{"pfs 8ms 200MB 90k 4 readers", simulatedSource{8 * time.Millisecond, 0, 200e6}, 1, 64, 4, []int64{90_000}},
		{"pfs half random", simulatedSource{8 * time.Millisecond, 0.5, 200e6}, 1, 64, 4, []int64{90_000}},
		{"pfs exponential", simulatedSource{8 * time.Millisecond, 1, 200e6}, 1, 64, 4, []int64{90_000}},
		{"latency bound exponential", simulatedSource{8 * time.Millisecond, 1, 200e9}, 1, 64, 0, []int64{90_000}},
		{"latency bound exponential, readers", simulatedSource{8 * time.Millisecond, 1, 200e9}, 1, 64, 4, []int64{90_000}},
		{"1MiB", simulatedSource{8 * time.Millisecond, 0.2, 200e6}, 1, 64, 4, []int64{1 << 20}},
		{"mixed", simulatedSource{8 * time.Millisecond, 0.2, 200e6}, 1, 64, 4, []int64{1 << 20, 90_000, 4000, 90_000}},
		{"8MiB 250MB", simulatedSource{20 * time.Millisecond, 0.2, 250e6}, 8, 128, 4, []int64{8 << 20}},
		{"8MiB 500MB", simulatedSource{20 * time.Millisecond, 0.2, 500e6}, 8, 128, 0, []int64{8 << 20}},
		{"bucket small 250MB", simulatedSource{20 * time.Millisecond, 0.2, 250e6}, 8, 128, 4, []int64{110_000}},
		{"many readers", simulatedSource{8 * time.Millisecond, 0.2, 200e6}, 1, 64, 24, []int64{90_000}},
		{"page cache", simulatedSource{50 * time.Microsecond, 0.5, 2e9}, 1, 64, 4, []int64{90_000}},
	} {
		s := newSimulation(c.source)
		m := s.mount(c.max, c.stride, 64, c.sizes...)
		for range c.readers {
			m.reader(90_000, 0)
		}
		other := (&simulatedMount{simulation: s, controller: newController(1, 1)}).reader(90_000, 0)
		rise := time.Duration(0)
		b := s.bytes
		for i := range 50 {
			s.run(20 * time.Millisecond)
			if rise == 0 && float64(s.bytes-b) > 0.85*c.source.rate*0.02 {
				rise = time.Duration(i+1) * 20 * time.Millisecond
			}
			b = s.bytes
		}
		s.run(4 * time.Second)
		mb := m.bytes
		*other = nil
		b = s.bytes
		var limits []float64
		for range 2500 {
			s.run(10 * time.Millisecond)
			limits = append(limits, float64(m.controller.Limit()))
		}
		got := result{float64(s.bytes-b) / 25, percentile(*other, 0.5), percentile(*other, 0.99)}
		want, n := direct(c.source, got.throughput, c.sizes)
		t.Logf("%-34s total %.0f%% of rate (background %.0f%%), limit %.1f cv %.2f, rise %v; other p50 %v p99 %v; beside %d direct: %.2f, %.2f x", c.name, 100*got.throughput/c.source.rate, 100*float64(m.bytes-mb)/25/c.source.rate, mean(limits), variation(limits), rise, got.p50, got.p99, n,
			float64(got.p50)/float64(want.p50), float64(got.p99)/float64(want.p99))
	}
}
