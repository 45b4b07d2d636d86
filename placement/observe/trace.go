package observe

import (
	"context"
	"errors"
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
	all     *traces // which it is one of
	want    func(*TraceEvent) bool
	events  chan TraceEvent
	dropped atomic.Int64
}

// traces are the open Traces of a Recorder.
type traces struct {
	open atomic.Pointer[[]*Trace] // nil if there are none; what it points to does not change

	mu panics.Mutex // held while open changes
}

// Trace starts to trace the opens and reads for which want returns true. Readers call want, which must not
// block. They never wait for the Trace: it holds traceEvents events, and drops others. Requests of
// other nodes are not traced. The caller closes the Trace.
func (r *Recorder) Trace(want func(*TraceEvent) bool) (*Trace, error) {
	t := &Trace{all: &r.traces, want: want, events: make(chan TraceEvent, traceEvents)}
	r.traces.mu.Lock()
	defer r.traces.mu.Unlock()
	var all []*Trace
	if old := r.traces.open.Load(); old != nil {
		all = *old
	}
	if len(all) == MaxTraces {
		return nil, ErrTraces
	}
	all = append(slices.Clone(all), t)
	r.traces.open.Store(&all)
	return t, nil
}

// Events returns the channel of the events, which is never closed.
func (t *Trace) Events() <-chan TraceEvent { return t.events }

// Dropped returns how many events were dropped so far.
func (t *Trace) Dropped() int64 { return t.dropped.Load() }

// Close ends the trace.
func (t *Trace) Close() {
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	left := slices.DeleteFunc(slices.Clone(*t.all.open.Load()), func(o *Trace) bool { return o == t })
	if len(left) == 0 {
		t.all.open.Store(nil)
		return
	}
	t.all.open.Store(&left)
}

// An Operation is an open or a read that is traced.
type Operation struct {
	all   *traces
	path  string
	outer *Operation // the read of the file of which this reads a piece; nil: it reads no piece
	began time.Time

	place  TracePlace           // of the last piece, if it reads pieces
	waited [causes]atomic.Int64 // nanoseconds by cause
}

// operationKey is the context key of an Operation.
type operationKey struct{}

// IsTracing reports whether there is a Trace. It costs the load of a pointer.
func (r *Recorder) IsTracing() bool { return r != nil && r.traces.open.Load() != nil }

// Begin begins an operation of a reader on the file at path, and returns the context for its work. If ctx
// is that of another operation, the new one is of a piece of its file, and has its path. The caller calls End.
func (r *Recorder) Begin(ctx context.Context, path string) (context.Context, *Operation) {
	if outer, ok := ctx.Value(operationKey{}).(*Operation); ok {
		return ctx, &Operation{outer: outer}
	}
	o := &Operation{all: &r.traces, path: path, began: time.Now()}
	return context.WithValue(ctx, operationKey{}, o), o
}

// attribute records a wait of the operation that ctx belongs to, if that is traced.
func attribute(ctx context.Context, c Cause, took time.Duration) {
	if o, ok := ctx.Value(operationKey{}).(*Operation); ok {
		o.waited[c].Add(int64(took))
	}
}

// End ends an operation. Of e, the caller sets Read, Offset, Size and Failed, and Place if the file itself
// was read, and not a piece of it.
func (o *Operation) End(e TraceEvent) {
	if e.Place.Known {
		o.place = e.Place
	}
	if o.outer != nil {
		o.outer.place = o.place
		return
	}
	e.Began, e.Took = o.began, time.Since(o.began)
	e.Path, e.Place, e.Cause = o.path, o.place, o.cause()
	if all := o.all.open.Load(); all != nil {
		for _, t := range *all {
			t.add(&e)
		}
	}
}

// cause returns the cause of the longest wait. Reads of copies are measured by their tier alone.
func (o *Operation) cause() Cause {
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
