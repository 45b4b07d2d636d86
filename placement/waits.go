package placement

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

// plus returns the sum of w and what was observed in l.
func (w Wait) plus(l tiers.Latency) Wait {
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

// waited returns the totals since the start.
func (h *Handler) waited() (w Waits) {
	w.Latency = w.Latency.plus(h.waits.latency.Load()).plus(h.names.Waits().Load())
	w.Bandwidth = w.Bandwidth.plus(h.waits.bandwidth.Load())
	w.Peers = w.Peers.plus(h.waits.peers.Load())
	w.Fill = w.Fill.plus(h.waits.fill.Load())
	for i, t := range h.levels.Tiers() {
		w.Tiers[i] = w.Tiers[i].plus(h.waits.opens[i].Load()).plus(t.ReadLatency())
	}
	return w
}

// atSource records a wait for the source, of which a part was spent before it began to answer.
func (w *waits) atSource(ctx context.Context, took, latency time.Duration) {
	latency = max(0, min(latency, took))
	if latency > 0 {
		w.latency.Observe(latency)
		attribute(ctx, CauseLatency, latency)
	}
	if rest := took - latency; rest > 0 {
		w.bandwidth.Observe(rest)
		attribute(ctx, CauseBandwidth, rest)
	}
}

// A timing is the request to the source that fetches a block. The fetch sets it before the block
// arrives; readers use it after that.
type timing struct{ began, answered time.Time }

// unanswered returns the part of the time from start to end in which the source had the
// request and had not begun to answer.
func (t timing) unanswered(start, end time.Time) time.Duration {
	if t.began.After(start) {
		start = t.began
	}
	if t.answered.Before(end) {
		end = t.answered
	}
	return end.Sub(start)
}

// await waits until the bytes are in memory, or until the flight has landed, and records the wait.
func (f *fill) await(ctx context.Context, fl *flight) error {
	h := f.handler
	switch {
	case isClosed(fl.arrived):
		return nil
	case isForPeer(ctx): // it records the wait itself
		return fl.wait(ctx)
	}
	own, start := fl.demanded.Swap(false), time.Now()
	err := fl.wait(ctx)
	end := time.Now()
	switch took := end.Sub(start); {
	case !own:
		h.waits.fill.Observe(took)
		attribute(ctx, CauseFill, took)
	case f.foreign:
		h.waits.peers.Observe(took)
		attribute(ctx, CausePeers, took)
	case err != nil || fl.timing == timing{}: // the source did not answer
		h.waits.atSource(ctx, took, took)
	default:
		h.waits.atSource(ctx, took, fl.timing.unanswered(start, end))
	}
	return err
}

// awaitStart waits until f has started, and records the wait. The reader whose open has caused the
// fill waits for the source, and after that for the tier in which the copy is created.
func (h *Handler) awaitStart(ctx context.Context, f *fill, first bool) error {
	switch {
	case isClosed(f.started):
		return nil
	case isForPeer(ctx):
		return waitFor(ctx, f.started)
	}
	start := time.Now()
	err := waitFor(ctx, f.started)
	took := time.Since(start)
	switch {
	case !first:
		h.waits.fill.Observe(took)
		attribute(ctx, CauseFill, took)
	case f.foreign:
		h.waits.peers.Observe(took)
		attribute(ctx, CausePeers, took)
	case err != nil || f.err != nil:
		h.waits.latency.Observe(took)
		attribute(ctx, CauseLatency, took)
	default:
		opening := max(0, f.opened.Sub(start))
		creating := max(0, took-opening)
		h.waits.latency.Observe(opening)
		h.waits.opens[f.tier.Level()-1].Observe(creating)
		attribute(ctx, CauseLatency, opening)
		attribute(ctx, CauseTier, creating)
	}
	return err
}
