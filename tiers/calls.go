package tiers

import (
	"container/list"
	"context"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// Threads bound the calls of storages that may block at once, where the threads of the process are
// limited: a Go program ends when it needs a thread and cannot make one. Calls beyond the bound wait for
// others, and occupy no thread.
type Threads struct {
	Calls int // for how many calls there are threads at the start

	// More makes threads for n more calls, and reports whether that was possible. The process keeps them.
	// It is called while calls wait, at most once a second.
	More func(n int) bool
}

// CallStats describe the calls of storages at one moment.
type CallStats struct {
	Bound   int // how many may be in flight, all storages together; 0: there is no bound
	Waiting int // calls that wait for others
}

const (
	// maxCalls bounds the operations on the source in flight, abandoned ones included. An operation that
	// hangs takes a thread, and a Go program ends when it has 10,000.
	maxCalls = 4096

	// moreCalls is by how many calls a bound is raised at once.
	moreCalls = 64

	// morePause is the time between two attempts to raise a bound.
	morePause = time.Second
)

// A bound admits a number of calls. Further callers wait, and are admitted in the order in which they came.
// A nil bound admits all.
type bound struct {
	more func(n int) bool // see Threads.More; nil: the bound is fixed

	mu      panics.Mutex // guards the following
	limit   int
	used    int
	waiting list.List // of channels, each closed when its caller is admitted
	tried   time.Time // when more was called last
}

// acquire waits until a call is admitted, or ctx is done.
func (b *bound) acquire(ctx context.Context) error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	if b.used < b.limit && b.waiting.Len() == 0 {
		b.used++
		b.mu.Unlock()
		return nil
	}
	admitted := make(chan struct{})
	place := b.waiting.PushBack(admitted)
	now := time.Now()
	try := b.more != nil && b.limit < maxCalls && now.Sub(b.tried) >= morePause
	if try {
		b.tried = now
	}
	b.mu.Unlock()
	if try {
		b.raise()
	}
	select {
	case <-admitted:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	select {
	case <-admitted:
		b.mu.Unlock()
		b.release()
	default:
		b.waiting.Remove(place)
		b.mu.Unlock()
	}
	return context.Cause(ctx)
}

// raise raises the limit, if there can be more threads.
func (b *bound) raise() {
	if !b.more(moreCalls) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limit += moreCalls
	b.admit()
}

// release ends a call that was admitted.
func (b *bound) release() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used--
	b.admit()
}

// admit admits callers that wait. b.mu must be held.
func (b *bound) admit() {
	for first := b.waiting.Front(); first != nil && b.used < b.limit; first = b.waiting.Front() {
		b.used++
		close(b.waiting.Remove(first).(chan struct{}))
	}
}

// addTo adds the bound to s.
func (b *bound) addTo(s *CallStats) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Bound += b.limit
	s.Waiting += b.waiting.Len()
}

// MaxClosing is how many files are closed at once where the threads are limited; Threads.Calls does not
// include them.
const MaxClosing = maxHung

// share bounds the calls of the source and of each tier. A storage that hangs uses up its own share only.
func (h *Hierarchy) share(t *Threads) {
	if t == nil {
		return
	}
	h.source.calls.limit, h.source.calls.more = t.Calls, t.More
	h.source.closing = &bound{limit: MaxClosing}
	if len(h.tiers) == 0 {
		return
	}
	each := max(2, t.Calls/3/len(h.tiers))
	h.source.calls.limit = max(4, t.Calls-each*len(h.tiers))
	for _, tier := range h.tiers {
		tier.calls = &bound{limit: each, more: t.More}
	}
}

// Calls describes the calls of the source and of the tiers.
func (h *Hierarchy) Calls() (s CallStats) {
	h.source.calls.addTo(&s)
	if h.source.closing == nil {
		s.Bound = 0
	}
	for _, t := range h.tiers {
		t.calls.addTo(&s)
	}
	return s
}
