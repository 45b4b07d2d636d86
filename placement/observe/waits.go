package observe

import (
	"context"
	"time"

	"github.com/milkweedfs/milkweed/tiers"
)

// waits count how long readers waited, by cause. A reader is one request of the kernel: if a
// process has several in flight, as with readahead, the time of each counts. Requests that were
// answered from the page cache, and reads in passthrough, never reach the daemon.
//
// The causes:
//
//   - Source, latency. A request for names or attributes that the source had to answer
//     (Container.Waits); an open of a file at the source; and the part of a read at the source
//     until it began to answer. If the source is a drivers.Streamer, that is the time until
//     the first byte. For a ReadAt it is at most tiers.Source.BaseLatency.
//   - Source, bandwidth. The rest of such a read: the transfer, a queue before it, a rate limit.
//   - Peers. An open or a read of a file that comes from other nodes.
//   - Fill. The reader waits for a block, or for an open, that another reader or a worker has
//     requested before.
//   - Tier. The creation and the opens of copies, and the reads from them, by tier. The reads are
//     those of Tier.ReadLatency, which are measured in any case.
//
// A demand fetch belongs to the reader that waits for it first.
type waits struct {
	latency   tiers.Histogram
	bandwidth tiers.Histogram
	peers     tiers.Histogram
	fill      tiers.Histogram
	opens     [tiers.MaxTiers]tiers.Histogram // of copies, and their creation; opens[0] on level 1
}

// A Wait is a number of waits and their total duration.
type Wait struct {
	Count int64
	Time  time.Duration
}

// Plus returns the sum of w and what was observed in l.
func (w Wait) Plus(l tiers.Latency) Wait {
	return Wait{w.Count + int64(l.Count), w.Time + l.Sum}
}

// minus returns the difference of two totals.
func (w Wait) minus(earlier Wait) Wait {
	return Wait{w.Count - earlier.Count, w.Time - earlier.Time}
}

// Waits are the times that readers waited, summed over the readers. A read whose time has a part
// for the latency and one for the bandwidth of the source counts in both.
type Waits struct {
	Latency   Wait                 // of the source
	Bandwidth Wait                 // of the source
	Peers     Wait                 // for other nodes
	Fill      Wait                 // for what another reader or a worker has requested
	Tiers     [tiers.MaxTiers]Wait // for copies: their creation, opens and reads; Tiers[0] on level 1
}

// minus returns the difference of two totals.
func (w Waits) minus(earlier Waits) Waits {
	w.Latency = w.Latency.minus(earlier.Latency)
	w.Bandwidth = w.Bandwidth.minus(earlier.Bandwidth)
	w.Peers = w.Peers.minus(earlier.Peers)
	w.Fill = w.Fill.minus(earlier.Fill)
	for i := range w.Tiers {
		w.Tiers[i] = w.Tiers[i].minus(earlier.Tiers[i])
	}
	return w
}

// Waited returns the totals since the start, without the waits for names and for reads of copies, which
// are recorded elsewhere.
func (r *Recorder) Waited() (w Waits) {
	w.Latency = w.Latency.Plus(r.waits.latency.Load())
	w.Bandwidth = w.Bandwidth.Plus(r.waits.bandwidth.Load())
	w.Peers = w.Peers.Plus(r.waits.peers.Load())
	w.Fill = w.Fill.Plus(r.waits.fill.Load())
	for i := range w.Tiers {
		w.Tiers[i] = w.Tiers[i].Plus(r.waits.opens[i].Load())
	}
	return w
}

// Latency records that the reader that ctx belongs to has waited for the source to begin to answer. The
// other methods do so for other causes.
func (r *Recorder) Latency(ctx context.Context, took time.Duration) {
	if r != nil {
		r.waits.latency.Observe(took)
		attribute(ctx, CauseLatency, took)
	}
}

// Source records a wait for the source, of which a part was spent before it began to answer.
func (r *Recorder) Source(ctx context.Context, took, latency time.Duration) {
	latency = max(0, min(latency, took))
	if latency > 0 {
		r.Latency(ctx, latency)
	}
	if rest := took - latency; rest > 0 && r != nil {
		r.waits.bandwidth.Observe(rest)
		attribute(ctx, CauseBandwidth, rest)
	}
}

// Peers records a wait for another node.
func (r *Recorder) Peers(ctx context.Context, took time.Duration) {
	if r != nil {
		r.waits.peers.Observe(took)
		attribute(ctx, CausePeers, took)
	}
}

// Fill records a wait for what another reader or a worker has requested.
func (r *Recorder) Fill(ctx context.Context, took time.Duration) {
	if r != nil {
		r.waits.fill.Observe(took)
		attribute(ctx, CauseFill, took)
	}
}

// Tier records a wait for the creation or the open of a copy on a level.
func (r *Recorder) Tier(ctx context.Context, l tiers.Level, took time.Duration) {
	if r != nil {
		r.waits.opens[l-1].Observe(took)
		attribute(ctx, CauseTier, took)
	}
}
