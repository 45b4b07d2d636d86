package placement

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/tiers"
)

// Limits of tracing.
const (
	MaxTraces   = 4    // at a time
	traceEvents = 4096 // that one Trace holds
)

// ErrTraces is the error of Trace if there are MaxTraces.
var ErrTraces = errors.New("too many traces")

// A Cause is what the reader of a TraceEvent has waited for, as in Waits.
type Cause int

// The causes. If there were several waits, the cause is that of the longest.
const (
	NoCause Cause = iota // there was no such wait
	CauseLatency
	CauseBandwidth
	CausePeers
	CauseFill
	CauseTier
	causes
)

// A TraceEvent is one open, or one attempt of a read, by a reader of the mount. A read that fails in one
// place and is repeated in another has an event for each.
type TraceEvent struct {
	Began  time.Time
	Took   time.Duration
	Read   bool   // otherwise it is an open
	Path   string // as the container has it
	Place  TracePlace
	Offset int64 // of a read; -1 if it was spliced, since the front end alone knows the offset
	Size   int64 // of a read: the bytes read; of an open: that of the file
	Cause  Cause
	Failed bool
}

// A TracePlace is where a file was read.
type TracePlace struct {
	Known bool // otherwise it was read nowhere: the file is empty, or the operation failed before
	Level tiers.Level
	Fill  bool // in the fill of a copy on that level
	Peers bool // at the peers
}

// A Trace receives events until it is closed.
type Trace struct {
	handler *Handler
	want    func(*TraceEvent) bool
	events  chan TraceEvent
	dropped atomic.Int64
}

// traces are the open Traces of a handler.
type traces struct {
	open atomic.Pointer[[]*Trace] // nil if there are none; what it points to does not change

	mu panics.Mutex // held while open changes
}

// Trace starts to trace the opens and reads for which want returns true. Readers call want, which must not
// block. They never wait for the Trace: it holds traceEvents events, and drops others. Requests of
// other nodes are not traced. The caller closes the Trace.
func (h *Handler) Trace(want func(*TraceEvent) bool) (*Trace, error) {
	t := &Trace{handler: h, want: want, events: make(chan TraceEvent, traceEvents)}
	h.traces.mu.Lock()
	defer h.traces.mu.Unlock()
	var all []*Trace
	if old := h.traces.open.Load(); old != nil {
		all = *old
	}
	if len(all) == MaxTraces {
		return nil, ErrTraces
	}
	all = append(slices.Clone(all), t)
	h.traces.open.Store(&all)
	return t, nil
}

// Events returns the channel of the events, which is never closed.
func (t *Trace) Events() <-chan TraceEvent { return t.events }

// Dropped returns how many events were dropped so far.
func (t *Trace) Dropped() int64 { return t.dropped.Load() }

// Close ends the trace.
func (t *Trace) Close() {
	all := &t.handler.traces
	all.mu.Lock()
	defer all.mu.Unlock()
	left := slices.DeleteFunc(slices.Clone(*all.open.Load()), func(o *Trace) bool { return o == t })
	if len(left) == 0 {
		all.open.Store(nil)
		return
	}
	all.open.Store(&left)
}

// An operation is an open or a read that is traced. A nil one is not traced.
type operation struct {
	file  *file
	outer *operation // the read of the file of which this reads a piece; nil: it reads no piece
	began time.Time

	place  TracePlace           // of the last piece, if it reads pieces
	waited [causes]atomic.Int64 // nanoseconds by cause
}

// operationKey is the context key of an operation.
type operationKey struct{}

// trace begins an operation of a reader, and returns the context for its work. If nobody traces, it
// costs the load of a pointer.
func (f *file) trace(ctx context.Context) (context.Context, *operation) {
	if f.handler.traces.open.Load() == nil || f.forPeer {
		return ctx, nil
	}
	if outer, ok := ctx.Value(operationKey{}).(*operation); ok {
		return ctx, &operation{file: f, outer: outer}
	}
	o := &operation{file: f, began: time.Now()}
	return context.WithValue(ctx, operationKey{}, o), o
}

// attribute records a wait of the operation that ctx belongs to, if that is traced.
func attribute(ctx context.Context, c Cause, took time.Duration) {
	if o, ok := ctx.Value(operationKey{}).(*operation); ok {
		o.waited[c].Add(int64(took))
	}
}

// endOpen ends an open.
func (o *operation) endOpen(err error) {
	if o != nil {
		o.end(o.file.current.Load(), TraceEvent{Size: o.file.entry.Size(), Failed: err != nil})
	}
}

// endRead ends a read of n bytes in v, which is nil if the read failed before.
func (o *operation) endRead(v *view, off int64, n int, err error) {
	if o != nil {
		o.end(v, TraceEvent{Read: true, Offset: off, Size: int64(n), Failed: err != nil && err != io.EOF})
	}
}

func (o *operation) end(v *view, e TraceEvent) {
	if v != nil && !v.inPieces {
		o.place = TracePlace{Known: true, Level: v.level, Fill: v.fill != nil, Peers: v.atPeers}
	}
	if o.outer != nil {
		o.outer.place = o.place
		return
	}
	e.Began, e.Took = o.began, time.Since(o.began)
	e.Path, e.Place, e.Cause = o.file.entry.Path(), o.place, o.cause()
	all := o.file.handler.traces.open.Load()
	if all == nil {
		return
	}
	for _, t := range *all {
		t.add(&e)
	}
}

// cause returns the cause of the longest wait. Reads of copies are measured by their tier alone.
func (o *operation) cause() Cause {
	longest, took := NoCause, int64(0)
	for c := range o.waited {
		if w := o.waited[c].Load(); w > took {
			longest, took = Cause(c), w
		}
	}
	if p := o.place; longest == NoCause && p.Known && !p.Fill && p.Level != tiers.AtSource {
		return CauseTier
	}
	return longest
}

// add gives the trace an event, or counts it if there is no room.
func (t *Trace) add(e *TraceEvent) {
	if !t.want(e) {
		return
	}
	select {
	case t.events <- *e:
	default:
		t.dropped.Add(1)
	}
}
