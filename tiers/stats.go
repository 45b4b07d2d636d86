package tiers

import (
	"sync/atomic"
	"time"
)

// Buckets are the upper bounds of a Histogram, in seconds: powers of four from
// 4 µs. What is slower is counted in Count alone.
var Buckets = [...]float64{4e-6, 16e-6, 64e-6, 256e-6, 1024e-6, 4096e-6, 16384e-6, 65536e-6, 262144e-6, 1.048576, 4.194304}

// A Histogram counts how long operations took. The zero value is empty.
type Histogram struct {
	buckets [len(Buckets)]atomic.Uint64
	count   atomic.Uint64
	nanos   atomic.Int64
}

// Observe counts one operation.
func (h *Histogram) Observe(d time.Duration) {
	h.count.Add(1)
	h.nanos.Add(int64(d))
	bound := 4 * time.Microsecond
	for i := range h.buckets {
		if d <= bound {
			h.buckets[i].Add(1)
			return
		}
		bound *= 4
	}
}

// A Latency is a Histogram as it was at one moment.
type Latency struct {
	Buckets [len(Buckets)]uint64 // operations that took at most Buckets[i], not counting faster buckets
	Count   uint64               // operations in all
	Sum     time.Duration        // their time in all
}

// Load returns what h has counted so far.
func (h *Histogram) Load() Latency {
	var l Latency
	for i := range h.buckets {
		l.Buckets[i] = h.buckets[i].Load()
	}
	l.Count, l.Sum = h.count.Load(), time.Duration(h.nanos.Load())
	return l
}

// TierStats is what a tier has done since the start, and what it holds.
type TierStats struct {
	Level   Level
	Name    string
	Path    string
	Quota   int64   // bytes; 0 while the tier is being counted
	Used    int64   // bytes of committed copies, in whole blocks
	Filling int64   // bytes reserved for copies in flight
	Files   int64   // committed copies
	Reads   int64   // read operations answered
	Bytes   int64   // bytes read
	Errors  int64   // operations that failed
	Health  Health  // state
	Cause   error   // why it is not Well, or nil
	Counted bool    // false while what it holds is not known yet
	Latency Latency // of reads
}

// SourceStats is what the source was asked since the start.
type SourceStats struct {
	Opens, Reads, Stats, ReadDirs, Readlinks, Xattrs int64 // operations

	Bytes   int64   // bytes read
	Errors  int64   // operations that failed, other than for names that are not there
	Latency Latency // of reads
}
