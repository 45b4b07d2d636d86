package tiers

import (
	"context"
	"errors"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// Threads describe for how many calls of storages that may block there are threads, if the threads of the
// process are limited. A Go program ends when it needs a thread and cannot make one.
type Threads struct {
	Calls int64 // for how many calls there are threads at the start, without 16 for files that are being closed

	// More makes threads for up to n more calls, and returns for how many. The process keeps them. It is
	// called concurrently, while calls wait.
	More func(n int) int
}

// The operations in flight, abandoned ones included, are bounded. Further ones wait. A Go program ends when it
// has 10,000 threads.
const (
	maxSourceCalls = 4096 // at the source
	maxTierCalls   = 1024 // in each tier
)

// errQueued is the error of an operation on a tier that had to wait for others until its time was up, and was
// not begun. That says nothing about the health of the tier: the time-outs of the others do.
var errQueued = errors.New("other operations have not ended in time")

// admit waits until an operation on the tier is admitted, for at most timeout, or ctx is done. After nil, the
// caller calls endCall.
func (t *Tier) admit(ctx context.Context, timeout time.Duration) error {
	if t.calls.TryAcquire(1) {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	switch err := t.calls.Acquire(limited); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return errQueued
}

func (t *Tier) endCall() { t.calls.Release(1) }

// limitCalls divides the threads among the source and the tiers, so that a storage that hangs uses up its own
// share only. A source that is requested over a network occupies no threads.
func (h *Hierarchy) limitCalls(t *Threads) {
	if t == nil {
		return
	}
	shares, left := int64(len(h.tiers)), t.Calls
	network := h.source.Profile().Latency == drivers.LatencyRequest
	if !network {
		shares = 3 * shares
	}
	for _, tier := range h.tiers {
		n := max(2, t.Calls/shares)
		tier.calls.Lower(n, t.More)
		left -= n
	}
	if !network {
		h.source.calls.Lower(max(4, left), t.More)
		h.source.closing.Lower(maxHung, t.More)
	}
}

// WaitingCalls returns the number of operations on the source and the tiers that wait for others to end,
// because there can be no more threads.
func (h *Hierarchy) WaitingCalls() int {
	n := h.source.calls.Waiting() + h.source.closing.Waiting()
	for _, t := range h.tiers {
		n += t.calls.Waiting()
	}
	return n
}
