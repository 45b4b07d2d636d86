package placement

import (
	"math"
	"math/bits"
	"sync"
	"time"
)

// A controller limits the background requests in flight at the source. It measures how long
// requests take, and compares that with how long they take while the source is not busy. A source
// that is not busy answers more requests in the same time. When it is saturated, more requests only
// wait longer, also those of readers and of other clients.
//
// The algorithm is FAST TCP (Wei, Jin, Low and Hegde, "FAST TCP: Motivation, Architecture,
// Algorithms, Performance", IEEE/ACM Transactions on Networking 14(6), 2006), which has its
// principle from TCP Vegas. Several controllers that share a source get equal shares of it.
// After each window of requests
//
//	limit ← (limit + limit · gradient + queue) / 2
//	gradient = min(1, tolerance · unloaded latency / measured latency)
//
// so that about queue requests wait at the source, and the limit follows from the latency if there
// are more. Tolerance is from Netflix' Gradient2 (github.com/Netflix/concurrency-limits). Until
// the latency first grows, each window doubles the limit (slow start).
//
// The unloaded latency is the lowest one that was measured, and would be outdated after the source
// has become slower. As in BBR ("BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016),
// the limit is halved for one window from time to time, and the latency of that window replaces it.
//
// Latencies differ by the size of the request and whether the file had to be opened. Each kind of
// request has an unloaded latency, and the ratios are averaged. The mean is geometric: a request
// that takes a hundred times as long as others is one of many.
//
// The unit of the limit is one block in flight: a request of up to 1 MiB, or each MiB of a longer
// one.
type controller struct {
	max float64

	mu       sync.Mutex // guards the following
	limit    float64
	starting bool // slow start has not ended
	probing  bool // the limit is halved
	pressed  int  // windows in a row with a low ratio
	probed   time.Time
	window   window
	before   float64 // blocks in flight in the window before this one
	reader   float64 // logarithm of the ratio of demand requests, smoothed
	ratio    float64 // unloaded latency / measured latency
	kinds    [2][2][sizeKinds]kind
}

// A window is a time in which the limit does not change.
type window struct {
	since      time.Time
	busy       float64   // sum of the latencies of requests in seconds, times their blocks
	background float64   // the part of busy that is of background requests
	blocks     int       // of background requests
	sides      [2]sample // background and demand requests that began and ended in the window
}

// A sample is a number of requests, and how their latencies differ. Latencies are natural logarithms
// of seconds.
type sample struct {
	n       int
	squares float64 // sum of the squared differences from the mean of the kind
}

// err returns the standard error of the mean latency.
func (s sample) err() float64 { return math.Sqrt(s.squares) / float64(max(s.n, 1)) }

// A kind is what is known about one kind of request.
type kind struct {
	known    bool
	unloaded float64 // latency
	doubt    float64 // its standard error
	sample           // of the window
	mean     float64
}

// add adds a latency, and returns what it adds to squares.
func (k *kind) add(latency float64) float64 {
	k.n++
	from := latency - k.mean
	k.mean += from / float64(k.n)
	square := from * (latency - k.mean)
	k.squares += square
	return square
}

// sizeKinds is the number of kinds by size. The first is that of up to 4 KiB, the sizes of each
// further one are twice as large.
const sizeKinds = 14

const (
	startRequests  = 4    // the limit at the start
	queueRequests  = 2    // requests that wait at the source
	queueDemand    = 1    // the same while readers see a higher latency
	tolerance      = 1.1 // growth of the latency that does not matter
	slowStartRatio = 0.8  // the ratio that ends slow start
	maxDecrease    = 0.5  // of the limit, by one window

	minWindow     = 20 * time.Millisecond
	longWindow    = time.Second // a window with few requests ends then
	minRequests   = 8           // of a window, and of a kind whose unloaded latency is measured
	maxRequests   = 64          // that a window needs
	precision     = 0.06        // standard error of the background latency that ends a window
	probeInterval = 10 * time.Second
	probeEarly    = time.Second // at least between two probes
	probeRatio    = 0.6         // the ratio that causes an early probe, if it stays below that
	probeWindows  = 3           // for so many windows
	probeLoad     = 0.7         // a probe is valid if the blocks in flight fell to this
)

// newController makes the controller of at most max blocks in flight. Requests have up to stride
// blocks.
func newController(max, stride int) *controller {
	return &controller{
		max:      float64(max),
		limit:    float64(min(startRequests*stride, max)),
		starting: true,
		ratio:    1,
	}
}

// A request describes a request to the source that has ended.
type request struct {
	start, end time.Time
	bytes      int64
	opened     bool // it includes the open of the file
	demand     bool // a reader has waited for it
}

// Limit returns the number of blocks that background requests may have in flight.
func (c *controller) Limit() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.probing {
		return max(1, int(c.limit/2))
	}
	return max(1, int(c.limit))
}

// Slowdown returns the latency of the last window, divided by the unloaded latency.
func (c *controller) Slowdown() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return 1 / c.ratio
}

// Observe records a request that has ended. A failed request does not count.
func (c *controller) Observe(r request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &c.window
	if w.since.IsZero() || r.end.Sub(w.since) > probeInterval { // there were no requests for a time
		*w = window{since: r.end}
		c.forget()
		return
	}
	if r.start.Before(w.since) { // it was slowed down by those of the window before
		return
	}
	latency := max(r.end.Sub(r.start), time.Microsecond).Seconds()
	n := blocks(max(r.bytes, 1))
	w.busy += latency * float64(n)
	if !r.demand {
		w.background += latency * float64(n)
		w.blocks += n
	}
	side := &w.sides[index(r.demand)]
	side.n++
	side.squares += c.kindOf(r).add(math.Log(latency))
	if c.complete(r.end.Sub(w.since)) {
		c.adapt(r.end)
	}
}

func (c *controller) kindOf(r request) *kind {
	size := bits.Len64(uint64(max(r.bytes-1, 0)) >> 12)
	return &c.kinds[index(r.demand)][index(r.opened)][min(size, sizeKinds-1)]
}

func index(b bool) int {
	if b {
		return 1
	}
	return 0
}

// complete reports whether the window has enough requests after some time.
func (c *controller) complete(after time.Duration) bool {
	w := &c.window
	n := w.sides[0].n + w.sides[1].n
	if after < minWindow || n < minRequests {
		return false
	}
	if after >= longWindow {
		return true
	}
	if float64(n) < min(2*c.limit/w.meanBlocks(), maxRequests) {
		return false
	}
	return c.starting || w.sides[0].err() < precision
}

// meanBlocks returns the mean size of a background request.
func (w *window) meanBlocks() float64 {
	return float64(max(w.blocks, 1)) / float64(max(w.sides[0].n, 1))
}

// forget begins the measurement of the present window anew.
func (c *controller) forget() {
	for d := range c.kinds {
		for o := range c.kinds[d] {
			for s := range c.kinds[d][o] {
				k := &c.kinds[d][o][s]
				k.sample, k.mean = sample{}, 0
			}
		}
	}
}

// adapt ends a window.
func (c *controller) adapt(now time.Time) {
	w := c.window
	elapsed := now.Sub(w.since).Seconds()
	load := w.busy / elapsed
	used := w.background / elapsed
	valid := c.probing && load <= probeLoad*c.before
	risen := c.learn(valid)
	background, demand := c.ratios(w)
	c.forget()
	c.window = window{since: now}
	c.ratio = math.Exp(min(background, demand))

	if c.probing {
		c.probing = false
		if risen {
			c.starting = true
		}
		return
	}
	c.before = load
	queue := queueRequests * w.meanBlocks()
	if tolerance*math.Exp(demand) < 1 {
		queue = queueDemand * w.meanBlocks()
	}
	next := c.limit
	switch {
	case c.starting && c.ratio >= slowStartRatio:
		next *= 2
	default:
		c.starting = false
		next = (next + next*min(1, max(maxDecrease, tolerance*c.ratio)) + queue) / 2
	}
	if next > c.limit && used < c.limit/2 { // the limit does not matter
		next = c.limit
	}
	c.limit = min(next, c.max)
	c.pressed++
	if c.ratio >= probeRatio {
		c.pressed = 0
	}
	if since := now.Sub(c.probed); since > probeInterval || c.pressed >= probeWindows && since > probeEarly {
		c.probing, c.probed, c.pressed = !c.probed.IsZero() || c.pressed > 0, now, 0
	}
}

// learn updates the unloaded latencies after a window. replace means that the window was a valid
// probe. It reports whether latencies have risen much.
func (c *controller) learn(replace bool) (risen bool) {
	for d := range c.kinds {
		for o := range c.kinds[d] {
			for s := range c.kinds[d][o] {
				k := &c.kinds[d][o][s]
				if k.n == 0 {
					continue
				}
				switch {
				case !k.known:
					k.known, k.unloaded, k.doubt = true, k.mean, k.err()
				case replace && k.n >= minRequests:
					risen = risen || k.mean > k.unloaded-math.Log(probeRatio)
					k.unloaded, k.doubt = k.mean, k.err()
				case k.mean+2*math.Hypot(k.err(), k.doubt) < k.unloaded:
					k.unloaded, k.doubt = k.mean, k.err()
				}
			}
		}
	}
	return risen
}

// ratios returns the logarithms of the ratios of background and of demand requests.
func (c *controller) ratios(w window) (background, demand float64) {
	var sums [2]float64
	for d := range c.kinds {
		for o := range c.kinds[d] {
			for _, k := range c.kinds[d][o] {
				sums[d] += float64(k.n) * (k.unloaded + k.doubt - k.mean)
			}
		}
	}
	if n := w.sides[0].n; n > 0 {
		background = sums[0]/float64(n) + w.sides[0].err()
	}
	if n := w.sides[1].n; n == 0 {
		c.reader = 0
	} else {
		x := sums[1]/float64(n) + 2*w.sides[1].err()
		c.reader += (x - c.reader) * float64(n) / float64(n+minRequests)
	}
	return background, c.reader
}
