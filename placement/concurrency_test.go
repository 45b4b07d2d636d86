package placement

import (
	"bytes"
	"container/heap"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
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
	rate    float64       // bytes per second of the link; 0: unlimited
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
		done := func(start time.Time) {
			s.bytes += bytes
			done(start)
		}
		if s.source.rate == 0 {
			done(start)
			return
		}
		if s.free.Before(s.now) {
			s.free = s.now
		}
		s.free = s.free.Add(time.Duration(float64(bytes) / s.source.rate * 1e9))
		s.after(s.free.Sub(s.now), func() {
			done(start)
		})
	})
}

// A simulatedMount is a client of the source with a controller.
type simulatedMount struct {
	*simulation
	controller *controller
	sizes      []int64
	inFlight   int   // blocks
	flying     int64 // bytes
	workers    int   // turns at most
	turns      int
	bytes      int64
	next       int
}

func (s *simulation) mount(first, max, workers int, sizes ...int64) *simulatedMount {
	m := &simulatedMount{simulation: s, controller: newController(first, max), sizes: sizes, workers: workers}
	m.start()
	return m
}

// start starts as many background requests as the controller allows.
func (m *simulatedMount) start() {
	for m.turns < m.workers && m.controller.Admits(m.inFlight, m.flying) {
		size := m.sizes[m.next%len(m.sizes)]
		m.next++
		m.turns++
		m.inFlight += blocks(size)
		m.flying += size
		m.request(size, func(start time.Time) {
			m.turns--
			m.inFlight -= blocks(size)
			m.flying -= size
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

// limits records the limit every 10 ms for a time.
func (m *simulatedMount) limits(d time.Duration) (all []float64) {
	for end := m.now.Add(d); m.now.Before(end); {
		m.run(10 * time.Millisecond)
		all = append(all, float64(m.controller.Limit()))
	}
	return all
}

// variation returns the coefficient of variation.
func variation(x []float64) float64 {
	var sum, squares float64
	for _, v := range x {
		sum += v
		squares += v * v
	}
	n := float64(len(x))
	return math.Sqrt(max(0, squares/n-sum/n*sum/n)) / (sum / n)
}

// percentile returns the latency that a share of x does not exceed.
func percentile(x []time.Duration, share float64) time.Duration {
	x = slices.Sorted(slices.Values(x))
	return x[int(share*float64(len(x)-1))]
}

// other starts a reader of another program, which the controller does not see.
func (s *simulation) other() *[]time.Duration {
	m := &simulatedMount{simulation: s, controller: newController(1, 1)}
	return m.reader(90_000, 0)
}

// rate returns the bytes per second of the source in a time.
func (s *simulation) rate(d time.Duration) float64 {
	bytes := s.bytes
	s.run(d)
	return float64(s.bytes-bytes) / d.Seconds()
}

// direct returns the latencies of a reader beside the fewest direct readers that have some
// throughput together with it.
func direct(source simulatedSource, sizes []int64, throughput float64) (latencies []time.Duration) {
	sort.Search(128, func(readers int) bool {
		s := newSimulation(source)
		m := &simulatedMount{simulation: s, controller: &controller{limit: 1e6, max: 1e6, least: math.Inf(1), bytes: math.Inf(1)}, sizes: sizes, workers: readers}
		m.start()
		other := s.other()
		s.run(time.Second)
		*other = nil
		rate := s.rate(10 * time.Second)
		if rate < 0.99*throughput {
			return false
		}
		latencies = *other // of the fewest readers so far
		return true
	})
	return latencies
}

const ms = time.Millisecond

// A controller uses nearly all of the bandwidth of a source, or of the blocks that it may have in
// flight. A reader of another program has the same latency as beside direct readers that have the
// same throughput. Where one or two direct readers suffice, the controller has one more in flight,
// and the latency is higher. The limit does not oscillate.
func TestController(t *testing.T) {
	if testing.Short() || drivertest.Race() {
		t.Skip("simulates many sources")
	}
	for _, c := range []struct {
		name      string
		source    simulatedSource
		first     int // limit
		max       int
		sizes     []int64
		readers   int
		use       float64 // share of the bandwidth, or of max in flight if the bandwidth is 0, at least
		p50, p99  float64 // latencies, divided by those beside direct readers, at most
		variation float64 // of the limit, at most
	}{
		{"small files", simulatedSource{8 * ms, 0.2, 200e6}, 4, 64, []int64{90_000}, 0, 0.95, 1.2, 1.2, 0.15},
		{"small files, readers", simulatedSource{8 * ms, 0.2, 200e6}, 4, 64, []int64{90_000}, 4, 0.95, 1.2, 1.2, 0.15},
		{"constant latency", simulatedSource{8 * ms, 0, 200e6}, 4, 64, []int64{90_000}, 4, 0.95, 1.2, 1.2, 0.15},
		{"random latency", simulatedSource{8 * ms, 1, 200e6}, 4, 64, []int64{90_000}, 4, 0.9, 1.2, 1.2, 0.3},
		{"large files", simulatedSource{8 * ms, 0.2, 200e6}, 4, 64, []int64{1 << 20}, 4, 0.9, 1.2, 1.2, 0.3},
		{"mixed files", simulatedSource{8 * ms, 0.2, 200e6}, 4, 64, []int64{1 << 20, 90_000, 4000, 90_000}, 4, 0.8, 1.2, 1.2, 0.3},
		{"fast source", simulatedSource{50 * time.Microsecond, 0.5, 2e9}, 4, 64, []int64{90_000}, 0, 0.9, 5, 5, 0.3},
		{"slow source", simulatedSource{200 * ms, 0.2, 20e6}, 4, 64, []int64{1 << 20}, 0, 0.9, 1.2, 1.8, 0.3},
		{"latency only", simulatedSource{8 * ms, 0.2, 0}, 4, 64, []int64{90_000}, 0, 0.9, 1.2, 1.2, 0.3},
		{"random latency only", simulatedSource{8 * ms, 1, 0}, 4, 64, []int64{90_000}, 0, 0.8, 1.2, 1.2, 0.4},
		{"streams", simulatedSource{20 * ms, 0.2, 250e6}, 64, 128, []int64{8 << 20}, 0, 0.9, 1.8, 3.2, 0.4},
		{"small objects", simulatedSource{20 * ms, 0.2, 250e6}, 64, 128, []int64{110_000}, 4, 0.9, 1.2, 1.2, 0.2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSimulation(c.source)
			m := s.mount(c.first, c.max, 64, c.sizes...)
			for range c.readers {
				m.reader(90_000, 0)
			}
			other := s.other()
			s.run(10 * time.Second)
			*other = nil
			bytes := s.bytes
			limits := m.limits(25 * time.Second)
			rate := float64(s.bytes-bytes) / 25
			use := rate / c.source.rate
			if c.source.rate == 0 {
				use = slices.Max(limits) / float64(c.max)
			}
			if use < c.use {
				t.Errorf("use: got %.2f, want %v", use, c.use)
			}
			if got := variation(limits); got > c.variation {
				t.Errorf("variation of the limit: got %.2f, want at most %v", got, c.variation)
			}
			beside := direct(c.source, c.sizes, rate)
			for share, most := range map[float64]float64{0.5: c.p50, 0.99: c.p99} {
				got, want := percentile(*other, share), percentile(beside, share)
				if ratio := float64(got) / float64(want); ratio > most {
					t.Errorf("percentile %v of the latency of another reader: got %v, %.2f × the %v beside direct readers, want %v",
						100*share, got, ratio, want, most)
				}
			}
		})
	}
}

// After the start, a controller needs a fraction of a second for its limit.
func TestControllerStartsFast(t *testing.T) {
	s := newSimulation(simulatedSource{8 * ms, 0.2, 200e6})
	s.mount(startBlocks, 64, 64, 90_000)
	s.run(200 * ms)
	if got := s.rate(100 * ms); got < 0.85*s.source.rate {
		t.Errorf("after 0.2 s: got %.0f MB/s, want %.0f", got/1e6, 0.85*s.source.rate/1e6)
	}
}

// Two mounts share a source equally, also if one of them starts later.
func TestControllersShare(t *testing.T) {
	s := newSimulation(simulatedSource{8 * ms, 0.2, 200e6})
	first := s.mount(startBlocks, 64, 64, 90_000)
	s.run(5 * time.Second)
	second := s.mount(startBlocks, 64, 64, 90_000)
	s.run(15 * time.Second)
	before, all := first.bytes, s.bytes
	second.bytes = 0
	s.run(20 * time.Second)
	total := float64(s.bytes - all)
	if got := total / 20 / s.source.rate; got < 0.9 {
		t.Errorf("use of both: got %.2f, want 0.9", got)
	}
	if got := float64(first.bytes-before) / total; got < 0.35 || got > 0.65 {
		t.Errorf("share of the first: got %.2f, want half", got)
	}
}

// A pause in which there are no requests does not change the limit. If the source is slower
// afterwards, the controller finds out.
func TestControllerAfterPause(t *testing.T) {
	s := newSimulation(simulatedSource{4 * ms, 0.2, 200e6})
	m := s.mount(startBlocks, 64, 64, 90_000)
	s.run(5 * time.Second)
	workers := m.workers
	m.workers = 0
	s.run(time.Second)
	limit := m.controller.Limit()
	s.run(time.Hour)
	if got := m.controller.Limit(); got != limit {
		t.Errorf("limit: got %d, want %d", got, limit)
	}
	s.source.latency = 16 * ms
	m.workers = workers
	m.start()
	s.run(2 * time.Second)
	if got := s.rate(5 * time.Second); got < 0.9*s.source.rate {
		t.Errorf("after the pause: got %.0f MB/s, want %.0f", got/1e6, 0.9*s.source.rate/1e6)
	}
}

// When a mount goes on from small files to large ones, its requests in flight become fewer at once:
// a limit of blocks that suits small files would be twelve times as many bytes.
func TestControllerFromSmallToLarge(t *testing.T) {
	for _, latency := range []time.Duration{2 * ms, 8 * ms} {
		source := simulatedSource{latency, 0.2, 200e6}
		s := newSimulation(source)
		m := s.mount(startBlocks, 64, 64, 90_000)
		m.reader(90_000, 0)
		other := s.other()
		s.run(5 * time.Second)
		*other = nil
		m.sizes = []int64{1 << 20}
		rate := s.rate(time.Second)
		beside := direct(source, m.sizes, rate)
		got, want := percentile(*other, 0.99), percentile(beside, 0.99)
		t.Logf("%v: %.0f MB/s, latency %v, %v beside direct readers", latency, rate/1e6, got, want)
		if got > want*6/5 {
			t.Errorf("%v: percentile 99 of the latency of another reader: got %v, beside direct readers %v", latency, got, want)
		}
		if rate < 0.9*source.rate {
			t.Errorf("%v: got %.0f MB/s, want %.0f", latency, rate/1e6, 0.9*source.rate/1e6)
		}
	}
}

// A stage is a part of a trace.
type stage struct {
	source simulatedSource
	limit  int // blocks that saturate the source: latency · rate / bytes of a request, and one transfer
}

var stages = []stage{
	{simulatedSource{8 * ms, 0.2, 200e6}, 18},
	{simulatedSource{20 * ms, 0.2, 200e6}, 45},
	{simulatedSource{20 * ms, 0.2, 50e6}, 12},
	{simulatedSource{4 * ms, 0.2, 200e6}, 9},
}

const stageTime = 10 * time.Second

// A controller follows a source whose latency and bandwidth change.
func TestControllerFollows(t *testing.T) {
	s := newSimulation(stages[0].source)
	m := s.mount(startBlocks, 64, 64, 90_000)
	var limits, rates []float64 // every 10 ms; MB/s every 100 ms
	for i, stage := range stages {
		s.source = stage.source
		for range stageTime / (100 * ms) {
			bytes := s.bytes
			limits = append(limits, m.limits(100*ms)...)
			rates = append(rates, float64(s.bytes-bytes)/0.1/1e6)
		}
		n := int(stageTime / (10 * ms))
		steady := limits[i*n+n/5:]
		if got := variation(steady); got > 0.3 {
			t.Errorf("stage %d: variation of the limit after 2 s: got %.2f, want 0.3", i, got)
		}
		sum := 0.0
		for _, r := range rates[i*100+20:] {
			sum += r
		}
		if got := sum / 80 * 1e6 / stage.source.rate; got < 0.85 {
			t.Errorf("stage %d: use of the bandwidth after 2 s: got %.2f, want 0.85", i, got)
		}
	}
	if *plotFile != "" {
		if err := os.WriteFile(*plotFile, plot(limits, rates), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

var plotFile = flag.String("plot", "", "draw the trace of TestControllerFollows into a `FILE`, as SVG")

// plot draws limits, one every 10 ms, above MB/s, one every 100 ms. Dashed lines are
// the limit that saturates the source, and its bandwidth.
func plot(limits, rates []float64) []byte {
	var svg bytes.Buffer
	svg.WriteString(`<svg xmlns="http://www.w3.org/2000/svg" width="960" height="440" viewBox="0 0 960 440" font-family="system-ui, sans-serif" font-size="12" role="img">
<title>Limit of blocks in flight and throughput over a source that changes</title>
<rect width="960" height="440" fill="#ffffff"/>
`)
	panel := func(top int, title string, high float64, values []float64, ideal func(stage) float64) {
		const left, width, height = 60.0, 880.0, 150.0
		bottom := float64(top) + height
		y := func(v float64) float64 { return bottom - height*min(v/high, 1) }
		fmt.Fprintf(&svg, `<text x="16" y="%d" font-weight="bold">%s</text>`+"\n", top-12, title)
		for _, v := range []float64{0, high / 2, high} {
			fmt.Fprintf(&svg, `<text x="52" y="%.0f" text-anchor="end">%g</text><line x1="60" x2="940" y1="%[1]g" y2="%[1]g" stroke="#d0d7de"/>`+"\n", y(v), v)
		}
		for i, st := range stages {
			x := left + width*float64(i)/float64(len(stages))
			fmt.Fprintf(&svg, `<text x="%.0f" y="%.0f">%.0f s: %v, %.0f MB/s</text>`+"\n", x, bottom+16, float64(i)*stageTime.Seconds(), st.source.latency, st.source.rate/1e6)
			fmt.Fprintf(&svg, `<line x1="%.0f" x2="%.0f" y1="%.1f" y2="%[3]g" stroke="#8c959f" stroke-dasharray="6 4"/>`+"\n", x, x+width/float64(len(stages)), y(ideal(st)))
		}
		svg.WriteString(`<polyline fill="none" stroke="#bc4c00" points="`)
		for i, v := range values {
			fmt.Fprintf(&svg, "%.1f,%.1f ", left+width*float64(i)/float64(len(values)), y(v))
		}
		svg.WriteString("\"/>\n")
	}
	panel(40, "limit, blocks in flight", 80, limits, func(s stage) float64 { return float64(s.limit) })
	panel(260, "throughput, MB/s", 240, rates, func(s stage) float64 { return s.source.rate / 1e6 })
	svg.WriteString("</svg>\n")
	return svg.Bytes()
}
