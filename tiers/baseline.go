package tiers

import (
	"sync/atomic"
	"time"
)

// smallRead is the size up to which the transfer of a read takes no time that matters.
const smallRead = 16 << 10

// A baseline estimates the latency of the source: how long it takes to answer a request that
// transfers next to nothing. The samples are opens, reads of at most smallRead bytes, and the first
// bytes of streams. The estimate is a low quantile of them: it falls by a quarter of the distance
// to a shorter sample, and rises by a 64th of the distance to a longer one. Requests that wait for
// others, for a busy server or for a rate limit hardly raise it. The zero value has no sample.
type baseline struct{ nanos atomic.Int64 }

// add adds a sample.
func (b *baseline) add(d time.Duration) {
	for {
		old := b.nanos.Load()
		next := max(int64(d), 1)
		switch {
		case old == 0:
		case next < old:
			next = old - (old-next+3)/4
		default:
			next = old + (next-old)/64
		}
		if b.nanos.CompareAndSwap(old, next) {
			return
		}
	}
}

// load returns the estimate. It is 0 before the first sample.
func (b *baseline) load() time.Duration { return time.Duration(b.nanos.Load()) }

// BaseLatency returns the estimated latency of the source: see baseline.
func (s *Source) BaseLatency() time.Duration { return s.base.load() }

// ReadLatency returns how long the reads of the tier took.
func (t *Tier) ReadLatency() Latency { return t.latency.Load() }
