package placement

import (
	"context"
	"io"
	"time"

	"github.com/milkweedfs/milkweed/placement/observe"
)

// totals returns what readers have done and waited for since the start.
func (h *Handler) totals() observe.Totals {
	t := observe.Totals{At: time.Now(), Waited: h.waited(), Fills: h.usage.fillOpens.Load(), Peers: h.peerOpens()}
	for l := range len(h.levels.Tiers()) + 1 {
		t.Opens[l] = h.usage.opens[l].Load()
		t.Direct[l] = h.usage.passthrough[l].Load()
	}
	return t
}

// waited returns how long readers waited since the start.
func (h *Handler) waited() observe.Waits {
	w := h.record.Waited()
	w.Latency = w.Latency.Plus(h.names.Waits().Load())
	for i, t := range h.levels.Tiers() {
		w.Tiers[i] = w.Tiers[i].Plus(t.ReadLatency())
	}
	return w
}

// Trace traces opens and reads of this node: see observe.Recorder.
func (h *Handler) Trace(want func(*observe.TraceEvent) bool) (*observe.Trace, error) {
	return h.record.Trace(want)
}

// record returns the recorder of the reader: nil for another node.
func (f *file) record() *observe.Recorder {
	if f.forPeer {
		return nil
	}
	return f.handler.record
}

// trace begins an operation of a reader, and returns the context for its work. The operation is nil if
// nobody traces.
func (f *file) trace(ctx context.Context) (context.Context, *observe.Operation) {
	if r := f.record(); r.IsTracing() {
		return r.Begin(ctx, f.entry.Path())
	}
	return ctx, nil
}

// endOpen ends an open that is traced, unless op is nil.
func (f *file) endOpen(op *observe.Operation, err error) {
	if op != nil {
		op.End(observe.TraceEvent{Size: f.entry.Size(), Failed: err != nil, Place: f.current.Load().place()})
	}
}

// endRead ends a read of n bytes in v, which is nil if the read failed before. It does nothing if op is
// nil.
func endRead(op *observe.Operation, v *view, off int64, n int, err error) {
	if op != nil {
		op.End(observe.TraceEvent{Read: true, Offset: off, Size: int64(n), Failed: err != nil && err != io.EOF, Place: v.place()})
	}
}

// place returns where a view reads the file itself.
func (v *view) place() observe.TracePlace {
	if v == nil || v.inPieces {
		return observe.TracePlace{}
	}
	return observe.TracePlace{Known: true, Level: v.level, Fill: v.fill != nil, Peers: v.atPeers}
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

// await waits until the block is in memory, or until the flight has landed, and records the wait.
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
		h.record.Fill(ctx, took)
	case f.foreign:
		h.record.Peers(ctx, took)
	case err != nil || fl.timing == timing{}: // the source did not answer
		h.record.Source(ctx, took, took)
	default:
		h.record.Source(ctx, took, fl.timing.unanswered(start, end))
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
		h.record.Fill(ctx, took)
	case f.foreign:
		h.record.Peers(ctx, took)
	case err != nil || f.err != nil:
		h.record.Latency(ctx, took)
	default:
		opening := max(0, f.opened.Sub(start))
		creating := max(0, took-opening)
		h.record.Latency(ctx, opening)
		h.record.Tier(ctx, f.tier.Level(), creating)
	}
	return err
}
