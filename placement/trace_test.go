package placement

import (
	"context"
	"errors"
	"testing"
	"time"
)

// An operation has the cause of its longest wait. A trace that is full drops events, and does not block. The last
// one to close leaves none, and there are at most MaxTraces.
func TestTraceBounds(t *testing.T) {
	h := &Handler{}
	var all []*Trace
	for range MaxTraces {
		trace, err := h.Trace(func(e *TraceEvent) bool { return e.Read })
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, trace)
	}
	if _, err := h.Trace(nil); !errors.Is(err, ErrTraces) {
		t.Errorf("one more trace: %v", err)
	}
	for range traceEvents + 5 {
		all[0].add(&TraceEvent{Read: true})
		all[0].add(&TraceEvent{})
	}
	if got, dropped := len(all[0].Events()), all[0].Dropped(); got != traceEvents || dropped != 5 {
		t.Errorf("%d events, %d dropped; want %d and 5", got, dropped, traceEvents)
	}
	for _, trace := range all {
		trace.Close()
	}
	if h.traces.open.Load() != nil {
		t.Error("traces are left")
	}

	o := &operation{}
	ctx := context.WithValue(t.Context(), operationKey{}, o)
	attribute(ctx, CauseLatency, time.Millisecond)
	attribute(ctx, CauseFill, 2*time.Millisecond)
	attribute(t.Context(), CausePeers, time.Hour) // not traced
	if got := o.cause(); got != CauseFill {
		t.Errorf("the cause is %d, want that of the longest wait", got)
	}
}

// If nobody traces, an operation allocates nothing.
func TestTraceIdle(t *testing.T) {
	f, ctx := &file{handler: &Handler{}}, t.Context()
	if n := testing.AllocsPerRun(100, func() {
		_, op := f.trace(ctx)
		op.endRead(nil, 0, 1, nil)
		op.endOpen(nil)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
