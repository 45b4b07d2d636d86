package tiers

import (
	"sync/atomic"
	"time"
)

// Buckets are the upper bounds of a Histogram, in seconds: powers of four from
// 4 µs. Only Count includes slower operations.
var Buckets = [...]float64{4e-6, 16e-6, 64e-6, 256e-6, 1024e-6, 4096e-6, 16384e-6, 65536e-6, 262144e-6, 1.048576, 4.194304}

// A Histogram counts operations by their duration. The zero value is empty.
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

// A Latency is a snapshot of a Histogram.
type Latency struct {
	Buckets [len(Buckets)]uint64 // operations that took at most Buckets[i] and longer than Buckets[i-1]
	Count   uint64               // all operations
	Sum     time.Duration        // total duration of all operations
}

// Load returns the current counts.
func (h *Histogram) Load() Latency {
	var l Latency
	for i := range h.buckets {
		l.Buckets[i] = h.buckets[i].Load()
	}
	l.Count, l.Sum = h.count.Load(), time.Duration(h.nanos.Load())
	return l
}

// Plus returns the sum of l and m.
func (l Latency) Plus(m Latency) Latency {
	for i, n := range m.Buckets {
		l.Buckets[i] += n
	}
	return Latency{l.Buckets, l.Count + m.Count, l.Sum + m.Sum}
}

// TierCounters count what a tier has done since the daemon started. They only grow.
//
// The tags of a counter are its documentation: json is its name in the JSON of the status,
// metric and labels are its name as a Prometheus metric, help says what it counts, and
// family says what a metric counts that several fields share. To add a counter, add a
// field and the line that counts, and regenerate the table of docs/operations.md with
// go test ./cmd/internal/metrics -update.
type TierCounters struct {
	Reads  int64 `json:"reads" metric:"tier_reads_total" help:"Reads that the tier served."`
	Bytes  int64 `json:"bytes_read" metric:"tier_read_bytes_total" help:"Bytes read from the tier."`
	Errors int64 `json:"errors" metric:"tier_errors_total" help:"Operations on the tier that failed."`

	Corrupt int64 `json:"corrupt_copies" metric:"tier_corrupt_copies_total" help:"Copies that were removed because their content was not what was written."`
}

// TierStats is what a tier has done since the start, and what it holds.
type TierStats struct {
	TierCounters

	Level   Level
	Name    string
	Path    string
	Quota   int64   // bytes; 0 while the tier is being counted
	Used    int64   // bytes of committed copies, in whole blocks
	Filling int64   // bytes reserved for copies in flight
	Window  int64   // bytes of copies in the window
	Files   int64   // committed copies
	Health  Health  // state
	Cause   error   // why it is not Healthy, or nil
	Short   error   // what its device lacks for copies for which the quota has room, or nil; it matches ErrDiskFull, ErrNoInodes or drivers.ErrNoRecord
	Scanned bool    // the copies have been counted
	Latency Latency // of reads
}

// SourceOperations count the operations on the source by kind. The tags are those of
// TierCounters.
type SourceOperations struct {
	Opens     int64 `json:"open" metric:"source_operations_total" labels:"operation=open" help:"Files opened." family:"Operations on the source, by kind."`
	Reads     int64 `json:"read" metric:"source_operations_total" labels:"operation=read" help:"Reads. A stream of several blocks is one read."`
	Stats     int64 `json:"stat" metric:"source_operations_total" labels:"operation=stat" help:"Lookups of the attributes of one name."`
	ReadDirs  int64 `json:"readdir" metric:"source_operations_total" labels:"operation=readdir" help:"Directories listed."`
	Readlinks int64 `json:"readlink" metric:"source_operations_total" labels:"operation=readlink" help:"Symbolic links read."`
	Xattrs    int64 `json:"xattr" metric:"source_operations_total" labels:"operation=xattr" help:"Extended attributes listed or read."`
	ACLs      int64 `json:"acl" metric:"source_operations_total" labels:"operation=acl" help:"Access control lists read."`
	Holes     int64 `json:"holes" metric:"source_operations_total" labels:"operation=holes" help:"Sparse files whose holes were located."`
}

// SourceCounters count what the source has done since the daemon started. They only grow.
type SourceCounters struct {
	SourceOperations `json:"operations" help:"Operations on the source, by kind."`

	Bytes  int64 `json:"bytes_read" metric:"source_read_bytes_total" help:"Bytes read from the source."`
	Errors int64 `json:"errors" metric:"source_errors_total" help:"Operations on the source that failed. A missing name is not a failure."`
}

// SourceStats describes the source at one moment.
type SourceStats struct {
	SourceCounters

	Latency Latency // of reads
}
