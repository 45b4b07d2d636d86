package placement

import (
	"math"
	"math/bits"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// A controller limits the background requests in flight at the source. It measures the latency of
// requests, and compares it with their latency while the source is not busy. A source that is not
// busy answers more requests in the same time. When it is saturated, more requests only make all of
// them wait longer, also those of readers and of other clients.
//
// The algorithm is FAST TCP (Wei, Jin, Low, Hegde: "FAST TCP: Motivation, Architecture, Algorithms,
// Performance", IEEE/ACM Transactions on Networking 14(6), 2006), which refines TCP Vegas. After
// each window of requests
//
//	gradient = tolerance · unloaded latency / latency
//	limit    ← (limit + gradient · limit + queue) / 2
//
// Several controllers at one source thus converge to equal shares of it. The tolerance is that of
// Gradient2 in Netflix' concurrency-limits (github.com/Netflix/concurrency-limits). While the
// gradient is 1 or more, the limit grows by a quarter in each window, and doubles before the
// latency has grown for the first time (slow start).
//
// Requests differ in size, and by whether they include the open of the file. The latency of each
// kind is compared with that of the same kind. The gradient is that of background requests or of
// demand requests, whichever is lower. The mean latency is the geometric mean, so that one request
// that takes a hundred times as long as others does not outweigh them. It is compared within its
// standard error, since latencies are random.
//
// The unloaded latency is the lowest that was measured. It would never rise again when the source
// becomes slower. As in BBR (Cardwell and others: "BBR: Congestion-Based Congestion Control", ACM
// Queue 14(5), 2016), the limit is therefore lowered for one window from time to time, which is a
// probe: the latency of that window replaces the unloaded one.
//
// The unit of the limit is a block in flight: a request of up to 1 MiB, or each MiB of a longer
// one. A limit that suits small files would be many times as many bytes when large ones follow. The
// bytes in flight are therefore limited, too, as BBR does it: to headroom times those that the source
// delivers in the unloaded latency.
//
// The methods may be called concurrently.
type controller struct {
	least float64 // of bytes

	mu       panics.Mutex // guards the following
	max      float64      // of limit
	limit    float64
	bytes    float64       // in flight, at most
	rate     float64       // bytes per second that the source delivers to background requests
	starting bool          // slow start has not ended
	probing  bool          // the window is a probe
	earliest time.Time     // of the next probe
	due      time.Time     // when it is made in any case
	interval time.Duration // between two probes
	low      int           // windows in a row with a ratio below probeRatio
	ratio    float64       // unloaded latency / latency, of the last window
	demand   float64       // logarithm of the same ratio of demand requests, smoothed
	load     float64       // blocks in flight in the last window that was no probe
	window   window
	kinds    [2 * 2 * sizeKinds]kind
}

// A window is a time in which the limit does not change.
type window struct {
	since      time.Time
	busy       float64   // seconds of latency of all requests that ended, times their blocks
	background float64   // the part of busy that is of background requests
	bytes      int64     // of all background requests that ended
	blocks     int       // of the background requests in sides
	sides      [2]sample // requests that began and ended in the window: in the background, demand
}

// A sample is a number of latencies. Latencies are natural logarithms of seconds.
type sample struct {
	n       int
	squares float64 // sum of the squared differences from the mean of the kind
}

// deviation returns the standard error of the mean.
func (s sample) deviation() float64 { return math.Sqrt(s.squares) / float64(max(s.n, 1)) }

// A kind is what is known about one kind of request.
type kind struct {
	known    bool
	unloaded float64 // latency
	doubt    float64 // standard error of unloaded

	sample         // in the window
	mean   float64 // latency in the window
}

// add adds a latency (Welford's algorithm), and returns what it adds to squares.
func (k *kind) add(latency float64) float64 {
	k.n++
	from := latency - k.mean
	k.mean += from / float64(k.n)
	square := from * (latency - k.mean)
	k.squares += square
	return square
}

const (
	queueRequests  = 1    // that wait at a saturated source
	tolerance      = 1.1  // by which the latency may grow
	growth         = 0.25 // of the limit, in a window in which the latency has not grown
	maxDecrease    = 0.5  // lower bound of the gradient
	slowStartRatio = 0.7  // the ratio that ends slow start
	headroom       = 1.25 // of the bytes in flight
	rateMemory     = 0.9  // share of rate that is kept in a window in which less was delivered

	minWindow   = 20 * time.Millisecond
	longWindow  = 250 * time.Millisecond // after which minRequests suffice
	minRequests = 8                      // of a window, and of a kind in a probe
	maxRequests = 64                     // that a window needs if many are in flight
	precision   = 0.06                   // standard error of the background latency that a window needs

	probeShare       = 4                      // by which a probe divides the limit
	maxProbe         = time.Second            // a probe ends then, even without enough requests
	probeLoad        = 0.7                    // a probe is valid if the blocks in flight fell to this share
	minProbeInterval = 500 * time.Millisecond // doubles to maxProbeInterval
	maxProbeInterval = 10 * time.Second
	probePause       = 20  // times the duration of a probe passes at least before the next one
	probeRatio       = 0.6 // a ratio that causes an early probe, if it persists
	probeWindows     = 3   // for so many windows

	sizeKinds = 14 // kinds by size: up to 4 KiB, 8 KiB, and so on
)

// newController makes a controller whose limit is first at the start, and at most max.
func newController(first, max int) *controller {
	return &controller{
		max:      float64(max),
		limit:    float64(min(first, max)),
		least:    blockSize,
		bytes:    float64(first) * blockSize,
		starting: true,
		interval: minProbeInterval,
		ratio:    1,
	}
}

// SetMax changes the bound of the limit. The limit reaches a higher one as it rises in any case.
func (c *controller) SetMax(max int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.max = float64(max)
	c.limit = min(c.limit, c.max)
}

// Limit returns the number of blocks that background requests may have in flight.
func (c *controller) Limit() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	limit, _ := c.limits()
	return limit
}

// Admits reports whether another background request may start while some blocks are in flight, of
// so many bytes together.
func (c *controller) Admits(blocks int, bytes int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	limit, most := c.limits()
	return blocks < limit && float64(bytes) < most
}

// limits returns how many blocks and bytes may be in flight; c.mu must be held.
func (c *controller) limits() (blocks int, bytes float64) {
	if c.probing {
		return max(1, int(c.limit/probeShare)), max(1, c.bytes/probeShare)
	}
	return max(1, int(c.limit)), c.bytes
}

// Slowdown returns the latency of the last window, divided by the unloaded latency.
func (c *controller) Slowdown() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return 1 / c.ratio
}

// A request is a request to the source that has succeeded.
type request struct {
	start, end time.Time
	bytes      int64
	opened     bool // it includes the open of the file
	demand     bool // a reader needs it
}

// kind returns the index of the kind of the request.
func (r request) kind() int {
	i := min(bits.Len64(uint64(max(r.bytes-1, 0))>>12), sizeKinds-1)
	if r.opened {
		i += sizeKinds
	}
	if r.demand {
		i += 2 * sizeKinds
	}
	return i
}

// side returns the index in window.sides of the requests of a kind.
func side(kind int) int { return kind / (2 * sizeKinds) }

// Observe records a request. The ends of requests do not decrease from call to call, apart from
// small differences.
func (c *controller) Observe(r request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &c.window
	if w.since.IsZero() || r.end.Sub(w.since) > maxProbeInterval {
		c.begin(r.end)
		return
	}
	latency, n := max(r.end.Sub(r.start), time.Microsecond).Seconds(), blocks(max(r.bytes, 1))
	w.busy += latency * float64(n) // also of those that began before, by Little's law
	if !r.demand {
		w.background += latency * float64(n)
		w.bytes += r.bytes
	}
	if r.start.Before(w.since) { // its latency is also that of the window before
		return
	}
	if !r.demand {
		w.blocks += n
	}
	i := r.kind()
	s := &w.sides[side(i)]
	s.n++
	s.squares += c.kinds[i].add(math.Log(latency))
	if c.complete(r.end.Sub(w.since)) {
		c.adapt(r.end)
	}
}

// begin begins a window.
func (c *controller) begin(now time.Time) {
	c.window = window{since: now}
	for i := range c.kinds {
		k := &c.kinds[i]
		k.sample, k.mean = sample{}, 0
	}
}

// complete reports whether the window has enough requests after some time.
func (c *controller) complete(after time.Duration) bool {
	w := &c.window
	n := w.sides[0].n + w.sides[1].n
	round := w.busy / after.Seconds() / w.meanBlocks() // requests in flight
	switch {
	case c.probing && after >= maxProbe: // of a source that takes long
		return true
	case after < minWindow || n < minRequests || float64(n) < min(round, maxRequests):
		return false // most requests that began in the window are still in flight
	case after >= longWindow || c.starting:
		return true
	}
	return float64(n) >= min(2*round, maxRequests) && w.sides[0].deviation() < precision
}

// meanBlocks returns the mean number of blocks of background requests.
func (w *window) meanBlocks() float64 {
	return float64(max(w.blocks, 1)) / float64(max(w.sides[0].n, 1))
}

// adapt ends a window and begins the next one.
func (c *controller) adapt(now time.Time) {
	w := c.window
	elapsed := now.Sub(w.since).Seconds()
	load := w.busy / elapsed
	slower := c.learn(c.probing && load <= probeLoad*c.load)
	c.compare()
	if !c.probing {
		c.limitBytes(float64(w.bytes) / elapsed)
	}
	c.begin(now)
	if c.probing {
		c.endProbe(now, now.Sub(w.since), slower)
		return
	}
	c.load = load
	next := c.next(queueRequests * w.meanBlocks())
	if next < c.limit || w.background/elapsed >= c.limit/2 { // otherwise the limit is not used
		c.limit = min(next, c.max)
	}
	c.low++
	if c.ratio >= probeRatio {
		c.low = 0
	}
	c.probing = !c.starting && now.After(c.due) || c.low >= probeWindows && now.After(c.earliest)
}

// endProbe ends a probe that took a time. slower means that the source has become much slower.
func (c *controller) endProbe(now time.Time, took time.Duration, slower bool) {
	c.probing, c.low = false, 0
	if slower {
		c.starting, c.interval = true, minProbeInterval
	}
	c.earliest = now.Add(max(minProbeInterval, probePause*took))
	c.due = now.Add(max(c.interval, probePause*took))
	c.interval = min(2*c.interval, maxProbeInterval)
}

// next returns the next limit, with which some blocks wait at a saturated source.
func (c *controller) next(queue float64) float64 {
	if c.starting = c.starting && c.ratio >= slowStartRatio && c.limit < c.max; c.starting {
		return 2 * c.limit
	}
	gradient := tolerance * c.ratio
	if gradient >= 1 {
		return c.limit + max(queue/2, growth*c.limit)
	}
	return (c.limit + max(maxDecrease, gradient)*c.limit + queue) / 2
}

// limitBytes limits the bytes in flight after a window in which rate bytes per second were
// delivered.
func (c *controller) limitBytes(rate float64) {
	c.rate = max(rate, rateMemory*c.rate)
	slowest := math.Inf(-1)
	for i, k := range c.kinds {
		if side(i) == 0 && k.n > 0 {
			slowest = max(slowest, k.unloaded+k.squares/float64(2*k.n)) // the arithmetic mean, if it is log-normal
		}
	}
	share := headroom
	if c.starting {
		share = 2
	}
	c.bytes = max(c.least, share*c.rate*math.Exp(slowest))
}

// learn updates the unloaded latencies at the end of a window. probe means that the window was a
// valid probe. learn reports whether the source has become much slower.
func (c *controller) learn(probe bool) (slower bool) {
	for i := range c.kinds {
		k := &c.kinds[i]
		switch {
		case k.n == 0:
			continue
		case !k.known:
		case probe && k.n >= minRequests:
			slower = slower || k.mean > k.unloaded-math.Log(probeRatio)
		case k.mean+2*math.Hypot(k.deviation(), k.doubt) >= k.unloaded:
			continue
		}
		k.known, k.unloaded, k.doubt = true, k.mean, k.deviation()
	}
	return slower
}

// compare sets the ratios at the end of a window.
func (c *controller) compare() {
	var logs [2]float64
	for i, k := range c.kinds {
		logs[side(i)] += float64(k.n) * (k.unloaded + k.doubt - k.mean)
	}
	background, readers := c.window.sides[0], c.window.sides[1]
	c.ratio = 1
	if background.n > 0 {
		c.ratio = math.Exp(logs[0]/float64(background.n) + background.deviation())
	}
	if readers.n == 0 {
		c.demand = 0
		return
	}
	n := float64(readers.n)
	c.demand += (logs[1]/n + 2*readers.deviation() - c.demand) * n / (n + minRequests)
	c.ratio = min(c.ratio, math.Exp(c.demand))
}
